"""Groups of processes as launchers start them, and checks that they left nothing behind."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

pytest.importorskip("penstock._core")

ROOT = Path(__file__).parents[2]
LINEAR = str(ROOT / "examples" / "linear.py")
BIN = Path(sys.executable).parent
PATIENCE = 180.0
"""Seconds that a process may take to end. Nothing is judged by time: this only ends a test that hangs."""

_OF_LAUNCHERS = ("PENSTOCK_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "RAY_", "PRTE_")
_NAMES_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Done(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    err: str


class Group:
    """Processes of one test."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """This process's environment without what launchers set, with `more`."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_OF_LAUNCHERS) and name not in _NAMES_OF_LAUNCHERS
        }
        path = f"{BIN}{os.pathsep}{kept['PATH']}"
        return {**kept, "PATH": path, "TMPDIR": str(self.scratch), "OMP_NUM_THREADS": "1", **more}

    def start(self, command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
        """Starts a process in a group of its own."""
        return self.start_with(command, (), **environment)

    def start_with(
        self, command: Sequence[str], descriptors: Sequence[int], **environment: str
    ) -> subprocess.Popen[str]:
        """The same, with descriptors that it inherits."""
        process = subprocess.Popen(
            list(command),
            cwd=ROOT,
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            pass_fds=descriptors,
        )
        self._started.append(process)
        return process

    def ends(self, process: subprocess.Popen[str]) -> Done:
        """Waits for the end of a process."""
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = process.communicate()
            raise AssertionError(f"{process.args} did not end\n-- stdout\n{out}\n-- stderr\n{err}") from None
        return Done(process.returncode, out, err)

    def run(self, command: Sequence[str], **environment: str) -> Done:
        """Runs a command."""
        return self.ends(self.start(command, **environment))

    def ranks(
        self, script: str, size: int, name: Callable[[int], Mapping[str, str]], **environment: str
    ) -> list[Done]:
        """Runs a script in `size` processes; `name` says what the launcher tells each."""
        started = [
            self.start([sys.executable, script], **{**environment, **name(rank)}) for rank in range(size)
        ]
        return [self.ends(one) for one in started]

    def kill(self) -> None:
        """Ends whatever still runs."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def finish(self) -> None:
        """At the end of a test."""
        self.kill()
        for process in self._started:
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

    def servers(self) -> list[int]:
        """Process numbers of the servers that processes of this test started, and that still run."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                line = (folder / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "penstock.rendezvous.child" in line and any(str(self.scratch) in word for word in line):
                found.append(int(folder.name))
        return found


@pytest.fixture
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Processes; afterwards, no server and no directory of theirs may be left."""
    # A short path: sockets are made below it.
    scratch = Path("/tmp") / f"psl-{secrets.token_hex(4)}"
    scratch.mkdir(mode=0o700)
    group = Group(scratch)
    yield group
    group.finish()
    left = group.servers()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    folders = [one.name for one in scratch.glob("penstock-*")]
    subprocess.run(["rm", "-rf", str(scratch)], check=True)
    assert not left, "servers were left behind"
    assert not folders, "directories were left behind"


@pytest.fixture
def secret() -> str:
    """A job's secret."""
    return secrets.token_hex(32)


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a worker's script; returns its path."""

    def write(text: str, name: str = "worker.py") -> str:
        path = tmp_path / name
        path.write_text(dedent(text))
        return str(path)

    return write


def learned(out: str) -> bool:
    """Whether the example printed, once, the weights that it had to find."""
    return out.count("weights") == 1 and "weights [ 2.  -1.   0.5  3. ]" in out
