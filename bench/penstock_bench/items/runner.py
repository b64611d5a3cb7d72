"""
Rounds in turns, as for the other benchmarks: what drifts on the machine drifts under all of them equally.

A round of a case: rate of every way of every system, one after the other, then latencies. The distance
between the cores is measured before and after.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.launch.ranks import RanksError
from penstock_bench.items.systems import System
from penstock_bench.items.work import Work
from penstock_bench.neighbour import BESIDE
from penstock_bench.runner import Round, Spread

TURN_SECONDS = 0.2
"""Time of a way in a round, where the user does not say how many repeats."""
LEAST_REPEATS = 5
MOST_REPEATS = 500
PILOT = 3
LATENCIES = 500
"""Round trips of a turn, likewise."""
FRESH = 20


@dataclass
class Measured:
    """One case, by line: a system and its way, such as `mpi put`."""

    work: Work
    latency_too: bool
    rates: dict[str, list[float]] = field(default_factory=dict)
    """
    Seconds of an iteration, the mean of each turn. Not of single iterations: a producer that runs ahead makes
    some of them short and others long.
    """
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """Seconds from a set until a get has returned it."""
    fresh: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of a get of a row that is there."""
    processor: dict[str, list[float]] = field(default_factory=dict)
    """Processor seconds of an iteration, of all processes, the mean of each turn."""
    rounds: list[Round] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Systems that were not measured or failed, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """What the processes of a system that failed said last."""
    company: str = ""
    """Beside what it was measured."""
    beside: Measured | None = None
    """The same, measured in turns beside a busy process, where that was asked for."""

    @property
    def all(self) -> list[Measured]:
        """Itself, and what was measured beside it."""
        return [self] if self.beside is None else [self, self.beside]

    def spread(self, line: str) -> Spread | None:
        """Of the turns of a line."""
        times = self.rates.get(line)
        return Spread.of(times) if times else None

    def rows_per_second(self, line: str) -> float | None:
        """Rows that reach each consumer in a second, by the median turn."""
        spread = self.spread(line)
        return None if spread is None else self.work.rows / spread.median

    def processor_per_gb(self, line: str) -> float | None:
        """Processor seconds of all processes for each GB that reaches consumers, by the mean turn."""
        used = self.processor.get(line)
        return statistics.mean(used) / (self.work.nbytes * self.work.consumers / 1e9) if used else None

    def median_latency(self, line: str) -> float | None:
        """Seconds one way."""
        times = self.latencies.get(line)
        return statistics.median(times) if times else None

    def median_fresh(self, line: str) -> float | None:
        """Seconds of a get of a fresh row."""
        times = self.fresh.get(line)
        return statistics.median(times) if times else None


def line_name(system: System, way: str) -> str:
    """`mpi put`; the limit has one way."""
    return system.name if way == system.name else f"{system.name} {way}"


def measure(
    measured: Measured,
    systems: Sequence[System],
    *,
    rounds: int,
    repeats: int | None,
    distance: Callable[[], float],
    busy: Callable[[], float],
    note: Callable[[str], None],
    neighbour: Callable[[], AbstractContextManager[None]] | None = None,
) -> Measured:
    """
    Measures one case on all systems, filling `measured`; with a `neighbour`, which keeps a core busy, each
    round once more beside it, filling `measured.beside`.

    A system that is missing or fails stands in `measured.absent`; the others go on.
    """
    if neighbour:
        measured.beside = replace(
            measured, rates={}, latencies={}, fresh={}, processor={}, rounds=[], company=BESIDE
        )
    standing: dict[str, System] = {}
    for system in systems:
        if reason := system.missing():
            measured.absent[system.name] = reason
        else:
            standing[system.name] = system
    counts: dict[str, int] = {}

    def attempt(system: System, what: str, act: Callable[[System], None]) -> None:
        note(f"{measured.work}: {system.name} {what}")
        try:
            act(system)
        except RanksError as error:
            measured.absent[system.name] = f"failed: {error}"
            measured.failed[system.name] = error.detail
            del standing[system.name]

    def begin(system: System) -> None:
        system.begin(measured.work)
        for way in system.ways:
            counts[line_name(system, way)] = repeats or _fitting(system.rate(way, PILOT))

    def turn(one: Measured, system: System) -> None:
        for way in system.ways:
            line = line_name(system, way)
            times = system.rate(way, counts[line])
            one.rates.setdefault(line, []).append(statistics.mean(times))
            if system.processor is not None:
                one.processor.setdefault(line, []).append(system.processor)

    def latencies(one: Measured, system: System) -> None:
        for way in system.ways:
            line, small = line_name(system, way), repeats
            one.latencies.setdefault(line, []).extend(system.latency(way, small or LATENCIES))
            one.fresh.setdefault(line, []).extend(system.fresh(way, small or FRESH))

    try:
        for system in list(standing.values()):
            attempt(system, "starts", begin)
        for number in range(1, rounds + 1):
            others = busy()
            for one in measured.all:
                with neighbour() if one.company and neighbour else nullcontext():
                    before = distance()
                    for system in list(standing.values()):
                        attempt(system, f"round {number} of {rounds}", partial(turn, one))
                        if measured.latency_too and system.name in standing:
                            attempt(system, f"round {number} of {rounds}, latency", partial(latencies, one))
                    one.rounds.append(Round((before, distance()), {}, others))
    finally:
        for system in list(standing.values()):
            with suppress(RanksError):
                system.finish()
    return measured


def _fitting(pilot: Sequence[float]) -> int:
    """How many iterations fit into a turn, from the times of a few."""
    return max(LEAST_REPEATS, min(MOST_REPEATS, round(TURN_SECONDS / max(statistics.median(pilot), 1e-9))))
