"""
What a plan of trees cannot see of ways between workers: ports that a firewall blocks, certificates that are
not trusted; and several workers behind one address. Every worker compares every element of every version.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from penstock.cli import main
from penstock_bench.netns import NetworkTestbed, commands
from penstock_bench.network.places import Layout, Place
from penstock_bench.streaming.measure import FIRST
from penstock_bench.streaming.systems import Streaming
from penstock_bench.streaming.traffic import Traffic

MakeTestbed = Callable[..., NetworkTestbed]

BYTES = 4_000_000
REPEATS = 4
NOBODY = "02:00:00:00:00:01"
"""An address of no device: what goes there is lost, and nobody is told, as at a firewall that drops."""


class Job(Streaming):
    """A job along a chain, some of whose workers are told more than the others, or stand elsewhere."""

    def __init__(
        self,
        testbed: NetworkTestbed,
        workers: Sequence[int],
        *,
        more: Mapping[int, Mapping[str, str]] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        chosen = {"PENSTOCK_SHARDS": "1", **(options or {})}
        super().__init__(Place(testbed), len(workers), BYTES, shape="chain", options=chosen)
        self.layout = Layout(tuple(workers), (0,))
        self._more = more or {}

    def start(self) -> tuple[list[list[str]], list[dict[str, str]]]:
        """How its workers start."""
        argv, environments = super().start()
        told = [{**given, **self._more.get(rank, {})} for rank, given in enumerate(environments)]
        return argv, told


def moved(testbed: NetworkTestbed, job: Job, *, settles: int = FIRST) -> tuple[list[float], list[float]]:
    """By host, what it sends and receives in a broadcast, of the value's bytes, once the ways are found."""
    with Traffic(testbed) as traffic:
        try:
            job.open()
            job.run(settles)
            before = traffic.read()
            job.run(REPEATS)
            now = traffic.read().since(before)
        finally:
            job.end()
    return [[each / (REPEATS * BYTES) for each in ways] for ways in (now.sent, now.received)]


def block(testbed: NetworkTestbed, source: int, to: int) -> None:
    """Has all that a host sends to another one vanish."""
    there = testbed.address(to)
    neighbour = ("neigh", "replace", there, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")
    commands.run("ip", "-n", testbed.namespace(source), *neighbour)


def test_workers_between_which_nothing_passes_are_fed_by_the_server(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=4, rate="200mbit")
    for source in range(1, 4):
        for to in range(1, 4):
            if source != to:
                block(testbed, source, to)
    sent, received = moved(testbed, Job(testbed, [1, 2, 3]))
    assert 2.9 < sent[0] < 3.5, "the server sends to each"
    assert max(sent[1:]) < 0.2
    assert min(received[1:]) > 0.9


def test_a_worker_that_cannot_reach_its_parent_is_fed_by_another(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=4, rate="200mbit")
    # Along the chain each is fed by the one before.
    block(testbed, 2, 1)
    sent, received = moved(testbed, Job(testbed, [1, 2, 3]), settles=FIRST + 8)
    assert min(received[1:]) > 0.9
    assert sent[0] < 2.5, "not all are fed by the server"
    assert sum(sent[1:]) > 0.9, "somebody passes on"


def certificate(
    folder: Path, name: str, hosts: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> dict[str, str]:
    """What a process is told that has a certificate for these hosts, of the authority of this folder."""
    named = [word for host in hosts for word in ("--host", host)]
    capsys.readouterr()
    assert main(["cert", "--out", str(folder), "--name", name, "--json", *named]) == 0
    made = json.loads(capsys.readouterr().out)
    return {f"PENSTOCK_{word.upper()}": made[word] for word in ("certificate", "key", "ca")}


def test_with_an_authority_workers_pass_on_that_have_a_certificate_of_it(
    make_testbed: MakeTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed = make_testbed(hosts=4, rate="200mbit")
    told = certificate(tmp_path / "ca", "all", [testbed.address(host) for host in range(4)], capsys)
    sent, received = moved(testbed, Job(testbed, [1, 2, 3], options={**told, "PENSTOCK_SECURITY": "tls"}))
    assert sent[0] < 1.5, "the server sends once"
    assert sum(each > 0.9 for each in sent[1:]) == 2, "and all but the last pass on"
    assert min(received[1:]) > 0.9


def test_a_parent_whose_certificate_its_child_does_not_trust_is_not_fed_from(
    make_testbed: MakeTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed = make_testbed(hosts=4, rate="200mbit")
    addresses = [testbed.address(host) for host in range(4)]
    told = certificate(tmp_path / "ca", "all", addresses, capsys)
    other = certificate(tmp_path / "other", "all", addresses, capsys)
    # It trusts the server as the others do, and shows them what they do not trust.
    shown = {name: other[name] for name in ("PENSTOCK_CERTIFICATE", "PENSTOCK_KEY")}
    options = {**told, "PENSTOCK_SECURITY": "tls"}
    job = Job(testbed, [1, 2, 3], more={0: shown}, options=options)
    sent, received = moved(testbed, job, settles=FIRST + 4)
    assert sent[1] < 0.2, "nobody is fed by it"
    assert sent[0] > 1.9 or sum(sent[2:]) > 1.9, "somebody else feeds those that it was to feed"
    assert min(received[1:]) > 0.9


def test_a_host_of_several_workers_is_sent_a_value_once(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=3, rate="200mbit")
    sent, received = moved(testbed, Job(testbed, [1, 1, 2, 2, 1]))
    assert sent[0] < 1.5, "the server sends to one host"
    for host in (1, 2):
        assert 0.9 < received[host] < 1.5, "the others there are fed by its first worker"
    assert 0.9 < sum(sent[1:]) < 1.5


def controls(testbed: NetworkTestbed, host: int) -> list[tuple[str, int]]:
    """Of each connection of a host, what controls its congestion, and what it has sent."""
    command = ("ip", "netns", "exec", testbed.namespace(host), "ss", "-tinH", "state", "established")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sent = [re.search(r"bytes_sent:(\d+)", line) for line in said.splitlines()]
    found = zip(said.splitlines(), sent, strict=True)
    return [(line.split()[0], int(match.group(1))) for line, match in found if match]


def test_what_goes_down_a_tree_is_controlled_so_that_it_shares_lines(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=5, rate="200mbit")
    for host in range(5):
        sysctl = ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=bbr"]
        if subprocess.run([*testbed.prefix(host), *sysctl], capture_output=True).returncode:
            pytest.skip("NO BBR ON THIS MACHINE: nothing shares lines unevenly")
    job = Job(testbed, [1, 2, 3, 4], options={"PENSTOCK_TREE": "striped:2"})
    try:
        job.open()
        job.run(FIRST + REPEATS)
        found = [control for host in range(5) for control in controls(testbed, host)]
    finally:
        job.end()
    carry = [name for name, sent in found if sent > BYTES]
    assert len(carry) >= 4, "the server to the first of each stripe, and those to others"
    assert set(carry) <= {"cubic", "reno"}, found
