"""`penstock bench flow` as a user calls it. No time is judged: only figures, and what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli import main
from penstock_bench.flow.tasks import TASKS
from penstock_bench.netns import missing

hosts = pytest.mark.skipif(missing() is not None, reason=f"NO TEST HOSTS ON THIS MACHINE: {missing()}")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training of a second."""
    arguments = "--users 300 --items 200 --ratings 8000 --batch 200 --lr 0.02"
    monkeypatch.setitem(TASKS, "mf", replace(TASKS["mf"], arguments=arguments, steps=60, every=6))


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
    # In each step two workers push (300 + 200) rows of 17 numbers, and get as many. Worker 0 measures a
    # little before the other one has the last of them.
    payload = 60 * 2 * 2 * 500 * 17 * 4
    assert 0.8 * payload < plain[-1]["bytes"] < 1.2 * payload
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
    payload = 60 * 2 * 2 * 500 * 17 * 4
    # A neighbour moves as much in a tenth of a second.
    assert 0.8 * payload < run["points"][-1]["bytes"] < 1.5 * payload
    assert "a shared network" in capsys.readouterr().out
    assert own_hosts() == []


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
