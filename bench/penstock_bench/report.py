"""What was measured, in words: a line and a table a case, and the JSON that others build on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.units import format_ratio, format_size, format_time
from penstock_bench.runner import Case, Spread

REFERENCE = "penstock"
LIMIT = "limit"
BUSY = 0.1
"""Share of the cores above which what other processes use is worth a line."""


def line(case: Case) -> str:
    """The case in one line: our time, then the others' with their ratio to it (the limit's: ours to it)."""
    spreads = case.spreads()
    ours = spreads.get(REFERENCE)
    head = f"pushpull {format_size(case.nbytes)} f32, {workers_of(case.workers)}, {case.temperature}"
    if case.company:
        head += f", {case.company}"
    if case.chunk is not None:
        head += f", chunks of {format_size(case.chunk)}"
    parts = [head]
    for name, spread in spreads.items():
        parts.append(f"{name} {format_time(spread.median)}{_beside(name, spread, ours)}")
    parts += [f"{name} {'failed' if name in case.failed else 'skipped'}" for name in case.absent]
    if ours:
        parts.append(f"n={ours.repeats}, +-{ours.relative:.0%}".replace("%", " %"))
    return "   ".join(parts)


def workers_of(count: int) -> str:
    """1 worker, 2 workers."""
    return "1 worker" if count == 1 else f"{count} workers"


def _beside(name: str, spread: Spread, ours: Spread | None) -> str:
    if ours is None or name == REFERENCE:
        return ""
    ratio = ours.median / spread.median if name == LIMIT else spread.median / ours.median
    return f" ({format_ratio(ratio)})"


COLUMNS = ("system", "median", "min", "max", "IQR/2", "GB/s", "of limit", "of penstock", "repeats")


def table(case: Case, placement: str | None = None) -> str:
    """The case as a table; with `placement`, of the rounds in that placement only."""
    spreads = case.spreads(placement)
    ours, limit = spreads.get(REFERENCE), spreads.get(LIMIT)
    rows = [COLUMNS]
    for name, spread in spreads.items():
        rows.append(
            (
                name,
                format_time(spread.median),
                format_time(spread.least),
                format_time(spread.most),
                f"{spread.relative:.0%}",
                f"{case.nbytes / spread.median / 1e9:.2f}",
                format_ratio(spread.median / limit.median) if limit else "-",
                format_ratio(spread.median / ours.median) if ours else "-",
                str(spread.repeats),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def details(case: Case) -> str:
    """The table, the placements of the rounds (a table each, if several occurred), who is missing and why."""
    parts = [table(case), *conditions(case)]
    if len(case.placements) > 1:
        for placement in case.placements:
            parts += [f"  rounds with cores {placement}:", table(case, placement)]
    for name, reason in case.absent.items():
        parts.append(f"  {name}: {reason if name in case.failed else 'skipped: ' + reason}")
        parts += [f"      {said}" for said in case.failed.get(name, "").splitlines()]
    return "\n".join(parts)


def conditions(case: Case) -> list[str]:
    """Under what it was measured: how far apart the cores were, and whether others used them."""
    said = [f"  cores: {_rounds(case)}"]
    busy = max((r.busy for r in case.rounds), default=0.0)
    if busy > BUSY:
        said.append(
            f"  not alone: other processes used up to {busy:.0%} of the cores; expect figures to be too high"
        )
    return said


def _rounds(case: Case) -> str:
    """The placement of each round."""
    if not case.rounds:
        return "nothing was measured"
    if case.placements == ["single"]:
        return "only one"
    said = ", ".join(f"{r.placement} ({sum(r.distance_ns) / 2:.0f} ns)" for r in case.rounds)
    return f"{said}, by round" if len(case.rounds) > 1 else said


LEGEND = """\
  GB/s: bytes of one gradient / time. of limit, of penstock: time / theirs.
  IQR/2: half the range between the quartiles, relative to the median.
  An iteration ends when the last worker sees its parameters, and the next one starts there."""


def document(cases: Iterable[Case], machine: dict[str, object]) -> dict[str, Any]:
    """
    The JSON.

    `cases` holds one entry for each system that was measured in each case (of swept chunk sizes, the first
    one's: all of them stand in `chunks`); `rounds` holds each round's medians beside its placement; `absent`
    says who is missing and why.
    """
    result: dict[str, Any] = {
        "bench": "pushpull",
        "cases": [],
        "machine": machine,
        "chunks": [],
        "rounds": [],
        "absent": [],
    }
    seen: set[tuple[str, int, int, str]] = set()
    for case in cases:
        where = {"bytes": case.nbytes, "workers": case.workers, **_company(case)}
        for name, spread in case.spreads().items():
            entry = _entry(name, case, spread)
            if (name, case.nbytes, case.workers, case.company) not in seen:
                seen.add((name, case.nbytes, case.workers, case.company))
                result["cases"].append(entry)
            if case.chunk is not None and name == REFERENCE:
                result["chunks"].append({**entry, "chunk_bytes": case.chunk})
        result["rounds"] += [
            {
                **where,
                "placement": r.placement,
                "core_distance_ns": [None if math.isnan(d) else round(d, 1) for d in r.distance_ns],
                "busy": round(r.busy, 3),
                "median_s": {name: Spread.of(times).median for name, times in r.times.items()},
            }
            for r in case.rounds
        ]
        result["absent"] += [
            {**where, "system": name, "reason": reason} for name, reason in case.absent.items()
        ]
    return result


def _company(case: Case) -> dict[str, bool]:
    """Where it was measured beside a busy process, that it was."""
    return {"neighbour": True} if case.company else {}


def _entry(name: str, case: Case, spread: Spread) -> dict[str, Any]:
    return {
        "system": name,
        "bytes": case.nbytes,
        "workers": case.workers,
        **_company(case),
        "median_s": spread.median,
        "min_s": spread.least,
        "max_s": spread.most,
        "repeats": spread.repeats,
    }


def summary(cases: Sequence[Case]) -> str:
    """All cases as one table of medians, for a sweep."""
    names = list(dict.fromkeys(name for case in cases for name in case.spreads()))
    beside = any(case.company for case in cases)
    rows = [
        [
            "size",
            "workers",
            *(["neighbour"] if beside else []),
            *names,
            "of limit",
            *(f"{n} / {REFERENCE}" for n in names if n not in (REFERENCE, LIMIT)),
        ]
    ]
    for case in cases:
        spreads = case.spreads()
        ours, limit = spreads.get(REFERENCE), spreads.get(LIMIT)
        row = [format_size(case.nbytes), str(case.workers)]
        row += ["busy" if case.company else "none"] if beside else []
        row += [format_time(spreads[name].median) if name in spreads else "-" for name in names]
        row.append(format_ratio(ours.median / limit.median) if ours and limit else "-")
        row += [
            format_ratio(spreads[name].median / ours.median) if ours and name in spreads else "-"
            for name in names
            if name not in (REFERENCE, LIMIT)
        ]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
