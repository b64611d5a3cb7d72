"""The solver of the paper's problem P3 beside trying all trees, and the planner beside both."""

from __future__ import annotations

from importlib.util import find_spec
from random import Random

import pytest

from penstock.plan.trees import Planner
from penstock_bench.trees.__main__ import clusters, costs
from penstock_bench.trees.exact import Limits, allowed, brute, cost, solve

needs_highs = pytest.mark.skipif(
    find_spec("highspy") is None,
    reason="highspy, which finds the best trees, is not installed: make test-env does it",
)

# Hosts 2 and 3 share a rack, far from the root and from host 1.
CIRCLE = [
    [0.0, 1.0, 1.0, 1.0],
    [1.0, 0.0, 1.0, 1.0],
    [1.0, 1.0, 0.0, 0.1],
    [1.0, 1.0, 0.1, 0.0],
]


@needs_highs
def test_p3_as_printed_admits_a_circle_and_even_prefers_it() -> None:
    limits = Limits(2, 2, 0.5)
    circle = {1: 0, 2: 3, 3: 2}
    printed = solve(CIRCLE, limits, order=False, given=circle)
    assert printed is not None
    assert printed.parents == (0, 3, 2)
    assert solve(CIRCLE, limits, given=circle) is None

    best = solve(CIRCLE, limits, order=False)
    assert best is not None
    assert best.parents == (0, 3, 2)
    tree = solve(CIRCLE, limits)
    assert tree is not None
    assert allowed(tree.parents, limits)
    assert best.cost < tree.cost


@needs_highs
def test_the_solver_finds_what_trying_all_finds() -> None:
    dice = Random(2)
    for hosts, limits in [
        (1, Limits(1, 1, 0.5)),
        (3, Limits(2, 2, 0.0)),
        (4, Limits(2, 3, 0.3)),
        (4, Limits(1, 3, 0.0)),  # four hosts in a chain of three: nothing
        (5, Limits(3, 2, 0.5)),
        (6, Limits(2, 3, 0.2)),
    ]:
        prices = [[dice.choice((0.1, 0.5, 1.0)) for _ in range(hosts + 1)] for _ in range(hosts + 1)]
        tried, solved = brute(prices, limits), solve(prices, limits)
        assert (tried is None) == (solved is None)
        if tried is not None and solved is not None:
            assert allowed(solved.parents, limits)
            assert solved.cost == pytest.approx(tried.cost)


@pytest.mark.parametrize("limits", [Limits(2, 3, 0.5), Limits(3, 3, 1.0), Limits(1, 7, 0.0)])
def test_the_planners_tree_is_allowed_and_the_best(limits: Limits) -> None:
    # Attaching hosts from several starts alone, without improving, misses the best of some of these.
    for cluster in [cluster for cluster in clusters(40) if len(cluster.hosts) <= 6]:
        prices = costs(cluster)
        best = brute(prices, limits)
        assert best is not None
        planned = Planner(cluster).plan(
            "tree", degree=limits.degree, depth=limits.depth, leaf_penalty=limits.leaf_penalty
        )
        parents = planned.servers[0][0].parents
        assert allowed(parents, limits)
        ours = cost(prices, parents, limits.leaf_penalty)
        assert ours == pytest.approx(best.cost, rel=1e-9)
