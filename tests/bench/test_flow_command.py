"""`penstock bench flow` as a user calls it. No time is judged: only figures, and what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from needing import hosts

from penstock.cli import main
from penstock_bench.flow.counters import Counters, counting, set_apart
from penstock_bench.flow.tasks import TASKS
from penstock_bench.netns import NetworkTestbed, NetworkTestbedError, commands
from penstock_bench.netns.testbed import bucket

STEPS = 600
# In each step two workers push (300 + 200) rows of 17 numbers, and get as many.
PAYLOAD = STEPS * 2 * 2 * 500 * 17 * 4


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training of a second."""
    arguments = "--users 300 --items 200 --ratings 8000 --batch 200 --lr 0.02"
    monkeypatch.setitem(
        TASKS, "mf", replace(TASKS["mf"], arguments=arguments, steps=STEPS, every=STEPS // 10)
    )


def own_hosts() -> list[str]:
    """Test hosts of this process that stand."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"penstock-{os.getpid()}-")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--hosts loopback", "invalid choice: 'loopback'"),
        ("--task svm", "there is no task 'svm'"),
        ("--task lr,mf", "--task 'lr,mf': expected one task"),
        ("--systems plain,tree", "there is no system 'tree'"),
        ("--consistency asp", "there is no consistency 'asp'"),
        ("--consistency bsp:2", "there is no consistency 'bsp:2'"),
        ("--consistency ssp", "--consistency ssp '' is not a whole number"),
        ("--consistency ssp:0", "--consistency ssp is 0, but has to be at least 1"),
        ("--rate 1gigabit", "--rate '1gigabit' has the unknown unit"),
        ("--workers 0", "--workers is 0, but has to be at least 1"),
        ("--servers 33", "--servers is 33, but at most 32 are allowed"),
        ("--repeats some", "--repeats 'some' is not a whole number"),
        ("--seed -1", "--seed '-1' is not a whole number"),
        ("--filters topk:0.1", "--filters: expected PUSH/BROADCAST, got 'topk:0.1'"),
        ("--chunk some", "--chunk 'some'"),
        ("--scripts /no/such/folder", "/no/such/folder has no lr.py"),
        ("--resume", "--resume needs a file to go on from"),
        ("--json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file"),
        ("--plot figure.xyz", "has no suffix that can be drawn"),
        ("--json old.json --resume", "--resume: cannot go on from old.json: it is no file of this benchmark"),
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
    Path("old.json").write_text('{"bench": "pushpull"}')
    assert main(["bench", "flow", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert printed.out == ""


@hosts
@pytest.mark.usefixtures("_small")
def test_systems_train_to_plains_objective_and_a_second_call_makes_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    command = f"bench flow --task mf --workers 2 --rate 1gbit --json {figures}"
    assert main([*command.split(), "--systems", "plain,ucc+tuned", "--repeats", "2"]) == 0
    document = json.loads(figures.read_text())
    assert [(run["system"], run["consistency"]) for run in document["runs"]] == [
        ("plain", "bsp"),
        ("plain", "bsp"),
        ("ucc+tuned", "bsp"),
        ("ucc+tuned", "bsp"),
    ]
    plain = document["runs"][0]["points"]
    # Worker 0 measures a little before the other one has the last of them.
    assert 0.9 * PAYLOAD < plain[-1]["bytes"] < 1.1 * PAYLOAD
    assert plain[-1]["seconds"] > plain[-1]["computing"] > 0
    runs = [[point["objective"] for point in run["points"]] for run in document["runs"]]
    assert runs[0] == runs[1], "under BSP the same bits"

    command += f" --resume --systems ucc,gloo,ucc+tuned --consistency bsp,ssp:2 --plot {picture}"
    assert main(command.split()) == 0
    again = json.loads(figures.read_text())
    assert all(run in again["runs"] for run in document["runs"]), "what was measured stays"
    rows = {(row["system"], row["consistency"]): row for row in again["rows"]}
    assert {("ucc", "bsp"), ("ucc", "ssp:2"), ("ucc+tuned", "ssp:2")} <= set(rows)
    assert ("gloo", "bsp") in rows or "gloo" in again["absent"]
    assert rows["plain", "bsp"]["fewer_bytes"] == 1
    assert rows["ucc", "bsp"]["steps"] == rows["plain", "bsp"]["steps"], "who asks changes no bit"
    # The default filters are for the default size: here it is enough that they send less.
    sent = {run["system"]: run["points"][-1]["bytes"] for run in again["runs"]}
    assert sent["ucc+tuned"] < sent["plain"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "2 workers, 1 server, a dedicated network, links of 1gbit" in printed
    assert "x faster than gloo" in printed
    assert own_hosts() == []


@hosts
@pytest.mark.usefixtures("_small")
def test_competing_flows_take_of_the_links_and_are_not_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = f"bench flow --task mf --workers 2 --rate 1gbit --shared --systems plain --json {figures}"
    assert main(command.split()) == 0
    (run,) = json.loads(figures.read_text())["runs"]
    assert run["beside"] > PAYLOAD, "there were flows, and not small ones"
    assert 0.9 * PAYLOAD < run["points"][-1]["bytes"] < 1.1 * PAYLOAD
    assert "a shared network" in capsys.readouterr().out
    assert own_hosts() == []


LISTENS = """
import socket
server = socket.create_server(("", 7))
print(flush=True)
connection, _ = server.accept()
while connection.recv(1 << 18):
    pass
"""
FLOODS = """
import socket, sys
with socket.create_connection((sys.argv[1], 7)) as connection:
    connection.sendall(bytes(1 << 20))
    print(flush=True)
    while True:
        connection.sendall(bytes(1 << 18))
"""
SENDS = """
import socket, sys
with socket.create_connection((sys.argv[1], 7)) as connection:
    connection.sendall(bytes(2_000_000))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print(flush=True)
"""


@hosts
def test_what_a_competing_flow_has_in_a_queue_is_not_the_jobs() -> None:
    def run(host: int, program: str, *arguments: str) -> None:
        """Starts it, and waits until it says something."""
        command = [sys.executable, "-c", program, *arguments]
        process = testbed.spawn(host, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"\n"

    with NetworkTestbed(hosts=4, rate="100mbit") as testbed:
        set_apart(testbed, [0, 1], [2, 3])
        # A queue before the neighbour, in which the flow stands and is dropped.
        commands.run("tc", "-n", testbed.switch, "qdisc", "replace", "dev", "p2", "root", *bucket(20_000_000))
        counters = Counters([0, 1], [2, 3])
        run(1, LISTENS)
        run(2, LISTENS)
        with counting(testbed, counters):
            run(0, FLOODS, testbed.address(2))
            run(0, SENDS, testbed.address(1))
    assert counters.beside > 500_000
    # Headers, acknowledgements, and what TCP sends again.
    assert 2_000_000 < counters.between(counters._times[0], counters._times[-1]) < 1.05 * 2_000_000


@hosts
def test_a_workload_that_fails_is_named_with_what_it_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mf.py").write_text("import sys\nprint('no ratings to be had')\nsys.exit(3)\n")
    assert main(["bench", "flow", "--task", "mf", "--workers", "2", "--scripts", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "ended with 3" in printed.out
    assert "no ratings to be had" in printed.out
    assert "plain push and pull could not be measured" in printed.err
    assert own_hosts() == []


def test_a_file_of_another_day_is_kept_where_nothing_could_be_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = tmp_path / "figures.json"
    figures.write_text("of another day")

    def no_hosts(*_: object, **__: object) -> None:
        raise NetworkTestbedError("test hosts cannot be made here")

    monkeypatch.setattr("penstock_bench.flow.experiment.measure", no_hosts)
    assert main(["bench", "flow", "--json", str(figures)]) != 0
    assert "test hosts cannot be made here" in capsys.readouterr().err
    assert figures.read_text() == "of another day"
