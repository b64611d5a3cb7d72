"""The test hosts themselves: that they reach each other and nobody else, and that none is left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.exceptions import OptionError
from penstock_bench.netns import NetworkTestbed, NetworkTestbedError, clean, commands, names
from penstock_bench.netns.testbed import bucket

MakeTestbed = Callable[..., NetworkTestbed]

LISTEN = """
import socketserver, sys

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100):
            self.request.sendall(data)

with socketserver.ThreadingTCPServer((sys.argv[1], 7000), Echo) as server:
    print("listening", flush=True)
    server.serve_forever()
"""

CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as connection:
    connection.sendall(b"hello")
    print(connection.recv(100).decode())
"""

HOLD = """
import os, subprocess, sys
from penstock_bench.netns import NetworkTestbed
with NetworkTestbed(hosts=2, rate=None) as testbed:
    worker = testbed.spawn(0, ["sleep", "600"])
    print(worker.pid, testbed.switch, flush=True)
    sys.stdin.read()
"""

LIMIT = 30.0
"""Seconds for anything here to come."""


def own() -> set[str]:
    """Those of this process: another may run tests beside it."""
    return {name for name in spaces() if name.startswith(f"penstock-{os.getpid()}-")}


def spaces() -> set[str]:
    return {line.split()[0] for line in commands.run("ip", "netns", "list").splitlines()}


def listen(testbed: NetworkTestbed, host: int) -> None:
    argv = [sys.executable, "-c", LISTEN, testbed.address(host)]
    process = testbed.spawn(host, argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    process.stdout.close()


def reaches(testbed: NetworkTestbed, host: int, other: int, seconds: float = LIMIT) -> bool:
    argv = [sys.executable, "-c", CONNECT, testbed.address(other), str(seconds)]
    process = testbed.spawn(host, argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said, _ = process.communicate(timeout=LIMIT + seconds)
    return bool(said == "hello\n")


def hold() -> tuple[subprocess.Popen[str], int, str]:
    """A process that holds a testbed, the pid of what runs on a host of it, and the name of its switch."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid, switch = process.stdout.readline().split()
    return process, int(pid), switch


def gone(pid: int) -> bool:
    """Waits until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([descriptor], [], [], LIMIT)
    os.close(descriptor)
    return bool(ready)


def test_hosts_reach_each_other_and_themselves(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    listen(testbed, 0)
    assert all(reaches(testbed, host, 0) for host in range(3))


def test_a_program_outside_and_another_testbed_do_not_reach_a_host(
    make_testbed: MakeTestbed,
) -> None:
    one, two = make_testbed(hosts=2, rate=None), make_testbed(hosts=2, rate=None)
    listen(one, 1)
    assert reaches(one, 0, 1)
    assert not reaches(two, 0, 1, seconds=1.0), "hosts of two testbeds have the same addresses"
    # What answers out there, if anything does, is not the program on the host.
    outside = [sys.executable, "-c", CONNECT, one.address(1), "1"]
    assert subprocess.run(outside, capture_output=True, timeout=LIMIT).stdout != b"hello\n"


def test_a_cut_cable_stops_a_connection_and_a_mended_one_lets_it_go_on(
    make_testbed: MakeTestbed,
) -> None:
    testbed = make_testbed(hosts=3, rate="1gbit")
    listen(testbed, 0)
    script = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), timeout=60)
for line in sys.stdin:
    connection.settimeout(float(line))
    connection.sendall(b"x")
    try:
        print("heard" if connection.recv(1) else "closed", flush=True)
    except TimeoutError:
        print("silence", flush=True)
"""
    talker = testbed.spawn(
        1,
        [sys.executable, "-c", script, testbed.address(0)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def talk(seconds: float) -> str:
        assert talker.stdin is not None
        assert talker.stdout is not None
        talker.stdin.write(f"{seconds}\n")
        talker.stdin.flush()
        return str(talker.stdout.readline()).strip()

    assert talk(LIMIT) == "heard"
    testbed.cut(1)
    assert talk(1.0) == "silence"
    assert reaches(testbed, 2, 0), "only the cut host is off"
    testbed.mend(1)
    assert talk(LIMIT) == "heard"
    talker.communicate(timeout=LIMIT)


def test_links_are_shaped_at_both_ends(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=1, rate="250mbit")
    for space, device in ((testbed.namespace(0), "eth0"), (testbed.switch, "p0")):
        assert "tbf" in (said := commands.run("tc", "-n", space, "qdisc", "show", "dev", device))
        assert "rate 250Mbit" in said
    assert "tbf" not in commands.run(
        "tc", "-n", make_testbed(hosts=1, rate=None).namespace(0), "qdisc", "show", "dev", "eth0"
    )


@pytest.mark.parametrize("rate", [10**6, 10**9, 10**10, 10**11])
def test_a_bucket_holds_a_segment_and_its_queue_more_than_the_bucket(rate: int) -> None:
    words = bucket(rate)
    burst = int(words[words.index("burst") + 1].removesuffix("b"))
    limit = int(words[words.index("limit") + 1].removesuffix("b"))
    assert 64 << 10 < burst < limit


def test_nothing_is_left_after_an_exception(make_testbed: MakeTestbed) -> None:
    before = own()
    with pytest.raises(KeyError), NetworkTestbed(hosts=2, rate=None) as testbed:
        process = testbed.spawn(0, ["sleep", "600"])
        assert len(own() - before) == 3
        raise KeyError
    assert process.returncode == -signal.SIGKILL
    assert own() <= before


def test_a_program_that_a_program_on_a_host_started_is_killed_too(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=1, rate=None)
    argv = ["sh", "-c", "setsid sleep 600 & echo $!; wait"]
    process = testbed.spawn(0, argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    process.stdout.close()
    testbed.close()
    assert gone(grandchild)
    testbed.close()


@pytest.mark.parametrize("how", ["end", "SIGTERM", "SIGHUP", "SIGINT"])
def test_nothing_is_left_when_the_holder_ends(how: str) -> None:
    holder, worker, switch = hold()
    if how != "end":
        holder.send_signal(signal.Signals[how])
    with contextlib.suppress(BrokenPipeError):
        holder.communicate(timeout=LIMIT)
    assert gone(worker)
    assert switch not in spaces()
    if how in ("SIGTERM", "SIGHUP"):
        assert holder.returncode == -signal.Signals[how], "it still dies of the signal"


def test_what_a_killed_holder_left_is_removed_by_the_next_and_nothing_else(
    make_testbed: MakeTestbed,
) -> None:
    alive, _, living = hold()
    holder, worker, switch = hold()
    holder.kill()
    holder.wait(LIMIT)
    for pipe in (holder.stdin, holder.stdout):
        assert pipe is not None
        pipe.close()
    make_testbed(hosts=1, rate=None)
    assert switch not in spaces()
    assert gone(worker)
    assert living in spaces()
    alive.communicate(timeout=LIMIT)


def test_a_reused_process_number_does_not_keep_a_dead_holders_hosts() -> None:
    mine = names.prefix() + "-sw"
    _, pid, start, rest = mine.split("-", 3)
    assert names.abandoned([mine]) == []
    assert names.abandoned([f"penstock-{pid}-{int(start) + 1}-{rest}"]) != []
    assert names.abandoned(["somebody-else", "penstock-1-2-xyz", "penstock"]) == []


def test_a_forked_child_leaves_its_parents_hosts_alone(make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=1, rate=None)
    testbed._owner += 1  # as a forked child sees it
    testbed.close()
    testbed._owner -= 1
    assert testbed.switch in spaces()


def test_a_wrong_testbed_is_refused_before_anything_is_made() -> None:
    before = own()
    with pytest.raises(NetworkTestbedError, match="expected 1 to 250 hosts, got 0"):
        NetworkTestbed(hosts=0)
    with pytest.raises(OptionError, match="unknown unit"):
        NetworkTestbed(rate="1gigabit")
    closed = NetworkTestbed(hosts=2)
    with pytest.raises(NetworkTestbedError, match="the testbed is closed"):
        closed.spawn(0, ["true"])
    with pytest.raises(NetworkTestbedError, match="there is no host 2 in a testbed of 2"):
        closed.address(2)
    assert own() <= before


def test_a_machine_without_the_tools_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkTestbedError, match=r"`ip` was not found \(apt-get install iproute2\)"):
        NetworkTestbed().__enter__()


def test_a_user_without_the_capabilities_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_capabilities", lambda: 0)
    assert "CAP_NET_ADMIN" in (commands.missing() or "")


def test_a_failing_command_is_quoted_with_what_it_said() -> None:
    with pytest.raises(NetworkTestbedError, match=r"`ip -n nowhere link` failed: .*nowhere"):
        commands.run("ip", "-n", "nowhere", "link")


def test_cleaning_with_nothing_to_clean_is_quick_and_silent() -> None:
    clean()
    start = time.monotonic()
    assert clean() == []
    assert time.monotonic() - start < LIMIT
