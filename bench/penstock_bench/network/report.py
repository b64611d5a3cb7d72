"""Tables and JSON of the network benchmarks: every figure beside what it is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.units import format_ratio, format_time
from penstock_bench.runner import Case, Spread

PROCESSOR = "processor s/GB"
"""The head of the column."""


@dataclass(frozen=True)
class Line:
    """One system's figures."""

    system: str
    spread: Spread
    ideal: float | None
    """Seconds that the links need at least; None where nobody says."""
    processor_per_gb: float | None
    """Processor seconds of all its processes for each GB that workers sent and received; None: not known."""

    @property
    def of_ideal(self) -> float | None:
        """How many times the ideal."""
        return None if self.ideal is None else self.spread.median / self.ideal


def lines(case: Case, ideals: Mapping[str, float]) -> list[Line]:
    """Of every system that was measured."""
    moved = 2 * case.nbytes * case.workers / 1e9

    def line(name: str, spread: Spread) -> Line:
        used = case.processor(name)
        return Line(name, spread, ideals.get(name), None if used is None else used / moved)

    return [line(name, spread) for name, spread in case.spreads().items()]


def table(measured: Sequence[Line], *, rate: bool) -> str:
    """
    A table.

    Parameters
    ----------
    measured
        The systems.
    rate
        Whether exchanges per second are of interest.
    """
    best = min((line.spread.median for line in measured if line.system.startswith("penstock")), default=None)
    heads = ["system", "median", "min", "max", "IQR/2", "repeats"]
    heads += ["exchanges/s"] if rate else []
    heads += ["of ideal"] if any(line.ideal is not None for line in measured) else []
    heads += ["of penstock"] if best is not None else []
    heads += [PROCESSOR]
    rows = [heads]
    for line in measured:
        spread = line.spread
        row = [line.system, *map(format_time, (spread.median, spread.least, spread.most))]
        row += [f"{spread.relative:.0%}", str(spread.repeats)]
        row += [f"{1 / spread.median:.2f}"] if rate else []
        if "of ideal" in heads:
            row.append(format_ratio(line.of_ideal) if line.of_ideal is not None else "-")
        if best is not None:
            row.append(format_ratio(spread.median / best))
        row.append(processor(line.processor_per_gb))
        rows.append(row)
    return columns(rows)


def processor(per_gb: float | None) -> str:
    """What stands in that column."""
    return "-" if per_gb is None else f"{per_gb:.2f}"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def one(row: Sequence[str]) -> str:
        pairs = zip(row, widths, strict=True)
        return "  " + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(pairs))

    return "\n".join(one(row).rstrip() for row in rows)


def absent(case: Case) -> str:
    """Who was not measured, and why."""
    said = []
    for name, reason in case.absent.items():
        said.append(f"  {name}: {reason if name in case.failed else 'skipped: ' + reason}")
        said += [f"      {line}" for line in case.failed.get(name, "").splitlines()]
    return "\n".join(said)


def document(case: Case, measured: Sequence[Line], **more: Any) -> dict[str, Any]:
    """The same for programs."""
    systems = [
        {
            "system": line.system,
            **asdict(line.spread),
            "ideal_s": line.ideal,
            "of_ideal": line.of_ideal,
            "processor_s_per_gb": line.processor_per_gb,
        }
        for line in measured
    ]
    return {**more, "bytes": case.nbytes, "workers": case.workers, "systems": systems, "absent": case.absent}
