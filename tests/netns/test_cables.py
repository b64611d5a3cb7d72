"""Cables that are cut, with and without a return, and connections that break: what a job notices of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from placing import ELEMENTS, Relay, alone, job, running, wait_until_sent_again

from penstock_bench.netns import NetworkTestbed

MakeTestbed = Callable[..., NetworkTestbed]

LARGE = 2_000_000
"""Elements of a tensor that keeps a link of 1 Gbit/s busy for some 70 ms in each iteration."""
ENDLESS = 1_000_000
LEASE = 2.0
MARGIN = 8.0
"""Seconds beyond a lease in which its end must be heard of, on a machine that does much else."""


@pytest.mark.parametrize(
    ("security", "host"), [("auto", 0), ("insecure", 2)], ids=["a worker's", "the server's, plain"]
)
def test_a_cable_that_is_cut_in_an_exchange_and_put_back_costs_time_and_nothing_else(
    tmp_path: Path, make_testbed: MakeTestbed, security: str, host: int
) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    with job(tmp_path, security=security, lease="20") as one:
        one.serve(testbed, [2], 2)
        one.work(testbed, [0, 1], 10, LARGE, "bsp")
        one.workers[1].until("iteration 2.")
        testbed.cut(host)
        # Segments that are sent in vain: the cut came in the middle, and lasts.
        cut_off = one.workers[0] if host == 0 else one.servers[0]
        wait_until_sent_again(cut_off.pid, 3)
        assert all(worker.runs() for worker in one.workers)
        testbed.mend(host)
        assert one.value() == alone(2, 10, LARGE)


def test_every_cable_may_be_cut_once_with_a_server_on_every_host(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    with job(tmp_path, lease="20") as one:
        one.serve(testbed, [0, 1, 2], 3)
        one.work(testbed, [0, 1, 2], 12, LARGE, "bsp")
        for host in range(3):
            one.workers[host].until(f"iteration {3 * host}.")
            testbed.cut(host)
            wait_until_sent_again(one.workers[host].pid, 1)
            assert one.workers[host].runs()
            testbed.mend(host)
        assert one.value() == alone(3, 12, LARGE)


@pytest.mark.parametrize("security", ["auto", "insecure"])
def test_connections_that_are_reset_again_and_again_lose_and_repeat_nothing(
    tmp_path: Path, make_testbed: MakeTestbed, security: str
) -> None:
    testbed = make_testbed(hosts=4, rate="1gbit")
    with job(tmp_path, security=security, lease="20") as one:
        one.serve(testbed, [2], 2)
        with running(Relay(testbed, 3, "tear", 2, one.endpoints[0], 1_000_000)) as relay:
            one.work(testbed, [0, 1], 10, ELEMENTS, "bsp", through={0: relay.endpoint})
            assert one.value() == alone(2, 10)
            assert relay.counts()["torn"] >= 5, "each iteration is more than a reset's worth"


def test_a_host_that_vanishes_is_named_within_its_lease_and_learns_of_it_itself(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    with job(tmp_path, lease=str(LEASE)) as one:
        one.serve(testbed, [2], 2)
        one.work(testbed, [0, 1], ENDLESS, ELEMENTS, "bsp")
        one.workers[0].until("iteration 3.")
        cut = time.monotonic()
        testbed.cut(1)
        error = one.error(0)
        assert "WorkerLost: the job has ended: worker 1 was lost: it gave no sign of life for 2000" in error
        assert "hint: check worker 1's own output" in error
        assert "ServerLost: the job has ended: server 0 was lost: " in one.error(1)
        assert time.monotonic() - cut < LEASE + MARGIN


def test_a_vanished_server_is_named_by_all(tmp_path: Path, make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=4, rate="1gbit")
    with job(tmp_path, lease=str(LEASE)) as one:
        one.serve(testbed, [2, 3], 2)
        one.work(testbed, [0, 1], ENDLESS, ELEMENTS, "bsp")
        one.workers[0].until("iteration 3.")
        cut = time.monotonic()
        testbed.cut(3)
        for rank in range(2):
            assert "ServerLost: the job has ended: server 1 was lost: " in one.error(rank)
        assert time.monotonic() - cut < LEASE + MARGIN


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2"])
def test_the_others_go_on_without_a_host_that_vanishes_where_they_shall(
    tmp_path: Path, make_testbed: MakeTestbed, consistency: str
) -> None:
    testbed = make_testbed(hosts=4, rate="1gbit")
    with job(tmp_path, lease=str(LEASE), on_worker_loss="continue") as one:
        one.serve(testbed, [3], 3)
        one.work(testbed, [0, 1, 2], 60, ELEMENTS, consistency)
        one.workers[0].until("iteration 3.")
        testbed.cut(2)
        assert "server 0 was lost" in one.error(2)
        one.workers.pop().close()
        one.value()


def test_a_host_that_comes_back_after_its_lease_is_told_that_it_was_lost(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    # The worker's own lease is the server's: it is stopped while its cable is out, so that it cannot count.
    with job(tmp_path, lease=str(LEASE), on_worker_loss="continue") as one:
        one.serve(testbed, [2], 2)
        one.work(testbed, [0, 1], 60, ELEMENTS, "bsp")
        one.workers[0].until("iteration 3.")
        one.workers[1].send(signal.SIGSTOP)
        testbed.cut(1)
        lost = one.workers.pop()
        with running(lost):
            one.value()  # without it
            testbed.mend(1)
            lost.send(signal.SIGCONT)
            assert lost.ends() == 1, lost.said()
            assert "ServerLost" in lost.said() or "WorkerLost" in lost.said()
