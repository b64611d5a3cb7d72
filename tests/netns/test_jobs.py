"""Whole jobs across several hosts: the bits of one host, the promised staleness, what travels and how."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from placing import ELEMENTS, PROGRAMS, Running, alone, clean, connections, job

from penstock_bench.netns import NetworkTestbed

MakeTestbed = Callable[..., NetworkTestbed]

TOPOLOGIES = [
    ("cc", [0, 1, 2], [0]),
    ("cs", [0, 1, 2], [0, 1, 2]),
    ("ncc", [0, 1], [2]),
    ("ncs", [0, 1, 2], [3, 4]),
    ("cs on five hosts", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
    ("two workers a host", [0, 0, 1, 1], [0, 1]),
]


@pytest.mark.parametrize("security", ["auto", "insecure"])
@pytest.mark.parametrize(("topology", "workers", "servers"), TOPOLOGIES, ids=[row[0] for row in TOPOLOGIES])
def test_every_topology_gives_the_bits_of_one_host(
    tmp_path: Path,
    make_testbed: MakeTestbed,
    topology: str,
    workers: list[int],
    servers: list[int],
    security: str,
) -> None:
    testbed = make_testbed(hosts=max(*workers, *servers) + 1, rate="1gbit")
    with job(tmp_path, security=security) as one:
        one.serve(testbed, servers, len(workers))
        one.work(testbed, workers, 6, ELEMENTS, "bsp")
        assert one.value() == alone(len(workers), 6)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_only_workers_on_other_hosts_use_the_network_unless_told_to(
    tmp_path: Path, make_testbed: MakeTestbed, transport: str
) -> None:
    testbed = make_testbed(hosts=2, rate=None)
    with job(tmp_path, transport=transport) as one:
        one.serve(testbed, [0], 2)
        # The last iterations wait for each other, so that both workers are there while they are looked at.
        one.work(testbed, [0, 1], 1_000_000, 1_000, "bsp")
        for worker in one.workers:
            worker.until("iteration 3.")
        near, far = (connections(worker.pid) for worker in one.workers)
        assert (near > 0) == (transport == "tcp")
        assert far >= 2, "one for control, one a shard"


@pytest.mark.parametrize(("consistency", "slack"), [("bsp", 0), ("ssp:2", 2)])
def test_a_reader_on_another_host_is_never_staler_than_its_slack_while_another_stands_still(
    tmp_path: Path, make_testbed: MakeTestbed, consistency: str, slack: int
) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    with job(tmp_path) as one:
        one.serve(testbed, [2], 2)
        one.work(testbed, [0, 1], 300, 20_000, consistency, program="count.py")
        one.workers[1].until("iteration 3.")
        one.workers[1].send(signal.SIGSTOP)
        stands = len(one.workers[1].lines)  # iterations that are certainly complete
        if slack:
            one.workers[0].until(f"iteration {stands + slack - 1}.")
        one.workers[1].send(signal.SIGCONT)
        for rank, (seen, counted) in enumerate(one.results()):
            assert int(seen) <= slack, rank
            assert int(counted) <= slack, rank
            assert (int(seen) > 0) == (slack > 0) or rank > 0, "it did run ahead"


@pytest.mark.parametrize("security", ["auto", "insecure"])
def test_what_travels_can_be_read_only_where_that_was_asked_for(
    tmp_path: Path, make_testbed: MakeTestbed, security: str
) -> None:
    testbed = make_testbed(hosts=2, rate=None)
    # 3.3 in every element of the gradient; the secret as it is, and as it is written.
    patterns = [struct.pack("<4f", *[3.3] * 4).hex()]
    with job(tmp_path, security=security) as one:
        patterns += [one.secret, one.secret.encode().hex()]
        sniff = [sys.executable, str(PROGRAMS / "sniff.py"), "p0", *patterns]
        argv = ["ip", "netns", "exec", testbed.switch, *sniff]
        sniffer = Running(None, 0, argv, clean(), stdin=subprocess.PIPE)
        try:
            sniffer.until("listens")
            one.serve(testbed, [1], 1)
            one.work(testbed, [0], "3.3", 50_000, program="constant.py")
            one.results()
            assert sniffer.popen.stdin is not None
            sniffer.popen.stdin.close()
            assert sniffer.ends() == 0, sniffer.said()
            heard, values, raw, written = map(int, sniffer.until("heard").split()[1:])
        finally:
            sniffer.close()
        assert heard > 4 * 50_000
        assert (values > 0) == (security == "insecure")
        assert raw == written == 0, "the secret itself never travels"


def test_filters_that_follow_the_network_give_way_on_a_slow_one_and_lose_nothing(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=3, rate="100mbit")
    results = {}
    for kind in ("none", "auto"):
        with job(tmp_path) as one:
            one.serve(testbed, [2], 2)
            one.work(testbed, [0, 1], kind, 200_000, 60, program="pressed.py")
            results[kind] = one.results()
    plain, filtered = results["none"], results["auto"]
    assert {words[4] for words in plain} == {words[4] for words in filtered}, "what was held back came"
    for before, after in zip(plain, filtered, strict=True):
        assert (before[0], before[1]) == ("0.0", "0.0")
        assert float(after[0]) > 0
        assert float(after[1]) > 0
        assert float(after[2]) < 0.9 * float(before[2])
        assert float(after[3]) < 0.9 * float(before[3])


def test_compressors_are_used_where_a_slow_link_makes_them_pay_and_change_no_bit(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=3, rate="100mbit")
    results = {}
    for compress in ("none", "zstd", "auto"):
        with job(tmp_path) as one:
            one.serve(testbed, [2], 2)
            one.work(testbed, [0, 1], compress, "zeros", 200_000, 10, program="squeezed.py")
            results[compress] = one.results()
    assert len({words[5] for ranks in results.values() for words in ranks}) == 1, "no bit has changed"
    for before, named, chosen in zip(results["none"], results["zstd"], results["auto"], strict=True):
        assert before[:2] == ["0", "0"]
        assert int(named[0]) > 0
        assert int(named[1]) <= 20, "the last of each push may be short"
        # It begins when it has seen what the link carries.
        assert int(chosen[0]) > int(chosen[1])
        for words in (named, chosen):
            assert float(words[2]) < 0.6 * float(before[2]), "nine in ten are zeros"


@pytest.mark.parametrize("decay", ["none", "sqrt"])
def test_on_a_slow_network_bounds_rise_from_where_on_the_program_is_told(
    tmp_path: Path, make_testbed: MakeTestbed, decay: str
) -> None:
    testbed = make_testbed(hosts=2, rate="100mbit")
    with job(tmp_path) as one:
        one.serve(testbed, [1], 1)
        one.work(testbed, [0], decay, program="followed.py")
        assert min(map(int, one.results()[0])) > 0
