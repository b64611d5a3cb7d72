"""
Slack torture in real processes: all to all, 10,000 iterations, random pauses, slack 0 to 8, over shared
memory, over the network, and both in one job. The program judges every read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "torture.py"
DEADLINE = 120.0


@contextlib.contextmanager
def servers(folder: Path, count: int, workers: int) -> Iterator[dict[str, str]]:
    """Servers of a job on this host, and the environment of its workers."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = {**clean, "PENSTOCK_SECRET": secrets.token_hex(32), "PENSTOCK_DEADLINE": "60"}
    running, endpoints = [], []
    try:
        for index in range(count):
            reading, writing = os.pipe()
            endpoint = f"tcp://127.0.0.1:0?unix={folder}/{index}.sock"
            command = [
                sys.executable,
                "-m",
                "penstock.launch.server",
                endpoint,
                str(index),
                str(count),
                str(workers),
            ]
            given = {**environment, "PENSTOCK_ANNOUNCE_FD": str(writing)}
            running.append(subprocess.Popen(command, env=given, pass_fds=[writing]))
            os.close(writing)
            with os.fdopen(reading) as line:
                endpoints.append(line.readline().strip())
        yield {**environment, "PENSTOCK_SERVERS": ",".join(endpoints), "PENSTOCK_SIZE": str(workers)}
    finally:
        for process in running:
            process.kill()
            process.wait()


def torture(folder: Path, transports: list[str], arguments: list[object], count: int = 1) -> list[list[str]]:
    """Runs a worker for each transport: what each said last."""
    with servers(folder, count, len(transports)) as environment:
        workers = []
        try:
            for rank, transport in enumerate(transports):
                given = {**environment, "PENSTOCK_RANK": str(rank), "PENSTOCK_TRANSPORT": transport}
                command = [sys.executable, str(PROGRAM), *map(str, arguments)]
                pipe = subprocess.PIPE
                workers.append(subprocess.Popen(command, env=given, text=True, stdout=pipe, stderr=pipe))
            said = [worker.communicate(timeout=DEADLINE) for worker in workers]
            assert [worker.returncode for worker in workers] == [0] * len(workers), said
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    return [out.splitlines()[-1].split()[1:] for out, _ in said]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t")


def test_ten_thousand_iterations_in_shared_memory(folder: Path) -> None:
    results = torture(folder, ["auto"] * 4, [10_000, 3, 8, "eager", "0,1,2,4,8", 1])
    stalest = [int(words[0]) for words in results]
    assert max(stalest) <= 8
    assert all(words[2] == "0" for words in results), "on one host no byte is sent"


def test_ten_thousand_iterations_of_many_rows_that_are_set_at_once(folder: Path) -> None:
    results = torture(folder, ["auto", "tcp", "auto"], [10_000, 70, 8, "eager", "0,1,2,4,8", 5])
    assert max(int(words[0]) for words in results) <= 8


@pytest.mark.parametrize("propagation", ["eager", "lazy", "bounded"])
def test_ten_thousand_iterations_over_the_network(folder: Path, propagation: str) -> None:
    results = torture(folder, ["tcp"] * 2, [10_000, 3, 8, propagation, "0,1,2,4,8", 2])
    assert all(0 <= int(words[0]) <= 8 and int(words[2]) > 0 for words in results), results


@pytest.mark.parametrize("propagation", ["eager", "lazy", "bounded"])
def test_memory_and_network_in_one_job_with_two_servers(folder: Path, propagation: str) -> None:
    results = torture(folder, ["auto", "tcp", "auto"], [1500, 3, 8, propagation, "0,1,2,4,8", 3], count=2)
    assert all(int(words[0]) <= 8 for words in results), results


def test_rows_of_every_length(folder: Path) -> None:
    for width in (1, 5, 6, 130, 8192):
        torture(folder, ["auto", "tcp"], [60, 2, width, "eager", "0,2", 4])
