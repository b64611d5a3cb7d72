"""What the planner predicts of a shape: `penstock plan --tree` for the same hosts, rates and bytes."""

from __future__ import annotations

from penstock.plan.trees import Cluster, Host, Planned, Planner
from penstock_bench.streaming.systems import layout

BLOCK = 32 << 10
"""Bytes that go on together: a chunk."""
ASSUMED = (1.25e9, 64 << 20, 1e-4)
"""What servers plan for (control/trees.rs): bytes a second, bytes, seconds of a hop."""


def predicted(shape: str, workers: int, nbytes: int, rate: int, servers: int = 1) -> Planned:
    """
    What a shape takes that servers plan for these hosts.

    Examples
    --------
    >>> round(predicted("star", 4, 16_000_000, 10**9).ratio, 2)
    4.0
    """
    chosen = plan(shape, workers, ASSUMED[1], ASSUMED[0], ASSUMED[2], servers)
    if chosen.shape.startswith("striped"):
        # As many stripes as the servers think best, not as many as would be best here.
        shape = f"striped:{max(len(stripes) for stripes in chosen.servers)}"
    elif shape == "auto":
        shape = chosen.shape.partition(" ")[0]
    return plan(shape, workers, nbytes, rate / 8, 0.0, servers)


def plan(shape: str, workers: int, nbytes: int, rate: float, hop: float, servers: int) -> Planned:
    """Asks the planner; `rate` in bytes a second."""
    kind, _, said = shape.partition(":")
    numbers = dict(part.split("=") for part in said.split(",")) if "=" in said else {}
    places = layout(workers, servers)
    hosts = [Host(f"host{host}", 0, 0, rate) for host in places.workers]
    cluster = Cluster(
        [Host(f"host{host}", 0, 0, rate) for host in places.servers], hosts, False, nbytes, BLOCK, hop
    )
    degree = int(numbers.get("degree", 2))
    return Planner(cluster).plan(
        kind,
        degree=degree,
        depth=int(numbers.get("depth") or least_depth(workers, degree)),
        leaf_penalty=float(numbers.get("leaf_penalty", 0)),
        stripes=int(said) if kind == "striped" and said else None,
    )


def least_depth(workers: int, degree: int) -> int:
    """The fewest edges within which a tree of this degree reaches all."""
    from penstock import _core

    return _core.least_depth(workers, degree) or 1
