"""
The planner's trees beside the best ones, over random clusters, and its time for large clusters:
`python -m penstock_bench.trees` prints the tables of docs/trees.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from random import Random

from penstock.cli import terminal
from penstock.plan.report import table
from penstock.plan.trees import Cluster, Host, Planner
from penstock_bench.trees.exact import Limits, brute, cost, solve

SEED = 1
CLUSTERS = 40
"""Of each setting: five hosts to seven in turn."""
SETTINGS = (
    Limits(2, 3, 0.0),
    Limits(2, 3, 0.5),
    Limits(2, 4, 0.2),
    Limits(3, 2, 0.0),
    Limits(3, 3, 0.2),
    Limits(3, 3, 1.0),
    Limits(1, 7, 0.0),
    Limits(7, 7, 0.0),
    Limits(7, 7, 0.5),
)
LARGE = (100, 300, 1000)


def clusters(count: int) -> Iterator[Cluster]:
    """Small clusters: hosts in up to four racks of two zones, or with rates of their own."""
    dice = Random(SEED)  # noqa: S311
    for number in range(count):
        measured = number % 2 == 1
        racks = [dice.randrange(4) for _ in range(6 + number % 3)]
        rates = [dice.choice((1, 2, 5, 10, 25)) * 1.25e8 if measured else 1.25e9 for _ in racks]
        server, *hosts = [
            Host(f"host{host}", rack // 2, rack, rate)
            for host, (rack, rate) in enumerate(zip(racks, rates, strict=True))
        ]
        yield Cluster([server], hosts, measured, 1 << 28, 1 << 20, 0.0)


def costs(cluster: Cluster) -> list[list[float]]:
    """What the edges cost, as docs/trees.md says; a second copy of the planner's rule, to judge it by."""
    nodes = [*cluster.servers, *cluster.hosts]
    slowest = min(node.rate for node in nodes)

    def edge(one: Host, other: Host) -> float:
        if one.name == other.name:
            return 0.0
        if cluster.measured:
            return slowest / one.rate
        if one.zone != other.zone:
            return 1.0
        return 0.1 if one.rack == other.rack else 0.5

    return [[edge(one, other) for other in nodes] for one in nodes]


def gaps(limits: Limits) -> list[float]:
    """How much more the planner's tree costs than the best, for each cluster, as a part of the best."""
    result = []
    for cluster in clusters(CLUSTERS):
        prices = costs(cluster)
        best = brute(prices, limits) if len(cluster.hosts) <= 6 else solve(prices, limits)
        if best is None:
            continue
        planned = Planner(cluster).plan(
            "tree", degree=limits.degree, depth=limits.depth, leaf_penalty=limits.leaf_penalty
        )
        ours = cost(prices, planned.servers[0][0].parents, limits.leaf_penalty)
        result.append(ours / best.cost - 1)
    return result


def distances() -> str:
    """The table of gaps."""
    rows: list[tuple[str, ...]] = [("T", "H", "alpha", "clusters", "best", "mean gap", "largest gap")]
    for limits in SETTINGS:
        found = gaps(limits)
        best = sum(gap < 1e-9 for gap in found)
        rows.append(
            (
                str(limits.degree),
                str(limits.depth),
                f"{limits.leaf_penalty:g}",
                str(len(found)),
                f"{best / len(found):.0%}",
                f"{abs(statistics.mean(found)):.1%}",
                f"{abs(max(found)):.1%}",
            )
        )
    return table(rows)


def _milliseconds(time_ms: float) -> str:
    if time_ms < 0.1:
        return "< 0.1 ms"
    return f"{time_ms:.1f} ms" if time_ms < 1 else f"{time_ms:.0f} ms"


def times() -> str:
    """The table of times."""
    rows: list[tuple[str, ...]] = [("hosts", "star", "chain", "striped", "tree", "auto")]
    for count in LARGE:
        hosts = [Host(f"host{host}", host // 200, host // 40, 1.25e9) for host in range(count)]
        planner = Planner(Cluster([Host("server", 0, 0, 1.25e9)], hosts, False, 1 << 28, 1 << 20, 0.0))
        row = [str(count)]
        for shape in ("star", "chain", "striped", "tree", "auto"):
            before = time.perf_counter()
            planner.plan(shape, degree=4, depth=6, leaf_penalty=0.2)
            row.append(_milliseconds((time.perf_counter() - before) * 1e3))
        rows.append(tuple(row))
    return table(rows)


if __name__ == "__main__":
    terminal.say(distances())
    terminal.say()
    terminal.say(times())
