"""
The order of things: rounds in which all systems take turns, so that what drifts on the machine drifts under
all of them equally.

    open A, open B, ...           (each checks its answer)
    round 1: distance  A A A  B B B  ...  distance
    round 2: distance  A A A  B B B  ...  distance
    ...
    close A, close B, ...

The distance between the cores is measured before and after each round and stands beside its figures: *near*,
*far*, or *moving* where the two differ.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.launch.ranks import RanksError
from penstock.units import format_size
from penstock_bench.neighbour import BESIDE
from penstock_bench.systems import System

NEAR_BELOW_NS = 150.0
"""Round trips of a cache line stand at 50 to 60 ns or at 320 to 430 ns: anything between tells them apart."""
ROUND_SECONDS = 0.4
"""Time that a system gets in a round, where the user does not say how many repeats."""
LEAST_REPEATS = 3
MOST_REPEATS = 2000
_GLANCE = 0.1
"""Seconds of looking how busy the cores are: ten ticks a core."""
PILOT_REPEATS = 3
"""Iterations that are timed when a case is opened, to see how many fit into a round; they do not count."""


@dataclass(frozen=True)
class Spread:
    """What is said of the times of all iterations, in seconds."""

    median: float
    least: float
    most: float
    first_quartile: float
    third_quartile: float
    repeats: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Of at least one time."""
        if len(times) > 1:
            first, _, third = statistics.quantiles(times, n=4, method="inclusive")
        else:
            first = third = times[0]
        return cls(statistics.median(times), min(times), max(times), first, third, len(times))

    @property
    def relative(self) -> float:
        """Half the range between the quartiles, of the median: half of all times lie within about +- this."""
        return (self.third_quartile - self.first_quartile) / 2 / self.median if self.median else 0.0


@dataclass
class Round:
    """One turn of all systems."""

    distance_ns: tuple[float, float]
    """Core to core and back, before and after."""
    times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of each iteration, by system."""
    busy: float = 0.0
    """Share of the host's cores that other processes used just before."""
    processor: dict[str, float] = field(default_factory=dict)
    """Processor seconds of all processes an iteration, by system."""

    @property
    def placement(self) -> str:
        """near, far, moving, or single (one core)."""
        if any(map(math.isnan, self.distance_ns)):
            return "single"
        near = {distance < NEAR_BELOW_NS for distance in self.distance_ns}
        return "moving" if len(near) > 1 else "near" if near == {True} else "far"


@dataclass
class Case:
    """One size and number of workers, on all systems."""

    nbytes: int
    workers: int
    chunk: int | None = None
    """Penstock's chunk size in bytes, where it is swept."""
    rounds: list[Round] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Systems that were not measured or failed, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """What the processes of a system that failed said last."""
    company: str = ""
    """Beside what it was measured."""
    beside: Case | None = None
    """The same, measured in turns beside a busy process, where that was asked for."""

    @property
    def all(self) -> list[Case]:
        """Itself, and what was measured beside it."""
        return [self] if self.beside is None else [self, self.beside]

    def times(self, system: str, placement: str | None = None) -> list[float]:
        """Seconds of all iterations of a system, of all rounds or of those in one placement."""
        rounds = [r for r in self.rounds if placement is None or r.placement == placement]
        return [time for r in rounds for time in r.times.get(system, ())]

    def processor(self, system: str) -> float | None:
        """Processor seconds an iteration of a system: the median over the rounds; None where nobody knows."""
        found = [r.processor[system] for r in self.rounds if system in r.processor]
        return statistics.median(found) if found else None

    def spreads(self, placement: str | None = None) -> dict[str, Spread]:
        """By system, those that were measured."""
        names = dict.fromkeys(name for r in self.rounds for name in r.times)
        return {name: Spread.of(times) for name in names if (times := self.times(name, placement))}

    @property
    def placements(self) -> list[str]:
        """The placements that occurred."""
        return list(dict.fromkeys(r.placement for r in self.rounds))

    @property
    def temperature(self) -> str:
        """cold where gradients and parameters do not fit into the last-level cache together, else hot."""
        cache = last_level_cache()
        return "cold" if cache and (self.workers + 1) * self.nbytes > cache else "hot"


def measure(
    case: Case,
    systems: Sequence[System],
    *,
    rounds: int,
    repeats: int | None,
    distance: Callable[[], float],
    busy: Callable[[], float],
    note: Callable[[str], None],
    neighbour: Callable[[], AbstractContextManager[None]] | None = None,
) -> Case:
    """
    Measures one case on all systems, filling `case`.

    Parameters
    ----------
    case
        Size and workers.
    systems
        In the order of their turns.
    rounds
        Turns of each.
    repeats
        Iterations of each system in a round; None: as many as fit into `ROUND_SECONDS`.
    distance
        Nanoseconds from core to core and back.
    busy
        Share of the cores that is in use, while all systems wait.
    note
        Told what goes on.
    neighbour
        Keeps a core busy: then each round is run once more beside it, for `case.beside`.

    Returns
    -------
    Case
        `case`. A system that is missing or fails stands in `case.absent`; the others go on.
    """
    if neighbour:
        absent, failed = case.absent, case.failed
        case.beside = Case(case.nbytes, case.workers, case.chunk, [], absent, failed, company=BESIDE)
    standing = {system.name: system for system in systems}
    for system in systems:
        reason = system.missing() or _too_large(standing, case)
        if reason:
            case.absent[system.name] = reason
            del standing[system.name]
    counts: dict[str, int] = {}

    def attempt(system: System, what: str, act: Callable[[], None]) -> None:
        note(f"{format_size(case.nbytes)}, {case.workers} workers: {system.name} {what}")
        try:
            act()
        except RanksError as error:
            case.absent[system.name] = f"failed: {error}"
            case.failed[system.name] = error.detail
            del standing[system.name]

    def prepare(system: System) -> None:
        system.open(case.nbytes, case.workers)
        counts[system.name] = repeats or fitting(system.run(PILOT_REPEATS))

    def turn(system: System, found: Round) -> None:
        found.times[system.name] = system.run(counts[system.name])
        if system.processor is not None:
            found.processor[system.name] = system.processor

    try:
        for system in list(standing.values()):
            attempt(system, "starts", partial(prepare, system))
        for number in range(1, rounds + 1):
            others = busy()
            for one in case.all:
                with neighbour() if one.company and neighbour else nullcontext():
                    before = distance()
                    found = Round((before, before), busy=others)
                    for system in list(standing.values()):
                        attempt(system, f"round {number} of {rounds}", partial(turn, system, found))
                    found.distance_ns = (before, distance())
                    one.rounds.append(found)
    finally:
        for system in list(standing.values()):
            attempt(system, "ends", system.close)
    return case


def fitting(pilot: Sequence[float]) -> int:
    """How many iterations fit into a round, from the times of a few."""
    return max(LEAST_REPEATS, min(MOST_REPEATS, round(ROUND_SECONDS / max(statistics.median(pilot), 1e-9))))


def _too_large(standing: Mapping[str, System], case: Case) -> str | None:
    """All systems of a case hold their memory at once, since their rounds alternate."""
    needed = sum(system.memory(case.nbytes, case.workers) for system in standing.values())
    available = available_memory()
    if available is None or needed <= available:
        return None
    return (
        f"all systems together need {format_size(needed)} of memory, {format_size(available)} are available"
    )


def available_memory() -> int | None:
    """Bytes to be had without swapping: the host's, or what the control group leaves. None if nobody says."""
    found: list[int] = []
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # no such group, or "max"
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found, default=None)


def busy_cores() -> float:
    """Share of all cores' time that is used, in the next `_GLANCE` seconds; 0 if the host does not say."""
    before = _cpu_time()
    time.sleep(_GLANCE)
    used, total = (after - earlier for after, earlier in zip(_cpu_time(), before, strict=True))
    return used / total if total else 0.0


def _cpu_time() -> tuple[int, int]:
    """Ticks that all cores together have worked, and have existed."""
    try:
        ticks = [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0, 0
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and waiting for a disk


def last_level_cache() -> int | None:
    """Bytes of the largest cache of this host's first core; None if the host does not say."""
    sizes: list[int] = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1))
    return max(sizes, default=None)


def machine(distance: Callable[[], float]) -> dict[str, object]:
    """What has to be known of the machine beside the figures."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    nanoseconds = distance()
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "last_level_cache_bytes": last_level_cache(),
        "core_distance_ns": None if math.isnan(nanoseconds) else round(nanoseconds, 1),
    }
