"""C and C++ programs of a test: compiled against this installation's C interface, and run."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("penstock._core")

from penstock import config
from penstock.exceptions import PenstockError

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "c"
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
PATIENCE = 120.0
"""Seconds that a process may take to end. Nothing is judged by time: this only ends a test that hangs."""

_OF_LAUNCHERS = ("PENSTOCK_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_", "PRTE_", "MPI_")
_NAMES_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Tests may run as root, on fewer cores than ranks.
PERMITTED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Done(NamedTuple):
    """A process that has ended."""

    code: int
    out: str
    err: str


class Runner:
    """Starts processes as a launcher would, with a directory of their own to meet in."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """This process's environment without what launchers set, with `more`."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_OF_LAUNCHERS) and name not in _NAMES_OF_LAUNCHERS
        }
        path = f"{BIN}{os.pathsep}{kept['PATH']}"
        return {**kept, "PATH": path, "XDG_RUNTIME_DIR": str(self.runtime), **more}

    def start(self, command: Sequence[str | Path], **environment: str) -> subprocess.Popen[str]:
        """Starts a process in a group of its own."""
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            env=self.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
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

    def run(self, command: Sequence[str | Path], **environment: str) -> Done:
        """Runs a command."""
        return self.ends(self.start(command, **environment))

    def ranks(
        self,
        command: Sequence[str | Path],
        size: int,
        name: Callable[[int], Mapping[str, str]],
        **environment: str,
    ) -> list[Done]:
        """Runs a command in `size` processes; `name` says what the launcher tells each."""
        started = [self.start(command, **{**environment, **name(rank)}) for rank in range(size)]
        return [self.ends(one) for one in started]

    def left(self) -> list[str]:
        """What processes have left behind where they met."""
        return sorted(path.name for path in self.runtime.glob("penstock/*"))

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


@pytest.fixture
def runner() -> Iterator[Runner]:
    """Starts processes; ends them with the test."""
    # A short path: sockets are made below it.
    runtime = Path("/tmp") / f"psc-{secrets.token_hex(4)}"
    runtime.mkdir(mode=0o700)
    runner = Runner(runtime)
    yield runner
    runner.finish()
    shutil.rmtree(runtime)


@pytest.fixture
def port() -> int:
    """One that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def flags() -> list[str]:
    """What the compiler needs, in front of a source and behind it."""
    try:
        return [f"-I{config.include_dir()}"]
    except PenstockError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def libs(flags: list[str]) -> list[str]:
    """What the linker needs."""
    folder = config.library_dir()
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lpenstock"]


@pytest.fixture(scope="session")
def cc() -> str:
    """A C compiler."""
    return _tool("gcc", "cc")


@pytest.fixture(scope="session")
def cxx() -> str:
    """A C++ compiler."""
    return _tool("g++", "c++")


def _tool(*names: str) -> str:
    for name in names:
        if shutil.which(name):
            return name
    pytest.skip(f"there is no {names[0]}")


@pytest.fixture(scope="session")
def build(
    tmp_path_factory: pytest.TempPathFactory, cc: str, cxx: str, flags: list[str], libs: list[str]
) -> Callable[[Path], Path]:
    """Compiles a program, once a session; every warning is an error."""
    folder = tmp_path_factory.mktemp("programs")

    def make(source: Path) -> Path:
        program = folder / source.stem
        if not program.exists():
            compiler = [cc, "-std=c99"] if source.suffix == ".c" else [cxx, "-std=c++11"]
            command = [
                *compiler,
                *WARNINGS,
                "-O2",
                "-pthread",
                *flags,
                "-o",
                str(program),
                str(source),
                *libs,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return program

    return make


@pytest.fixture
def mpirun() -> list[str | Path]:
    """Open MPI's mpirun for two ranks."""
    if not (BIN / "mpirun").exists():
        pytest.skip("there is no mpirun beside this Python")
    return ["mpirun", "-n", "2"]
