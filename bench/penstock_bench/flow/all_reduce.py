"""
One worker that trains by all-reduces: `python -m penstock_bench.flow.all_reduce MEETING SCRIPT OPTION...`

It runs `train` of a script of examples/flow with a job of its own kind in place of Penstock's: the same data
in the same order, the same arithmetic, the same measurements. A push is an all-reduce by Gloo of the whole
gradient, and a step of SGD on this worker's own copy of the value.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import penstock as ps


class AllReduceTensor:
    """What the scripts use of a `penstock.Tensor`."""

    consistency = "all-reduce"

    def __init__(self, value: np.ndarray[Any, Any], rule: ps.SGD | None, divisor: int) -> None:
        import torch

        self._value = np.array(value, np.float32)
        self._gradient = np.zeros_like(self._value)
        self._shared = torch.from_numpy(self._gradient)
        self._rule, self._divisor = rule, divisor
        self._momentum: np.ndarray[Any, Any] | None = None

    def lane(self) -> np.ndarray[Any, Any]:
        """Where the gradient is written."""
        return self._gradient

    def push(self) -> None:
        """Sums over all workers, and takes the step, as torch's SGD does."""
        import torch.distributed as dist

        dist.all_reduce(self._shared)
        rule = self._rule
        assert rule is not None, "a tensor that is pushed has a rule"
        gradient = self._gradient
        if self._divisor > 1:
            gradient /= np.float32(self._divisor)
        if rule.weight_decay:
            gradient += np.float32(rule.weight_decay) * self._value
        if rule.momentum:
            if self._momentum is None:
                self._momentum = gradient.copy()
            else:
                self._momentum *= np.float32(rule.momentum)
                self._momentum += gradient
            gradient = self._momentum
        self._value -= np.float32(rule.lr) * gradient

    def pull(self, **_: Any) -> np.ndarray[Any, Any]:
        """This worker's copy, which is as everybody's."""
        return self._value


class AllReduceJob:
    """What the scripts use of a `penstock.Job`."""

    deadline = 60.0

    def __init__(self, meeting: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=self.rank, world_size=self.size)

    def tensor(
        self,
        _name: str,
        value: np.ndarray[Any, Any] | None = None,
        *,
        shape: tuple[int, ...] = (),
        optimizer: ps.SGD | None = None,
        reduce: str = "mean",
        **_: Any,
    ) -> AllReduceTensor:
        """Every worker's own copy, with the same first value. How it travels is of no use here."""
        first = np.zeros(shape) if value is None else value
        return AllReduceTensor(first, optimizer, self.size if reduce == "mean" else 1)

    def all_gather(self, value: Any, **_: Any) -> list[Any]:
        """Everybody's object."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def barrier(self, **_: Any) -> None:
        """Waits for all."""
        import torch.distributed as dist

        dist.barrier()

    def clock(self) -> None:
        """An all-reduce is in step by itself."""

    def stats(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def layers(self) -> dict[str, dict[str, float]]:
        """Nor is time."""
        return {}

    def close(self) -> None:
        """Ends Gloo's threads, once nobody needs this worker any more."""
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    """One worker."""
    meeting, script, *options = sys.argv[1:]
    path = Path(script)
    sys.path.insert(0, str(path.parent))
    sys.argv = [script, *options]
    module = importlib.import_module(path.stem)
    job = AllReduceJob(meeting)
    module.train(job, module.arguments())
    job.close()


if __name__ == "__main__":
    main()
