"""A plan in words, tables of at most 80 columns, and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.sizes import format_size, format_time
from penstock.plan import paper
from penstock.plan.advice import Advice
from penstock.plan.cost import Prices
from penstock.plan.model import Job, Outcome
from penstock.plan.racks import Racks
from penstock.plan.source import Source
from penstock.plan.units import format_rate

WIDTH = 80

LEGEND = (
    "each way: what the busiest host's link has to carry in each direction so that no worker waits; both: "
    "the two added, as PHub counts. step: if communication overlaps all of the computation; no real step "
    "is shorter."
)


@dataclass(frozen=True)
class Plan:
    """All that was asked and found."""

    source: Source
    job: Job
    prices: Prices
    outcomes: Sequence[Outcome]
    advice: Advice
    most_servers: int
    racks: Racks | None = None
    notes: Sequence[str] = ()

    @property
    def unit(self) -> str:
        """What throughput counts."""
        return "samples" if self.job.batch else "batches"


def text(plan: Plan) -> str:
    """The plan for a reader."""
    parts = [_head(plan), _table(_rows(plan))]
    parts.append(_wrap(LEGEND, indent="  "))
    for outcome in plan.outcomes:
        if outcome.servers > plan.most_servers:
            note = f"{outcome.topology.value} would take {outcome.servers} servers; a job has at most "
            parts.append(_wrap(f"{note}{plan.most_servers}.", indent="  "))
    parts += [_wrap(note, indent="  ") for note in plan.notes]
    if plan.racks is not None:
        parts.append(_racks(plan.racks, plan.advice.outcome.step))
    limits = "" if plan.racks is None else ", by the hosts' links"
    parts.append(_wrap(f"Recommended{limits}: {plan.advice.reason}"))
    return "\n\n".join(parts)


def _head(plan: Plan) -> str:
    job, prices = plan.job, plan.prices
    size = format_size(job.nbytes)
    model = f"{plan.source.name}, {size}" if plan.source.name else size
    batch = f", {job.batch} samples each" if job.batch else ""
    network = f"{format_rate(job.link)} each way"
    if job.server_link != job.link:
        network += f", {format_rate(job.server_link)} for a host with a server only"
    gpus = f"{prices.gpus} GPU{'' if prices.gpus == 1 else 's'}"
    worker = f"a worker with {gpus} ${prices.worker_host(job):,.0f}"
    rows = (
        ("model", model),
        ("step", f"{_workers(job.workers)}, {format_time(job.compute)} of computation{batch}"),
        ("network", network),
        ("prices", f"{worker}, a server's own host ${prices.server_host(job):,.0f}"),
    )
    return "\n".join(
        textwrap.fill(f"{name:<8} {value}", WIDTH, subsequent_indent=" " * 9) for name, value in rows
    )


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("", "servers", "hosts", "each way", "both", "hidden", "step", f"{plan.unit}/s", "per $1000")
    ]
    for outcome in plan.outcomes:
        worth = plan.prices.per_1000(plan.job, outcome)
        rows.append(
            (
                outcome.topology.value,
                str(outcome.servers),
                str(outcome.hosts),
                format_rate(outcome.each_way),
                format_rate(outcome.both_ways),
                "yes" if outcome.hidden else "no",
                format_time(outcome.step),
                _figure(outcome.throughput),
                "-" if worth is None else _figure(worth),
            )
        )
    return rows


def _racks(racks: Racks, step: float) -> str:
    """The verdict, and what the table does not say: it counts the hosts' links only."""
    verdict = "pays" if racks.pays else "does not pay"
    sign = ">" if racks.pays else "<="
    return _wrap(
        f"Racks: {_core(racks, step)} Reducing inside each of {racks.racks} first {verdict}, by PHub's "
        f"condition: across the core ({format_rate(racks.core)} per rack) the flat exchange takes "
        f"{format_time(racks.flat)} {sign} {format_time(racks.hierarchical)}, "
        f"{format_time(racks.local)} inside a rack of "
        f"{_workers(racks.workers_each)} and {format_time(racks.between)} between racks."
    )


def _core(racks: Racks, step: float) -> str:
    if racks.flat <= step:
        return "the table leaves the core out."
    return (
        "the table leaves the core out, and the core is slower: without reducing inside racks a step takes "
        f"no less than {format_time(racks.flat)}."
    )


def document(plan: Plan) -> dict[str, Any]:
    """The plan for a program: plain units, nothing rounded."""
    job, prices = plan.job, plan.prices
    result: dict[str, Any] = {
        "model": {"name": plan.source.name or None, "bytes": job.nbytes},
        "workers": job.workers,
        "batch": job.batch,
        "compute_s": job.compute,
        "link_bits_per_s": job.link,
        "server_link_bits_per_s": job.server_link,
        "prices": {
            "worker_host": prices.worker_host(job),
            "server_host": prices.server_host(job),
            "gpus": prices.gpus,
            "oversubscription": prices.oversubscription,
        },
        "throughput_unit": plan.unit,
        "topologies": [_outcome(plan, outcome) for outcome in plan.outcomes],
        "recommended": {"topology": plan.advice.outcome.topology.value, "reason": plan.advice.reason},
        "notes": list(plan.notes),
    }
    if plan.racks is not None:
        racks = plan.racks
        result["racks"] = {
            "racks": racks.racks,
            "workers_in_a_rack": racks.workers_each,
            "core_bits_per_s": racks.core,
            "flat_s": racks.flat,
            "inside_s": racks.local,
            "between_s": racks.between,
            "hierarchical_pays": racks.pays,
        }
    return result


def _outcome(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    return {
        "topology": outcome.topology.value,
        "servers": outcome.servers,
        "startable": outcome.servers <= plan.most_servers,
        "hosts": outcome.hosts,
        "needed_each_way_bits_per_s": outcome.each_way,
        "needed_both_ways_bits_per_s": outcome.both_ways,
        "busiest": outcome.busiest.host,
        "loads": [
            {
                "host": load.host,
                "bytes_each_way": load.nbytes,
                "link_bits_per_s": load.link,
                "time_s": load.time,
            }
            for load in outcome.loads
        ],
        "hidden": outcome.hidden,
        "communication_s": outcome.communication,
        "step_s": outcome.step,
        "step_without_overlap_s": outcome.step_in_turn,
        "throughput_per_s": outcome.throughput,
        "cost": plan.prices.cluster(plan.job, outcome),
        "throughput_per_1000": plan.prices.per_1000(plan.job, outcome),
    }


# The paper's tables


def table_2() -> str:
    """Table 2: as printed, by the formulas, and from table 3."""
    rows: list[tuple[str, ...]] = [
        ("network", "topology", "paper", "formula", "rounds to it", "from table 3", "")
    ]
    rows += [
        (
            cell.network,
            cell.topology.value,
            str(cell.paper),
            f"{cell.fitted:.1f}",
            "yes" if cell.rounds else "no",
            f"{cell.direct:.1f}",
            f"{cell.excess:+.1%}",
        )
        for cell in paper.table_2()
    ]
    legend = (
        "Gbps at a server's host, both directions added, 8 workers, 8 servers where sharded. formula: "
        "CC 2(N-1)M/T, CS 4(N-1)M/(NT), NCC 2NM/T, NCS 2M/T, with one M/T for each network, taken from its "
        "own row. from table 3: with M and T of the paper's table 3, MB and Gbps as powers of 1024; no "
        "reading of these units makes the two tables agree, so table 2 was made with other sizes or times."
    )
    return f"{_table(rows, left=2)}\n\n{_wrap(legend, indent='  ')}"


def table_2_document() -> dict[str, Any]:
    """Table 2 for a program."""
    return {
        "table": 2,
        "unit": "Gbps, both directions",
        "cells": [
            {
                "network": cell.network,
                "topology": cell.topology.value,
                "paper": cell.paper,
                "formula": cell.fitted,
                "rounds_to_paper": cell.rounds,
                "from_table_3": cell.direct,
            }
            for cell in paper.table_2()
        ],
    }


def table_5() -> str:
    """Table 5: as printed, and by the cost model as printed."""
    head = ["samples/s for $1000", "a worker"]
    for name in paper.TABLE_5_COLUMNS:
        head += [name.removesuffix(" GPUs"), "ours"]
    rows = [tuple(head)]
    for index, (row, ours) in enumerate(paper.table_5()):
        line = [row.name, f"${row.worker_cost():,.0f}"]
        for column, (printed, value) in enumerate(zip(row.paper, ours, strict=True)):
            fitted = (index, column) in paper.FITTED
            line += [f"{printed:.2f}", f"{value:.2f}{'*' if fitted else ' '}"]
        rows.append(tuple(line))
    found = paper.fit()
    ratio = paper.throughput_ratio_in_table_5(paper.TABLE_5[2])
    fitted_note = (
        f"* fixes a number that the paper does not print: {found.sharded:.0f} samples/s of a sharded worker "
        f"and {found.phub:.0f} of a PHub one, ${found.gpu:,.0f} for a spendy GPU, ${found.saved:,.0f} saved "
        "by cheap processors."
    )
    differ_note = (
        "The other eight differ: the table cannot be derived from the prices that the paper prints. Its own "
        f"columns need a PHub worker at {ratio:.3f} of a sharded one's throughput; with the printed prices "
        f"the first column needs {found.phub / found.sharded:.3f}."
    )
    return "\n\n".join([_table(rows), _wrap(fitted_note, "  "), _wrap(differ_note, "  ")])


def table_5_document() -> dict[str, Any]:
    """Table 5 for a program."""
    found = paper.fit()
    return {
        "table": 5,
        "unit": "samples/s for 1000 dollars",
        "fitted": {
            "sharded_samples_per_s": found.sharded,
            "phub_samples_per_s": found.phub,
            "spendy_gpu": found.gpu,
            "saved_by_cheap_processors": found.saved,
        },
        "cells": [
            {
                "deployment": row.name,
                "column": paper.TABLE_5_COLUMNS[column],
                "worker_cost": row.worker_cost(),
                "paper": row.paper[column],
                "ours": value,
                "fitted": (index, column) in paper.FITTED,
            }
            for index, (row, ours) in enumerate(paper.table_5())
            for column, value in enumerate(ours)
        ],
    }


# How it looks


def _table(rows: Sequence[tuple[str, ...]], left: int = 1) -> str:
    """Columns two spaces apart; the first `left` lean left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _wrap(words: str, indent: str = "") -> str:
    return textwrap.fill(words, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _figure(value: float) -> str:
    """Three digits, but never an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.0995 else f"{value:.2g}"
