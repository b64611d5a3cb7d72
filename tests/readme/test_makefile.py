"""`make test` leaves nothing out in silence, and no compiler runs against a limit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

if not shutil.which("make"):
    pytest.skip("there is no make", allow_module_level=True)


def make(*words: str, **more: str) -> str:
    """What it prints, as a user's own call: none of the variables of a `make` that runs this test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", *words], cwd=ROOT, env={**kept, **more}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_make_test_runs_a_part_of_miri_and_of_threadsanitizer() -> None:
    words = make("-n", "test")
    assert "cargo +nightly miri test --quiet --lib -p penstock-fabric" in words
    assert "cargo +nightly test -Zbuild-std" in words


def test_what_cannot_run_for_want_of_a_toolchain_is_said_with_what_to_install(tmp_path: Path) -> None:
    rustup = tmp_path / "rustup"
    rustup.write_text("#!/bin/sh\necho \"error: toolchain 'nightly' is not installed\" >&2\nexit 1\n")
    rustup.chmod(0o755)
    said = make("test-memory", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}").splitlines()
    skipped = [line for line in said if line.startswith("SKIPPED: ")]
    assert len(skipped) == 2, said
    assert "Miri is not installed: rustup toolchain install nightly --component miri" in skipped[0]
    assert "ThreadSanitizer needs the standard library's source: rustup toolchain install" in skipped[1]


def test_what_is_compiled_for_a_test_under_a_limit_is_compiled_before_without_one() -> None:
    """Machines differ in how fast they compile: a limit is for tests that hang."""
    compiled: set[str] = set()
    limited = 0
    words = make("-n", "test-rust", "test-model", "test-fuzz", "test-miri", "test-tsan").replace("\\\n", "")
    for line in re.split(r"[;\n]", words):
        limit, cargo, command = line.partition("cargo ")
        if not cargo:
            continue
        # All that decides what is compiled, as one word per part; `--` divides it from what is run of it.
        command = re.sub(r"^build |--no-run|^run ", "", command.split(" -- ")[0])
        names = set(re.findall(r"-p (\S+)|--test (\S+)|--manifest-path (\S+)|(--workspace)", command))
        names = {next(filter(None, name)) for name in names}
        if "timeout" in limit:
            limited += 1
            assert names <= compiled, line
        else:
            compiled |= names
    assert limited >= 8
