"""`penstock bench` as a user calls it. No time is judged: only that figures are there, and what is wrong."""

import importlib.util
import json
from pathlib import Path

import pytest

from penstock.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pushpull", "--size", "0"], "--size '0' is not above zero"),
        (["pushpull", "--size", "-4"], "--size '-4' is negative"),
        (["pushpull", "--size", "4097"], "not a multiple of 4"),
        (["pushpull", "--chunk-size", "1M"], "unknown unit"),
        (["pushpull", "--chunk-size", "48KiB"], "chunk_bytes"),
        (["pushpull", "--workers", "0"], "--workers is 0, but has to be at least 1"),
        (["pushpull", "--workers", "two"], "--workers 'two' is not a whole number"),
        (["pushpull", "--workers", "100000"], "--workers is 100000, but at most 64 are allowed"),
        (["pushpull", "--rounds", "0"], "--rounds is 0, but has to be at least 1"),
        (["pushpull", "--systems", "penstock,horovod"], "there is no system 'horovod'"),
        (
            ["pushpull", "--json", "/no/such/folder/figures.json"],
            "--json /no/such/folder/figures.json: No such file",
        ),
        (["pushpull", "--plot", "figure.xyz"], "has no suffix that can be drawn"),
        (["pushpull", "--sizes", "4"], "unknown option --sizes"),
        (["pushpul"], "there is no benchmark 'pushpul'"),
        (["pull", "--size", "3"], "not a multiple of 4"),
        (["startup", "--repeats", "0"], "--repeats is 0, but has to be at least 1"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert printed.out == ""


def test_pushpull_measures_the_same_work_on_penstock_and_on_the_bare_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    command = (
        "bench pushpull --systems penstock,limit --size 4KiB --size 100004 --workers 2 --rounds 2 --repeats 3"
    )
    assert main([*command.split(), "--json", str(figures), "--plot", str(plot)]) == 0
    cases = json.loads(figures.read_text())["cases"]
    assert [(case["system"], case["bytes"], case["workers"], case["repeats"]) for case in cases] == [
        ("penstock", 4096, 2, 6),
        ("limit", 4096, 2, 6),
        ("penstock", 100004, 2, 6),
        ("limit", 100004, 2, 6),
    ]
    assert all(0 < case["min_s"] <= case["median_s"] <= case["max_s"] for case in cases)
    printed = capsys.readouterr().out
    assert "pushpull 4 KiB f32, 2 workers, hot   penstock " in printed
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_beside_a_busy_neighbour_everything_is_measured_once_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench pushpull --systems penstock --size 4KiB --workers 1 --rounds 1 --repeats 3 --neighbour"
    assert main([*command.split(), "--json", str(figures)]) == 0
    cases = json.loads(figures.read_text())["cases"]
    assert [("neighbour" in case, case["repeats"]) for case in cases] == [(False, 3), (True, 3)]
    assert "beside a busy process   penstock " in capsys.readouterr().out


def test_a_peer_that_is_not_installed_is_skipped_aloud(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    hidden = ("torch", "mpi4py")
    for module in ("gloo", "mpi"):
        monkeypatch.setattr(
            f"penstock_bench.systems.{module}.find_spec", lambda name: None if name in hidden else found(name)
        )
    command = "bench pushpull --systems limit,gloo,mpi --size 4KiB --rounds 1 --repeats 3"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    assert "gloo+sgd: skipped: torch is not installed (pip install torch)" in printed
    assert "mpi+sgd: skipped: mpi4py is not installed" in printed


@pytest.mark.parametrize(("peer", "module"), [("gloo", "torch"), ("mpi", "mpi4py")])
def test_a_peer_gives_the_same_answer(peer: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(module)
    assert (
        main(f"bench pushpull --systems {peer} --size 1004 --workers 2 --rounds 1 --repeats 3".split()) == 0
    )
    assert "failed" not in capsys.readouterr().out


def test_pull_and_startup_print_what_is_wanted_beside_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "pull", "--repeats", "20"]) == 0
    assert main(["bench", "startup", "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert "of the 2.00 us wanted" in printed
    assert "of the 1.00 s wanted" in printed
