"""The server process that a worker starts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

import penstock as ps
from penstock.launch.console import Name
from penstock.launch.process import Process
from penstock.rendezvous.servers import Server

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


def opened() -> list[str]:
    """The descriptors of this process."""
    return sorted(one.name for one in Path("/proc/self/fd").iterdir())


# Its directory stayed, and where a pipe could not be had the other end of another.
@pytest.mark.parametrize(
    ("name", "error", "raised"),
    [
        ("os.pipe", OSError(errno.EMFILE, "Too many open files"), ps.PenstockError),
        ("tempfile.mkdtemp", OSError(errno.ENOSPC, "No space left on device"), ps.PenstockError),
        ("subprocess.Popen", OSError(errno.EAGAIN, "Resource temporarily unavailable"), ps.PenstockError),
        ("subprocess.Popen", MemoryError(), MemoryError),
    ],
    ids=str,
)
def test_a_server_that_cannot_be_started_leaves_nothing_behind(
    name: str, error: Exception, raised: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(name, Mock(side_effect=error))
    before = opened()
    with pytest.raises(raised, match=getattr(error, "strerror", None)):
        Server(None, 0, 1, 1, secret="ab" * 32, job="j", settings={})
    assert opened() == before
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_cannot_be_started_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    real, pipes = os.pipe, []

    def pipe() -> tuple[int, int]:
        if pipes:
            raise OSError(errno.EMFILE, "Too many open files")
        pipes.append(real())
        return pipes[0]

    monkeypatch.setattr("os.pipe", pipe)
    before = opened()
    with pytest.raises(OSError, match="Too many"):
        Process(Name("worker", 0), ["true"], {}, lambda: None, report=True, told=True)
    assert opened() == before
