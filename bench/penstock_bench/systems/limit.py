"""
The machine's limit: the same sums by plain vector code over plain memory, on one thread a core.

No processes, no lanes, no versions: `workers` gradients and one set of parameters, on huge pages and touched
beforehand; the time runs from a common start, spinning, to the last thread's finish. Written in Rust without
any of Penstock's own code.
"""

from __future__ import annotations

import os
from importlib.util import find_spec


class Limit:
    """
    Plain vector code.

    Parameters
    ----------
    threads
        How many; default: one for each core that this process may use, as many as a server has shards.
    """

    name = "limit"
    processor: float | None = None
    """Not asked: it is the machine's, and its threads are the runner's."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._case = (0, 0)

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        return None if find_spec("penstock._core") else "penstock._core is not built (make build)"

    def memory(self, nbytes: int, workers: int) -> int:
        """The gradients and the parameters."""
        return (workers + 1) * nbytes

    def open(self, nbytes: int, workers: int) -> None:
        """Remembers the case: memory is mapped, touched and checked anew in each `run`."""
        self._case = (nbytes, workers)

    def run(self, repeats: int) -> list[float]:
        """Seconds of each repeat."""
        from penstock import _core

        nbytes, workers = self._case
        return _core.limit_pushpull(nbytes, workers, self.threads, repeats)

    def close(self) -> None:
        """Nothing stays."""

    def end(self) -> None:
        """Nothing runs."""
