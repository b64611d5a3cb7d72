"""A manager in a process of its own, and the command line beside it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import _core

PATIENCE = 60.0
"""Seconds that an event may take to come; only a test that hangs takes them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what the core that is installed cannot do."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not hasattr(_core, "Manager"):
            item.add_marker(pytest.mark.skip(reason="the installed core has no Manager: rebuild it"))


class Process:
    """A `penstock` command that goes on until it is ended; its lines come as they are printed."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *arguments],
            env={**clean(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen = ""
        self.ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, start: str) -> str:
        """The first line from now on that begins so."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            assert line is not None, f"it ended without {start!r}:\n{self.seen}"
            self.seen += line
            if line.startswith(start):
                return line

    def end(self, number: signal.Signals) -> int:
        """Signals it, unless it has ended, and waits; the exit code."""
        self.popen.send_signal(number)  # does nothing once the end was seen
        code = self.popen.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        self.ended = True
        while not self._lines.empty():
            self.seen += self._lines.get() or ""
        return code


def clean() -> dict[str, str]:
    """The environment without anything of ours, but with where modules are found."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}


class Site:
    """A state directory, and the managers that run on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.address = "127.0.0.1:0"
        self.ca = ""
        self.process: Process | None = None
        self._others: list[Process] = []

    def start(self, *arguments: str) -> Process:
        """Starts a manager where the last one was."""
        self.process = self.run(
            "manager", "--listen", self.address, "--state", str(self.state), "--json", *arguments
        )
        self.address = json.loads(self.process.line("{"))["address"]
        return self.process

    def run(self, *arguments: str, **environment: str) -> Process:
        """Starts a command that is killed at the end of the test."""
        process = Process(*arguments, **environment)
        self._others.append(process)
        return process

    def token(self, which: str) -> str:
        """What stands in a token's file."""
        return (self.state / f"{which}.token").read_text().strip()

    def penstock(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, with the admin token in its environment."""
        variables = {"PENSTOCK_MANAGER": self.address, "PENSTOCK_ADMIN_TOKEN": self.token("admin")}
        if self.ca:
            variables["PENSTOCK_CA"] = self.ca
        return subprocess.run(
            [sys.executable, "-m", "penstock.cli", *arguments],
            env={**clean(), **variables, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def close(self) -> None:
        """Kills what is left."""
        for process in self._others:
            if not process.ended:
                process.end(signal.SIGKILL)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A manager on loopback."""
    site = Site(tmp_path)
    try:
        site.start()
        yield site
    finally:
        site.close()


@pytest.fixture
def empty_site(tmp_path: Path) -> Iterator[Site]:
    """A place for a manager that the test starts itself."""
    site = Site(tmp_path)
    yield site
    site.close()


Fails = Callable[..., tuple[str, str]]


@pytest.fixture
def fails() -> Fails:
    """Checks that a command failed as commands do; returns its error and its hint."""

    def check(done: subprocess.CompletedProcess[str], code: int = 1) -> tuple[str, str]:
        assert (done.returncode, done.stdout) == (code, ""), done
        lines = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
        error, blank, hint = lines
        assert (error[:7], blank, hint[:6]) == ("error: ", "", "hint: ")
        return error[7:], hint[6:]

    return check
