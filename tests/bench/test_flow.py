"""What `penstock bench flow` counts, when an objective is reached, what is compared with what."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from penstock_bench.flow import neighbours, plot, report
from penstock_bench.flow.counters import Counters, parse
from penstock_bench.flow.experiment import SCRIPTS, Experiment, Setting
from penstock_bench.flow.systems import GLOO, PLAIN, SPARSE, SYSTEMS, TUNED
from penstock_bench.flow.tasks import MOST_STEPS, TASKS, Task
from penstock_bench.flow.training import Point, Trained, points

TABLE = """\
Inter-|   Receive                             |  Transmit
 face |bytes packets errs drop fifo frame comp multi|bytes packets errs drop fifo colls carrier comp
    lo:     5 1 0 0 0 0 0 0   5 1 0 0 0 0 0 0
   br0:   900 1 0 0 0 0 0 0 901 1 0 0 0 0 0 0
    p0: {0} 1 0 0 0 0 0 0 {1} 1 0 0 0 0 0 0
    p1: {2} 1 0 0 0 0 0 0 {3} 1 0 0 0 0 0 0
    p2: {4} 1 0 0 0 0 0 0 {5} 1 0 0 0 0 0 0
"""


def trained(*objectives: float, seconds: float = 1.0, nbytes: float = 100.0) -> Trained:
    """A training that was measured at every tenth step."""
    return Trained(
        [
            Point(10 * at, seconds * at, 0.25 * seconds * at, objective, nbytes * at)
            for at, objective in enumerate(objectives)
        ],
        processor=1.0,
    )


def setting(**changed: object) -> Setting:
    kept = {"task": "mf", "rate": None, "workers": 2, "servers": 1, "shared": False, "seed": 0}
    return Setting(**{**kept, **changed})  # type: ignore[arg-type]


# -- what is counted


def test_a_port_of_the_switch_counts_what_its_host_sends_and_receives() -> None:
    assert parse(TABLE.format(10, 20, 30, 40, 50, 60)) == {0: (10, 20), 1: (30, 40), 2: (50, 60)}
    assert parse("garbage\n") == {}


def test_each_byte_counts_once_and_between_two_readings_in_proportion() -> None:
    counters = Counters([0, 1])
    counters.take(1.0, TABLE.format(0, 0, 0, 0, 0, 0))
    counters.take(3.0, TABLE.format(100, 40, 40, 100, 0, 0))
    assert counters.between(1.0, 3.0) == 140
    assert counters.between(1.0, 2.0) == 70
    assert counters.between(1.5, 2.0, hosts=[1]) == 10


def test_what_a_neighbour_sends_and_is_sent_is_not_the_jobs() -> None:
    counters = Counters([0, 1], others=[2])
    counters.take(0.0, TABLE.format(0, 0, 0, 0, 0, 0))
    # Host 0 sends 100 to host 1, and 7 to the neighbour, which sends it 1000.
    counters.take(1.0, TABLE.format(107, 1000, 0, 100, 1000, 7))
    assert counters.between(0.0, 1.0) == 100


def test_a_trajectory_loses_the_time_of_its_measurements_and_gains_the_links_bytes() -> None:
    counters = Counters([0, 1])
    counters.take(100.0, TABLE.format(0, 0, 0, 0, 0, 0))
    counters.take(110.0, TABLE.format(1000, 0, 0, 1000, 0, 0))
    trajectory = [
        {"step": 0, "seconds": 1.0, "measuring_seconds": 0.0, "computing_seconds": 0.0, "objective": 3.0},
        {"step": 5, "seconds": 4.0, "measuring_seconds": 0.5, "computing_seconds": 2.0, "objective": 2.0},
    ]
    found = points({"started": 101.0, "trajectory": trajectory}, counters)
    assert found == [Point(0, 1.0, 0.0, 3.0, 100.0), Point(5, 3.5, 2.0, 2.0, 400.0)]


# -- what is compared


def test_the_objective_is_reached_by_the_first_measurement_that_is_not_above_it() -> None:
    runs = {(PLAIN, "bsp"): [trained(9, 5, 1.004, 1.0)]}
    assert report.objective(runs) == pytest.approx(1.005)
    (row,) = report.rows(runs)
    assert (row.steps, row.bytes, row.seconds, row.computing) == (20, 200, 2, 0.5)
    assert row.communicating == 1.5
    assert report.reached(trained(9, 5).points, 1.0) is None


def test_ratios_are_those_to_plain_to_sparse_and_to_gloo_at_the_same_objective() -> None:
    runs = {
        (PLAIN, "bsp"): [trained(9, 5, 1.004, 1.0, seconds=8, nbytes=1000)],
        (SPARSE, "bsp"): [trained(9, 5, 1.004, seconds=4, nbytes=500)],
        (GLOO, "bsp"): [trained(9, 5, 1.004, seconds=2, nbytes=800)],
        ("ucc+up", "ssp:4"): [trained(9, 5, 2, 1.004, seconds=1, nbytes=10)],
    }
    entries = {entry["system"]: entry for entry in report.entries(report.rows(runs))}
    ours = entries["ucc+up"]
    assert ours["of_plain_steps"] == 1.5
    assert ours["fewer_bytes"] == pytest.approx(2000 / 30)
    assert ours["fewer_bytes_than_sparse"] == pytest.approx(1000 / 30)
    assert ours["faster"] == pytest.approx(16 / 3)
    assert ours["faster_than_gloo"] == pytest.approx(4 / 3)
    assert entries[PLAIN]["fewer_bytes"] == entries[PLAIN]["faster"] == 1
    shown = report.table(report.rows(runs)).splitlines()[-1].split()
    assert shown[:4] == ["ucc+up", "ssp:4", "30", "1.50"]


def test_what_is_wanted_of_the_tasks_filters_is_said_with_what_was_found() -> None:
    runs = {
        (PLAIN, "bsp"): [trained(9, 5, 1.0, seconds=8, nbytes=1000)],
        (SPARSE, "bsp"): [trained(9, 5, 1.0, nbytes=70)],
        (TUNED, "bsp"): [trained(9, 5, 1.0, seconds=3, nbytes=10)],
    }
    said = report.wishes(report.rows(runs), TASKS["lr"])
    assert said is not None
    assert said.splitlines()[1:] == [
        "    1.15 steps of plain's, at most: 1.00",
        "    10 times fewer bytes: 100.00",
        "    2.5 times faster: 2.67",
        "    8 times fewer than sparse: 7.00, NOT REACHED",
    ]
    # Plain computes for most of its time: then nothing is to be gained, and little to be lost.
    computes = [replace(point, computing=0.9 * point.seconds) for point in trained(9, 1).points]
    runs = {(PLAIN, "bsp"): [Trained(computes, 1.0)], (TUNED, "bsp"): [trained(9, 2, 1, seconds=2)]}
    said = report.wishes(report.rows(runs), TASKS["mf"])
    assert said is not None
    assert "0.97 of plain's pace: 0.25, NOT REACHED" in said
    assert "1.15 steps of plain's, at most: 2.00, NOT REACHED" in said
    assert report.wishes(report.rows({(PLAIN, "bsp"): [trained(9, 1)]}), TASKS["mf"]) is None


def test_repeats_give_medians_and_a_spread_and_one_that_fails_to_reach_it_spoils_the_row() -> None:
    every = [trained(9, 1, seconds=seconds) for seconds in (3.0, 1.0, 2.0)]
    (row,) = report.rows({(PLAIN, "bsp"): every})
    assert (row.seconds, row.least, row.most, row.repeats) == (2, 1, 3, 3)
    assert "1.00 s - 3.00 s" in report.table([row])
    runs = {(PLAIN, "bsp"): every, ("ucc", "bsp"): [trained(9, 1), trained(9, 1.5)]}
    _, failed = report.rows(runs)
    assert (failed.steps, failed.bytes, failed.seconds, failed.best) == (None, None, None, 1)
    assert "not reached: 1.00000" in report.table([row, failed])


def test_rows_stand_in_the_order_of_the_systems_whatever_was_measured_first() -> None:
    keys = [("ucc", "ssp:16"), ("ucc", "ssp:4"), (GLOO, "bsp"), (PLAIN, "ssp:4"), (PLAIN, "bsp")]
    measured = report.rows({key: [trained(2, 1)] for key in keys})
    assert [(row.system, row.consistency) for row in measured] == [
        (PLAIN, "bsp"),
        (GLOO, "bsp"),
        (PLAIN, "ssp:4"),
        ("ucc", "ssp:4"),
        ("ucc", "ssp:16"),
    ]


def test_what_is_saved_is_a_share_of_plains_bytes_at_the_same_step() -> None:
    steps, share = plot.saved(trained(9, 5, 1, nbytes=100).points, trained(9, 5, 2, 1, nbytes=25).points)
    assert steps == [10, 20]
    assert share == [75, 75]


# -- what is run


def test_plain_under_bsp_is_always_trained_and_turns_alternate() -> None:
    experiment = Experiment(setting())
    assert experiment.wanted(["ucc", GLOO], ["ssp:1"], 1) == [(PLAIN, "bsp"), ("ucc", "ssp:1")]
    assert experiment.wanted([GLOO], ["bsp"], 2) == [(PLAIN, "bsp"), (GLOO, "bsp")] * 2


def test_an_experiment_goes_on_from_its_file_and_from_no_other() -> None:
    first = Experiment(setting())
    first.runs[PLAIN, "bsp"] = [trained(9, 1)]
    document = json.loads(json.dumps(first.document({"cores": 2})))
    assert document["rows"][0]["steps"] == 10
    again = Experiment(setting())
    again.take(document)
    assert again.runs == first.runs
    assert again.wanted(["ucc", PLAIN], ["bsp"], 1) == [("ucc", "bsp")]
    with pytest.raises(ValueError, match="it was measured with"):
        Experiment(setting(workers=3)).take(document)
    with pytest.raises(ValueError, match="no file of this benchmark"):
        Experiment(setting()).take({"bench": "pushpull"})


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_system_has_options_that_the_tasks_script_takes(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    if task.name == "cnn":
        pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.import_module(Path(task.script).stem)
    try:
        for system in SYSTEMS.values():
            if system.name == SPARSE and not task.sparse:
                assert system.missing(task) == f"gradients of {task.name} are dense"
                continue
            options = [*task.options(longer=True), *system.arguments(task)]
            assert str(round(MOST_STEPS * task.steps)) in options
            monkeypatch.setattr(sys, "argv", [task.script, *options])
            given = module.arguments()
            assert (given.push is not None) == (given.broadcast is not None) == system.filtered
    finally:
        for name in ("common", Path(task.script).stem):
            sys.modules.pop(name, None)


def test_competing_flows_follow_from_the_seed_and_do_not_overlap() -> None:
    flows = list(islice(neighbours.script(seed=3, host=1), 200))
    assert flows == list(islice(neighbours.script(seed=3, host=1), 200))
    assert flows != list(islice(neighbours.script(seed=3, host=2), 200))
    assert flows != list(islice(neighbours.script(seed=4, host=1), 200))
    times = [time for begin, end, _ in flows for time in (begin, end)]
    assert times == sorted(times)
    assert {way for _, _, way in flows} == {"in", "out"}
    assert np.mean([end - begin for begin, end, _ in flows]) == pytest.approx(neighbours.MEAN, rel=0.3)


# -- Gloo


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("lr.py", ["--features", "300", "--examples", "2000", "--batch", "40", "--lr", "1"]),
        ("mf.py", ["--users", "80", "--items", "50", "--ratings", "1000", "--batch", "50"]),
        ("cnn.py", ["--flat", "--examples", "60", "--batch", "8", "--classes", "3", "--pixels", "16"]),
    ],
)
def test_all_reduces_train_as_servers_do(tmp_path: Path, script: str, options: list[str]) -> None:
    pytest.importorskip("torch")
    common = [str(SCRIPTS / script), *options, "--steps", "6", "--every", "2"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    kept |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "2", *common]
    ours = tmp_path / "ours.json"
    subprocess.run([*command, "--json", str(ours)], env=kept, timeout=120, check=True, capture_output=True)
    command = [sys.executable, "-m", "penstock_bench.flow.all_reduce", str(tmp_path / "gloo"), *common]
    theirs = tmp_path / "theirs.json"
    ranks = [
        subprocess.Popen([*command, *asked], env={**kept, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank, asked in enumerate((["--json", str(theirs)], []))
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    reports = [json.loads(path.read_text())["trajectory"] for path in (theirs, ours)]
    found, expected = ([point["objective"] for point in report] for report in reports)
    assert found == pytest.approx(expected, rel=1e-4)
    assert expected[-1] != expected[0], "it trains"
