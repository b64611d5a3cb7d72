"""
The best tree of a small cluster, in two ways that share nothing: problem P3 of the Parameter Flow paper
(equations 12 to 21) through HiGHS, and by trying all.

P3 as printed admits circles: with the root sending to 1, and 2 and 3 to each other, every host has one parent
(13), no path is longer than 2 (16, 17, 20), and nobody is a leaf but 1. So `solve` adds an order: a host
comes after its parent. `order=False` leaves it as printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Costs = Sequence[Sequence[float]]
"""What it costs that one sends to the other; 0 is the root."""


@dataclass(frozen=True)
class Limits:
    """The paper's T, H and alpha."""

    degree: int
    depth: int
    leaf_penalty: float


@dataclass(frozen=True)
class Solution:
    """Who sends to each host, from 1, and equation 12 of it."""

    parents: tuple[int, ...]
    cost: float


def cost(costs: Costs, parents: Sequence[int], leaf_penalty: float) -> float:
    """Equation 12."""
    edges = sum(costs[parent][host] for host, parent in enumerate(parents, 1))
    return edges + leaf_penalty * (len(parents) + 1 - len(set(parents)))


def brute(costs: Costs, limits: Limits) -> Solution | None:
    """The best of all trees; None where there is none. For up to 6 hosts: it tries n^n."""
    hosts = len(costs) - 1
    best = None
    choices = [[node for node in range(hosts + 1) if node != host] for host in range(1, hosts + 1)]
    for parents in product(*choices):
        if allowed(parents, limits):
            price = cost(costs, parents, limits.leaf_penalty)
            if best is None or price < best.cost - 1e-9:
                best = Solution(parents, price)
    return best


def allowed(parents: Sequence[int], limits: Limits) -> bool:
    """Whether the root reaches every host, within the limits."""
    if any(parents.count(node) > limits.degree for node in set(parents)):
        return False
    for start in range(1, len(parents) + 1):
        node, depth = start, 0
        while node:
            node, depth = parents[node - 1], depth + 1
            if depth > limits.depth:
                return False
    return True


class _Model:
    """A model of binary variables, row by row."""

    def __init__(self) -> None:
        import highspy

        self.highspy: Any = highspy
        self.highs: Any = self.highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("mip_rel_gap", 0.0)
        self.count = 0

    def variable(self, price: float = 0.0, most: float = 1.0, *, whole: bool = True) -> int:
        self.highs.addCol(price, 0.0, most, 0, [], [])
        if whole:
            self.highs.changeColIntegrality(self.count, self.highspy.HighsVarType.kInteger)
        self.count += 1
        return self.count - 1

    def row(self, terms: Sequence[tuple[int, float]], least: float, most: float) -> None:
        merged: dict[int, float] = {}
        for variable, factor in terms:
            merged[variable] = merged.get(variable, 0.0) + factor
        self.highs.addRow(least, most, len(merged), list(merged), list(merged.values()))

    def run(self) -> list[float] | None:
        self.highs.run()
        if self.highs.getModelStatus() != self.highspy.HighsModelStatus.kOptimal:
            return None
        return list(self.highs.getSolution().col_value)


def solve(
    costs: Costs, limits: Limits, *, order: bool = True, given: Mapping[int, int] | None = None
) -> Solution | None:
    """
    The best of P3 by HiGHS; None where nothing satisfies it.

    Parameters
    ----------
    costs
        Of all edges.
    limits
        T, H and alpha.
    order
        Whether a host has to come after its parent: without it, P3 is as printed.
    given
        Parents that are not free.
    """
    nodes = len(costs)
    every, hosts, infinite = range(nodes), range(1, nodes), float("inf")
    model = _Model()
    edge = {(i, j): model.variable(costs[i][j] if i != j else 0.0) for i in every for j in every}
    leaf = [model.variable(limits.leaf_penalty) for _ in every]
    path = {(i, j, k): model.variable() for i in every for j in every for k in every}
    for j in hosts:
        model.row([(edge[i, j], 1) for i in every], 1, 1)  # (13)
    for i in every:
        model.row([(edge[i, j], 1) for j in every], 0, limits.degree)  # (14)
        model.row([*((edge[i, j], 1) for j in every), (leaf[i], 1)], 1, infinite)  # (15)
        model.row([(path[j, k, i], 1) for j in every for k in every], 0, limits.depth)  # (16)
        model.row([(edge[i, 0], 1)], 0, 0)  # (18)
        model.row([(edge[i, i], 1)], 0, 0)  # (19)
    for i, j, k, after in product(every, repeat=4):
        if i != k and j != after:
            terms: list[tuple[int, float]] = [
                (path[i, j, k], 1),
                (path[i, j, after], -1),
                (edge[k, after], 2),
            ]
            model.row(terms, -infinite, 2)  # (17)
    for i, j in product(every, repeat=2):
        model.row([(path[i, j, j], 1), (edge[i, j], -1)], 0, 0)  # (20)
    if order:
        place = [model.variable(most=nodes - 1, whole=False) for _ in every]
        for i, j in product(every, hosts):
            # A child's place is one behind its parent's, or more.
            model.row([(place[j], 1), (place[i], -1), (edge[i, j], -nodes)], 1 - nodes, infinite)
    for host, parent in (given or {}).items():
        model.row([(edge[parent, host], 1)], 1, 1)
    values: Any = model.run()
    if values is None:
        return None
    parents = tuple(max(every, key=lambda i, j=j: values[edge[i, j]]) for j in hosts)  # type: ignore[misc]
    return Solution(parents, cost(costs, parents, limits.leaf_penalty))
