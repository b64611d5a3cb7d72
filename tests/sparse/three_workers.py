"""Jobs of three workers, over shared memory, TCP, or both at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(program: str, consistency: str, transport: str) -> None:
    """Runs a program of this folder, on two servers and chunks of 4 KiB; it says itself what is wrong."""
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "3", "--servers", "2"]
    command += ["--transport", "auto" if transport == "auto" else "tcp"]
    command += [str(Path(__file__).parent / program), consistency, transport]
    environment = {**os.environ, "PENSTOCK_CHUNK_BYTES": "4096"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
