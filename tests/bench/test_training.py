"""`penstock bench torch` as a user calls it, and how its figures are made. No time is judged."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from penstock.cli import main
from penstock_bench.network import layers
from penstock_bench.ranks import WrongAnswerError
from penstock_bench.runner import Case, Round, Spread
from penstock_bench.training import rank, report
from penstock_bench.training.models import task_of
from penstock_bench.training.names import MODELS


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        ("--model resnet", "there is no model 'resnet'", "did you mean resnet18?"),
        ("--systems penstock,horovod", "there is no system 'horovod'", "there are penstock, ddp"),
        ("--workers 0", "--workers is 0, but has to be at least 1", "give a number from 1 to 32"),
        ("--workers two", "--workers 'two' is not a whole number", "give a number from 1 to 32"),
        ("--repeats 0", "--repeats is 0, but has to be at least 1", "give a number"),
        ("--json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file", "name a file"),
        ("--overhead byte", "there is no overhead 'byte'", "did you mean bytes?"),
        ("--overhead copies", "there is no overhead 'copies'", "there are tensors, bytes"),
        (
            "--overhead bytes --model small",
            "--model and --overhead exclude each other",
            "over models of its own",
        ),
        ("--overhead bytes --repeats none", "--repeats 'none' is not a whole number", "give a number"),
        ("--batch 8", "unknown option --batch", ""),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    arguments: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "torch", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert hint in printed.err
    assert printed.out == ""


def test_all_systems_train_to_the_same_parameters_and_every_figure_stands_beside_the_ideal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench torch --model small --workers 2 --rounds 1 --repeats 3"
    command += " --systems penstock,penstock-servers,ddp"
    assert main([*command.split(), "--json", str(figures)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    assert (case["model"], case["workers"], case["alone"]["repeats"]) == ("small", 2, 3)
    assert case["bytes_at_limit_s"] > 0
    measured = {system["system"]: system for system in case["systems"]}
    assert set(measured) == {"penstock", "penstock-servers", "ddp"}
    for name, system in measured.items():
        ideal = case["alone"]["median"] + case["bytes_at_limit_s"]
        assert system["distance_s"] == pytest.approx(system["median"] - ideal)
        assert system["processor_s"] > 0
        assert ("waiting" in system["parts_s"]) == name.startswith("penstock")
    ours = measured["penstock"]["parts_s"]
    assert 0 < ours["computing"] + ours["waiting"] + ours["copying"] <= ours["backward"]
    printed = capsys.readouterr().out
    assert "452 tensors of 32x32, batch 8 a worker, 1.77 MiB of gradients, 2 workers" in printed
    assert "ideal: computation alone" in printed


@pytest.mark.parametrize("model", MODELS)
def test_the_sizes_that_are_named_are_those_of_the_networks(model: str) -> None:
    network = task_of(model).network()
    assert 4 * sum(parameter.numel() for parameter in network.parameters()) == MODELS[model]
    if model in layers.PUBLISHED:
        # In its own order: a block's shortcut is a module after its convolutions here too.
        assert [tuple(parameter.shape) for parameter in network.parameters()] == layers.shapes(model)


def test_parameters_that_differ_from_those_of_the_peer_are_a_wrong_answer() -> None:
    right = np.ones(3, np.float32)
    rank._compare(right + np.float32(5e-6), right)
    with pytest.raises(WrongAnswerError, match="expected at most 1e-05"):
        rank._compare(right + np.float32(5e-5), right)
    with pytest.raises(WrongAnswerError):
        rank._compare(np.full(3, np.nan, np.float32), right)


def measured(ours: float, theirs: float) -> list[report.Line]:
    """Lines of two rounds, of which the second took twice as long on everybody: the machine was slower."""
    case = Case(4, 2)
    for factor in (1.0, 2.0):
        times = {"alone": [factor], "penstock": [factor * ours], "ddp": [factor * theirs]}
        case.rounds.append(Round((50.0, 50.0), times))
    ideal = report.Ideal(Spread.of(case.times("alone")), 0.0)
    parts = {name: {"blocked": [0.1]} for name in ("penstock", "ddp")}
    return report.lines(case, ideal, parts)


def test_a_distance_is_taken_within_a_round_so_that_a_slower_round_is_slower_for_all() -> None:
    ours, theirs = measured(1.25, 1.5)
    assert ours.distances == pytest.approx([0.25, 0.5])
    assert theirs.distance == pytest.approx(statistics.median([0.5, 1.0]))
    assert report.ratio([ours, theirs]) == pytest.approx(0.5)


def test_below_the_ideal_there_is_no_ratio_of_distances() -> None:
    assert report.ratio(measured(0.9, 1.5)) is None
    assert report.ratio(measured(1.5, 1.5)[:1]) is None
