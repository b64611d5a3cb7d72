"""
The systems that are measured, one a file: how it is started, what one rank does, what it needs.

The work is the same for all: N workers each hold a float32 gradient of the same size; afterwards w -= lr *
(g0 + g1 + ...) is visible to all workers. Where a gradient must stand is each system's own choice (a lane, a
torch tensor, a NumPy array), and it stands there before the time starts.
"""

from __future__ import annotations

from typing import Protocol

from penstock.launch.ranks import RanksError


class System(Protocol):
    """Something that can do the work."""

    name: str
    """As it stands in the report and in the JSON."""
    processor: float | None
    """Processor seconds of all its processes an iteration, in the last run; None where that is not known."""

    def missing(self) -> str | None:
        """Why this system cannot be measured here; None if it can."""

    def memory(self, nbytes: int, workers: int) -> int:
        """Bytes of memory that a case of this size takes."""

    def open(self, nbytes: int, workers: int) -> None:
        """Starts what has to be started and checks the answer."""

    def run(self, repeats: int) -> list[float]:
        """Seconds of each of `repeats` iterations."""

    def close(self) -> None:
        """Gives back the case's memory. The processes may stay for the next case."""

    def end(self) -> None:
        """Ends all processes. Safe to call at any time, and twice."""


class BenchError(RanksError):
    """A system failed while it was measured. `detail` is what its processes last said."""
