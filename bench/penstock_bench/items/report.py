"""Tables and JSON: every figure of ours beside what it is measured against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from penstock.units import format_ratio, format_size, format_time
from penstock_bench.items.runner import Measured
from penstock_bench.network.report import PROCESSOR, columns, processor
from penstock_bench.report import BUSY
from penstock_bench.runner import Spread

OURS = "penstock"
LIMIT = "limit"
PEERS = ("mpi put", "mpi get", "mpi sendrecv")

LEGEND = """\
  rows/s, GB/s: what reaches each consumer. The producer's side and the reading are in the time.
  processor s/GB: of all processes, for each GB that reaches consumers, all together.
  of the others, of limit: our rate / theirs; above 1 we are faster. IQR/2: of the turns.
  latency: from a set until the get in the other process has returned it, half a round trip; ratios: our
  time / theirs, below 1 we are faster. get, fresh: of a row that is there already."""


def ours(measured: Measured) -> list[str]:
    """Our lines, in order of measuring."""
    return [line for line in measured.rates if line.startswith(OURS)]


def rates(cases: Sequence[Measured]) -> str:
    """A line for each size, number of consumers, batch, propagation and transport."""
    peers = [line for line in PEERS if any(measured.rates.get(line) for measured in cases)]
    with_limit = any(measured.rates.get(LIMIT) for measured in cases)
    beside = any(measured.company for measured in cases)
    rows = [
        [
            "row",
            "consumers",
            "a call",
            "transport",
            *_company(beside),
            "system",
            "rows/s",
            "GB/s",
            "IQR/2",
            "turns",
            PROCESSOR,
        ]
        + [f"of {peer}" for peer in peers]
        + (["of limit"] if with_limit else [])
    ]
    for measured in cases:
        shown = ours(measured) or [line for line in measured.rates if line != LIMIT]
        against = [*peers, *([LIMIT] if with_limit else [])]
        rows += [_rate(measured, line, against, beside=beside) for line in shown]
    return columns(rows)


def _company(beside: bool, measured: Measured | None = None) -> list[str]:
    """The column that says beside what a case was measured, where some were measured beside something."""
    if not beside:
        return []
    return ["neighbour" if measured is None else "busy" if measured.company else "none"]


def _rate(measured: Measured, line: str, against: Sequence[str], *, beside: bool) -> list[str]:
    work, spread, rate = measured.work, measured.spread(line), measured.rows_per_second(line)
    assert spread is not None
    assert rate is not None
    return [
        format_size(work.row_bytes),
        str(work.consumers),
        str(work.batch),
        work.transport,
        *_company(beside, measured),
        line,
        _count(rate),
        f"{rate * work.row_bytes / 1e9:.3f}",
        f"{spread.relative:.0%}",
        str(spread.repeats),
        processor(measured.processor_per_gb(line)),
        *(_ratio(rate, measured.rows_per_second(other)) for other in against),
    ]


def latencies(cases: Sequence[Measured]) -> str:
    """A line for each size, propagation and transport."""
    shown = [measured for measured in cases if any(measured.latencies.values())]
    if not shown:
        return ""
    peers = [line for line in PEERS if any(measured.latencies.get(line) for measured in shown)]
    with_limit = any(measured.latencies.get(LIMIT) for measured in shown)
    against = [*peers, *([LIMIT] if with_limit else [])]
    getter = any(measured.fresh.get("mpi get") for measured in shown)
    beside = any(measured.company for measured in shown)
    rows = [
        [
            "row",
            "transport",
            *_company(beside),
            "system",
            "latency",
            *(f"of {line}" for line in against),
            "get, fresh",
        ]
        + (["of mpi get"] if getter else [])
    ]
    for measured in shown:
        for line in ours(measured) or [line for line in measured.latencies if line != LIMIT]:
            seconds, fresh = measured.median_latency(line), measured.median_fresh(line)
            if seconds is None:
                continue
            rows.append(
                [
                    format_size(measured.work.row_bytes),
                    measured.work.transport,
                    *_company(beside, measured),
                    line,
                    format_time(seconds),
                    *(_ratio(seconds, measured.median_latency(other)) for other in against),
                    "-" if fresh is None else format_time(fresh),
                ]
                + ([_ratio(fresh, measured.median_fresh("mpi get"))] if getter else [])
            )
    return columns(rows)


def _ratio(value: float | None, other: float | None) -> str:
    return "-" if value is None or other is None else format_ratio(value / other)


def _count(value: float) -> str:
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def line(measured: Measured) -> str:
    """A case in one line, while it runs."""
    parts = [f"{measured.work}, {measured.company}" if measured.company else str(measured.work)]
    for name in measured.rates:
        rate = measured.rows_per_second(name)
        if rate is not None:
            parts.append(f"{name} {_count(rate)}")
    parts += [f"{name} {'failed' if name in measured.failed else 'skipped'}" for name in measured.absent]
    return "   ".join(parts)


def troubles(cases: Iterable[Measured]) -> str:
    """Who was not measured and why, and whether the machine was ours alone; each once."""
    said: dict[str, None] = {}
    busy = 0.0
    for measured in cases:
        for name, reason in measured.absent.items():
            if name in measured.failed:
                said[f"  {measured.work}: {name}: {reason}"] = None
                said.update(dict.fromkeys(f"      {text}" for text in measured.failed[name].splitlines()))
            else:
                said[f"  {name}: skipped: {reason}"] = None
        busy = max(busy, *(r.busy for r in measured.rounds), 0.0)
    if busy > BUSY:
        said[
            f"  not alone: other processes used up to {busy:.0%} of the cores; expect rates to be too low"
        ] = None
    return "\n".join(said)


def document(cases: Iterable[Measured], machine: dict[str, object]) -> dict[str, Any]:
    """
    The JSON: `cases` has an entry for each line of each case; times in seconds, rates a second and consumer.
    `iteration` is the spread over turns of a turn's mean iteration.
    """
    result: dict[str, Any] = {"bench": "items", "machine": machine, "cases": [], "absent": []}
    for measured in cases:
        where = {**asdict(measured.work), **({"neighbour": True} if measured.company else {})}
        placements = [r.placement for r in measured.rounds]
        for name in measured.rates:
            spread, rate = measured.spread(name), measured.rows_per_second(name)
            if spread is None or rate is None:
                continue
            result["cases"].append(
                {
                    **where,
                    "system": name,
                    "rows": measured.work.rows,
                    "rows_per_second": rate,
                    "bytes_per_second": rate * measured.work.row_bytes,
                    "iteration": asdict(spread),
                    "processor_s_per_gb": measured.processor_per_gb(name),
                    "of": {
                        other: rate / theirs
                        for other in (*PEERS, LIMIT)
                        if other != name and (theirs := measured.rows_per_second(other))
                    },
                    "latency": _spread(measured.latencies.get(name)),
                    "get_fresh": _spread(measured.fresh.get(name)),
                    "placements": placements,
                }
            )
        result["absent"] += [
            {**where, "system": name, "reason": why} for name, why in measured.absent.items()
        ]
    return result


def _spread(times: Sequence[float] | None) -> dict[str, Any] | None:
    return asdict(Spread.of(times)) if times else None
