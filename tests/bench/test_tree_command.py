"""`penstock bench tree` as a user calls it. No time is judged: only figures, who sends, and what is wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from needing import hosts

from penstock.cli import main
from penstock_bench.cli import tree as cli
from penstock_bench.ranks import WrongAnswerError
from penstock_bench.runner import Spread
from penstock_bench.streaming import faults, pages, report, theory
from penstock_bench.streaming.faults import Outcome
from penstock_bench.streaming.measure import Case, Found
from penstock_bench.streaming.systems import Turn, layout
from penstock_bench.streaming.traffic import Bytes


def own_hosts() -> list[str]:
    """Test hosts of this process that stand."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"penstock-{os.getpid()}-")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--hosts loopback", "invalid choice: 'loopback'"),
        ("--shapes ring", "--shapes 'ring'"),
        ("--shapes star,,chain", "--shapes ''"),
        ("--shapes striped:0", "--shapes 'striped:0'"),
        ("--shapes tree", "--shapes 'tree'"),
        ("--shapes star,tree:degree=0", "--shapes 'tree:degree=0'"),
        # It was found out only after everything had been measured.
        ("--shapes chain,striped:8", "--shapes 'striped:8' cannot be had for 4 workers"),
        ("--shapes tree:degree=2,depth=1 --workers 2,4", "cannot be had for 4 workers"),
        ("--workers 0", "--workers is 0, but has to be at least 1"),
        ("--workers 4,many", "--workers 'many' is not a whole number"),
        ("--servers 65", "--servers is 65, but at most 64 are allowed"),
        ("--shards 0", "--shards is 0, but has to be at least 1"),
        ("--rate 0", "--rate '0'"),
        ("--rate 0gbit", "--rate '0gbit'"),
        ("--rate 1gigabit", "--rate '1gigabit' has the unknown unit"),
        ("--bytes some", "--bytes 'some'"),
        ("--bytes 100", "--bytes '100': expected a multiple of 4096 or 4000 bytes, got 100"),
        ("--peers nccl", "there is no peer 'nccl'"),
        ("--rounds 0", "--rounds is 0, but has to be at least 1"),
        ("--repeats few", "--repeats 'few' is not a whole number"),
        ("--fail burn", "there is no fault 'burn'"),
        ("--fail kill --plot f.png", "--plot draws no faults"),
        ("--json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file"),
        ("--plot figure.xyz", "has no suffix that can be drawn"),
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
    assert main(["bench", "tree", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert "hint: " in printed.err or "choose from" in printed.err
    assert printed.out == ""


def test_a_shape_with_several_numbers_is_one_shape() -> None:
    assert cli.shapes("tree:degree=3,depth=2,leaf_penalty=0.5, chain,chain") == [
        "tree:degree=3,depth=2,leaf_penalty=0.5",
        "chain",
    ]


@hosts
def test_every_shape_broadcasts_the_same_bits_and_the_counters_say_who_sent_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    command = "bench tree --workers 3 --bytes 4MB --rounds 2 --repeats 3 --peers link"
    assert main([*command.split(), "--json", str(figures), "--plot", str(picture)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    found = {system["system"]: system for system in case["systems"]}
    assert list(found) == ["link", "star", "chain", "striped", "tree:degree=2", "auto"]
    # Ranks have compared every element in every iteration. Signs of life and the gate are bytes too.
    server, *workers = found["star"]["sent"]
    assert 3 <= server < 3.5
    assert max(workers) < 0.2
    server, *workers = found["chain"]["sent"]
    assert 1 <= server < 2, "the server sends once, and not to three"
    assert sum(one > 0.9 for one in workers) == 2, "all but the last pass on"
    assert found["tree:degree=2"]["sent"][0] < 2.5
    assert sum(one > 0.2 for one in found["striped"]["sent"][1:]) > 1, "several pass on"
    for name, system in found.items():
        if name != "link":
            assert all(received > 0.9 for received in system["received"][1:]), name
            assert system["repeats"] == 6
            assert system["of_link"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "tree 3.81 MiB, 3 workers, 1 server, links of 1gbit, under TLS" in printed
    assert "of link" in printed
    assert own_hosts() == []


@hosts
def test_a_peer_that_is_missing_is_named_and_the_others_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_bench.streaming.systems.find_spec", lambda _: None)
    command = "bench tree --workers 1 --bytes 400kB --rounds 1 --repeats 1 --shapes star --peers gloo --plain"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    assert "gloo: skipped: torch is not installed" in printed
    assert "in the clear" in printed


@hosts
def test_a_shape_in_which_nobody_passes_on_has_no_inner_node_to_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "bench tree --workers 2 --bytes 400kB --shapes star --fail kill"
    assert main(command.split()) == 1
    assert "star, kill: skipped: no worker passes anything on" in capsys.readouterr().out
    assert own_hosts() == []


def test_a_broadcast_runs_from_the_last_contribution_to_the_last_arrival() -> None:
    turn = Turn([[0, 100], [50, 120]], [[80, 300], [90, 200]])
    assert turn.seconds() == pytest.approx([40e-9, 180e-9])


def test_bytes_are_of_all_iterations_and_times_of_those_that_count() -> None:
    found = Found("chain", 1000)
    found.add([9.0, 1.0, 1.0], Bytes([3000, 0], [0, 3000]), 3.0)
    found.add([9.0, 2.0], Bytes([4000, 200], [0, 4000]), 2.0)
    assert found.times == [1.0, 1.0, 2.0]
    assert found.sent == pytest.approx([7 / 5, 0.2 / 5])
    assert found.received == pytest.approx([0, 7 / 5])
    assert found.processor == pytest.approx(1.0)
    assert found.busiest == (0, pytest.approx(1.4))


def test_what_takes_longer_than_is_wanted_is_told() -> None:
    case = Case(4, 1, 1000, 10**9)
    for name, seconds in (("link", 1.0), ("star", 4.0), ("chain", 1.2), ("striped", 1.3)):
        case.found[name] = Found(name, 1000, times=[seconds], sent=[1.0] * 5, received=[1.0] * 5)
    said = report.wishes(report.rows(case, {}))
    assert said is not None
    assert "chain: at most 1.25 of link: 1.20\n" in said
    assert said.endswith("striped: at most 1.25 of link: 1.30, NOT REACHED")
    assert "star" not in said


@pytest.mark.parametrize(("shape", "least", "most"), [("star", 8, 8), ("chain", 1, 1.1), ("striped", 1, 1.1)])
def test_theory_is_the_planners(shape: str, least: float, most: float) -> None:
    planned = theory.predicted(shape, 8, 16_000_000, 10**9)
    assert least <= planned.ratio <= most
    assert theory.predicted("tree:degree=3,depth=2", 8, 16_000_000, 10**9).depth <= 2


def test_servers_beyond_the_first_stand_behind_the_workers() -> None:
    assert layout(2, 3).servers == (0, 3, 4)
    assert [report.who(host, 2) for host in range(5)] == [
        "server",
        "worker 0",
        "worker 1",
        "server 1",
        "server 2",
    ]


def test_a_fault_costs_what_its_broadcast_takes_beyond_the_median() -> None:
    outcome = Outcome("chain", "hang", 1, 1.0, [0.1, 0.2, 0.3], 0.9, 4.0, [], [0.2, 0.2], [1.0])
    assert outcome.added == pytest.approx(0.7)
    assert Spread.of(outcome.before).median == outcome.median
    table = report.outcomes([outcome])
    assert "700 ms" in table


def test_a_wrong_element_is_found() -> None:
    from penstock_bench.streaming.rank import Worker

    worker = Worker.__new__(Worker)
    import numpy as np

    worker._product = np.ones((2, 3), np.float32)
    worker._iterations = 2
    right = np.full((2, 3), -1.0, np.float32)
    worker._check(right)
    right[1, 2] = -1.5
    with pytest.raises(WrongAnswerError, match=r"element \[1, 2\] is -1.5 after 2 broadcasts, expected -1.0"):
        worker._check(right)


def test_the_pages_commands_are_taken_and_have_a_place_for_their_figures() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tree-performance.md").read_text()
    commands = re.findall(r"^penstock bench tree (--.*)$", text.replace("\\\n", ""), re.MULTILINE)
    places = set()
    for command in commands:
        given = cli._parser().parse_args(shlex.split(command))
        cli.shapes(given.shapes)
        assert set(given.fail.split(",") if given.fail else ()) <= set(faults.FAULTS)
        places.add(given.json.stem)
    assert places, "the page has commands"
    assert places == set(re.findall(r"^<!-- ([\w-]+) -->$", text, re.MULTILINE))


def test_a_files_tables_are_put_where_the_page_has_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(2, 1, 1000, 10**9, busy=[0.5])
    for name, seconds in (("link", 1.0), ("chain", 1.2)):
        case.found[name] = Found(name, 1000, times=[seconds], sent=[1.02, 1.0, 0.0], received=[1.0] * 3)
    outcome = Outcome("chain", "hang", 1, 1.0, [0.2], 0.9, 4.0, [], [0.3], [1.04])
    machine = {"cores": 2}
    shown = report.document(case, report.rows(case, {}))
    failed = report.fault_document(case, [outcome])
    for name, document in (("shapes", shown), ("faults", failed)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"cases": [document], "machine": machine}))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- shapes -->\nold\n<!-- /shapes -->\nb\n")
    files = [str(tmp_path / "shapes.json"), str(tmp_path / "faults.json")]
    assert pages.main([files[0], "--into", str(page)]) == 0
    text = page.read_text()
    assert "| `chain` | 1.20 s | 1.20 s | 1.20 s | 1 | 1.20 | 1.25 | - | 1.02, server | 1.02 |" in text
    assert "of the 2 cores others used 50%" in text
    assert "old" not in text
    assert text.startswith("a\n")
    assert text.endswith("b\n")
    assert pages.main([*files, "--into", str(page)]) == 1
    assert "has no place for faults" in capsys.readouterr().err
    assert pages.main(files[1:]) == 0
    row = "| `chain` | hang | 200 ms | 900 ms | 700 ms | 4.00 s | - | 300 ms | 1.04 |"
    assert row in capsys.readouterr().out
