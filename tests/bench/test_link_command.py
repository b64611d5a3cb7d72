"""`penstock bench link` as a user calls it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from needing import hosts

from penstock.cli import main
from penstock_bench.link import report
from penstock_bench.link.measure import Result, Way
from penstock_bench.link.search import MOST_DISCARDED, Found, Verdict


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "expected one of HOST:PORT, --listen and --hosts netns"),
        ("10.0.0.1:7190 --listen", "expected one of HOST:PORT, --listen and --hosts netns"),
        ("10.0.0.1", "expected HOST:PORT, got '10.0.0.1'"),
        ("10.0.0.1:0", "expected HOST:PORT, got"),
        ("10.0.0.1:65536", "expected HOST:PORT, got"),
        (":7190", "expected HOST:PORT, got"),
        ("fe80::1:7190", "expected HOST:PORT, got"),
        ("--listen 7190", "expected --listen ADDRESS:PORT, got '7190'"),
        ("--hosts nets", "invalid choice: 'nets'"),
        ("host:1 --most-rate fast", "--most-rate 'fast'"),
        ("host:1 --most-rate 10", "--most-rate '10' has no unit"),
        ("host:1 --most-rate 10bit", "--most-rate '10bit' is out of range"),
        ("host:1 --most-rate 1tbit", "--most-rate '1tbit' is out of range"),
        ("host:1 --most-rate 900kbit", "--most-rate '900kbit' is out of range: 1mbit to 100gbit"),
        ("host:1 --most-seconds 0", "--most-seconds is 0, but has to be at least 1"),
        ("host:1 --most-seconds 2.5", "--most-seconds '2.5' is not a whole number"),
        ("host:1 --resolution 0.5", "--resolution '0.5' is out of range: 1 to 50"),
        ("host:1 --resolution nan", "--resolution 'nan' is out of range"),
        ("host:1 --load 101", "--load '101' is out of range: 1 to 100"),
        ("host:1 --load all", "--load 'all' is not a number"),
        ("host:1 --bucket -1", "--bucket"),
        ("host:1 --bucket 1GiB", "--bucket 1GiB is above 2 MiB"),
        ("host:1 --rate 1gbit", "--rate is of test hosts"),
        ("host:1 --competing 1gbit", "--competing is of test hosts"),
        ("host:1 --size 1MiB", "--size is of test hosts"),
        ("host:1 --once", "--once is of a listener"),
        ("--listen --load 5", "--load is of the end that asks"),
        ("--listen --resolution 5", "--resolution is of the end that asks"),
        ("--listen --bucket 0", "--bucket is of the end that asks"),
        ("--listen --json f.json", "a listener has no figures of its own"),
        ("host:1 --json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file"),
        ("--hosts netns --rate 1gigabit", "--rate '1gigabit' has the unknown unit"),
        ("--hosts netns --competing 400", "--competing '400' has no unit"),
        ("--hosts netns --rate 1gbit --competing 1gbit", "--competing 1gbit leaves nothing of 1gbit"),
        ("--hosts netns --size 0", "--size '0' is not above zero"),
        ("host:1 --listne", "did you mean --listen?"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    arguments: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "link", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert printed.out == ""


def test_nobody_at_the_address_is_an_error_that_says_what_to_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "link", "127.0.0.1:1"]) == 1
    printed = capsys.readouterr().err
    assert "nobody answers at 127.0.0.1:1" in printed
    assert "penstock bench link --listen" in printed


@contextmanager
def listening(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A listener of this host, and where it is."""
    program = "import sys; from penstock.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "bench", "link", "--listen", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"listening on (\S+:\d+), TCP and UDP", process.stdout.readline())
        assert found is not None
        yield found[1], process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


QUICK = ("--most-rate", "40mbit", "--load", "100", "--resolution", "50")
"""Streams that any host keeps to, for as short as can be."""
SLOW = ("--most-rate", "4mbit", "--load", "100", "--bucket", "0")
"""Streams that a host keeps to that is held up for 2 ms."""


def test_two_hosts_measure_both_ways_and_the_listener_ends_when_it_was_asked_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    with listening("--once") as (where, listener):
        host, port = where.split(":")
        # A port scan is no measurement.
        socket.create_connection((host, int(port)), 10).close()
        assert main(["bench", "link", where, *SLOW, "--json", str(figures)]) == 0
        assert listener.wait(30) == 0
    document = json.loads(figures.read_text())
    assert document["bench"] == "link"
    (case,) = document["cases"]
    assert (case["peer"], case["frame_bytes"]) == ("127.0.0.1", 1514)
    assert [way["way"] for way in case["ways"]] == ["to", "from"]
    for way in case["ways"]:
        # The loopback has all of that to spare. Only a host that was held up in stream after stream may say
        # otherwise, and then it says so.
        low, high, limited = way["low_bits_per_second"], way["high_bits_per_second"], way["limited"]
        assert limited is not None, way
        assert high is None
        if limited["by"] == "below":
            assert low == 4e6
        else:
            assert limited["by"] in ("sender late", "receiver late")
            assert sum(way["discarded"].values()) >= MOST_DISCARDED
        assert way["bytes"] > 0
        assert way["streams"] + sum(way["discarded"].values()) > 0
    printed = capsys.readouterr().out
    assert "available bandwidth to and from 127.0.0.1, frames of 1514 bytes" in printed
    assert re.search(r"^  to +\S", printed, re.MULTILINE)
    assert re.search(r"^  from +\S", printed, re.MULTILINE)


def test_a_listener_outlives_strangers_and_serves_again(capsys: pytest.CaptureFixture[str]) -> None:
    with listening() as (where, listener):
        host, port = where.split(":")
        with socket.create_connection((host, int(port)), 10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"refused" in stranger.recv(4096)
        for _ in range(2):
            assert main(["bench", "link", where, *QUICK]) == 0
        assert listener.poll() is None
    assert capsys.readouterr().out.count("available bandwidth") == 2


def test_a_listener_ends_by_an_interrupt_while_it_waits() -> None:
    import signal

    with listening() as (_, listener):
        listener.send_signal(signal.SIGINT)
        assert listener.wait(30) == 130


@hosts
def test_between_test_hosts_the_truth_and_tcp_stand_beside_the_range(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench link --hosts netns --rate 30mbit --competing 10mbit --size 64KiB --most-seconds 60"
    assert main([*command.split(), *QUICK, "--json", str(figures)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    assert (case["rate"], case["competing"], case["tcp_bytes"]) == (30_000_000, 10_000_000, 65536)
    for way in ("to", "from"):
        competing = case["competing_bits_per_second"][way]
        assert 0 < competing < 30e6
        assert case["true_bits_per_second"][way] == pytest.approx(30e6 - competing)
        assert case["tcp_bits_per_second"][way] > 0
    printed = capsys.readouterr().out
    assert "links of 30mbit, 10mbit competing" in printed
    assert re.search(r"way +true +TCP, 64 KiB +available", printed)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"penstock-{os.getpid()}-" not in listed


def found(low: float, high: float, limited: Verdict | None = None, *, narrow: bool = True) -> Found:
    return Found(low, high, (low, low), limited, narrow, 20, {"sender late": 3} if limited else {})


def test_what_the_hosts_could_not_do_is_not_given_as_a_limit_of_the_path() -> None:
    ways = (
        Way("to", found(2e9, 2.1e9, Verdict.SENDER), 10**9, 20.0),
        Way("from", found(1e10, 1e10, Verdict.BELOW, narrow=False), 10**9, 21.0),
    )
    document = report.document(Result("10.0.0.1", 1514, ways, 21.5))
    json.dumps(document, allow_nan=False)
    assert [way["high_bits_per_second"] for way in document["ways"]] == [None, None]
    printed = report.table(document)
    assert "at least 2gbit" in printed
    assert "to: the sending host could not keep to 2.1gbit" in printed
    assert "to: streams discarded: 3 sender late" in printed
    assert "at least 10gbit" in printed
    assert "from: all of 10gbit is available, and no higher rate may be tried" in printed
    assert "from: the time was over (--most-seconds) before the range was narrow" in printed


def test_real_time_priority_is_given_back_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    before, said = os.sched_getscheduler(0), []
    # In a thread of its own, which alone would keep it.
    thread = threading.Thread(
        target=lambda: said.append(main(["bench", "link", "127.0.0.1:1", "--realtime"]))
    )
    thread.start()
    thread.join()
    assert said in ([1], [2])
    assert os.sched_getscheduler(0) == before
    assert ("the kernel refuses" in capsys.readouterr().err) == (said == [2])
