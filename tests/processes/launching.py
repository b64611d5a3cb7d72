"""Real launchers with real processes: started, listened to, and checked to have left nothing behind."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

PATIENCE = 60.0
"""Seconds that an event may take to come. Nothing is judged by time: this only ends a test that hangs."""


class Started:
    """A `penstock` command that runs."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *arguments],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._popen.pid
        self._lines: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self._seen: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name, getattr(self._popen, name)), daemon=True)
            for name in self._seen
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, pipe: Iterator[bytes]) -> None:
        for line in pipe:
            self._lines.put((name, line))

    def until(self, text: str, times: int = 1) -> list[str]:
        """The lines that hold `text`, once so many have come."""
        end = time.monotonic() + PATIENCE
        while True:
            found = [line for line in (self.out + self.err).splitlines() if text in line]
            if len(found) >= times:
                return found
            try:
                name, line = self._lines.get(timeout=max(0.01, min(0.2, end - time.monotonic())))
                self._seen[name].append(line)
            except queue.Empty:
                if time.monotonic() > end or (self._popen.poll() is not None and self._lines.empty()):
                    raise AssertionError(f"{text!r} did not come {times} times\n{self.all()}") from None

    def send(self, number: signal.Signals) -> None:
        """Signals the launcher."""
        self._popen.send_signal(number)

    def ends(self, patience: float = PATIENCE) -> int:
        """Waits for the end; the exit code."""
        try:
            code = self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher did not end\n{self.all()}") from None
        for reader in self._readers:
            reader.join(PATIENCE)
        self._drain()
        return code

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name, line = self._lines.get_nowait()
                self._seen[name].append(line)

    @property
    def raw(self) -> bytes:
        """Standard output so far."""
        return b"".join(self._seen["stdout"])

    @property
    def out(self) -> str:
        """Standard output so far, as text."""
        return self.raw.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """Standard error so far, as text."""
        return b"".join(self._seen["stderr"]).decode("utf-8", "replace")

    def all(self) -> str:
        """Everything, for a failed test."""
        self._drain()
        return f"-- stdout\n{self.out}\n-- stderr\n{self.err}"

    def children(self) -> list[int]:
        """Process numbers of the launcher's children: servers, workers and the warden."""
        return [int(word) for word in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def child(self, word: str) -> int:
        """The child whose command line holds `word`."""
        found = [pid for pid in self.children() if word in command_line(pid)]
        assert len(found) == 1, (word, [command_line(pid) for pid in self.children()])
        return found[0]

    def finish(self) -> None:
        """Ends it, if a test did not."""
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for pipe in (self._popen.stdout, self._popen.stderr):
            assert pipe is not None
            pipe.close()


def command_line(pid: int) -> str:
    """A process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a `penstock` command in a folder of the test's own."""
    started: list[Started] = []

    def start(*arguments: str, **environment: str) -> Started:
        started.append(Started(list(arguments), tmp_path, {"TMPDIR": str(scratch), **environment}))
        return started[-1]

    # Sockets of a run go into a folder of the test's own, so that what is left behind can be seen.
    scratch = tmp_path / "t"
    scratch.mkdir()
    yield start
    for one in started:
        one.finish()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a worker's script; returns its name."""

    def write(text: str, name: str = "worker.py") -> str:
        (tmp_path / name).write_text(dedent(text))
        return name

    return write


@pytest.fixture
def nothing_left(tmp_path: Path) -> Callable[[list[int]], None]:
    """Asserts that processes end, and that the runs' private directories are gone."""

    def check(pids: list[int]) -> None:
        for pid in pids:
            wait_for_end(pid)
        assert list((tmp_path / "t").iterdir()) == []

    return check


@pytest.fixture
def gone() -> Callable[[int], None]:
    """Asserts that a process ends."""
    return wait_for_end


def wait_for_end(pid: int) -> None:
    """Waits until the process has ended: an event, not a poll."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([descriptor], [], [], PATIENCE)
        assert ready, f"process {pid} is still there: {command_line(pid)}"
    finally:
        os.close(descriptor)
