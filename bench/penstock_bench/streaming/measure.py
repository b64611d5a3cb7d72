"""Rounds in which all take turns, on the same hosts: what drifts on the machine drifts for all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.launch.ranks import RanksError
from penstock_bench.runner import Spread
from penstock_bench.streaming.systems import System
from penstock_bench.streaming.traffic import Bytes, Traffic

FIRST = 4
"""Iterations before the first that counts: until connections stand, and values go along the trees."""
WARMUP = 1
"""Iterations of each turn that do not count: memory and threads of this system come back."""


@dataclass
class Found:
    """What was measured of one system."""

    name: str
    nbytes: int
    times: list[float] = field(default_factory=list)
    """Seconds of each iteration that counts."""
    sent: list[float] = field(default_factory=list)
    """By host: what it sends in an iteration, of the value's bytes."""
    received: list[float] = field(default_factory=list)
    processor: float = 0.0
    """Processor seconds of all its processes an iteration."""
    iterations: int = 0

    @property
    def spread(self) -> Spread:
        """Of the times."""
        return Spread.of(self.times)

    @property
    def busiest(self) -> tuple[int, float]:
        """The host that sends most, and how much."""
        host = max(range(len(self.sent)), key=lambda host: self.sent[host])
        return host, self.sent[host]

    def add(self, times: Sequence[float], moved: Bytes, processor: float) -> None:
        """A turn: all its times, of which the first do not count, but their bytes do."""
        before, here = self.iterations, len(times)
        self.times += times[WARMUP:]
        self.iterations += here

        def mean(old: float, new: float) -> float:
            return (old * before + new) / self.iterations

        nothing = [0.0] * len(moved.sent)
        for name, bytes_ in (("sent", moved.sent), ("received", moved.received)):
            pairs = zip(getattr(self, name) or nothing, bytes_, strict=True)
            setattr(self, name, [mean(old, new / self.nbytes) for old, new in pairs])
        self.processor = mean(self.processor, processor)


@dataclass
class Case:
    """All that was measured on one set of hosts."""

    workers: int
    servers: int
    nbytes: int
    rate: int
    found: dict[str, Found] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Systems that were not measured or failed, and why."""
    failed: dict[str, str] = field(default_factory=dict)
    """What the processes of a system that failed said last."""
    busy: list[float] = field(default_factory=list)
    """Share of the machine's cores that others used, before each round."""

    @property
    def others(self) -> float:
        """The median of it."""
        return statistics.median(self.busy) if self.busy else 0.0


def measure(
    case: Case,
    systems: Sequence[System],
    traffic: Traffic,
    *,
    rounds: int,
    repeats: int,
    busy: Callable[[], float],
    note: Callable[[str], None],
) -> None:
    """
    Fills `case`. A system that is missing or fails stands in `case.absent`; the others go on.

    Parameters
    ----------
    case
        What is measured.
    systems
        In the order of their turns.
    traffic
        The hosts' counters.
    rounds, repeats
        Turns of each, and iterations of a turn that count.
    busy
        Share of the cores that is in use while all wait.
    note
        Told what goes on.
    """
    standing = {system.name: system for system in systems}

    def attempt(system: System, what: str, act: Callable[[], None]) -> None:
        note(f"{case.workers} workers: {system.name} {what}")
        try:
            act()
        except RanksError as error:
            case.absent[system.name], case.failed[system.name] = f"failed: {error}", error.detail
            case.found.pop(system.name, None)
            standing.pop(system.name).end()

    def start(system: System) -> None:
        system.open()
        system.run(FIRST)
        case.found[system.name] = Found(system.name, case.nbytes)

    def turn(system: System) -> None:
        before, used = traffic.read(), system.processor()
        times = system.run(WARMUP + repeats).seconds()
        case.found[system.name].add(times, traffic.read().since(before), system.processor() - used)

    try:
        for system in systems:
            if reason := system.missing():
                case.absent[system.name] = reason
                del standing[system.name]
            else:
                attempt(system, "starts", lambda system=system: start(system))  # type: ignore[misc]
        for number in range(1, rounds + 1):
            case.busy.append(busy())
            for system in list(standing.values()):
                attempt(system, f"round {number} of {rounds}", lambda system=system: turn(system))  # type: ignore[misc]
    finally:
        for system in systems:
            system.end()
