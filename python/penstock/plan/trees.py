"""Overlay trees: what is asked of the core's planner, and what it says, in words and in JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.plan.report import WIDTH, table, wrap
from penstock.units import format_rate, format_ratio, format_size, format_time

LEGEND = (
    "ratio: to the time of one transfer, that of all bytes over the first server's link. busiest: of the "
    "time, how long the busiest uplink sends. depth: edges from a server to the farthest host."
)


@dataclass(frozen=True)
class Host:
    """A host of workers, or of a server."""

    name: str
    zone: int
    rack: int
    rate: float
    """Bytes per second."""


@dataclass(frozen=True)
class Cluster:
    """What is planned for."""

    servers: Sequence[Host]
    hosts: Sequence[Host]
    measured: bool
    """Whether costs come from the rates, instead of racks and zones."""
    nbytes: int
    block: int
    hop: float

    @property
    def one_transfer(self) -> float:
        """Seconds."""
        return self.nbytes / self.servers[0].rate


@dataclass(frozen=True)
class Stripe:
    """A part of the bytes, and who sends it to whom: by host, from 1; 0 is the server."""

    share: float
    parents: Sequence[int]

    def children(self) -> list[list[int]]:
        """To whom each node sends."""
        result: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for host, parent in enumerate(self.parents, 1):
            result[parent].append(host)
        return result


@dataclass(frozen=True)
class Planned:
    """A shape, with the stripes of each server."""

    shape: str
    seconds: float
    ratio: float
    busiest: float
    depth: int
    servers: Sequence[Sequence[Stripe]]


class Planner:
    """
    The core's planner for one cluster.

    Raises
    ------
    OptionError
        The cluster cannot be: two hosts of one name, a rate of 0.
    """

    def __init__(self, cluster: Cluster) -> None:
        from penstock import _core

        numbers: dict[str, int] = {}

        def row(host: Host) -> tuple[int, int, int, float]:
            return host.zone, host.rack, numbers.setdefault(host.name, len(numbers)), host.rate

        # The hosts first: they have the numbers that decide between equals.
        hosts = [row(host) for host in cluster.hosts]
        servers = [row(host) for host in cluster.servers]
        traffic = (cluster.nbytes, cluster.block, cluster.hop)
        self._core = _core.OverlayPlanner(servers, hosts, cluster.measured, traffic)

    def plan(
        self,
        shape: str,
        *,
        degree: int = 2,
        depth: int = 1,
        leaf_penalty: float = 0.0,
        stripes: int | None = None,
    ) -> Planned:
        """
        The overlays of a shape: `star`, `chain`, `tree`, `striped` or `auto`.

        Raises
        ------
        OptionError
            The shape cannot be had: a depth that is too small, more stripes than hosts.
        """
        limits = (degree, depth, leaf_penalty)
        said, (seconds, ratio, busiest, deepest), servers = self._core.plan(shape, limits, stripes)
        made = [[Stripe(share, parents) for share, parents in server] for server in servers]
        return Planned(said, seconds, ratio, busiest, deepest, made)


def text(cluster: Cluster, rows: Sequence[Planned], chosen: Planned, notes: Sequence[str] = ()) -> str:
    """All shapes in a table, and the trees of the first server."""
    return "\n\n".join(
        [
            _head(cluster),
            *(wrap(note, indent="  ") for note in notes),
            table(_rows(rows)),
            wrap(LEGEND, indent="  "),
            wrap(f"Planned: {chosen.shape}, {format_ratio(chosen.ratio)} one transfer."),
            *_trees(cluster, chosen),
        ]
    )


def _head(cluster: Cluster) -> str:
    racks = len({(host.zone, host.rack) for host in cluster.hosts})
    zones = len({host.zone for host in cluster.hosts})
    rates = sorted({host.rate * 8 for host in cluster.hosts})
    rate = format_rate(rates[0])
    if len(rates) > 1:
        rate += f" to {format_rate(rates[-1])}"
    costs = "measured rates" if cluster.measured else "racks and zones"
    count = f"{_many(len(cluster.hosts), 'host')} in {_many(racks, 'rack')} of {_many(zones, 'zone')}"
    size = f"{format_size(cluster.nbytes)} from {_many(len(cluster.servers), 'server')}"
    time = format_time(cluster.one_transfer)
    lines = (
        ("hosts", f"{count}, {rate}; costs by {costs}"),
        ("send", f"{size} in blocks of {format_size(cluster.block)}; one transfer takes {time}"),
    )
    return "\n".join(
        textwrap.fill(f"{name:<8} {said}", WIDTH, subsequent_indent=" " * 9) for name, said in lines
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _rows(rows: Sequence[Planned]) -> list[tuple[str, ...]]:
    result: list[tuple[str, ...]] = [("", "time", "ratio", "busiest", "depth")]
    for row in rows:
        times = format_time(row.seconds), format_ratio(row.ratio), format_time(row.busiest)
        result.append((row.shape, *times, str(row.depth)))
    return result


def _trees(cluster: Cluster, planned: Planned) -> Iterator[str]:
    others = len(planned.servers) - 1
    if others:
        yield wrap(
            f"The trees of the first server; those of {_many(others, 'other')} are alike, with other inner "
            "hosts (--json has them all)."
        )
    stripes = planned.servers[0]
    for number, stripe in enumerate(stripes, 1):
        title = f"stripe {number} of {len(stripes)}, {stripe.share:.1%} of the bytes\n"
        yield (title if len(stripes) > 1 else "") + "\n".join(indented(cluster, stripe))


def indented(cluster: Cluster, stripe: Stripe) -> Iterator[str]:
    """The tree, a host that passes on a line, its leaves on one line (or several) below it."""
    children = stripe.children()
    names = [f"{cluster.servers[0].name} (server)", *(host.name for host in cluster.hosts)]
    # A chain of a thousand hosts would be indented by thousands of columns: from there on, it says how deep.
    deepest = WIDTH // 2
    todo = [(0, 0)]
    while todo:
        node, depth = todo.pop()
        margin = "  " * depth if 2 * depth <= deepest else " " * deepest + f"({depth}) "
        yield f"{margin}{names[node]}"
        leaves = [names[child] for child in children[node] if not children[child]]
        if leaves:
            inside = "  " * min(depth + 1, deepest // 2)
            yield textwrap.fill(
                ", ".join(leaves),
                WIDTH,
                initial_indent=inside,
                subsequent_indent=inside,
                break_long_words=False,
                break_on_hyphens=False,
            )
        todo += [(child, depth + 1) for child in reversed(children[node]) if children[child]]


def document(
    cluster: Cluster, rows: Sequence[Planned], chosen: Planned, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """The same for a program: seconds and bytes, unrounded, the trees of all servers."""
    names = [host.name for host in cluster.hosts]

    def tree(server: int, stripe: Stripe) -> dict[str, Any]:
        # `None` is the server itself: a host may have its name.
        parents = {
            name: names[up - 1] if up else None for name, up in zip(names, stripe.parents, strict=True)
        }
        return {"server": cluster.servers[server].name, "share": stripe.share, "parents": parents}

    return {
        "bytes": cluster.nbytes,
        "block_bytes": cluster.block,
        "hop_s": cluster.hop,
        "one_transfer_s": cluster.one_transfer,
        "costs": "measured" if cluster.measured else "labels",
        "shapes": [_times(row) for row in rows],
        "planned": _times(chosen)
        | {
            "trees": [
                tree(server, stripe) for server, stripes in enumerate(chosen.servers) for stripe in stripes
            ]
        },
        "notes": list(notes),
    }


def _times(row: Planned) -> dict[str, Any]:
    return {
        "shape": row.shape,
        "seconds": row.seconds,
        "ratio": row.ratio,
        "busiest_uplink_s": row.busiest,
        "depth": row.depth,
    }
