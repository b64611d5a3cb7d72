"""The server process that a worker starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MAIN = """
import os, signal
from penstock.launch import ending, server
from penstock.rendezvous import child

def serve():
    ending.stop_at_sigterm()
    return 0

def remove(directory, real=child._remove):
    os.kill(os.getpid(), signal.SIGTERM)  # the parent has ended just now
    real(directory)

server.main, child._remove = serve, remove
raise SystemExit(child.main())
"""


def test_a_signal_while_it_cleans_up_stops_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "sockets"
    directory.mkdir()
    (directory / "s0").touch()
    ended = subprocess.run(
        [sys.executable, "-c", MAIN],
        env={**os.environ, "PENSTOCK_DIRECTORY": str(directory), "PENSTOCK_PARENT": str(os.getpid())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not directory.exists()
