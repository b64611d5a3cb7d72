"""
What sharing adds to a training step, for each tensor and for each byte.

A sweep has models that differ in one amount. In each round, a system's overhead is its step less that of as
many processes that share nothing; a straight line through the sweep's overheads has what each tensor, or
byte, costs as its slope, and what every step costs beside as its intercept. The spread is that of the rounds'
own lines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.units import format_ratio, format_size, format_time
from penstock_bench.network.report import absent, columns
from penstock_bench.report import conditions, workers_of
from penstock_bench.runner import Case
from penstock_bench.training.names import OURS, PEER, TENSOR_BYTES
from penstock_bench.training.report import Ideal, Line, _signed, lines

COPIES = 9
"""Of each size, for the time of a copy."""


@dataclass(frozen=True)
class Point:
    """A model of a sweep, measured."""

    amount: int
    """Tensors, or bytes."""
    case: Case
    ideal: Ideal
    """The computation alone; without the bytes, since they are what is measured here."""
    lines: list[Line]
    limit: float
    """Seconds of the gradients' sum at the machine's limit."""


@dataclass(frozen=True)
class Fit:
    """A system's straight line."""

    system: str
    slopes: list[float]
    """Seconds for each tensor or byte, by round."""
    constants: list[float]
    """Seconds of a step beside, by round."""

    @property
    def slope(self) -> float:
        """The median round's."""
        return statistics.median(self.slopes)

    @property
    def constant(self) -> float:
        """The median round's."""
        return statistics.median(self.constants)


def point(amount: int, case: Case, ideal: Ideal, parts: Mapping[str, Mapping[str, Sequence[float]]]) -> Point:
    """What a case says of overheads: its lines' distances are from the computation alone."""
    alone = Ideal(ideal.alone, 0.0)
    return Point(amount, case, alone, lines(case, alone, parts), ideal.bytes)


def fits(points: Sequence[Point]) -> list[Fit]:
    """Of each system that was measured at every point. A line needs two points."""
    found = []
    for name in [line.system for line in points[0].lines] if len(points) > 1 else []:
        at = [line for one in points for line in one.lines if line.system == name]
        if len(at) < len(points):
            continue
        rounds = min(len(line.distances) for line in at)
        amounts = [float(one.amount) for one in points]
        through = [
            statistics.linear_regression(amounts, [line.distances[number] for line in at])
            for number in range(rounds)
        ]
        found.append(Fit(name, [one.slope for one in through], [one.intercept for one in through]))
    return found


def said(what: str, workers: int, points: Sequence[Point], copy: float | None) -> str:
    """A table of the sweep, and what a tensor or byte costs. `copy`: seconds of copying a byte."""
    of_bytes = what == "bytes"
    head = "4 tensors" if of_bytes else f"tensors of {format_size(TENSOR_BYTES)}"
    found = fits(points)
    said = [f"overhead by {what}: {head}, {workers_of(workers)}", _table(what, points)]
    said += [_line(fit, of_bytes) for fit in found]
    slopes = {fit.system: fit.slope for fit in found}
    if slopes.get(OURS, 0) > 0 and slopes.get(PEER, 0) > 0:
        ratio = format_ratio(slopes[OURS] / slopes[PEER])
        said.append(f"  a {'byte' if of_bytes else 'tensor'} costs {OURS} {ratio} of what it costs {PEER}")
    if of_bytes and copy is not None:
        limit = statistics.median(one.limit / one.amount for one in points)
        said.append(f"  limits: a copy by one thread: {_rate(copy)}; their sum on all cores: {_rate(limit)}")
    for one in points:
        said += [*conditions(one.case), absent(one.case)]
    return "\n".join(dict.fromkeys(line for line in said if line))


def _table(what: str, points: Sequence[Point]) -> str:
    head = [what, "system", "alone", "step", "IQR/2", "n", "overhead", "least", "most", "blocked", "waiting"]
    rows = [head]
    for one in points:
        for line in one.lines:
            waiting = line.parts.get("waiting")
            rows.append(
                [
                    format_size(one.amount) if what == "bytes" else str(one.amount),
                    line.system,
                    format_time(one.ideal.alone.median),
                    format_time(line.spread.median),
                    f"{line.spread.relative:.0%}",
                    str(line.spread.repeats),
                    *map(_signed, (line.distance, min(line.distances), max(line.distances))),
                    f"{line.blocked:.0%}",
                    "-" if waiting is None else f"{waiting / line.spread.median:.0%}",
                ]
            )
    return columns(rows)


def _line(fit: Fit, of_bytes: bool) -> str:
    least, most = min(fit.slopes), max(fit.slopes)
    if of_bytes:
        each = f"{_rate(fit.slope)} ({least * 1e9:.3f} to {most * 1e9:.3f} by round)"
    else:
        each = f"{_signed(fit.slope)} a tensor ({_signed(least)} to {_signed(most)} by round)"
    return f"  {fit.system}: {each}, and {_signed(fit.constant)} a step"


def _rate(seconds: float) -> str:
    """Nanoseconds of a byte, and what that comes to."""
    speed = f" ({1 / seconds / 1e9:.1f} GB/s)" if seconds > 0 else ""
    return f"{seconds * 1e9:.3f} ns a byte{speed}"


LEGEND = """\
  overhead: a system's step less that of as many processes that share nothing, by round: the median, the least
  and the greatest. A tensor's and a byte's are slopes of straight lines through the overheads, one a round.
  blocked: share of the step in which a worker's thread neither runs nor waits for a core. waiting: share that
  Penstock's own counters call so, with time spent spinning."""


def document(what: str, workers: int, points: Sequence[Point], copy: float | None) -> dict[str, Any]:
    """The same for programs."""
    return {
        "of": what,
        "workers": workers,
        "copy_s_per_byte": copy,
        "systems": [
            {
                "system": fit.system,
                "slope_s": fit.slope,
                "slopes_s": fit.slopes,
                "step_s": fit.constant,
                "steps_s": fit.constants,
            }
            for fit in fits(points)
        ],
        "points": [
            {
                "amount": one.amount,
                "alone": asdict(one.ideal.alone),
                "limit_s": one.limit,
                "placements": one.case.placements,
                "absent": one.case.absent,
                "systems": [
                    {
                        "system": line.system,
                        **asdict(line.spread),
                        "overhead_s": line.distance,
                        "overheads_s": line.distances,
                        "blocked": line.blocked,
                        "parts_s": line.parts,
                    }
                    for line in one.lines
                ],
            }
            for one in points
        ],
    }


def copy_time(sizes: Sequence[int], now: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of copying a byte from one array to another, by one thread: the median over the sizes."""
    found = []
    for nbytes in sizes:
        source, target = np.ones(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
        times = []
        for _ in range(COPIES):
            began = now()
            np.copyto(target, source)
            times.append(now() - began)
        found.append(statistics.median(times) / nbytes)
    return statistics.median(found)
