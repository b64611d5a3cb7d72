"""Jobs put on hosts: servers and workers in real processes, started where a test says, heard, and ended."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock_bench.netns import NetworkTestbed

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 60.0
"""Seconds that an event may take to come; only a test that hangs takes them."""
ELEMENTS = 300_000
"""Of the tensor that is compared bit by bit: some dozen chunks, on every shard."""


class Running:
    """A program on a host, whose lines come as it prints them."""

    def __init__(
        self,
        testbed: NetworkTestbed | None,
        host: int,
        argv: Sequence[str],
        environment: Mapping[str, str],
        **popen: Any,
    ) -> None:
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        if testbed is None:
            self.popen = subprocess.Popen(argv, env=environment, **{**pipes, **popen})
        else:
            self.popen = testbed.spawn(host, argv, environment, **{**pipes, **popen})
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._more = threading.Condition()
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.popen.stdout, self.lines), (self.popen.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """The program's own process number, seen from anywhere on this machine."""
        return self.popen.pid

    def _read(self, pipe: Any, into: list[str]) -> None:
        for line in pipe:
            with self._more:
                into.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._open -= 1
            self._more.notify_all()

    def until(self, start: str) -> str:
        """The first line that starts so, once it is there."""

        def found() -> str | None:
            return next((line for line in self.lines if line.startswith(start)), None)

        with self._more:
            self._more.wait_for(lambda: found() is not None or self._open == 0, PATIENCE)
            line = found()
            assert line is not None, f"{start!r} did not come\n{self.said()}"
            return line

    def ends(self) -> int:
        """Waits for its end and for its last line; the exit code."""
        try:
            code = self.popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end\n{self.said()}") from None
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def said(self) -> str:
        """Everything that it has said, for a failed test."""
        return "\n".join(["-- stdout", *self.lines, "-- stderr", *self.errors])

    def send(self, number: signal.Signals) -> None:
        """Signals it."""
        self.popen.send_signal(number)

    def close(self) -> None:
        """Kills what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.kill()
        self.popen.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()


class Job:
    """Servers and workers of one job, where they were put."""

    def __init__(self, folder: Path, options: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.secret = secrets.token_hex(32)
        self.environment = {
            **clean(),
            "PENSTOCK_SECRET": self.secret,
            "PENSTOCK_DEADLINE": "40",
            **(options or {}),
        }
        self.servers: list[Running] = []
        self.workers: list[Running] = []
        self.endpoints: list[str] = []

    def serve(
        self, testbed: NetworkTestbed | None, hosts: Sequence[int], workers: int, **environment: str
    ) -> None:
        """Starts the servers on these hosts, each with a socket for workers that share its host."""
        for index, host in enumerate(hosts):
            address = "127.0.0.1" if testbed is None else testbed.address(host)
            reading, writing = os.pipe()
            endpoint = f"tcp://{address}:0?unix={self.folder}/{self.secret[:8]}-{index}"
            numbers = [str(number) for number in (index, len(hosts), workers)]
            argv = [sys.executable, "-m", "penstock.launch.server", endpoint, *numbers]
            given = {**self.environment, **environment, "PENSTOCK_ANNOUNCE_FD": str(writing)}
            self.servers.append(Running(testbed, host, argv, given, pass_fds=[writing]))
            os.close(writing)
            with os.fdopen(reading) as line:
                self.endpoints.append(line.readline().strip())
            if not self.endpoints[-1]:
                self.servers[-1].ends()
                raise AssertionError(self.servers[-1].said())

    def work(
        self,
        testbed: NetworkTestbed | None,
        hosts: Sequence[int],
        *arguments: object,
        program: str = "train.py",
        through: Mapping[int, str] | None = None,
        **environment: str,
    ) -> None:
        """Starts the workers, by rank, on these hosts. `through`: other ways to the one server, by rank."""
        argv = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
        for rank, host in enumerate(hosts):
            given = {
                **self.environment,
                "PENSTOCK_SERVERS": (through or {}).get(rank, ",".join(self.endpoints)),
                "PENSTOCK_RANK": str(rank),
                "PENSTOCK_SIZE": str(len(hosts)),
                **environment,
            }
            self.workers.append(Running(testbed, host, argv, given))

    def results(self) -> list[list[str]]:
        """What each worker said in its last line, by rank, word by word."""
        for worker in self.workers:
            assert worker.ends() == 0, worker.said()
        return [worker.until("result ").split()[1:] for worker in self.workers]

    def value(self) -> str:
        """The digest of the value that all workers ended with."""
        values = {words[0] for words in self.results()}
        assert len(values) == 1, values
        return values.pop()

    def error(self, rank: int) -> str:
        """What a worker that failed said."""
        worker = self.workers[rank]
        assert worker.ends() not in (0, -signal.SIGKILL), worker.said()
        return "\n".join(worker.errors)

    def end(self) -> None:
        """Kills what is left."""
        for process in (*self.workers, *self.servers):
            process.close()


class Relay(Running):
    """A machine in the middle, on a host of its own; see its program."""

    def __init__(
        self, testbed: NetworkTestbed, host: int, what: str, server: int, endpoint: str, *arguments: object
    ) -> None:
        where = [testbed.address(host), testbed.address(server), port(endpoint)]
        argv = [sys.executable, str(PROGRAMS / "relay.py"), what, *where, *map(str, arguments)]
        super().__init__(testbed, host, argv, clean(), stdin=subprocess.PIPE)
        self.endpoint = f"tcp://{testbed.address(host)}:{self.until('listens').split()[1]}"

    def counts(self) -> dict[str, int]:
        """What it has done so far."""
        assert self.popen.stdin is not None
        self.lines.clear()
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        pairs = (part.split("=") for part in self.until("done").split(";")[1:])
        return {name: int(count) for name, count in pairs}


@contextlib.contextmanager
def running(one: Relay | Running) -> Iterator[Any]:
    """A program that is ended with the test."""
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def job(folder: Path, **options: str) -> Iterator[Job]:
    """A job that is ended with the test."""
    made = Job(folder, {f"PENSTOCK_{name.upper()}": value for name, value in options.items()})
    try:
        yield made
    finally:
        made.end()


@functools.cache
def alone(workers: int, iterations: int, elements: int = ELEMENTS) -> str:
    """The same job on this host alone, by shared memory: the value's digest."""
    with tempfile.TemporaryDirectory(prefix="ps-") as folder, job(Path(folder)) as one:
        one.serve(None, [0], workers)
        one.work(None, [0] * workers, iterations, elements, "bsp")
        return one.value()


def clean() -> dict[str, str]:
    """The environment without anything of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, "OMP_NUM_THREADS": "1"}


def port(endpoint: str) -> str:
    """The port of an endpoint string."""
    found = re.match(r"tcp://[^?]*:(\d+)", endpoint)
    assert found is not None, endpoint
    return found[1]


def connections(pid: int) -> int:
    """TCP connections that a process holds."""
    links = (str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir())
    held = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return sum(row.split()[9] in held for row in rows)


def sent_again(pid: int) -> int:
    """TCP segments that the host of a process has had to send again."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines()]
    names, values = (row for row in rows if row[0] == "Tcp:")
    return int(values[names.index("RetransSegs")])


def wait_until_sent_again(pid: int, more: int) -> None:
    """
    Waits until the host of a process has sent segments in vain: bytes were under way when the cable was cut.
    """
    before, end = sent_again(pid), time.monotonic() + PATIENCE
    while sent_again(pid) < before + more:
        assert time.monotonic() < end, "nothing was under way"
        time.sleep(0.01)  # the kernel counts, and tells no one
