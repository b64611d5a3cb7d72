"""Threads, signals, forks and ends that get in each other's way: `tangles.py`, each program in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tangles.py")
PATIENCE = 60.0
"""Longer than the program's own: its watchdog says where it hangs."""

NAMES = (
    "looking_beside_a_push_that_waits",
    "closing_beside_waits_and_looks",
    "a_handler_raises_out_of_every_wait",
    "standing_in_line_for_the_lane",
    "a_handler_closes_the_job",
    "a_handler_closes_what_closes",
    "a_handler_closes_several_jobs_again_and_again",
    "a_handler_closes_another_job_than_the_one_that_closes",
    "a_handler_closes_a_job_and_raises",
    "a_handler_raises_twice",
    "a_handler_calls_what_waits",
    "forking_beside_a_push_that_waits",
    "forking_in_a_handler",
    "ending_beside_waits",
    "dropping_beside_a_wait",
    "everything_at_once",
)


@pytest.mark.parametrize("name", NAMES)
def test_no_thread_waits_for_one_that_waits_for_it(name: str) -> None:
    # Some of them end without a chance to remove anything.
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        ended = subprocess.run(
            [sys.executable, PROGRAM, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "TMPDIR": folder},
        )
    # A push that could not be delivered is not a good end.
    codes = (0, 1) if name == "ending_beside_waits" else (0,)
    assert ended.returncode in codes, ended.stderr
    assert ended.stdout == "through\n"


def test_the_same_holds_without_a_global_lock() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip(
            "this Python has a global lock; with another: `python3.14t -m venv t && "
            "t/bin/pip install . pytest && t/bin/python -m pytest tests/processes/test_tangles.py`"
        )
    assert not getattr(sys, "_is_gil_enabled", lambda: True)(), (
        f"importing penstock switched the global lock on ({os.environ.get('PYTHON_GIL', 'PYTHON_GIL unset')})"
    )
