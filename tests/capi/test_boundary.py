"""Wrong calls get errors, not crashes; the compiler's sanitizers agree."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import HERE, Runner

BOUNDARY = HERE / "boundary.c"


def test_every_wrong_call_is_answered_with_an_error_that_names_what_is_wrong(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    done = runner.run([build(BOUNDARY)])
    assert done == (0, "", "")


def test_the_sanitizers_find_nothing(
    tmp_path: Path, cc: str, flags: list[str], libs: list[str], runner: Runner
) -> None:
    program = tmp_path / "boundary"
    # A pointer that is not aligned is one of the wrong calls, and nobody looks through it.
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize=alignment", "-fno-sanitize-recover=all", "-g"]
    command = [cc, "-std=c99", *sanitize, *flags, "-o", str(program), str(BOUNDARY), *libs]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"{cc} has no sanitizers here: {made.stderr.splitlines()[-1]}")
    done = runner.run([program], ASAN_OPTIONS="detect_leaks=1")
    assert done == (0, "", "")


def test_threads_set_get_and_fail_at_the_same_time(build: Callable[[Path], Path], runner: Runner) -> None:
    done = runner.run([build(HERE / "threads.c")])
    assert done == (0, "", "")
