"""Tables and JSON: every figure beside one link's transfer of the same bytes in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from penstock.plan.trees import Planned
from penstock.units import format_rate, format_ratio, format_size, format_time
from penstock_bench.network.report import columns
from penstock_bench.streaming.faults import Outcome
from penstock_bench.streaming.measure import Case, Found
from penstock_bench.streaming.systems import GLOO, LINK, PEERS

MOST_STREAMED = 1.25
"""Transfers of one link that a chain and stripes may take."""


def most_wanted(shape: str, workers: int) -> float | None:
    """
    Transfers of one link that a shape may take; None where nothing is wanted of it.

    Examples
    --------
    >>> [most_wanted(shape, 8) for shape in ("striped:3", "tree:degree=2", "star", "auto")]
    [1.25, 2.5, None, 1.25]
    """
    kind, _, said = shape.partition(":")
    if kind in ("chain", "striped", "auto"):
        return MOST_STREAMED
    if kind == "tree":
        degree = next(int(part.split("=")[1]) for part in said.split(",") if part.startswith("degree="))
        return MOST_STREAMED * min(degree, workers)
    return None


@dataclass(frozen=True)
class Row:
    """One system's figures."""

    found: Found
    of_link: float | None
    """Medians; None where the link was not measured."""
    predicted: Planned | None
    wanted: float | None

    @property
    def reached(self) -> bool:
        """Whether it takes no longer than is wanted, as far as that is known."""
        return self.wanted is None or self.of_link is None or self.of_link <= self.wanted


def rows(case: Case, predictions: Mapping[str, Planned]) -> list[Row]:
    """Of all that was measured."""
    link = case.found.get(LINK)
    return [
        Row(
            found,
            found.spread.median / link.spread.median if link is not None else None,
            predictions.get(name),
            None if name in PEERS else most_wanted(name, case.workers),
        )
        for name, found in case.found.items()
    ]


HEADS = (
    "",
    "median",
    "min",
    "max",
    "IQR/2",
    "n",
    "of link",
    "theory",
    "busiest uplink",
    "server's",
    "processor",
)


def table(case: Case, measured: Sequence[Row]) -> str:
    """The table of a case."""
    shown: list[Sequence[str]] = [HEADS]
    for row in measured:
        spread, found = row.found.spread, row.found
        host, most = found.busiest
        shown.append(
            [
                found.name,
                *map(format_time, (spread.median, spread.least, spread.most)),
                f"{spread.relative:.0%}",
                str(spread.repeats),
                _ratio(row.of_link),
                _ratio(row.predicted.ratio if row.predicted else None),
                f"{most:.2f} {who(host, case.workers)}",
                f"{found.sent[0]:.2f}",
                format_time(found.processor),
            ]
        )
    return columns(shown)


def who(host: int, workers: int) -> str:
    """Whose host it is."""
    if 1 <= host <= workers:
        return f"worker {host - 1}"
    return "server" if host == 0 else f"server {host - workers}"


def wishes(measured: Sequence[Row]) -> str | None:
    """What was wanted, and what was found; None: nothing was."""
    said = [
        f"    {row.found.name}: at most {row.wanted:g} of link: {row.of_link:.2f}"
        + ("" if row.reached else ", NOT REACHED")
        for row in measured
        if row.wanted is not None and row.of_link is not None
    ]
    return "\n".join(["  wanted, and found:", *said]) if said else None


LEGEND = """\
  a broadcast: from when the last worker has contributed until the last one has the version.
  link: the same bytes by a plain TCP stream from the server's host to worker 0's, in the same rounds.
  theory: the planner's prediction, in transfers of the bytes over one link at its nominal rate.
  busiest uplink, server's: what its host sends in a broadcast, of the value's bytes, as the kernel counts it.
  processor: seconds of all processes in a broadcast; all hosts share this machine's cores.
  gloo: torch.distributed.broadcast from the server's host, in the clear."""


def head(case: Case, what: str) -> str:
    """What was measured."""
    workers = "1 worker" if case.workers == 1 else f"{case.workers} workers"
    servers = "1 server" if case.servers == 1 else f"{case.servers} servers"
    return f"tree {format_size(case.nbytes)}, {workers}, {servers}, links of {format_rate(case.rate)}, {what}"


def load(case: Case, cores: object) -> str:
    """What else the machine did."""
    return f"  {cores} cores, of which other processes used {case.others:.0%} (median of the rounds)"


def absent(case: Case) -> str:
    """Who was not measured, and why."""
    said = []
    for name, reason in case.absent.items():
        said.append(f"  {name}: {reason if name in case.failed else 'skipped: ' + reason}")
        said += [f"      {line}" for line in case.failed.get(name, "").splitlines()]
    return "\n".join(said)


FAULT_HEADS = (
    "",
    "fault",
    "worker",
    "before",
    "this one",
    "added",
    "itself",
    "while slow",
    "first after",
    "after",
    "server's",
)


def outcomes(measured: Sequence[Outcome]) -> str:
    """The table of faults."""
    shown: list[Sequence[str]] = [FAULT_HEADS]
    for one in measured:
        after = sorted(one.after)[len(one.after) // 2]
        shown.append(
            [
                one.shape,
                one.fault,
                str(one.rank),
                format_time(one.median),
                format_time(one.during),
                format_time(max(0.0, one.added)),
                "-" if one.itself is None else format_time(one.itself),
                " ".join(map(format_time, one.slow[:2])) or "-",
                format_time(one.after[0]),
                format_time(after),
                f"{one.uplinks[0]:.2f}",
            ]
        )
    return columns(shown)


FAULTS_LEGEND = """\
  worker: the one that fails, which passes on most, once it has passed on half of a broadcast.
  before, after: medians. this one: the broadcast in which it fails, until all other workers have the
  version; added: what it took beyond the median. itself: until the failed worker has the version.
  while slow: the first broadcasts in which its uplink stays at a tenth. server's: what its host sends in a
  broadcast after that, of the value's bytes.
  Every worker has checked every bit of every version: none was lost, or applied twice."""


def document(case: Case, measured: Sequence[Row]) -> dict[str, Any]:
    """A case for programs."""
    return {
        "workers": case.workers,
        "servers": case.servers,
        "bytes": case.nbytes,
        "rate_bits_per_second": case.rate,
        "systems": [_entry(row) for row in measured],
        "absent": case.absent,
        "busy": case.busy,
    }


def _entry(row: Row) -> dict[str, Any]:
    found = row.found
    return {
        "system": found.name,
        "kind": found.name if found.name in (LINK, GLOO) else "penstock",
        **asdict(found.spread),
        "seconds": found.times,
        "of_link": row.of_link,
        "wanted_of_link": row.wanted,
        "predicted_shape": None if row.predicted is None else row.predicted.shape,
        "predicted_of_link": None if row.predicted is None else row.predicted.ratio,
        "sent": found.sent,
        "received": found.received,
        "processor_s": found.processor,
    }


def fault_document(case: Case, measured: Sequence[Outcome]) -> dict[str, Any]:
    """The faults of a case for programs."""
    return {
        "workers": case.workers,
        "servers": case.servers,
        "bytes": case.nbytes,
        "rate_bits_per_second": case.rate,
        "faults": [{**asdict(one), "median": one.median, "added": one.added} for one in measured],
        "absent": case.absent,
        "busy": case.busy,
    }


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else format_ratio(ratio)
