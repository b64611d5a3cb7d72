"""
One rank: rank 0 produces, all others consume.

The time of an iteration is taken as for all benchmarks (`penstock_bench.ranks`): it runs from the moment when
the last consumer had read the iteration before to the moment when the last has read this one, with no barrier
between. Latency is half the time of a round trip: rank 0 sets a row, rank 1 gets it and sets another, rank 0
gets that.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.launch.ranks import serve
from penstock_bench.items.work import Rows, Verifier, Work, stamp

CHECKED = 4
"""Iterations of each way that are verified element by element before anything is timed."""
WARMUP = 2
"""Iterations, or round trips, before the first that counts: another system had the caches."""
FRESH_CALLS = 200
"""Gets of a fresh row between two readings of the clock."""


class Way(ABC):
    """One way of moving rows: what rank 0 and the others do."""

    ahead = 0
    """Iterations that a row may be newer than the one asked for."""

    @abstractmethod
    def values(self) -> Rows:
        """Rank 0: where the rows of the next iteration stand."""

    @abstractmethod
    def produce(self, iteration: int) -> None:
        """Rank 0: passes on the rows of `values`, a batch a call. Iterations count from 1."""

    @abstractmethod
    def consume(self, iteration: int) -> Rows:
        """Others: all rows of the iteration, got a batch a call; they stand until `done`."""

    def ready(self, iteration: int) -> None:  # noqa: B027 - most have nothing to do
        """Rank 0: waits until `values` may be written: all consumers are done with iteration - 2."""

    def done(self, iteration: int) -> None:  # noqa: B027 - most have nothing to do
        """Others: the rows have been read."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """All ranks, not timed: everything that is under way arrives."""

    @abstractmethod
    def ping(self, number: int) -> None:
        """Rank 0: passes a row to rank 1 and takes the answer."""

    @abstractmethod
    def pong(self, number: int) -> None:
        """Rank 1: takes the row and answers."""

    def idle(self) -> None:  # noqa: B027 - most have nothing to do
        """Ranks that have no part in a round trip."""

    def fresh(self) -> Callable[[], object] | None:
        """Rank 1: what gets a row that is there already; None if this way has no such thing."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Gives back the memory."""


class Rank(ABC):
    """
    One rank of a system, told what to do by the runner.

    Parameters
    ----------
    rank, size
        As the system numbers them.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._ways: dict[str, Way] = {}
        self._iterations: dict[str, int] = {}
        self._trips: dict[str, int] = {}

    @abstractmethod
    def way(self, name: str, work: Work) -> Way:
        """Makes one way ready for a case. Collective."""

    def begin(self, command: dict[str, Any]) -> dict[str, Any]:
        """Makes all ways ready and checks them."""
        work = Work(**command["work"])
        self._verifier = Verifier(work)
        for name in command["ways"]:
            self._ways[name] = self.way(name, work)
            self._trips[name] = 0
            self._iterations[name] = CHECKED
            self.run(self._ways[name], 1, CHECKED, each=True)
        return {}

    def rate(self, command: dict[str, Any]) -> dict[str, Any]:
        """Ends of iterations, as `penstock_bench.ranks.ends` has them; processor seconds of each."""
        name, repeats = command["way"], WARMUP + command["repeats"]
        first = self._iterations[name] + 1
        self._iterations[name] += repeats
        before = time.process_time()
        ends = self.run(self._ways[name], first, repeats, each=False)
        used = (time.process_time() - before) / repeats
        return {"ends": ends[WARMUP - 1 :], "processor": used}

    def run(self, way: Way, first: int, repeats: int, *, each: bool) -> list[int]:
        """
        Iterations `first`, `first` + 1, ... of one way; returns when each ended, in monotonic nanoseconds.

        `each` verifies element by element instead of by the sum.
        """
        now, ends = time.monotonic_ns, [0] * repeats
        check = self._verifier.check_each if each else self._verifier.check
        gc.disable()
        try:
            if self.rank == 0:
                for place, iteration in enumerate(range(first, first + repeats)):
                    way.ready(iteration)
                    stamp(way.values(), iteration)
                    way.produce(iteration)
                    ends[place] = now()
            else:
                for place, iteration in enumerate(range(first, first + repeats)):
                    check(way.consume(iteration), iteration, way.ahead)
                    way.done(iteration)
                    ends[place] = now()
            way.settle()
        finally:
            gc.enable()
        return ends

    def latency(self, command: dict[str, Any]) -> dict[str, Any]:
        """Nanoseconds of round trips, as rank 0 sees them."""
        name, repeats = command["way"], command["repeats"] + WARMUP
        way, now = self._ways[name], time.perf_counter_ns
        first = self._trips[name] + 1
        self._trips[name] += repeats
        times: list[int] = []
        gc.disable()
        try:
            for number in range(first, first + repeats):
                if self.rank == 0:
                    start = now()
                    way.ping(number)
                    times.append(now() - start)
                elif self.rank == 1:
                    way.pong(number)
                else:
                    way.idle()
            way.settle()
        finally:
            gc.enable()
        return {"trips": times[WARMUP:]}

    def fresh(self, command: dict[str, Any]) -> dict[str, Any]:
        """Nanoseconds of a get of a row that is there already, each the mean of `FRESH_CALLS`."""
        way, now = self._ways[command["way"]], time.perf_counter_ns
        act = way.fresh() if self.rank == 1 else None
        times: list[float] = []
        if act is not None:
            for _ in range(WARMUP + command["repeats"]):
                start = now()
                for _ in range(FRESH_CALLS):
                    act()
                times.append((now() - start) / FRESH_CALLS)
        way.settle()
        return {"calls": times[WARMUP:]}

    def finish(self, _: dict[str, Any]) -> dict[str, Any]:
        """The case is over."""
        for way in self._ways.values():
            way.close()
        self._ways.clear()
        return {}

    def serve(self) -> None:
        """Does what the runner says."""
        commands = {
            "begin": self.begin,
            "rate": self.rate,
            "latency": self.latency,
            "fresh": self.fresh,
            "finish": self.finish,
        }
        serve(self.rank, commands)
