"""
A host whose uplink has a fifth of the others' rate from the beginning, and which never fails: it is found out
while it sends, and soon passes nothing on.

The workers are those of `penstock bench tree`, which compare every bit of every version.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_bench.netns import NetworkTestbed, commands
from penstock_bench.netns.testbed import bucket
from penstock_bench.network.places import Place
from penstock_bench.streaming.systems import Streaming
from penstock_bench.streaming.traffic import Traffic

MakeTestbed = Callable[..., NetworkTestbed]

WORKERS = 4
BYTES = 4_000_000
RATE = 200_000_000
SLOW = 1
"""The worker with the slow uplink: in the middle of a chain, where it would keep the others waiting."""
AT_A_TIME = 5
MOST = 60
"""Iterations until it passes nothing on: some seconds, whatever this machine has to do beside it."""


@pytest.mark.parametrize("shape", ["chain", "tree:degree=2"])
def test_a_host_with_a_slow_uplink_passes_nothing_on_soon_though_it_never_fails(
    make_testbed: MakeTestbed, shape: str
) -> None:
    testbed = make_testbed(hosts=WORKERS + 1, rate=RATE)
    # Of a tree the first worker passes on to two, of a chain all but the last pass on.
    slow = SLOW if shape == "chain" else 0
    options = {"PENSTOCK_SHARDS": "1", "PENSTOCK_LEASE": "8"}
    system = Streaming(Place(testbed), WORKERS, BYTES, shape=shape, options=options)
    space = testbed.namespace(system.layout.workers[slow])
    commands.run("tc", "-n", space, "qdisc", "change", "dev", "eth0", "root", *bucket(RATE // 5))
    with Traffic(testbed) as traffic:
        try:
            system.open()
            system.run(3)
            passed_on: list[float] = []
            while len(passed_on) * AT_A_TIME < MOST and (not passed_on or passed_on[-1] > 0.3):
                before = traffic.read()
                system.run(AT_A_TIME)
                sent = traffic.read().since(before).sent[system.layout.workers[slow]]
                passed_on.append(sent / (AT_A_TIME * BYTES))
        finally:
            system.end()
    assert passed_on[-1] < 0.3, f"it passed on, in values: {passed_on}"


def test_hosts_that_are_alike_stay_where_they_are(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=WORKERS + 1, rate=RATE)
    options = {"PENSTOCK_SHARDS": "2", "PENSTOCK_LEASE": "8"}
    system = Streaming(Place(testbed), WORKERS, BYTES, shape="chain", options=options)
    with Traffic(testbed) as traffic:
        try:
            system.open()
            system.run(3)
            before = traffic.read()
            system.run(MOST)
            moved = traffic.read().since(before)
        finally:
            system.end()
    passed_on = [moved.sent[host] / (MOST * BYTES) for host in system.layout.workers]
    assert all(sent > 0.9 for sent in passed_on[:-1]), passed_on
    assert passed_on[-1] < 0.2, passed_on
