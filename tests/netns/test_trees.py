"""
Inner nodes of trees that die, hang, are cut off or become slow in the middle of a broadcast: the others route
around them within that iteration, with every bit of every version right.

The workers are those of `penstock bench tree`, which know the value of each version exactly, whatever tree it
comes by: they compare all of it, each time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_bench.netns import NetworkTestbed
from penstock_bench.network.places import Place
from penstock_bench.streaming import faults
from penstock_bench.streaming.systems import Streaming
from penstock_bench.streaming.traffic import Traffic

MakeTestbed = Callable[..., NetworkTestbed]

WORKERS = 4
BYTES = 4_000_000
"""Of the value: 160 ms over a link of these hosts, so that there is a middle in which a node can fail."""


@pytest.mark.parametrize("shape", ["chain", "striped"])
@pytest.mark.parametrize("fault", ["kill", "hang", "cut", "slow"])
def test_an_inner_node_that_fails_in_a_broadcast_costs_its_iteration_some_time_and_nothing_else(
    make_testbed: MakeTestbed, shape: str, fault: str
) -> None:
    testbed = make_testbed(hosts=WORKERS + 1, rate="200mbit")
    options = {"PENSTOCK_SHARDS": "1", **faults.options(fault)}
    system = Streaming(Place(testbed), WORKERS, BYTES, shape=shape, options=options)
    with Traffic(testbed) as traffic:
        # Whoever waited for a lease in a broadcast would wait longer than a pull does, which would fail.
        outcome = faults.run(system, fault, testbed, traffic, lambda _: None, before=4, after=4)
    assert outcome.passed_on > 0.3, "it was an inner node"
    assert len(outcome.after) == 4
    if fault == "kill":
        # Its own is shorter: the iteration behind waits for it.
        assert outcome.during < faults.LEASE_OF_KILLED
    if fault in ("hang", "cut"):
        assert outcome.itself is not None
        assert outcome.during < outcome.itself, "the others had the version before it came back"
        assert outcome.itself > faults.HOLD, "it did fail"
