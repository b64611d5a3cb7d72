"""
What tests of the Python front share: jobs in this process, and jobs of real server and worker processes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

import penstock as ps

SERVER = """
import json, os, sys
from penstock import _core
path, index, servers, workers = sys.argv[1], *map(int, sys.argv[2:5])
secret, options = os.environ["PENSTOCK_SECRET"], json.loads(sys.argv[5])
server = _core.Server(path, "job", secret, index, servers, workers, options)
failure = server.wait()
if failure is not None:
    sys.exit(failure)
"""

WORKER = """
import os, sys
import numpy as np
import penstock as ps

def next_job():
    # Leads to the servers of the test's next job.
    servers, _, rest = os.environ["TEST_JOBS"].partition(" ")
    os.environ.update(PENSTOCK_SERVERS=servers, TEST_JOBS=rest)

def save(**arrays):
    with open(os.environ["TEST_OUT"] + "." + os.environ["PENSTOCK_RANK"] + ".npz", "wb") as file:
        np.savez(file, **arrays)
"""

FORKS = """
# What workers import takes seconds, and as many again at PyTorch's first optimizer. This process has done it
# all, and forks itself for each worker. The worker imports us by itself, and ends as any script.
import importlib, json, os, sys, types
import numpy
for name in sys.argv[1:]:
    importlib.import_module(name)

print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "over" in asked:
        pid, status = os.waitpid(asked["over"], os.WNOHANG)
        print(os.waitstatus_to_exitcode(status) if pid else "no", flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
else:
    sys.exit()

os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
numpy.random.seed()
sys.argv = ["-c", *asked["arguments"]]
for name, number in (os.devnull, 0), (asked["log"], 1):
    file = os.open(name, os.O_RDWR)
    os.dup2(file, number)
    os.close(file)
os.dup2(1, 2)
sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(asked["code"], "<string>", "exec"), sys.modules["__main__"].__dict__)
"""

SLOW = {"torch": ("torch", "torch._dynamo"), "jax": ("jax", "jax.numpy")}
"""What workers with a word in their script are forked with."""


class Forked:
    """A worker that was forked from a process which runs FORKS: what is used here of `subprocess.Popen`."""

    def __init__(self, origin: subprocess.Popen[str], **asked: Any) -> None:
        self.returncode: int | None = None
        self._origin = origin
        self.pid = int(self._ask(**asked))

    def poll(self) -> int | None:
        if self.returncode is None and (said := self._ask(over=self.pid)) != "no":
            self.returncode = int(said)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
            time.sleep(0.01)
        return code

    def _ask(self, **asked: Any) -> str:
        assert self._origin.stdin is not None
        assert self._origin.stdout is not None
        self._origin.stdin.write(json.dumps(asked) + "\n")
        self._origin.stdin.flush()
        return self._origin.stdout.readline().strip()


Origins = Callable[[str, int], "list[subprocess.Popen[str]]"]


class SpawnJob(Protocol):
    """Runs a script in several workers; returns what each saved, by rank."""

    def __call__(
        self,
        workers: int,
        script: str,
        *,
        servers: int = 1,
        options: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        timeout: float = 120,
        fails: bool = False,
        jobs: int = 1,
    ) -> list[dict[str, Any]]: ...


def pytest_collection_finish() -> None:
    """What imports torch has done so. Its threads wait by spinning, where the servers' should run."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def job() -> Iterator[ps.Job]:
    """A job of one worker, with its server in this process."""
    with ps.init(deadline=20) as job:
        yield job
        job.close()


@pytest.fixture(scope="session")
def origins() -> Iterator[Origins]:
    """
    The processes that so many workers with a framework are forked from, each from one of its own: those that
    are forked from one have the same hashes of strings, and so the same order of sets.
    """
    started: dict[str, list[subprocess.Popen[str]]] = {kind: [] for kind in SLOW}

    def origins(kind: str, workers: int) -> list[subprocess.Popen[str]]:
        new = [
            subprocess.Popen(
                [sys.executable, "-c", FORKS, *SLOW[kind]],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(len(started[kind]), workers)
        ]
        started[kind].extend(new)
        for origin in new:
            # No worker begins long before another.
            assert origin.stdout is not None
            assert origin.stdout.readline() == "ready\n"
        return started[kind][:workers]

    yield origins
    for origin in itertools.chain(*started.values()):
        with origin:
            pass


@pytest.fixture
def spawn_job(origins: Origins) -> Iterator[SpawnJob]:
    """Jobs of real processes; whatever is left of them is killed by its pid, and shown if the test failed."""
    with spawning(origins) as spawn:
        yield spawn


@pytest.fixture(scope="module")
def spawn_shared_job(origins: Origins) -> Iterator[SpawnJob]:
    """As `spawn_job`, for jobs that several tests of a module look at: what starts slowly starts once."""
    with spawning(origins) as spawn:
        yield spawn


@contextlib.contextmanager
def spawning(origins: Origins) -> Iterator[SpawnJob]:
    """What both fixtures do."""
    started: list[subprocess.Popen[bytes] | Forked] = []
    folders = contextlib.ExitStack()

    def spawn(
        workers: int,
        script: str,
        *,
        servers: int = 1,
        options: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        timeout: float = 120,
        fails: bool = False,
        jobs: int = 1,
    ) -> list[dict[str, Any]]:
        # A path of its own: a Unix socket's name may have 107 bytes, pytest's folders have more.
        folder = folders.enter_context(tempfile.TemporaryDirectory(prefix="ps-"))
        # A job after another in the same workers: what they import is imported once.
        sockets = [[f"{folder}/{job}.{index}" for index in range(servers)] for job in range(jobs)]
        settings = {"deadline": "60", **(options or {})}
        transport = settings.get("transport", "auto")
        if transport == "tcp":
            sockets = [[f"tcp://127.0.0.1:{_free_port()}?unix={path}" for path in paths] for paths in sockets]
        environment = {
            **os.environ,
            "PENSTOCK_TRANSPORT": transport,
            "PENSTOCK_SERVERS": ",".join(sockets[0]),
            "TEST_JOBS": " ".join(map(",".join, sockets[1:])),
            "PENSTOCK_SECRET": secrets.token_hex(32),
            "PENSTOCK_SIZE": str(workers),
            "PENSTOCK_DEADLINE": settings["deadline"],
            "OMP_NUM_THREADS": "1",
            "TEST_OUT": f"{folder}/out",
        }
        if "consistency" in settings:
            environment["PENSTOCK_CONSISTENCY"] = settings["consistency"]
        logs: dict[str, Path] = {}

        def start(name: str, code: str, *args: str, **more: str) -> subprocess.Popen[bytes]:
            logs[name] = Path(folder) / f"{name}.log"
            with logs[name].open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-c", code, *args],
                    env={**environment, **more},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            started.append(process)
            return process

        def fork(rank: int, origin: subprocess.Popen[str]) -> Forked:
            logs[f"worker{rank}"] = Path(folder) / f"worker{rank}.log"
            logs[f"worker{rank}"].touch()
            process = Forked(
                origin,
                code=code,
                arguments=arguments,
                folder=str(Path.cwd()),
                environment={**environment, "PENSTOCK_RANK": str(rank)},
                log=str(logs[f"worker{rank}"]),
            )
            started.append(process)
            return process

        texts = json.dumps(settings)
        everyone: list[subprocess.Popen[bytes] | Forked] = [
            start(f"server{job}.{index}", SERVER, path, str(index), str(servers), str(workers), texts)
            for job, paths in enumerate(sockets)
            for index, path in enumerate(paths)
        ]
        code = WORKER + textwrap.dedent(script)
        ranks: list[subprocess.Popen[bytes] | Forked]
        kinds = [kind for kind in SLOW if kind in script]
        if len(kinds) == 1:
            ranks = [fork(rank, origin) for rank, origin in enumerate(origins(kinds[0], workers))]
        else:
            ranks = [
                start(f"worker{rank}", code, *arguments, PENSTOCK_RANK=str(rank)) for rank in range(workers)
            ]
        everyone += ranks
        late = ""
        try:
            for process in ranks:
                process.wait(timeout)
            # Servers end with their job; if no worker ever joined, they go on waiting for one.
            for process in everyone:
                process.wait(30)
        except subprocess.TimeoutExpired:
            late = ", ".join(
                name for name, process in zip(logs, everyone, strict=True) if process.poll() is None
            )
            for process in everyone:
                _kill(process)
        codes = [process.returncode for process in everyone]
        outputs = "\n".join(f"--- {name}\n{log.read_text(errors='replace')}" for name, log in logs.items())
        # Who hangs has not failed as it was to.
        assert not late, f"did not end in time: {late}\n{outputs}"
        if fails:
            assert any(code != 0 for code in codes), outputs
        else:
            assert not any(codes), f"exit codes {codes}\n{outputs}"
        saved = []
        for rank in range(workers):
            path = Path(f"{folder}/out.{rank}.npz")
            entry: dict[str, Any] = {
                "output": logs[f"worker{rank}"].read_text(errors="replace"),
                "code": ranks[rank].returncode,
            }
            if path.exists():
                with np.load(path) as arrays:
                    entry.update(arrays)
            saved.append(entry)
        return saved

    try:
        yield spawn
    finally:
        for process in started:
            _kill(process)
        folders.close()


def _free_port() -> int:
    """A port of the loopback device on which nothing listens now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _kill(process: subprocess.Popen[bytes] | Forked) -> None:
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
