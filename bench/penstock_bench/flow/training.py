"""One training on the test hosts: a script of examples/flow, worker by worker, and what it took."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from penstock.launch.ranks import rank_command
from penstock_bench.flow.counters import Counters, counting
from penstock_bench.netns import NetworkTestbed
from penstock_bench.network.places import Layout, Place, processor_of, servers
from penstock_bench.systems import BenchError

DEADLINE = 900.0
"""Seconds for one training."""
LOOK = 0.05
"""Seconds between two looks at the workers."""


@dataclass(frozen=True)
class Point:
    """A measurement of the objective, and what the training had taken until then."""

    step: int
    seconds: float
    """Without the measurements."""
    computing: float
    """Of them, worker 0's computation; the rest is communication and waiting."""
    objective: float
    bytes: float
    """That all hosts together sent."""


@dataclass(frozen=True)
class Trained:
    """One training."""

    points: list[Point]
    processor: float
    """Processor seconds of all servers and workers, loading included."""
    beside: float = 0.0
    """Bytes that competing flows moved meanwhile, loading included."""
    layers: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds in each layer over all steps: worker 0's, and each server's (`Job.layers`)."""

    def plain(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """From the file."""
        points = [Point(**point) for point in plain["points"]]
        return cls(points, plain["processor"], plain["beside"], plain.get("layers", {}))


@dataclass(frozen=True)
class Hosts:
    """Where trainings run: workers on the first hosts, servers on those behind them."""

    testbed: NetworkTestbed
    workers: int
    servers: int
    others: tuple[int, ...] = ()
    """Hosts of competing flows, one for each of the job's."""

    @property
    def layout(self) -> Layout:
        """Which is whose."""
        return Layout.of("ncs", self.workers, self.servers)


def by_penstock(
    hosts: Hosts, script: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> Trained:
    """Trains over parameter servers."""
    place = Place(hosts.testbed)
    job = {**environment, "PENSTOCK_SECRET": os.urandom(32).hex(), "PENSTOCK_JOB": "flow"}
    with servers(place, hosts.layout, job, shared_memory=False) as running:
        common = {**job, "PENSTOCK_SERVERS": ",".join(running.endpoints), "PENSTOCK_SIZE": str(hosts.workers)}
        commands = [[sys.executable, str(script), *arguments]] * hosts.workers
        each = [{**common, "PENSTOCK_RANK": str(rank)} for rank in range(hosts.workers)]
        return _trained(hosts, commands, each, running.processor)


def by_gloo(hosts: Hosts, script: Path, arguments: Sequence[str]) -> Trained:
    """Trains by all-reduces among the workers; the servers' hosts have nothing to do."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rank = [*rank_command("penstock_bench.flow.all_reduce"), f"{folder}/gloo", str(script)]
        common = {"WORLD_SIZE": str(hosts.workers), "GLOO_SOCKET_IFNAME": Place(hosts.testbed).interface}
        each = [{**common, "RANK": str(rank)} for rank in range(hosts.workers)]
        return _trained(hosts, [[*rank, *arguments]] * hosts.workers, each, lambda: 0.0)


def _trained(
    hosts: Hosts, commands: list[list[str]], environments: list[dict[str, str]], beside: Any
) -> Trained:
    """Starts the workers, waits for them, and puts together what worker 0 and the counters say."""
    place = Place(hosts.testbed)
    counters = Counters([*hosts.layout.workers, *hosts.layout.servers], hosts.others)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        stack.enter_context(counting(hosts.testbed, counters))
        workers: list[subprocess.Popen[Any]] = []
        stack.callback(_end, workers)
        for rank, (command, environment) in enumerate(zip(commands, environments, strict=True)):
            asked = ["--json", str(folder / "report.json")] if rank == 0 else []
            with (folder / f"output{rank}").open("wb") as output:
                workers.append(
                    subprocess.Popen(
                        place.command(rank, [*command, *asked]),
                        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        used = _wait(workers, folder) + beside()
        report = json.loads((folder / "report.json").read_text())
    return Trained(points(report, counters), used, counters.beside, report["layers"])


def points(report: Mapping[str, Any], counters: Counters) -> list[Point]:
    """The trajectory that worker 0 wrote, beside what the links had carried at each point."""
    start = report["started"]
    return [
        Point(
            step=point["step"],
            seconds=point["seconds"] - point["measuring_seconds"],
            computing=point["computing_seconds"],
            objective=point["objective"],
            bytes=counters.between(start, start + point["seconds"]),
        )
        for point in report["trajectory"]
    ]


def _wait(workers: Sequence[subprocess.Popen[Any]], folder: Path) -> float:
    """Waits until all workers have ended; returns the processor seconds that they used."""
    deadline = time.monotonic() + DEADLINE
    used = [0.0] * len(workers)
    while True:
        left = False
        for rank, worker in enumerate(workers):
            used[rank] = max(used[rank], processor_of(worker.pid))
            code = worker.poll()
            left |= code is None
            if code:
                said = (folder / f"output{rank}").read_text(errors="replace")
                raise BenchError(f"worker {rank} ended with {code}", said)
        if not left:
            return sum(used)
        if time.monotonic() > deadline:
            raise BenchError(f"the training did not end within {DEADLINE:g} s")
        time.sleep(LOOK)


def _end(workers: Sequence[subprocess.Popen[Any]]) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
