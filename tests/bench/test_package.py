"""The benchmarks are a package of their own: found where it is installed, named where it is not."""

from __future__ import annotations

import ast
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import penstock
from penstock.cli import extra, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "pushpull"], "penstock bench"),
        (["plan", "--paper", "table2"], "penstock plan --paper"),
    ],
)
def test_a_command_of_the_package_says_how_to_get_it(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(
        f"error: `{said}` is in the package `penstock-ps-bench`, which is not installed"
    )
    assert "hint: `pip install ./bench` in a checkout" in printed.err


def test_another_package_cannot_take_the_commands_name(monkeypatch: pytest.MonkeyPatch) -> None:
    other = metadata.EntryPoint("bench", "os:abort", extra.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: (other,))
    assert main(["bench", "pushpull"]) == 2


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_nothing_in_the_wheel_needs_the_benchmarks() -> None:
    files = list((ROOT / "python").rglob("*.py"))
    assert len(files) > 50
    assert [file for file in files if "penstock_bench" in imports(file)] == []


def test_both_packages_have_one_version() -> None:
    project = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())["project"]
    assert project["version"] == penstock.__version__
    assert project["dependencies"] == [f"penstock-ps=={penstock.__version__}"]
