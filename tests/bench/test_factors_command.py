"""`penstock bench factors` as a user calls it. No time is judged: only bytes, bits, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli import main
from penstock_bench.network import systems


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--shape 4096", "--shape '4096' is not a matrix"),
        ("--shape 0x7", "--shape '0x7' is not a matrix"),
        ("--shape 7x7x7", "--shape '7x7x7' is not a matrix"),
        ("--rank 0", "--rank is 0, but has to be at least 1"),
        ("--rank 1025", "--rank is 1025, but at most 1024 are allowed"),
        ("--rank thin", "--rank 'thin' is not a whole number"),
        ("--workers 33", "--workers is 33, but at most 32 are allowed"),
        ("--ways push", "there is no way 'push'"),
        ("--hosts cloud", "invalid choice: 'cloud'"),
        ("--rate 1gigabit --hosts netns", "--rate '1gigabit' has the unknown unit"),
        ("--rate 1gbit", "--rate shapes the links of test hosts"),
        ("--plain --tls", "--plain and --tls exclude each other"),
        ("--rounds 0", "--rounds is 0, but has to be at least 1"),
        ("--repeats few", "--repeats 'few' is not a whole number"),
        ("--json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "factors", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert printed.out == ""


def test_factors_come_down_as_few_bytes_and_every_way_leads_to_the_same_bits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench factors --shape 512x512 --rank 2 --workers 2 --rounds 1 --repeats 5"
    assert main([*command.split(), "--json", str(figures)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    moved, matrix = case["moved"], 4 * 512 * 512
    assert set(moved) == {"pull", "update-sums", "update"}
    assert moved["pull"]["received"] > matrix
    assert moved["update-sums"]["received"] > matrix
    assert moved["update"]["received"] < matrix / 2
    assert moved["update-sums"]["sent"] > matrix
    assert max(moved[way]["sent"] for way in ("pull", "update")) < matrix / 2
    printed = capsys.readouterr().out
    assert "factors 512x512 f32, rank 2, 2 workers, the loopback" in printed


def test_other_bits_are_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = systems.NetworkFactors.open

    def other(system: systems.NetworkFactors, nbytes: int, workers: int) -> None:
        opened(system, nbytes, workers)
        if system.name == "update":
            system.digests = {"of something else"}

    monkeypatch.setattr(systems.NetworkFactors, "open", other)
    command = "bench factors --shape 64x64 --rank 1 --ways pull,update --rounds 1 --repeats 3"
    assert main(command.split()) == 1
    assert "did not come to the same bits" in capsys.readouterr().err
