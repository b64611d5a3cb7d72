"""A plan in words, tables of at most 80 columns, and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.plan.advice import Advice
from penstock.plan.cost import Prices
from penstock.plan.model import Job, Outcome
from penstock.plan.racks import Racks
from penstock.plan.source import Source
from penstock.units import format_rate, format_size, format_time

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
    parts = [_head(plan), table(_rows(plan))]
    parts.append(wrap(LEGEND, indent="  "))
    for outcome in plan.outcomes:
        if outcome.servers > plan.most_servers:
            note = f"{outcome.topology.value} would take {outcome.servers} servers; a job has at most "
            parts.append(wrap(f"{note}{plan.most_servers}.", indent="  "))
    parts += [wrap(note, indent="  ") for note in plan.notes]
    if plan.racks is not None:
        parts.append(_racks(plan.racks, plan.advice.outcome.step))
    limits = "" if plan.racks is None else ", by the hosts' links"
    parts.append(wrap(f"Recommended{limits}: {plan.advice.reason}"))
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
    return wrap(
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


# How it looks


def table(rows: Sequence[tuple[str, ...]], left: int = 1) -> str:
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


def wrap(words: str, indent: str = "") -> str:
    """A paragraph of at most 80 columns."""
    return textwrap.fill(words, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _figure(value: float) -> str:
    """Three digits, but never an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.0995 else f"{value:.2g}"
