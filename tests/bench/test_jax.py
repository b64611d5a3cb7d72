"""`penstock bench jax` as a user calls it. No time is judged."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from penstock.cli import main
from penstock_bench.ranks import WrongAnswerError
from penstock_bench.training import jax_rank
from penstock_bench.training.jax_models import task_of
from penstock_bench.training.names import JAX_MODELS


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        ("--model leafs", "there is no model 'leafs'", "did you mean leaves?"),
        ("--workers 0", "--workers is 0, but has to be at least 1", "give a number from 1 to 32"),
        ("--json /no/such/folder/f.json", "--json /no/such/folder/f.json: No such file", "name a file"),
        ("--systems penstock", "unknown option --systems", ""),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    arguments: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "jax", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert hint in printed.err
    assert printed.out == ""


def test_a_compiled_step_stands_beside_the_computation_alone_and_its_bytes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench jax --model leaves --workers 2 --rounds 1 --repeats 3"
    assert main([*command.split(), "--json", str(figures)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    assert (case["model"], case["workers"], case["alone"]["repeats"]) == ("leaves", 2, 3)
    (ours,) = case["systems"]
    ideal = case["alone"]["median"] + case["bytes_at_limit_s"]
    assert ours["distance_s"] == pytest.approx(ours["median"] - ideal)
    assert ours["blocked"] == pytest.approx(ours["parts_s"]["waiting"] / ours["median"])
    assert ours["processor_s"] > 0
    assert "200 leaves of 32x32, batch 8 a worker, 800 KiB of gradients, 2 workers" in capsys.readouterr().out


@pytest.mark.parametrize("model", JAX_MODELS)
def test_the_sizes_that_are_named_are_those_of_the_models(model: str) -> None:
    leaves = jax.tree.leaves(task_of(model).params(np.random.default_rng(0)))
    assert sum(leaf.nbytes for leaf in leaves) == JAX_MODELS[model]


def test_parameters_that_differ_from_those_of_one_process_are_a_wrong_answer() -> None:
    right = [np.ones(3, np.float32)]
    jax_rank._compare([right[0] + np.float32(5e-6)], right)
    for wrong in (right[0] + np.float32(5e-5), np.full(3, np.nan, np.float32)):
        with pytest.raises(WrongAnswerError, match="expected at most 1e-05"):
            jax_rank._compare([wrong], right)
