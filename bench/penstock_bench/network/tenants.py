"""
Several jobs on one server: `python -m penstock_bench.network.tenants` is one worker of one of them.

One service homes all jobs. Each job's workers exchange a tensor for as long as the measurement lasts; a job's
rate is the payload that its workers pushed and pulled. Jobs start together, by a line on standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_bench.network.places import Place, processor_of
from penstock_bench.systems import BenchError

GREEDY = 4
"""Workers of a greedy job."""


@dataclass(frozen=True)
class Found:
    """What was measured, in bytes per second."""

    alone: float
    """A job by itself."""
    by_jobs: dict[int, list[float]]
    """Each job's rate, where so many run at once: the median over the rounds."""
    processor_alone: float
    """Processor seconds of all processes for each GB that workers pushed and pulled, likewise."""
    processor_by_jobs: dict[int, float]
    """The same where so many run at once."""


@dataclass(frozen=True)
class _Once:
    """One measurement."""

    rates: list[float]
    processor_per_gb: float


def run(
    place: Place,
    jobs: Sequence[int],
    nbytes: int,
    seconds: float,
    rounds: int,
    options: Mapping[str, str],
    *,
    greedy: bool,
) -> Found:
    """
    Measures.

    Parameters
    ----------
    place
        Job i's workers run on host i; the server on the host behind the last.
    jobs
        How many at once, one measurement for each.
    nbytes
        Of each job's tensor.
    seconds
        Of each measurement.
    rounds
        Each measurement is made so often.
    options
        Environment of servers and workers.
    greedy
        Whether the last job has `GREEDY` workers.
    """
    alone: list[_Once] = []
    together: dict[int, list[_Once]] = {number: [] for number in jobs}
    for _ in range(rounds):
        alone.append(_once(place, 1, [1], max(jobs), nbytes, seconds, options))
        for number in jobs:
            sizes = [1] * (number - 1) + [GREEDY if greedy else 1]
            together[number].append(_once(place, number, sizes, max(jobs), nbytes, seconds, options))
    rates = {number: _medians(found) for number, found in together.items()}
    processors = {number: _median_processor(found) for number, found in together.items()}
    return Found(_medians(alone)[0], rates, _median_processor(alone), processors)


def _medians(found: Sequence[_Once]) -> list[float]:
    """Each job's rate."""
    return [statistics.median(column) for column in zip(*(one.rates for one in found), strict=True)]


def _median_processor(found: Sequence[_Once]) -> float:
    return statistics.median(one.processor_per_gb for one in found)


def _once(
    place: Place,
    number: int,
    sizes: Sequence[int],
    most: int,
    nbytes: int,
    seconds: float,
    options: Mapping[str, str],
) -> _Once:
    server_host = most
    secrets = [os.urandom(32).hex() for _ in range(number)]
    configuration = [
        {"name": f"job{index}", "secret": secret, "workers": size}
        for index, (secret, size) in enumerate(zip(secrets, sizes, strict=True))
    ]
    with _process(
        place.command(
            server_host, [sys.executable, "-m", __name__, "serve", f"{place.address(server_host)}:0"]
        ),
        {**options},
    ) as service:
        _say(service, configuration)
        endpoint = _hear(service)["endpoint"]
        with contextlib.ExitStack() as stack:
            workers: list[list[subprocess.Popen[str]]] = []
            for index, size in enumerate(sizes):
                common = {
                    **options,
                    "PENSTOCK_TRANSPORT": "tcp",
                    "PENSTOCK_SERVERS": endpoint,
                    "PENSTOCK_JOB": f"job{index}",
                    "PENSTOCK_SECRET": secrets[index],
                    "PENSTOCK_SIZE": str(size),
                    "OMP_NUM_THREADS": "1",
                }
                command = place.command(
                    index, [sys.executable, "-m", __name__, "work", str(nbytes), str(seconds)]
                )
                workers.append(
                    [
                        stack.enter_context(_process(command, {**common, "PENSTOCK_RANK": str(rank)}))
                        for rank in range(size)
                    ]
                )
            everyone = [worker for job in workers for worker in job]
            for worker in everyone:
                _hear(worker)  # it has joined
            before = processor_of(service.pid)
            for worker in everyone:
                _say(worker, "go")
            said = [[_hear(worker) for worker in job] for job in workers]
            used = processor_of(service.pid) - before
            used += sum(one["processor"] for job in said for one in job)
            moved = sum(one["bytes"] for job in said for one in job)
            return _Once([sum(one["rate"] for one in job) for job in said], used / moved * 1e9)


@contextlib.contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _say(process: subprocess.Popen[str], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchError(f"a process of the benchmark ended with {process.wait()}")
    heard: dict[str, Any] = json.loads(line)
    return heard


def _serve(listen: str) -> None:
    from penstock import _core

    service = _core.Service([listen], {})
    for job in json.loads(sys.stdin.readline()):
        service.create(job["name"], job["secret"], 0, 1, job["workers"], {"shards": "2"})
    sys.stdout.write(json.dumps({"endpoint": service.endpoint}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    service.stop()


def _work(nbytes: int, seconds: float) -> None:
    import penstock as ps

    with ps.init() as job:
        tensor = job.tensor("w", shape=(nbytes // 4,), optimizer=ps.SGD(0.5))
        tensor.lane().fill(0.0)
        job.barrier()
        sys.stdout.write(json.dumps({"joined": job.rank}) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
        exchanges, start, used = 0, time.monotonic(), time.process_time()
        stop = job.tensor("stop", shape=(1,), reduce="sum")
        # All workers of a job stop after the same exchange: the first that is out of time says so.
        while not stop.pull()[0]:
            tensor.push()
            tensor.pull()
            over = time.monotonic() - start > seconds
            stop.pushpull([1.0 if over else 0.0])
            job.clock()
            exchanges += 1
        moved = 2 * nbytes * exchanges
        rate, used = moved / (time.monotonic() - start), time.process_time() - used
        sys.stdout.write(json.dumps({"rate": rate, "bytes": moved, "processor": used}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _work(int(sys.argv[2]), float(sys.argv[3]))
