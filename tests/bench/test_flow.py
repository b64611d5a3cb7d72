"""What `penstock bench flow` counts, when an objective is reached, what is compared with what."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock_bench.cli import flow as cli
from penstock_bench.flow import counters as counters_module
from penstock_bench.flow import neighbours, pages, plot, report
from penstock_bench.flow.counters import Counters, counting, parse
from penstock_bench.flow.experiment import SCRIPTS, Experiment, Setting, fingerprint
from penstock_bench.flow.systems import GLOO, PLAIN, SPARSE, SYSTEMS, TUNED, named, own
from penstock_bench.flow.tasks import MOST_STEPS, TASKS, Filters, Task
from penstock_bench.flow.training import Point, Trained, points
from penstock_bench.systems import BenchError

TABLE = """\
Inter-|   Receive                             |  Transmit
 face |bytes packets errs drop fifo frame comp multi|bytes packets errs drop fifo colls carrier comp
    lo:     5 1 0 0 0 0 0 0   5 1 0 0 0 0 0 0
   br0:   900 1 0 0 0 0 0 0 901 1 0 0 0 0 0 0
    p0: {0} 1 0 0 0 0 0 0 {1} 1 0 0 0 0 0 0
    p1: {2} 1 0 0 0 0 0 0 {3} 1 0 0 0 0 0 0
    p2: {4} 1 0 0 0 0 0 0 {5} 1 0 0 0 0 0 0
"""


def trained(
    *objectives: float,
    seconds: float = 1.0,
    nbytes: float = 100.0,
    layers: dict[str, dict[str, float]] | None = None,
) -> Trained:
    """A training that was measured at every tenth step."""
    return Trained(
        [
            Point(10 * at, seconds * at, 0.25 * seconds * at, objective, nbytes * at)
            for at, objective in enumerate(objectives)
        ],
        processor=1.0,
        layers=layers or {},
    )


def setting(**changed: object) -> Setting:
    kept = {"task": "mf", "rate": None, "workers": 2, "servers": 1, "shared": False, "seed": 0}
    return Setting(**{**kept, **changed})  # type: ignore[arg-type]


# -- what is counted


def test_a_port_of_the_switch_counts_what_its_host_sends_and_receives() -> None:
    ports = parse(TABLE.format(10, 20, 30, 40, 50, 60))
    assert [(ports[name][0], ports[name][8]) for name in ("p0", "p1", "p2")] == [(10, 20), (30, 40), (50, 60)]
    assert parse("garbage\n") == {}


def test_each_byte_counts_once_and_between_two_readings_in_proportion() -> None:
    counters = Counters([0, 1])
    counters.take(1.0, TABLE.format(0, 0, 0, 0, 0, 0))
    counters.take(3.0, TABLE.format(100, 40, 40, 100, 0, 0))
    assert counters.between(1.0, 3.0) == 140
    assert counters.between(1.0, 2.0) == 70
    for start, end in ((0.9, 2.0), (2.0, 3.1)):
        with pytest.raises(BenchError, match="not read for all of the training"):
            counters.between(start, end)


def test_what_a_neighbour_sends_and_is_sent_is_not_the_jobs() -> None:
    counters = Counters([0, 1], others=[2])
    copies = "   job: 0 0 0 0 0 0 0 0 {0} 9 0 {1} 0 0 0 0\n"
    counters.take(0.0, TABLE.format(0, 0, 0, 0, 0, 0) + copies.format(0, 0))
    # Host 0 sends 100 to host 1, and 7 to the neighbour, which sends it 1000; 5 of the 7 are in a queue.
    counters.take(1.0, TABLE.format(107, 1000, 0, 100, 1000, 2) + copies.format(100, 0))
    assert counters.between(0.0, 1.0) == 100
    assert counters.beside == 1002
    with pytest.raises(BenchError, match="did not count 3 packets"):
        counters.take(2.0, TABLE.format(0, 0, 0, 0, 0, 0) + copies.format(100, 3))


class Switch:
    """Stands for the test hosts where only their switch's table is read: our own namespace."""

    switch = "none"


def test_counters_that_cannot_be_read_are_an_error_and_not_fewer_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Counters):
        def take(self, now: float, table: str) -> None:
            raise OSError("no such namespace")

    def here(_: object, **given: Any) -> subprocess.Popen[bytes]:
        return popen(["cat"], **given)

    popen = subprocess.Popen
    monkeypatch.setattr(counters_module.subprocess, "Popen", here)
    monkeypatch.setattr(counters_module, "Path", lambda _: FakeTable())
    with (
        pytest.raises(BenchError, match="could not be read: no such namespace"),
        counting(
            Switch(),  # type: ignore[arg-type]
            Broken([0]),
        ),
    ):
        pass
    with pytest.raises(ZeroDivisionError), counting(Switch(), Broken([0])):  # type: ignore[arg-type]
        raise ZeroDivisionError
    good = Counters([0, 1])
    with counting(Switch(), good):  # type: ignore[arg-type]
        ended = time.monotonic()
    # The last reading is made when all is over.
    assert good._times[-1] >= ended


class FakeTable:
    """A table that can be read at any time."""

    def read_text(self) -> str:
        return TABLE.format(1, 2, 3, 4, 5, 6)


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


# -- the page


def document_of(name: str, folder: Path, **changed: object) -> Path:
    """A file as the command writes it."""
    experiment = Experiment(setting(**changed))
    experiment.runs = {
        (PLAIN, "bsp"): [trained(9, 5, 1.0, seconds=8, nbytes=1000)],
        (TUNED, "bsp"): [trained(9, 5, 1.0, seconds=4, nbytes=10)],
        (GLOO, "bsp"): [trained(9, 5, 1.0, seconds=16, nbytes=1000)],
        (TUNED, "ssp:4"): [trained(9, 5, 1.5)],
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(experiment.document({})))
    return path


def test_the_pages_tables_are_made_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = document_of("mf", tmp_path)
    assert pages.main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| `plain` | 20 | 1.00 | 1.95 KiB | 1.0 | 16.0 s | 12.0 s | 1.00 | 2.00 |" in lines
    assert "| `ucc+tuned` | 20 | 1.00 | 20 B | 100 | 8.00 s | 6.00 s | 2.00 | 4.00 |" in lines
    assert "| `ucc+tuned` | 1.00, 100, 2.00 | not reached: 1.5000 |" in lines
    assert "| `mf` | times fewer bytes | 4 | 100 |  |" in lines
    assert "| `mf` | times faster | 2.5 | 2.00 | **not reached** |" in lines


def test_tables_are_put_in_their_places_and_nothing_else_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(document_of("mf", tmp_path)), str(document_of("other", tmp_path, shared=True))]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- mf -->\nold\n<!-- /mf -->\n<!-- wanted -->\n<!-- /wanted -->\nafter\n")
    assert pages.main([*files, "--into", str(page)]) == 1
    assert capsys.readouterr().err == f"error: {page} has no place for other\n"
    text = page.read_text()
    assert text.startswith("before\n<!-- mf -->\n\n| system |")
    assert "old" not in text
    assert text.endswith("\n\n<!-- /wanted -->\nafter\n")
    assert "`other`" not in text, "in a shared network nothing is wanted"
    assert pages.main([*files, "--into", str(page)]) == 1
    assert page.read_text() == text
    # Where nothing is wanted of what is given, the table stays.
    assert pages.main([files[1], "--into", str(page)]) == 1
    assert page.read_text() == text


def test_the_pages_commands_are_taken_and_have_a_place_for_their_figures() -> None:
    text = (SCRIPTS.parents[1] / "docs" / "flow-performance.md").read_text()
    commands = re.findall(r"^penstock bench flow (.*)$", text.replace("\\\n", ""), re.MULTILINE)
    names = set()
    for command in commands:
        given = cli._parser().parse_args(shlex.split(command))
        assert given.task in TASKS
        assert set(given.systems.split(",") if given.systems else ()) <= set(SYSTEMS)
        cli._own(given.filters)
        cli._consistencies(given.consistency or "bsp")
        names.add(given.json.stem)
    assert names, "the page has commands"
    assert names | {pages.WANTED} == set(re.findall(r"^<!-- ([\w-]+) -->$", text, re.MULTILINE))


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
    others = ({"workers": 3}, {"options": "--lr 3"}, {"chunk": "1MiB"}, {"scripts": "0123"})
    for other in others:
        with pytest.raises(ValueError, match="it was measured with"):
            Experiment(setting(**other)).take(document)
    with pytest.raises(ValueError, match="no file of this benchmark"):
        Experiment(setting()).take({"bench": "pushpull"})


def test_a_file_names_what_was_trained_and_other_filters_are_another_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Experiment(setting())
    first.runs = {
        key: [trained(9, 1)] for key in ((PLAIN, "bsp"), (TUNED, "ssp:4"), ("ucc+topk:0.1/-", "bsp"))
    }
    document = json.loads(json.dumps(first.document({})))
    options, environment = (document["runs"][1][name] for name in ("options", "environment"))
    assert options[-4:] == ["--push", TASKS["mf"].tuned.push, "--broadcast", TASKS["mf"].tuned.broadcast]
    assert environment == {"PENSTOCK_CHUNK_BYTES": TASKS["mf"].chunk}
    assert document["runs"][2]["options"][-4:] == ["--propagation", "broadcast", "--push", "topk:0.1"]
    Experiment(setting()).take(document)
    others = {"tuned": Filters("dvf:7", "dvf:7")}, {"chunk": "1MiB"}, {"arguments": "--batch 7"}, {"steps": 7}
    for other in others:
        with monkeypatch.context() as changed:
            changed.setitem(TASKS, "mf", replace(TASKS["mf"], **other))
            with pytest.raises(ValueError, match="was trained with"):
                Experiment(setting()).take(document)


def test_a_fingerprint_is_of_the_script_and_of_what_the_scripts_share(tmp_path: Path) -> None:
    for name in ("mf.py", "common.py", "lr.py"):
        (tmp_path / name).write_text("pass\n")
    first = fingerprint(tmp_path, "mf")
    (tmp_path / "lr.py").write_text("another\n")
    assert fingerprint(tmp_path, "mf") == first
    for name in ("mf.py", "common.py"):
        (tmp_path / name).write_text("another\n")
        assert fingerprint(tmp_path, "mf") != first
        (tmp_path / name).write_text("pass\n")


def test_what_the_user_changes_of_a_task_reaches_its_command() -> None:
    command = setting(options="--lr 3", chunk="2MiB").command(TUNED, "ssp:4")
    assert " ".join(command["options"]).startswith(TASKS["mf"].arguments + " --lr 3 --steps")
    assert command["environment"] == {"PENSTOCK_CHUNK_BYTES": "2MiB"}
    assert setting().command(PLAIN, "bsp")["environment"] == {}


def test_filters_of_ones_own_are_a_system_of_their_name() -> None:
    task = TASKS["mf"]
    for filters, expected in (
        ("topk:0.1/dvf:1,constant", ["--push", "topk:0.1", "--broadcast", "dvf:1,constant"]),
        ("topk:0.1/-", ["--push", "topk:0.1"]),
        ("-/auto", ["--broadcast", "auto"]),
    ):
        system = named(own(filters))
        assert system.arguments(task) == ["--propagation", "broadcast", *expected]
        assert system.filtered
        assert system.missing(task) is None
    for wrong in ("", "topk:0.1", "topk:0.1/", "/int8", "a/b/c"):
        with pytest.raises(ValueError, match="expected PUSH/BROADCAST"):
            own(wrong)
    assert named(PLAIN) is SYSTEMS[PLAIN]
    runs = {key: [trained(9, 1)] for key in (("ucc+a/b", "bsp"), (PLAIN, "bsp"), (GLOO, "bsp"))}
    assert [row.system for row in report.rows(runs)] == [PLAIN, GLOO, "ucc+a/b"]


def test_gloo_that_was_asked_for_and_is_not_measured_is_named() -> None:
    experiment = Experiment(setting())
    assert experiment.wanted([GLOO], ["ssp:4"], 1) == [(PLAIN, "bsp")]
    assert "bsp" in experiment.absent[GLOO]
    experiment = Experiment(setting())
    experiment.wanted([GLOO], ["bsp", "ssp:4"], 1)
    assert experiment.absent == {}


def test_dynamic_bounds_are_the_tasks_low_and_up() -> None:
    assert TASKS["mf"].dynamic == Filters("dvf:2..4", "dvf:0.1..0.2")
    for task in TASKS.values():
        arguments = SYSTEMS["ucc+dynamic"].arguments(task)
        assert arguments[:2] == ["--propagation", "broadcast"]
        assert arguments[2:] == task.dynamic.arguments


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
        ("lr.py", ["--features", "300", "--examples", "4000", "--batch", "400", "--lr", "1"]),
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
    assert expected[-1] < expected[0], "it trains"


# -- layers


def layers(of: Sequence[str], seconds: float) -> dict[str, float]:
    return dict.fromkeys(of, seconds)


def test_a_layers_time_is_that_of_a_step_and_of_all_servers_together() -> None:
    counted = {
        "worker": {**layers(report.OF_THE_WORKER, 2.0), "wait": 4.0},
        "server0": layers(report.OF_THE_SERVERS, 1.0),
        "server1": {**layers(report.OF_THE_SERVERS, 1.0), "fold": 5.0},
    }
    runs = {(PLAIN, "bsp"): [trained(9, 2, 1, layers=counted)] * 2, (TUNED, "bsp"): [trained(9, 2, 1)]}
    (plain,) = report.overheads(runs)
    assert (plain.system, plain.consistency) == (PLAIN, "bsp")
    # 20 steps, of a tenth of a second.
    assert (plain.step, plain.computing) == pytest.approx((0.1, 0.025))
    assert plain.worker == pytest.approx({**layers(report.OF_THE_WORKER, 0.1), "wait": 0.2})
    assert plain.servers == pytest.approx({**layers(report.OF_THE_SERVERS, 0.1), "fold": 0.3})
    table = report.layers_table([plain])
    assert table is not None
    heads, line = table.splitlines()
    assert line.split()[heads.split().index("s.fold")] == "300.000"
    assert "300.00" in pages.layers([plain])


def test_where_nothing_was_counted_nothing_is_said_of_layers() -> None:
    runs = {(PLAIN, "bsp"): [trained(9, 2, 1)]}
    assert report.overheads(runs) == []
    assert report.layers_table([]) is None
    assert pages.layers([]) == ""
