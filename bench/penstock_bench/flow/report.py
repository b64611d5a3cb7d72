"""
What is made of the trainings: when each reached plain's objective, and what it had taken by then.

The objective to reach is `WITHIN` of the last one of plain push and pull under BSP. Steps, bytes and seconds
are those of the first measurement that is not above it, plain's own too. Where a training was repeated, its
figures are medians, and the spread of its seconds stands beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.units import format_size, format_time
from penstock_bench.flow.systems import GLOO, PLAIN, SPARSE, SYSTEMS, TUNED
from penstock_bench.flow.tasks import Task
from penstock_bench.flow.training import Point, Trained
from penstock_bench.network.report import columns

WITHIN = 0.005
"""Of plain's last objective."""

MOST_STEPS_WANTED = 1.15
"""Of plain's steps: what is sent less is not to be paid for in steps."""
DOMINATES = 2 / 3
"""Of plain's time: where it communicates for longer, that is what it waits for. Some is a wait for a core."""
FASTER = 2.5
"""Times, where communication dominates."""
NO_SLOWER = 0.97
"""Of plain's pace, where it does not: at most 3 % slower."""

Key = tuple[str, str]
"""A system and a consistency."""
Runs = Mapping[Key, Sequence[Trained]]


@dataclass(frozen=True)
class Row:
    """One system under one consistency."""

    system: str
    consistency: str
    steps: float | None
    """To the objective; None: never reached, and so nothing else is said but the best objective."""
    bytes: float | None
    seconds: float | None
    computing: float | None
    least: float | None
    """Seconds of the quickest repeat, and of the slowest."""
    most: float | None
    best: float
    """The least objective that any repeat measured."""
    repeats: int

    @property
    def communicating(self) -> float | None:
        """Seconds that are not computation: sending, filtering, waiting."""
        return None if self.seconds is None or self.computing is None else self.seconds - self.computing


def objective(runs: Runs) -> float:
    """What is to be reached."""
    last = statistics.median(trained.points[-1].objective for trained in runs[PLAIN, "bsp"])
    return last * (1 + WITHIN)


def reached(points: Sequence[Point], wanted: float) -> Point | None:
    """The first measurement that is not above `wanted`."""
    return next((point for point in points if point.objective <= wanted), None)


def rows(runs: Runs) -> list[Row]:
    """A row for each system and consistency, the stricter ones first, whatever was measured when."""
    wanted = objective(runs)
    return [_row(*key, runs[key], wanted) for key in sorted(runs, key=_place)]


def _place(key: Key) -> tuple[int, int]:
    system, consistency = key
    _, _, slack = consistency.partition(":")
    order = list(SYSTEMS)
    # A user's own come last.
    return int(slack or 0), order.index(system) if system in order else len(order)


def _row(system: str, consistency: str, trained: Sequence[Trained], wanted: float) -> Row:
    best = min(point.objective for one in trained for point in one.points)
    hits = [hit for one in trained if (hit := reached(one.points, wanted)) is not None]
    # A system that reaches it by chance has not reached it.
    if len(hits) < len(trained):
        return Row(system, consistency, None, None, None, None, None, None, best, len(trained))
    seconds = [hit.seconds for hit in hits]
    return Row(
        system,
        consistency,
        steps=statistics.median(hit.step for hit in hits),
        bytes=statistics.median(hit.bytes for hit in hits),
        seconds=statistics.median(seconds),
        computing=statistics.median(hit.computing for hit in hits),
        least=min(seconds),
        most=max(seconds),
        best=best,
        repeats=len(trained),
    )


def find(measured: Sequence[Row], system: str, consistency: str = "bsp") -> Row | None:
    """A row, where it was measured."""
    return next((row for row in measured if (row.system, row.consistency) == (system, consistency)), None)


def times(figure: float | None, reference: float | None) -> float | None:
    """How many times the reference is the figure: above 1, the figure is the better one."""
    return reference / figure if figure and reference else None


HEADS = (
    "system",
    "consistency",
    "steps",
    "of plain's",
    "sent",
    "x less",
    "x less than sparse",
    "time",
    "spread",
    "communicating",
    "x faster",
    "x faster than gloo",
)


def table(measured: Sequence[Row]) -> str:
    """The table."""
    plain, sparse, gloo = (find(measured, name) for name in (PLAIN, SPARSE, GLOO))
    shown: list[Sequence[str]] = [HEADS]
    for row in measured:
        if row.steps is None or row.seconds is None or row.bytes is None:
            said = f"not reached: {row.best:.5f}"
            shown.append([row.system, row.consistency, said, *["-"] * (len(HEADS) - 3)])
            continue
        spread = "-" if row.repeats == 1 else f"{format_time(row.least or 0)} - {format_time(row.most or 0)}"
        shown.append(
            [
                row.system,
                row.consistency,
                f"{row.steps:.0f}",
                _times(times(plain.steps if plain else None, row.steps), 2),
                format_size(round(row.bytes)),
                _times(times(row.bytes, plain.bytes if plain else None), 1),
                _times(times(row.bytes, sparse.bytes if sparse else None), 1),
                format_time(row.seconds),
                spread,
                format_time(row.communicating or 0.0),
                _times(times(row.seconds, plain.seconds if plain else None), 2),
                _times(times(row.seconds, gloo.seconds if gloo else None), 2),
            ]
        )
    return columns(shown)


OF_THE_WORKER = ("filter", "encode", "send", "receive", "decode", "fold", "wait")
OF_THE_SERVERS = ("receive", "decode", "fold", "filter", "encode", "send")


@dataclass(frozen=True)
class Overhead:
    """Where the time of a step goes, in seconds."""

    system: str
    consistency: str
    step: float
    computing: float
    """Worker 0's."""
    worker: dict[str, float]
    """Its layers. Threads work side by side: they are no parts of `step`."""
    servers: dict[str, float]
    """Those of all servers together, for all workers."""


def overheads(runs: Runs) -> list[Overhead]:
    """One for each system and consistency of which the program's counters are known: means over repeats."""
    found = []
    for key in sorted(runs, key=_place):
        trained = [one for one in runs[key] if one.layers]
        steps = sum(one.points[-1].step for one in trained)
        if not steps:
            continue

        def a_step(who: str, layer: str, trained: Sequence[Trained] = trained, steps: int = steps) -> float:
            every = (one.layers[name] for one in trained for name in one.layers if name.startswith(who))
            return sum(layers[layer] for layers in every) / steps

        found.append(
            Overhead(
                *key,
                step=sum(one.points[-1].seconds for one in trained) / steps,
                computing=sum(one.points[-1].computing for one in trained) / steps,
                worker={layer: a_step("worker", layer) for layer in OF_THE_WORKER},
                servers={layer: a_step("server", layer) for layer in OF_THE_SERVERS},
            )
        )
    return found


def layers_table(measured: Sequence[Overhead]) -> str | None:
    """The same as a table, in milliseconds; None: nothing is known."""
    if not measured:
        return None
    heads = ["system", "consistency", "step", "compute", *OF_THE_WORKER]
    shown = [[*heads, *(f"s.{layer}" for layer in OF_THE_SERVERS)]]
    for one in measured:
        every = (one.step, one.computing, *one.worker.values(), *one.servers.values())
        shown.append([one.system, one.consistency, *(f"{1e3 * seconds:.3f}" for seconds in every)])
    return columns(shown)


LAYERS_LEGEND = """\
  ms a step, by the program's own counters: of worker 0, and (s.) of all servers together for all workers,
  measuring the objective included.
  Threads work side by side, and one that lost its core counts that too: columns do not add up to a step."""


@dataclass(frozen=True)
class Want:
    """What the task's own filters are to reach under BSP."""

    what: str
    wanted: float
    found: float | None
    at_most: bool = False

    @property
    def good(self) -> bool:
        """Whether they do."""
        if self.found is None:
            return False
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


def wants(measured: Sequence[Row], task: Task) -> list[Want]:
    """All that is wanted; none of it where plain, or the filters, were not measured."""
    ours, plain, sparse = (find(measured, name) for name in (TUNED, PLAIN, SPARSE))
    if ours is None or plain is None or plain.seconds is None:
        return []
    waits = (plain.communicating or 0.0) > DOMINATES * plain.seconds
    pace = times(ours.seconds, plain.seconds)
    every = [
        Want("steps of plain's, at most", MOST_STEPS_WANTED, times(plain.steps, ours.steps), at_most=True),
        Want("times fewer bytes", task.wanted, times(ours.bytes, plain.bytes)),
        Want("times faster", FASTER, pace) if waits else Want("of plain's pace", NO_SLOWER, pace),
    ]
    if task.wanted_of_sparse is not None and sparse is not None:
        fewer = times(ours.bytes, sparse.bytes)
        every.append(Want("times fewer than sparse", task.wanted_of_sparse, fewer))
    return every


def wishes(measured: Sequence[Row], task: Task) -> str | None:
    """The same as text; None: not measured."""
    every = wants(measured, task)
    if not every:
        return None
    said = [f"  wanted of {TUNED} under bsp, and found:"]
    for want in every:
        shown = "-" if want.found is None else f"{want.found:.2f}"
        said.append(f"    {want.wanted:g} {want.what}: {shown}{'' if want.good else ', NOT REACHED'}")
    return "\n".join(said)


def _times(ratio: float | None, digits: int) -> str:
    return "-" if ratio is None else f"{ratio:.{digits}f}"


LEGEND = f"""\
  steps, sent, time: to within {WITHIN:.1%} of plain's last objective; measuring it is not in the time.
  sent: what all workers and servers sent, each byte once, as the kernel counts it on their links.
  communicating: worker 0's time that was no computation: sending, filtering, waiting for others.
  x less, x faster: plain's (sparse's, gloo's) figure under bsp by this one's."""


def entries(measured: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows for programs."""
    plain, sparse, gloo = (find(measured, name) for name in (PLAIN, SPARSE, GLOO))
    return [
        {
            **asdict(row),
            "communicating": row.communicating,
            "of_plain_steps": times(plain.steps if plain else None, row.steps),
            "fewer_bytes": times(row.bytes, plain.bytes if plain else None),
            "fewer_bytes_than_sparse": times(row.bytes, sparse.bytes if sparse else None),
            "faster": times(row.seconds, plain.seconds if plain else None),
            "faster_than_gloo": times(row.seconds, gloo.seconds if gloo else None),
        }
        for row in measured
    ]
