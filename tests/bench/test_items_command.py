"""`penstock bench items` as a user calls it. No time is judged: only figures, and what is wrong."""

import json
from pathlib import Path

import pytest

from penstock.cli import main
from penstock_bench.items.systems import Mpi

mpi = pytest.mark.skipif(Mpi().missing() is not None, reason=f"NO MPI ON THIS MACHINE: {Mpi().missing()}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("items --rows-bytes 0", "--rows-bytes '0' is not above zero"),
        ("items --rows-bytes 12", "not a multiple of 8"),
        ("items --rows-bytes 8,big", "--rows-bytes 'big' is not a valid size"),
        ("items --rows-bytes 2MiB", "above the largest row"),
        ("items --consumers 0", "--consumers is 0, but has to be at least 1"),
        ("items --consumers 1,two", "--consumers 'two' is not a whole number"),
        ("items --propagation eagr", "there is no propagation 'eagr'"),
        ("items --transport udp", "there is no transport 'udp'"),
        ("items --batch -1", "--batch"),
        ("items --batch 100000", "--batch is 100000, but at most 4096 are allowed"),
        ("items --systems penstock,upc", "there is no system 'upc'"),
        ("items --rounds 0", "--rounds is 0, but has to be at least 1"),
        ("items --repeats many", "--repeats 'many' is not a whole number"),
        ("items --json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file"),
        ("items --plot figure.xyz", "has no suffix that can be drawn"),
        ("items --size 8", "unknown option --size"),
        ("straggler --workers 0", "--workers is 0, but has to be at least 1"),
        ("straggler --slack 0,-1", "--slack '-1' is not a valid slack"),
        ("straggler --slack some", "--slack 'some' is not a valid slack"),
        ("straggler --seconds 0", "--seconds '0' is out of range: above 0"),
        ("straggler --straggler slow", "--straggler 'slow' is not a number"),
        ("straggler --loss nan", "--loss 'nan' is out of range"),
        ("straggler --who first", "there is no sleeper 'first'"),
        ("straggler --rounds 0", "--rounds is 0, but has to be at least 1"),
        ("straggler --plot figure.xyz", "has no suffix that can be drawn"),
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
    assert main(["bench", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert "\nhint: " in printed.err
    assert printed.out == ""


def items(arguments: str, figures: Path) -> list[dict[str, object]]:
    """What was measured, with as little work as possible."""
    command = f"bench items --rounds 1 --repeats 3 {arguments} --json {figures}"
    assert main(command.split()) == 0
    cases: list[dict[str, object]] = json.loads(figures.read_text())["cases"]
    return cases


def test_every_row_reaches_every_consumer_on_one_host(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plot = tmp_path / "figure.png"
    arguments = "--rows-bytes 8,1KiB --consumers 2 --transport shm --batch 1,256 --systems penstock,limit"
    cases = items(f"{arguments} --plot {plot}", tmp_path / "figures.json")
    assert {(case["row_bytes"], case["consumers"], case["batch"], case["system"]) for case in cases} == {
        (size, 2, batch, system)
        for size in (8, 1024)
        for batch in (1, 256)
        for system in ("penstock eager", "limit")
    }
    assert all(case["rows_per_second"] > 0 for case in cases)  # type: ignore[operator]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "of limit" in capsys.readouterr().out


def test_beside_a_busy_neighbour_everything_is_measured_once_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = "--rows-bytes 8 --consumers 1 --transport shm --batch 1 --systems penstock --neighbour"
    cases = items(arguments, tmp_path / "figures.json")
    assert ["neighbour" in case for case in cases] == [False, True]
    assert all(case["latency"]["least"] > 0 for case in cases)  # type: ignore[index]
    printed = capsys.readouterr().out
    assert printed.count(" none ") == printed.count(" busy  ") == 2, "a rate and a latency each"


@pytest.mark.parametrize("propagation", ["eager", "lazy", "bounded"])
def test_every_row_reaches_every_consumer_over_tcp(propagation: str, tmp_path: Path) -> None:
    arguments = f"--rows-bytes 64 --consumers 2 --transport tcp --batch 64 --propagation {propagation}"
    cases = items(f"{arguments} --systems penstock,limit", tmp_path / "figures.json")
    assert [case["system"] for case in cases] == [
        f"penstock {propagation}",
        f"penstock-all-tcp {propagation}",
        "limit",
    ]
    assert all(case["processor_s_per_gb"] > 0 for case in cases)  # type: ignore[operator]


# Over TCP one case is enough: what differs there is Open MPI's own, and waits in turn where cores are few.
@mpi
@pytest.mark.parametrize(
    ("transport", "sizes", "consumers", "batches"), [("shm", "8", "1", "1,64"), ("tcp", "64", "2", "64")]
)
def test_messages_and_one_sided_mpi_move_the_same_rows(
    transport: str, sizes: str, consumers: str, batches: str, tmp_path: Path
) -> None:
    arguments = f"--rows-bytes {sizes} --consumers {consumers} --batch {batches} --transport {transport}"
    cases = items(f"{arguments} --systems mpi", tmp_path / "figures.json")
    number = len(sizes.split(",")) * len(consumers.split(",")) * len(batches.split(","))
    assert [case["system"] for case in cases] == ["mpi put", "mpi get", "mpi sendrecv"] * number
    assert all(case["latency"]["least"] > 0 for case in cases[:3])  # type: ignore[index]


def test_json_without_a_file_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command = "bench items --rows-bytes 8 --consumers 1 --transport shm --batch 64 --systems limit --rounds 1"
    assert main([*command.split(), "--repeats", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bench"] == "items"


def test_mpi_that_is_not_installed_is_skipped_aloud(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_bench.items.systems.find_spec", lambda name: None)
    command = (
        "bench items --rows-bytes 8 --consumers 1 --transport shm --batch 64 --systems mpi,limit --rounds 1"
    )
    assert main([*command.split(), "--repeats", "3"]) == 0
    assert "mpi: skipped: mpi4py is not installed" in capsys.readouterr().out
