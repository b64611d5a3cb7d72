"""The figures of one model and number of workers, in words and for programs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.units import format_ratio, format_size, format_time
from penstock_bench.network.report import absent, columns
from penstock_bench.report import conditions, workers_of
from penstock_bench.runner import Case, Spread
from penstock_bench.training.names import ALONE, OURS, PEER


@dataclass(frozen=True)
class Line:
    """One system's figures."""

    system: str
    spread: Spread
    distances: list[float]
    """Seconds from the ideal with bytes, by round: medians of one round, so that what drifts cancels out."""
    parts: dict[str, float]
    """Seconds of a step, by part: the median turn."""
    processor: float | None
    """Processor seconds of all processes a step."""

    @property
    def distance(self) -> float:
        """Seconds from the ideal with bytes: the median round."""
        return statistics.median(self.distances)

    @property
    def blocked(self) -> float:
        """
        The share of the step in which the worker's thread waits for something else than a core; where the
        thread does not compute itself, that which the job's own counter calls waiting.
        """
        return self.parts.get("blocked", self.parts.get("waiting", 0.0)) / self.spread.median


@dataclass(frozen=True)
class Ideal:
    """What no system can be faster than, if nothing overlaps."""

    alone: Spread
    """A step of as many processes that share nothing."""
    bytes: float
    """Seconds of the gradients' sum at the machine's limit."""


def lines(case: Case, ideal: Ideal, parts: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Line]:
    """Of every system that was measured, but the computation alone."""
    found = []
    for name, spread in case.spreads().items():
        if name == ALONE:
            continue
        distances = [
            statistics.median(r.times[name]) - statistics.median(r.times[ALONE]) - ideal.bytes
            for r in case.rounds
            if r.times.get(name) and r.times.get(ALONE)
        ]
        medians = {part: statistics.median(times) for part, times in parts[name].items()}
        found.append(Line(name, spread, distances, medians, case.processor(name)))
    return found


def ratio(measured: Sequence[Line]) -> float | None:
    """Our distance of theirs, where both were measured and both are above the ideal."""
    by_name = {line.system: line for line in measured}
    if OURS not in by_name or PEER not in by_name:
        return None
    ours, theirs = by_name[OURS].distance, by_name[PEER].distance
    return ours / theirs if ours > 0 and theirs > 0 else None


def said(case: Case, what: str, ideal: Ideal, measured: Sequence[Line]) -> str:
    """A heading, the ideal, a table, and what the distances are to each other."""
    alone, both = ideal.alone.median, ideal.alone.median + ideal.bytes
    spread = f"n={ideal.alone.repeats}, +-{ideal.alone.relative:.0%}"
    bound = f"  ideal: computation alone {format_time(alone)} ({spread}), with the bytes {format_time(both)}"
    parts = [
        f"{what}, {format_size(case.nbytes)} of gradients, {workers_of(case.workers)}",
        bound,
        _table(measured),
        _parts(measured),
    ]
    found = ratio(measured)
    if found is not None:
        parts.append(f"  {OURS}'s distance to the ideal is {format_ratio(found)} of {PEER}'s")
    elif {OURS, PEER} <= {line.system for line in measured}:
        parts.append(
            "  no ratio of distances: a system is below the ideal, where exchange and computation overlap"
        )
    return "\n".join([*parts, *conditions(case), absent(case)]).rstrip()


def _table(measured: Sequence[Line]) -> str:
    rows: list[list[str]] = [
        ["system", "step", "min", "max", "IQR/2", "n", "distance", "least", "most", "blocked", "processor"]
    ]
    for line in measured:
        spread = line.spread
        rows.append(
            [
                line.system,
                *map(format_time, (spread.median, spread.least, spread.most)),
                f"{spread.relative:.0%}",
                str(spread.repeats),
                *map(_signed, (line.distance, min(line.distances), max(line.distances))),
                f"{line.blocked:.0%}",
                "-" if line.processor is None else format_time(line.processor),
            ]
        )
    return columns(rows)


def _parts(measured: Sequence[Line]) -> str:
    names = list(dict.fromkeys(part for line in measured for part in line.parts))
    rows = [["of a step", *names]]
    for line in measured:
        row = [format_time(line.parts[name]) if name in line.parts else "-" for name in names]
        rows.append([line.system, *row])
    return columns(rows)


def _signed(seconds: float) -> str:
    return format_time(seconds) if seconds >= 0 else f"-{format_time(-seconds)}"


LEGEND = """\
  step: until the last worker has taken it; the next one starts there. One thread a worker.
  IQR/2: half the range between the quartiles, relative to the median.
  distance: the step less the ideal with bytes, by round: the median, the least and the greatest.
  blocked: share of the step in which a worker's thread neither runs nor waits for a core.
  processor: seconds of all processes a step, servers included.
  backward: with the exchange, in all systems; of it computing, waiting (spinning too) and copying are
  Penstock's own counters."""


JAX_LEGEND = """\
  step: until the last worker has its new parameters; the next one starts there. XLA computes on one thread.
  IQR/2, distance, processor: as for `penstock bench torch`.
  blocked: share of the step that the job's own counter calls waiting, with time spent spinning."""


def document(case: Case, model: str, ideal: Ideal, measured: Sequence[Line]) -> dict[str, Any]:
    """The same for programs."""
    systems = [
        {
            "system": line.system,
            **asdict(line.spread),
            "distance_s": line.distance,
            "distances_s": line.distances,
            "blocked": line.blocked,
            "parts_s": line.parts,
            "processor_s": line.processor,
        }
        for line in measured
    ]
    return {
        "model": model,
        "bytes": case.nbytes,
        "workers": case.workers,
        "alone": asdict(ideal.alone),
        "bytes_at_limit_s": ideal.bytes,
        "distance_of_ddp": ratio(measured),
        "systems": systems,
        "absent": case.absent,
        "placements": case.placements,
    }
