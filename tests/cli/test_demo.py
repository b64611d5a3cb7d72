"""`penstock demo`: learns real digits through real processes, and what it reports is so."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from launching import command_line

import penstock as ps

pytest.importorskip("penstock._core")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from penstock.demo.optimizers import stepper
from penstock.demo.settings import RULES

TRAINING = 600.0
"""Seconds that a training which computes for ten may take where many others compute too."""

BASIC = {
    "final_accuracy": float,
    "single_process_accuracy": float,
    "workers": int,
    "servers": int,
    "consistency": str,
    "seconds": float,
    "max_staleness": int,
}


@pytest.fixture
def demo(command, tmp_path):
    """Runs a demo to its end; returns the JSON it wrote and what it printed."""

    def run(*arguments: str, peer: str = "none"):
        one = command("demo", "--json", "result.json", "--plot", "curves.png", "--peer", peer, *arguments)
        assert one.ends(TRAINING) == 0, one.all()
        return json.loads((tmp_path / "result.json").read_text()), one.out

    return run


# Seven epochs are enough for that; `make demo`, which tests/readme runs, takes twenty.
def test_a_demo_learns_the_digits_and_agrees_with_one_process(demo, tmp_path):
    result, out = demo("--epochs", "7")
    for name, kind in BASIC.items():
        assert type(result[name]) is kind, name
    assert (result["workers"], result["servers"], result["consistency"]) == (2, 1, "bsp")
    assert result["final_accuracy"] >= 0.96
    assert result["single_process_accuracy"] >= 0.96
    assert result["first_difference"] < 1e-5
    assert result["judged_epochs"] == list(range(1, result["epochs"] + 1))
    assert result["max_staleness"] == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert f"{result['final_accuracy']:.4f}" in out


@pytest.mark.parametrize("name", RULES)
def test_both_sides_of_the_comparison_take_the_same_steps(job, name):
    rule, rng = RULES[name], np.random.default_rng(7)
    alone = rng.standard_normal(1000).astype(np.float32)
    tensor = job.tensor("w", alone, optimizer=getattr(ps, rule.name)(**rule.settings))
    step = stepper(rule)
    for _ in range(20):
        gradient = rng.standard_normal(1000).astype(np.float32)
        step(alone, gradient)
        shared = tensor.pushpull(gradient)
        np.testing.assert_allclose(shared, alone, rtol=2e-5, atol=4e-6)
        job.clock()


def test_a_synchronous_step_is_that_of_one_process_and_of_the_peer_with_the_same_bits_every_time(demo):
    # One epoch: rounding has no time to grow. Parameters are about 0.1 in size; an update that was lost,
    # doubled or scaled wrongly shows as 1e-3 and more. Adam divides by a small root, and magnifies rounding.
    words = ["--optimizer", "adam", "--epochs", "1", "--workers", "3", "--servers", "2", "--seed", "5"]
    first, _ = demo(*words)
    assert first["max_difference"] < 2e-4
    second, out = demo(*words, peer="gloo" if find_spec("torch") else "none")
    for what in ("accuracy", "loss", "max_difference"):
        assert first[what] == second[what]
    if find_spec("torch"):
        assert second["gloo_seconds"] > 0
        assert abs(second["gloo_accuracy"] - second["single_process_accuracy"]) < 0.02
        assert "gloo" in out


def test_no_read_is_staler_than_the_slack_allows(demo):
    result, out = demo("--consistency", "ssp:3", "--workers", "4", "--epochs", "2")
    assert result["consistency"] == "ssp:3"
    assert result["max_staleness"] <= 3
    assert all(sum(counts.values()) == result["steps"] for counts in result["staleness"])
    assert all(int(behind) <= 3 for counts in result["staleness"] for behind in counts)
    assert "reads by how many iterations they lagged behind:" in out


def test_asynchronous_training_learns_too(demo):
    result, _ = demo("--consistency", "asp", "--optimizer", "sgd", "--epochs", "6")
    assert result["final_accuracy"] >= 0.8


def test_a_demo_with_torch_learns_the_digits(demo):
    pytest.importorskip("torch")
    result, _ = demo("--torch", "--epochs", "1", "--optimizer", "adam", peer="gloo")
    assert result["model"] == "cnn-torch"
    assert result["final_accuracy"] >= 0.6
    assert result["max_difference"] < 2e-4
    assert abs(result["final_accuracy"] - result["single_process_accuracy"]) < 0.03
    assert abs(result["gloo_accuracy"] - result["single_process_accuracy"]) < 0.03


def test_a_peer_that_there_is_not_is_refused_before_anything_is_trained(command):
    run = command("demo", "--peer", "mpi")
    assert run.ends() == 2
    assert "there is no peer 'mpi'" in run.err


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_trained(command):
    run = command("demo", "--plot", "curves.xyz")
    assert run.ends() == 2
    assert "--plot curves.xyz has a suffix that cannot be drawn" in run.err


def test_a_demo_that_is_interrupted_leaves_nothing(command, nothing_left, tmp_path):
    run = command("demo", "--epochs", "100000", "--json", "result.json")
    run.until("epoch ")
    children = run.children()
    run.send(signal.SIGINT)
    assert run.ends() == 130
    nothing_left(children)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


# It waited for the terminal to take the next picture, and ignored every Ctrl-C.
def test_a_demo_whose_terminal_takes_nothing_can_be_interrupted(tmp_path):
    master, terminal = pty.openpty()
    (tmp_path / "t").mkdir()
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "penstock"), "demo", "--epochs", "100000", "--peer", "none"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "t"), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while select.select((), [terminal], (), 0)[1]:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert list((tmp_path / "t").iterdir()) == []
    finally:
        process.kill()
        os.close(master)
        os.close(terminal)


def test_a_demo_whose_worker_is_killed_says_so(command, nothing_left):
    run = command("demo", "--epochs", "100000")
    run.until("epoch ")
    children = run.children()
    os.kill([pid for pid in children if "demo.worker" in command_line(pid)][1], signal.SIGKILL)
    assert run.ends() == 137
    nothing_left(children)
    assert "error: worker 1 was killed by SIGKILL" in run.err
