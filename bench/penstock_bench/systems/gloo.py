"""
Gloo all-reduce, then plain SGD, as a PyTorch script without DDP would do it.

One rank, in the time: `all_reduce(g)` in place (Gloo's pairs speak TCP on the loopback), then
`w.add_(g, alpha=-lr)`, one pass. One thread a rank, as torchrun sets it; two threads a rank, and ranks bound
to cores, lay within Gloo's own wide spread on two cores. Every rank has its own parameters: N copies are
updated, where a parameter server updates one.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np

from penstock.launch.ranks import rank_command
from penstock_bench import ranks
from penstock_bench.systems.on_ranks import SystemOnRanks


class Gloo(SystemOnRanks):
    """`torch.distributed` with Gloo."""

    name = "gloo+sgd"

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        return None if find_spec("torch") else "torch is not installed (pip install torch)"

    def memory(self, nbytes: int, workers: int) -> int:
        """Gradient and parameters of each rank, and about one more in Gloo's buffers."""
        return 3 * workers * nbytes

    def commands(self, workers: int) -> list[list[str]]:
        """Each rank by itself; they meet in a file."""
        return [[*rank_command(__name__), "{folder}"] for _ in range(workers)]

    def environments(self, workers: int) -> list[dict[str, str]]:
        """The variables that torchrun sets, and the loopback, without which Gloo looks up the host's name."""
        shared = {"WORLD_SIZE": str(workers), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        return [{**shared, "RANK": str(rank)} for rank in range(workers)]


class GlooRank:
    """One rank."""

    def __init__(self, folder: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/gloo", rank=self.rank, world_size=self.size
        )
        self._torch = torch
        self._all_reduce: Any = dist.all_reduce
        self.close()

    def open(self, nbytes: int) -> None:
        """Allocates and checks. Sums go in place: the gradient is written anew before each checked step."""
        elements = nbytes // 4
        gradient, parameters = np.empty(elements, np.float32), np.zeros(elements, np.float32)
        self._gradient, self._parameters = (
            self._torch.from_numpy(gradient),
            self._torch.from_numpy(parameters),
        )
        for _ in range(ranks.CHECKED_STEPS):
            ranks.fill(gradient, self.rank)
            self.step()
        ranks.check(parameters, ranks.CHECKED_STEPS, self.size)
        # Sums in place double from step to step; zeros stay what they are, and cost the same.
        gradient.fill(0.0)

    def step(self) -> None:
        """All-reduce and SGD."""
        self._all_reduce(self._gradient)
        self._parameters.add_(self._gradient, alpha=-ranks.LEARNING_RATE)

    def close(self) -> None:
        """Forgets the arrays."""
        self._gradient = self._parameters = self._torch.empty(0)


if __name__ == "__main__":
    import sys

    ranks.serve(GlooRank(sys.argv[1]))
