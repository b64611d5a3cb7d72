"""
Penstock itself: `pushpull` of what stands in the lane, synchronously, SGD on the server.

One rank, in the time: `t.pushpull()` (the gradient stands in the lane, the new parameters are looked at where
the server published them, no byte is copied) and `job.clock()`. The processes are started by `penstock run`,
as a user starts them.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from penstock_bench import ranks
from penstock_bench.systems.on_ranks import SystemOnRanks

if TYPE_CHECKING:
    import penstock as ps


class Penstock(SystemOnRanks):
    """
    A job of its own for each case, so that tensors of earlier cases hold no memory.

    Parameters
    ----------
    servers
        Server processes.
    options
        More options of `penstock run`, by their names on the command line, without dashes.
    """

    name = "penstock"

    def __init__(self, servers: int = 1, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._servers = servers
        self._options = dict(options or {})

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        return None if find_spec("penstock._core") else "penstock._core is not built (make build)"

    def memory(self, nbytes: int, workers: int) -> int:
        """A lane and perhaps a mirror of each worker, and the model."""
        return (2 * workers + 1) * nbytes

    def commands(self, workers: int) -> list[list[str]]:
        """`penstock run`."""
        options = [part for name, value in self._options.items() for part in (f"--{name}", value)]
        run = [
            sys.executable,
            "-m",
            "penstock.cli",
            "run",
            "--workers",
            str(workers),
            "--servers",
            str(self._servers),
        ]
        return [[*run, "--consistency", "bsp", *options, "-m", __name__]]

    def close(self) -> None:
        """Ends the job."""
        self.end()

    def latencies(self, repeats: int) -> dict[str, list[float]]:
        """Seconds of each call on the first rank: `pushpull` with `clock`, `pull`, `pull(out=)`."""
        answer = self._ask(do="latencies", repeats=repeats)[0]
        return {name: [nanoseconds / 1e9 for nanoseconds in times] for name, times in answer.items()}


class PenstockRank:
    """One rank."""

    def __init__(self) -> None:
        import penstock as ps

        self._ps = ps
        self._job = ps.init()
        self.rank, self.size = self._job.rank, self._job.size
        self._tensor: ps.Tensor | None = None

    def open(self, nbytes: int) -> None:
        """Declares and checks. The lane is filled once: the server reads it and leaves it as it is."""
        ps = self._ps
        tensor = self._job.tensor(
            f"bench-{nbytes}",
            shape=(nbytes // 4,),
            dtype=np.float32,
            optimizer=ps.SGD(ranks.LEARNING_RATE),
            consistency=ps.BSP(),
            reduce="sum",
        )
        self._tensor = tensor
        ranks.fill(tensor.lane(), self.rank)
        for step in range(1, ranks.CHECKED_STEPS + 1):
            view = tensor.pushpull()
            ranks.check(view, step, self.size)
            self._job.clock()
        self._pushpull, self._clock = tensor.pushpull, self._job.clock
        # The same values as in the other systems.
        tensor.lane().fill(0.0)

    def step(self) -> None:
        """Push and pull in one, then the clock."""
        self._pushpull()
        self._clock()

    def latencies(self, repeats: int) -> dict[str, list[int]]:
        """
        Nanoseconds of single calls; each iteration publishes a new version first, so that every pull is of a
        fresh value.

        The clock's own cost (about 40 ns a reading) is in each figure.
        """
        tensor, clock, now = self._tensor, self._job.clock, time.perf_counter_ns
        assert tensor is not None
        out = np.empty(tensor.shape, np.float32)
        pushpull, pull, pull_out = [0] * repeats, [0] * repeats, [0] * repeats
        gc.disable()
        try:
            for i in range(-min(repeats, 100), repeats):
                start = now()
                tensor.pushpull()
                clock()
                stepped = now()
                tensor.pull()
                looked = now()
                tensor.pull(out)
                copied = now()
                if i >= 0:
                    pushpull[i], pull[i], pull_out[i] = stepped - start, looked - stepped, copied - looked
        finally:
            gc.enable()
        return {"pushpull": pushpull, "pull": pull, "pull(out=)": pull_out}

    def close(self) -> None:
        """The job ends with the process."""


def main() -> None:
    """One rank."""
    rank = PenstockRank()
    ranks.serve(rank, {"latencies": lambda command: rank.latencies(command["repeats"])})


if __name__ == "__main__":
    main()
