"""
The limit on one host: the rows are copied once for each consumer, all of an iteration in one call, by one
thread of one process. Latency: half of what a cache line needs to the other core and back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from penstock_bench.items.work import Rows, Work, fill

_CALLS = 200


class Copies:
    """
    Plain copies.

    Parameters
    ----------
    distance
        Nanoseconds from core to core and back; NaN if nobody says.
    """

    name = "limit"
    ways: Sequence[str] = ("limit",)
    processor: float | None = None

    def __init__(self, distance: Callable[[], float]) -> None:
        self._distance = distance

    def missing(self) -> str | None:
        """Why this cannot be measured here: never."""
        return None

    def begin(self, work: Work) -> None:
        """The producer's rows, and an array for each consumer."""
        self._values: Rows = np.empty((work.rows, work.width))
        fill(self._values)
        self._rows = [np.zeros_like(self._values) for _ in range(work.consumers)]

    def rate(self, _way: str, repeats: int) -> list[float]:
        """Seconds of each iteration."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            for rows in self._rows:
                np.copyto(rows, self._values)
            times.append(time.perf_counter() - start)
        return times

    def latency(self, _way: str, _repeats: int) -> list[float]:
        """Seconds one way."""
        nanoseconds = self._distance()
        return [] if math.isnan(nanoseconds) else [nanoseconds / 2e9]

    def fresh(self, _way: str, repeats: int) -> list[float]:
        """Seconds of copying one row, with the call."""
        source, target, copy = self._values[0], self._rows[0][0], np.copyto
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(_CALLS):
                copy(target, source)
            times.append((time.perf_counter() - start) / _CALLS)
        return times

    def finish(self) -> None:
        """Forgets the arrays."""
        self._rows = []

    def end(self) -> None:
        """Nothing runs."""
