"""The straggler benchmark: what is drawn, what is learned, and what is reported."""

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.cli import main
from penstock_bench.items.straggler import Found, Run, table

pytest.importorskip("sklearn")

from penstock_bench.items import straggler_rank as rank


@pytest.mark.parametrize("who", rank.WHO)
def test_one_worker_sleeps_in_each_iteration_and_as_long_as_was_asked_for(who: str) -> None:
    drawn = rank.sleeps(3, 20_000, 4, 0.02, who)
    assert (np.count_nonzero(drawn, axis=1) == 1).all()
    assert drawn.sum(axis=1).mean() == pytest.approx(0.02, rel=0.05)
    asleep = np.count_nonzero(drawn, axis=0)
    assert (asleep > 4500).all() if who == "any" else (asleep[:3] == 0).all()


def test_sleeps_are_the_same_for_all_slacks_and_others_in_the_next_round() -> None:
    assert (rank.sleeps(0, 50, 4, 0.02, "any") == rank.sleeps(0, 50, 4, 0.02, "any")).all()
    assert (rank.sleeps(0, 50, 4, 0.02, "any") != rank.sleeps(1, 50, 4, 0.02, "any")).any()


def test_the_gradient_is_that_of_the_loss() -> None:
    pixels, digits = rank.data()
    pixels, digits = pixels[:50], digits[:50]
    weights = np.random.default_rng(0).normal(size=(65, rank.CLASSES))
    found = rank.gradient(weights, pixels, digits)
    for row, column in ((64, 3), (20, 0), (35, 9)):
        step = np.zeros_like(weights)
        step[row, column] = 1e-6
        ahead = rank.loss(weights + step, pixels, digits)
        behind = rank.loss(weights - step, pixels, digits)
        assert found[row, column] == pytest.approx((ahead - behind) / 2e-6, abs=1e-6)


def run(slack: str, seed: int, losses: list[float]) -> Run:
    return Run(slack, seed, [float(t) for t in range(len(losses))], losses, 0.0, 0.0)


def test_the_time_to_the_loss_is_the_first_that_is_low_enough() -> None:
    assert run("0", 0, [3.0, 2.0, 1.0, 1.5]).reached(2.0) == 1.0
    assert run("0", 0, [3.0, 2.0]).reached(1.0) is None


def test_a_slack_that_misses_the_loss_once_has_no_time() -> None:
    found = Found(4, 0.02, "any", 2, target=1.0)
    found.runs = [run("0", 0, [3.0, 1.0]), run("8", 0, [3.0, 1.0]), run("8", 1, [3.0, 2.0])]
    assert found.median("0") == 1.0
    assert found.median("8") is None
    assert "never" in table(found, ["0", "8"])


def test_every_slack_is_run_and_none_reads_rows_older_than_it_may(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "figure.png"
    command = "bench straggler --workers 3 --slack 0,2 --straggler 0.002 --seconds 0.06 --rounds 2"
    assert main([*command.split(), "--json", str(figures), "--plot", str(plot)]) == 0
    document = json.loads(figures.read_text())
    runs = document["runs"]
    assert [(run["slack"], run["seed"]) for run in runs] == [("0", 0), ("2", 0), ("0", 1), ("2", 1)]
    assert all(run["max_staleness"] <= int(run["slack"]) for run in runs)
    assert all(run["losses"][-1] < run["losses"][0] for run in runs)
    assert all(run["to_target_s"] is not None for run in runs if run["slack"] == "0")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "over slack 0" in capsys.readouterr().out
