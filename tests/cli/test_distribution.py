"""The other project whose distribution is called `penstock`: a start beside it says what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

WRONG = "the distribution `penstock` 9.9 is installed, which is another project"
REMEDY = "pip uninstall penstock penstock-ps, then pip install penstock-ps"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder for packages in which both were installed; ours last."""
    ours = Path(penstock.__file__).parent
    site = tmp_path / "site"
    (site / "penstock").mkdir(parents=True)
    for file in ours.iterdir():
        if file.name != "__pycache__":
            (site / "penstock" / file.name).symlink_to(file)
    other = site / "penstock-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 9.9\n")
    (other / "RECORD").write_text("penstock/__init__.py,,\npenstock-9.9.dist-info/RECORD,,\n")
    return site


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the interpreter with that folder before all others."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_the_command_says_so_where_the_other_was_installed_last(mixed: Path) -> None:
    (mixed / "penstock" / "__init__.py").unlink()
    (mixed / "penstock" / "__init__.py").write_text("__version__ = '9.9'\n")
    ended = python(mixed, "-m", "penstock.cli", "doctor")
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {WRONG}")
    assert ended.stderr.endswith(f"hint: {REMEDY}\n")


def test_the_import_says_so_where_removing_the_other_took_a_part_of_ours(mixed: Path) -> None:
    for file in (mixed / "penstock").glob("_core*.so"):
        file.unlink()
    ended = python(mixed, "-c", "import penstock")
    assert WRONG in ended.stderr
    assert REMEDY in ended.stderr


def test_the_doctor_says_so_while_all_still_works(mixed: Path) -> None:
    assert python(mixed, "-c", "import penstock").returncode == 0
    ended = python(mixed, "-m", "penstock.cli", "doctor")
    assert WRONG in ended.stdout, ended.stdout + ended.stderr
    assert REMEDY in ended.stdout


def test_a_job_that_is_started_beside_the_other_says_so_once_and_runs(mixed: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import penstock as ps\nwith ps.init() as job:\n    job.barrier()\n")
    ended = python(mixed, "-m", "penstock.cli", "run", "--workers", "2", str(script))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(WRONG) == ended.stderr.count(REMEDY) == 1, ended.stderr
