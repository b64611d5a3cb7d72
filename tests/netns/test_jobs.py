"""Whole jobs on several test hosts: the bits of one host, whatever happens to cables and processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from penstock.netns import Laboratory

WORKER = """
import hashlib, sys
import numpy as np
import penstock as ps

iterations, elements, consistency = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
job = ps.init()
optimizer = ps.SGD(0.1, momentum=0.9)
start = np.arange(elements, dtype=np.float32)
w = job.tensor("w", value=start, optimizer=optimizer, consistency=consistency)
for iteration in range(iterations):
    gradient = np.full(elements, (job.rank + 1) / (iteration + 2), np.float32)
    gradient += w.pull() % np.float32(3)
    w.push(gradient)
    job.clock()
    print(f"iteration {iteration}", flush=True)
job.barrier()
digest = hashlib.sha256(w.pull(slack=0).tobytes()).hexdigest()
print("value", digest, job.stats()["max_staleness"], flush=True)
job.close()
"""
ELEMENTS = 300_000
DEADLINE = 60.0


class Job:
    """Servers and workers of one job, where they were put."""

    def __init__(self, folder: Path, options: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.secret = secrets.token_hex(32)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            "PENSTOCK_SECRET": self.secret,
            "PENSTOCK_DEADLINE": "40",
            "OMP_NUM_THREADS": "1",
            **(options or {}),
        }
        self.servers: list[subprocess.Popen[str]] = []
        self.workers: list[subprocess.Popen[str]] = []
        self.endpoints: list[str] = []

    def serve(self, lab: Laboratory | None, hosts: Sequence[int], workers: int) -> None:
        """Starts the servers, on these hosts."""
        for index, host in enumerate(hosts):
            address = "127.0.0.1" if lab is None else lab.address(host)
            reading, writing = os.pipe()
            endpoint = f"tcp://{address}:0?unix={self.folder}/{self.secret[:8]}-{index}"
            command = [
                sys.executable,
                "-m",
                "penstock.launch.server",
                endpoint,
                str(index),
                str(len(hosts)),
                str(workers),
            ]
            environment = {**self.environment, "PENSTOCK_ANNOUNCE_FD": str(writing)}
            self.servers.append(start(lab, host, command, environment, pass_fds=[writing]))
            os.close(writing)
            with os.fdopen(reading) as line:
                self.endpoints.append(line.readline().strip())
            assert self.endpoints[-1], self.servers[-1].communicate()

    def work(self, lab: Laboratory | None, hosts: Sequence[int], *arguments: object, **more: str) -> None:
        """Starts the workers, on these hosts."""
        command = [sys.executable, "-c", WORKER, *map(str, arguments)]
        for rank, host in enumerate(hosts):
            environment = {
                **self.environment,
                "PENSTOCK_SERVERS": ",".join(self.endpoints),
                "PENSTOCK_RANK": str(rank),
                "PENSTOCK_SIZE": str(len(hosts)),
                **more,
            }
            self.workers.append(start(lab, host, command, environment))

    def values(self) -> list[list[str]]:
        """What each worker said at its end: the value's digest and its largest staleness."""
        result = []
        for worker in self.workers:
            out, err = worker.communicate(timeout=DEADLINE)
            assert worker.returncode == 0, err
            result.append(out.splitlines()[-1].split()[1:])
        return result

    def errors(self, rank: int) -> str:
        """What a worker that failed said."""
        _, err = self.workers[rank].communicate(timeout=DEADLINE)
        assert self.workers[rank].returncode != 0
        return str(err)

    def wait_for(self, rank: int, iteration: int) -> None:
        """Waits until a worker has completed an iteration."""
        out: IO[str] | None = self.workers[rank].stdout
        assert out is not None
        for line in out:
            if line == f"iteration {iteration}\n":
                return
        raise AssertionError(self.workers[rank].communicate())

    def end(self) -> None:
        for process in (*self.workers, *self.servers):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()


def start(
    lab: Laboratory | None, host: int, command: Sequence[str], environment: Mapping[str, str], **more: object
) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    if lab is None:
        return subprocess.Popen(command, env=environment, **pipes)  # type: ignore[call-overload, no-any-return]
    return lab.spawn(host, command, environment, **pipes)


@contextlib.contextmanager
def job(folder: Path, **options: str) -> Iterator[Job]:
    made = Job(folder, {f"PENSTOCK_{name.upper()}": value for name, value in options.items()})
    try:
        yield made
    finally:
        made.end()


def alone(folder: Path, workers: int, iterations: int) -> str:
    """The same job on this host alone, by shared memory: the value's digest."""
    with job(folder) as one:
        one.serve(None, [0], workers)
        one.work(None, [0] * workers, iterations, ELEMENTS, "bsp")
        values = {value for value, _ in one.values()}
        assert len(values) == 1
        return values.pop()


@pytest.mark.parametrize("security", ["auto", "insecure"])
@pytest.mark.parametrize(
    ("topology", "workers", "servers"),
    [
        ("cc", [0, 1, 2], [0]),
        ("cs", [0, 1, 2], [0, 1, 2]),
        ("ncc", [0, 1], [2]),
        ("ncs", [0, 1, 2], [3, 4]),
        ("two workers a host", [0, 0, 1, 1], [0, 1]),
    ],
)
def test_every_topology_gives_the_bits_of_one_host(
    tmp_path: Path, topology: str, workers: list[int], servers: list[int], security: str
) -> None:
    with (
        Laboratory(hosts=max(*workers, *servers) + 1, rate="1gbit") as lab,
        job(tmp_path, security=security) as one,
    ):
        one.serve(lab, servers, len(workers))
        one.work(lab, workers, 6, ELEMENTS, "bsp")
        assert {value for value, _ in one.values()} == {alone(tmp_path, len(workers), 6)}, topology


def test_a_reader_on_another_host_is_never_staler_than_its_slack(tmp_path: Path) -> None:
    with Laboratory(hosts=3, rate="1gbit") as lab, job(tmp_path) as one:
        one.serve(lab, [2], 2)
        one.work(lab, [0, 1], 40, 5_000, "ssp:2")
        values = one.values()
        assert values[0][0] == values[1][0]
        assert all(float(staleness) <= 2 for _, staleness in values)


def test_a_cable_that_is_cut_and_put_back_costs_time_and_nothing_else(tmp_path: Path) -> None:
    with Laboratory(hosts=3, rate="1gbit") as lab, job(tmp_path, lease="15") as one:
        one.serve(lab, [2], 2)
        one.work(lab, [0, 1], 12, ELEMENTS, "bsp")
        one.wait_for(1, 3)
        lab.cut(0)
        time.sleep(2)  # how long the cable is out: nothing happens meanwhile that could be waited for
        lab.mend(0)
        assert {value for value, _ in one.values()} == {alone(tmp_path, 2, 12)}


def test_a_host_that_vanishes_is_named_within_its_lease_and_learns_of_it_itself(tmp_path: Path) -> None:
    with Laboratory(hosts=3, rate="1gbit") as lab, job(tmp_path, lease="2") as one:
        one.serve(lab, [2], 2)
        one.work(lab, [0, 1], 1_000_000, 5_000, "bsp")
        one.wait_for(0, 3)
        lab.cut(1)
        assert "worker 1 was lost: it gave no sign of life" in one.errors(0)
        assert "server 0 was lost" in one.errors(1)


def test_the_others_go_on_without_a_host_that_vanishes_where_they_shall(tmp_path: Path) -> None:
    with Laboratory(hosts=4, rate="1gbit") as lab, job(tmp_path, lease="2", on_worker_loss="continue") as one:
        one.serve(lab, [3], 3)
        one.work(lab, [0, 1, 2], 60, 5_000, "bsp")
        one.wait_for(0, 3)
        lab.cut(2)
        one.errors(2)
        lost = one.workers.pop()
        assert lost.returncode != 0
        first, second = one.values()
        assert first[0] == second[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_on_another_host_is_named(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Laboratory(hosts=3, rate="1gbit") as lab, job(tmp_path, lease="2") as one:
        one.serve(lab, [2], 2)
        one.work(lab, [0, 1], 1_000_000, 5_000, "bsp")
        one.wait_for(0, 3)
        one.workers[1].send_signal(number)
        assert "worker 1 was lost" in one.errors(0)


def test_a_server_that_is_killed_on_another_host_is_named(tmp_path: Path) -> None:
    with Laboratory(hosts=3, rate="1gbit") as lab, job(tmp_path, lease="2") as one:
        one.serve(lab, [2], 2)
        one.work(lab, [0, 1], 1_000_000, 5_000, "bsp")
        one.wait_for(0, 3)
        one.servers[0].kill()
        for rank in range(2):
            assert "server 0 was lost" in one.errors(rank)


def test_a_plain_worker_on_another_host_is_refused_and_told_what_to_do(tmp_path: Path) -> None:
    with Laboratory(hosts=2, rate=None) as lab, job(tmp_path) as one:
        one.serve(lab, [1], 1)
        one.work(lab, [0], 1, 10, "bsp", PENSTOCK_SECURITY="insecure")
        error = one.errors(0)
        assert "refuses connections from other hosts that are not encrypted" in error
        assert "security" in error


def test_a_wrong_secret_is_refused_between_hosts(tmp_path: Path) -> None:
    with Laboratory(hosts=2, rate=None) as lab, job(tmp_path) as one:
        one.serve(lab, [1], 1)
        one.work(lab, [0], 1, 10, "bsp", PENSTOCK_SECRET="5" * 64)
        assert "AuthenticationError" in one.errors(0)


HOSTILE = """
import contextlib, os, resource, socket, sys
host, port = sys.argv[1], int(sys.argv[2])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
print("begins", flush=True)
while True:
    for kind in range(10_000):
        one = socket.socket()
        one.settimeout(1)
        with contextlib.suppress(OSError):
            one.connect((host, port))
            if kind % 4 == 0:
                one.send(os.urandom(200))
            elif kind % 4 == 1:
                one.send(b"P" + bytes([255, 255, 255, 127]))
            elif kind % 4 == 2:
                one.send(b"\\x16\\x03\\x01")
            held.append(one)
        if len(held) > min(most - 100, 10_000):
            held.pop(0).close()
"""


def test_a_flood_from_a_hostile_host_leaves_a_jobs_bits_as_they_are(tmp_path: Path) -> None:
    expected = alone(tmp_path, 2, 8)
    with Laboratory(hosts=4, rate="1gbit") as lab, job(tmp_path) as one:
        one.serve(lab, [2], 2)
        port = one.endpoints[0].split("?")[0].rsplit(":", 1)[1]
        command = [sys.executable, "-c", HOSTILE, lab.address(2), port]
        hostile = lab.spawn(3, command, stdout=subprocess.PIPE, text=True)
        assert hostile.stdout is not None
        assert hostile.stdout.readline() == "begins\n"
        one.work(lab, [0, 1], 8, ELEMENTS, "bsp")
        assert {value for value, _ in one.values()} == {expected}
        hostile.kill()
        hostile.wait()
        hostile.stdout.close()
