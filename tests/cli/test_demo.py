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
from pathlib import Path

import pytest
from launching import command_line

pytest.importorskip("penstock._core")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

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


def test_a_demo_without_options_learns_the_digits_and_agrees_with_one_process(demo, tmp_path):
    result, out = demo()
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


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw"])
def test_a_synchronous_step_is_the_single_process_step_up_to_rounding(demo, optimizer):
    # One epoch: rounding has no time to grow. Parameters are about 0.1 in size; an update that was lost,
    # doubled or scaled
    # wrongly shows as 1e-3 and more. Rules that divide by a small root magnify rounding more than SGD does.
    result, _ = demo("--optimizer", optimizer, "--epochs", "1", "--workers", "3", "--servers", "2")
    assert result["max_difference"] < (1e-5 if "sgd momentum nesterov".find(optimizer) >= 0 else 2e-4)


def test_synchronous_training_gives_the_same_bits_every_time(demo):
    first, _ = demo("--epochs", "3", "--seed", "5")
    second, _ = demo("--epochs", "3", "--seed", "5")
    assert first["accuracy"] == second["accuracy"]
    assert first["loss"] == second["loss"]
    assert first["max_difference"] == second["max_difference"]


@pytest.mark.parametrize("slack", [0, 3])
def test_no_read_is_staler_than_the_slack_allows(demo, slack):
    result, out = demo("--consistency", f"ssp:{slack}", "--workers", "4", "--epochs", "3")
    assert result["consistency"] == f"ssp:{slack}"
    assert result["max_staleness"] <= slack
    assert all(sum(counts.values()) == result["steps"] for counts in result["staleness"])
    assert all(int(behind) <= slack for counts in result["staleness"] for behind in counts)
    assert "reads by iterations behind:" in out


def test_asynchronous_training_learns_too(demo):
    result, _ = demo("--consistency", "asp", "--optimizer", "sgd")
    assert result["final_accuracy"] >= 0.8


def test_a_demo_with_torch_learns_the_digits(demo):
    pytest.importorskip("torch")
    result, _ = demo("--torch", "--epochs", "4", "--optimizer", "adam")
    assert result["model"] == "cnn-torch"
    assert result["final_accuracy"] >= 0.8
    assert abs(result["final_accuracy"] - result["single_process_accuracy"]) < 0.03


def test_the_peer_learns_the_same_from_the_same_batches(demo):
    pytest.importorskip("torch")
    result, out = demo("--epochs", "10", peer="gloo")
    assert result["gloo_seconds"] > 0
    assert abs(result["gloo_accuracy"] - result["single_process_accuracy"]) < 0.02
    assert "gloo" in out


def test_a_peer_that_there_is_not_is_refused_before_anything_is_trained(command):
    run = command("demo", "--peer", "mpi")
    assert run.ends() == 2
    assert "there is no peer 'mpi'" in run.err


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_trained(command):
    run = command("demo", "--plot", "curves.xyz")
    assert run.ends() == 2
    assert "--plot curves.xyz has no suffix that can be drawn" in run.err


def test_a_demo_that_is_interrupted_leaves_nothing(command, nothing_left, tmp_path):
    run = command("demo", "--epochs", "100000", "--json", "result.json")
    run.until("epoch ")
    children = run.children()
    run.send(signal.SIGINT)
    assert run.ends() == 130
    nothing_left(children)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


# It waited for the terminal to take the next picture, deaf to every Ctrl-C.
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
