"""Every command and program that the README shows runs as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.removeprefix("$ ").split("   #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TABLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tables.md").read_text(), re.DOTALL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DEADLINE = 120
"""Seconds that any of them may take."""

TORCH_PRELUDE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss = torch.nn.functional.mse_loss
batches = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(5)]
"""


LAUNCHERS = "".join(page.read_text() for page in (ROOT / "docs" / "launchers").glob("*.md"))


def run(command: list[str] | str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    ours = ("MAKE", "MFLAGS", "PENSTOCK_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    shell = isinstance(command, str)
    return subprocess.run(
        command, shell=shell, cwd=cwd, env=env, capture_output=True, text=True, timeout=DEADLINE
    )


def running(example: Path) -> str:
    """The command that runs an example, as the README writes it."""
    return f"penstock run --workers 2 examples/{example.name}"


def test_the_readme_shows_commands_and_programs() -> None:
    assert len(COMMANDS) >= 8
    assert len(PROGRAMS) == 3
    assert len(TABLES) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_succeeds(command: str, tmp_path: Path) -> None:
    if command == "make test":
        pytest.skip("`make test` is what runs this test")
    if command.startswith("penstock bench"):
        pytest.skip("benchmarks are measured, not tested; tests/bench runs their code")
    if f"$ {command}\n" in LAUNCHERS:
        pytest.skip("it stands on a page about launchers too, and tests/launchers runs it")
    if command in [running(example) for example in EXAMPLES]:
        pytest.skip("it runs an example, whose answer another test looks at")
    if "torch" in command:
        pytest.importorskip("torch")
    for name in re.findall(r"\S+\.(?:json|png)", command):
        command = command.replace(name, str(tmp_path / name))
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", [PROGRAMS[2], *TABLES])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_program_about_tables_runs_alone_and_in_company(program: str, workers: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    done = run(["penstock", "run", "--workers", str(workers), str(tmp_path / "program.py")])
    assert done.returncode == 0, done.stderr


def test_the_ten_lines_learn_what_they_are_given() -> None:
    done = run([sys.executable, "-c", PROGRAMS[0]])
    assert done.returncode == 0, done.stderr
    weights = [float(x) for x in done.stdout.strip(" []\n").split()]
    assert abs(weights[0] + 2 * weights[1] + 3 * weights[2] - 14) < 0.1


def test_the_three_lines_make_a_torch_script_distributed() -> None:
    pytest.importorskip("torch")
    done = run([sys.executable, "-c", TORCH_PRELUDE + PROGRAMS[1]])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_it_says(example: Path) -> None:
    if "torch" in example.name:
        pytest.importorskip("torch")
    needed = ("jax", "optax") if "jax" in example.name else ()
    if any(importlib.util.find_spec(name) is None for name in needed):
        pytest.skip("JAX or optax is not installed")
    done = run(running(example))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[worker 0] "), done.stdout
    number = float(re.findall(r"-?\d+\.\d*", done.stdout)[0])
    assert number > 1.98 if example.name == "linear.py" else number > 0.9


def test_every_page_that_the_readme_names_exists() -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / link).exists(), link
