"""
Public training scripts, written anew for these tests, before and after they are moved to Penstock. What
docs/pytorch.md shows is the difference between the two files; and it trains to what the script trained to.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pytorch.md").read_text()
NAMES = sorted(folder.name for folder in SCRIPTS.iterdir() if (folder / "before.py").exists())
PATIENCE = 180.0
"""Seconds that a program may take to end. Nothing is judged by time: this only ends a test that hangs."""
ABORTED = "terminate called without an active exception"
"""What C++ says where Python ends one of its threads."""

DRAWN = """
# Runs a script, and notes what its sampler draws on each worker; or has it draw what two workers drew.
import os, runpy, sys
import torch.utils.data as data

class Sampler(data.RandomSampler):
    def __iter__(self):
        if mode == "again":
            files = [open(f"{folder}/{rank}").read().split() for rank in range(2)]
            for start in range(0, len(files[0]), 32):
                for drawn in files:
                    yield from map(int, drawn[start : start + 32])
            return
        with open(f"{folder}/{os.environ['PENSTOCK_RANK']}", "w") as file:
            for index in super().__iter__():
                print(index, file=file, flush=True)
                yield index

mode, folder, script = sys.argv[1:4]
data.RandomSampler = Sampler
sys.argv = sys.argv[3:]
sys.path.insert(0, os.path.dirname(script))
runpy.run_path(script, run_name="__main__")
"""


def difference(name: str) -> list[str]:
    """The lines that go and come, but empty ones."""
    folder = SCRIPTS / name
    before, after = ((folder / f"{which}.py").read_text().splitlines() for which in ("before", "after"))
    changes = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in list(changes)[2:] if line[0] in "+-" and line[1:].strip()]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_whole_difference_and_counts_its_lines(name: str) -> None:
    shown = re.findall(rf"\(\.\./tests/torch/scripts/{name}\)([^`]*)```diff\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 1, f"docs/pytorch.md has no diff after a link to tests/torch/scripts/{name}"
    said, diff = shown[0]
    assert diff.splitlines() == difference(name)
    gone = sum(line.startswith("-") for line in difference(name))
    come = len(difference(name)) - gone
    assert f", -{gone} +{come} lines. " in " ".join(said.split())


def ended(*commands: list[Any]) -> list[tuple[int, str, str]]:
    """How programs end that run at once, and what they print, one after the other."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        kept |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    # Processes that one has started write to one pipe: unbuffered, their lines would run into each other.
    kept.pop("PYTHONUNBUFFERED", None)
    kept |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**kept, **({"RANK": str(rank), "WORLD_SIZE": "2"} if len(commands) > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, command in enumerate(commands)
    ]
    try:
        printed = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(process.returncode, *both) for process, both in zip(started, printed, strict=True)]


def what_they_print(found: list[tuple[int, str, str]]) -> str:
    """None may have failed."""
    for code, out, err in found:
        assert code == 0, out + err
    return "".join(out for _, out, _ in found)


def run(*commands: list[Any]) -> str:
    """What programs print that run at once, one after the other."""
    return what_they_print(ended(*commands))


def run_as_it_was(*commands: list[Any]) -> str:
    """
    The same of a script that was not moved and averages by Gloo. Once its work is done PyTorch may abort it:
    a thread of Gloo that lets go of a tensor while the interpreter ends is ended inside C++. Such a run is
    no baseline, and is done again.
    """
    for _ in range(4):
        found = ended(*commands)
        if not any(code and ABORTED in err for code, _, err in found):
            return what_they_print(found)
        print(f"PyTorch aborted at its end and runs again: {commands}")
    return run(*commands)


def run_on_two(*command: Any) -> str:
    """What a script prints as the page has it started."""
    return run(["-m", "penstock.cli", "run", "--workers", "2", *command])


def losses(printed: str, of: str) -> list[float]:
    """What stands behind these words at the beginning of lines, in their order."""
    return [float(loss) for loss in re.findall(rf"^{re.escape(of)} (\S+)", printed, re.MULTILINE)]


def saved(path: Path) -> dict[str, Any]:
    """The parameters in a file."""
    import torch

    return dict(torch.load(path, weights_only=True))


@pytest.mark.parametrize("name", ["ddp_tutorial", "horovod_mnist"])
def test_a_script_that_was_distributed_already_trains_to_the_same_bits(name: str, tmp_path: Path) -> None:
    before, after = SCRIPTS / name / "before.py", SCRIPTS / name / "after.py"
    theirs, ours = tmp_path / "theirs.pt", tmp_path / "ours.pt"
    command = [before, "--save", theirs]
    # The tutorial starts its processes itself.
    expected = run_as_it_was(*([command] if name == "ddp_tutorial" else [command] * 2))
    found = run_on_two(after, "--save", ours)
    for rank in range(2):
        lines = losses(found, f"[worker {rank}] rank {rank} loss")
        assert len(lines) >= 12
        assert lines == losses(expected, f"rank {rank} loss")
    # Of other parts of the test data: a sampler of Penstock's goes on to the next epoch by itself.
    expected_tests = losses(expected, "test loss")
    assert losses(found, "[worker 0] test loss") == pytest.approx(expected_tests, abs=1e-6)
    assert bool(expected_tests) == (name == "horovod_mnist")
    assert all((value == saved(theirs)[name]).all() for name, value in saved(ours).items())


def same_as_alone(expected: str, found: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Losses are the mean over the workers, and parameters equal, within rounding."""
    both = zip(losses(found, "[worker 0] loss"), losses(found, "[worker 1] loss"), strict=True)
    means = [sum(pair) / 2 for pair in both]
    assert len(means) >= 20
    assert means == pytest.approx(losses(expected, "loss"), abs=1e-6)
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        assert (value - theirs[name]).abs().max() <= 1e-6, name


def test_a_language_model_trains_as_in_one_process_on_the_joined_batch(tmp_path: Path) -> None:
    folder = SCRIPTS / "word_language_model"
    theirs, ours = tmp_path / "theirs.pt", tmp_path / "ours.pt"
    # Half the columns on each worker: together they are those of the one process.
    expected = run([folder / "before.py", "--dropout", "0", "--batch-size", "20", "--save", theirs])
    found = run_on_two(folder / "after.py", "--dropout", "0", "--batch-size", "10", "--save", ours)
    test = re.findall(r"^(?:\[worker \d\] )?test (\S+)$", expected + found, re.MULTILINE)
    assert [float(one) for one in test] == pytest.approx([float(test[0])] * 3, abs=1e-6)
    program = f"""
import sys, torch
sys.path.insert(0, {str(folder)!r})
for path in sys.argv[1:]:
    torch.save(torch.load(path, weights_only=False).state_dict(), path)
assert not any(name.startswith("penstock") for name in sys.modules)
"""
    run(["-c", program, theirs, ours])
    same_as_alone(expected, found, saved(theirs), saved(ours))


def test_batches_that_workers_draw_at_random_train_as_in_one_process_that_draws_them_all(
    tmp_path: Path,
) -> None:
    folder = SCRIPTS / "mingpt"
    theirs, ours = tmp_path / "theirs.pt", tmp_path / "ours.pt"
    program = tmp_path / "drawn.py"
    program.write_text(DRAWN)
    options = ["--dropout", "0", "--learning-rate", "1e-4", "--save"]
    found = run_on_two(program, "noted", tmp_path, folder / "after.py", *options, ours)
    expected = run([program, "again", tmp_path, folder / "before.py", "--batch-size", "64", *options, theirs])
    assert (tmp_path / "0").read_text() != (tmp_path / "1").read_text()
    same_as_alone(expected, found, saved(theirs), saved(ours))
