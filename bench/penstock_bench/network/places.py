"""Where the processes of a benchmark run: test hosts on a bridge, or this host alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_bench.netns import NetworkTestbed
from penstock_bench.systems import BenchError


@dataclass(frozen=True)
class Layout:
    """Which host each worker and each server runs on, from 0."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def hosts(self) -> int:
        """How many there are."""
        return max(*self.workers, *self.servers) + 1

    @classmethod
    def of(cls, topology: str, workers: int, servers: int) -> Layout:
        """Of PHub's figure 4; `servers` counts for ncs only."""
        places = tuple(range(workers))
        match topology:
            case "cc":
                return cls(places, (0,))
            case "cs":
                return cls(places, places)
            case "ncc":
                return cls(places, (workers,))
            case _:
                return cls(places, tuple(range(workers, workers + servers)))


class Place:
    """
    Starts processes where they belong.

    Parameters
    ----------
    testbed
        The test hosts; None: everything on this host, and TCP over the loopback.
    """

    def __init__(self, testbed: NetworkTestbed | None) -> None:
        self.testbed = testbed

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """A command, as it is started on a host."""
        if self.testbed is None:
            return list(argv)
        return [*self.testbed.prefix(host), *argv]

    def address(self, host: int) -> str:
        """A host's address."""
        return "127.0.0.1" if self.testbed is None else self.testbed.address(host)

    @property
    def interface(self) -> str:
        """The network interface of every host."""
        return "lo" if self.testbed is None else "eth0"


@dataclass(frozen=True)
class Servers:
    """The server processes of a job, in order."""

    endpoints: list[str]
    processes: list[subprocess.Popen[Any]]

    def processor(self) -> float:
        """Processor seconds that they have used so far, all together."""
        return sum(processor_of(process.pid) for process in self.processes)


def processor_of(pid: int) -> float:
    """Processor seconds of a process so far, its own and the kernel's for it; 0 if it has gone."""
    try:
        # Behind the name, which may hold anything: the state is field 3, the times are 14 and 15 (proc(5)).
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def servers(
    place: Place, layout: Layout, environment: Mapping[str, str], *, shared_memory: bool = True
) -> Iterator[Servers]:
    """The server processes of a job. They end with the context."""
    started: list[subprocess.Popen[Any]] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        try:
            endpoints = []
            for index, host in enumerate(layout.servers):
                endpoint = f"tcp://{place.address(host)}:0"
                if shared_memory:
                    endpoint += f"?unix={folder}/s{index}"
                process, endpoint = _server(place, host, endpoint, index, layout, environment, Path(folder))
                started.append(process)
                endpoints.append(endpoint)
            yield Servers(endpoints, started)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _server(
    place: Place,
    host: int,
    endpoint: str,
    index: int,
    layout: Layout,
    environment: Mapping[str, str],
    folder: Path,
) -> tuple[subprocess.Popen[Any], str]:
    module = [sys.executable, "-m", "penstock.launch.server"]
    argv = [*module, endpoint, str(index), str(len(layout.servers)), str(len(layout.workers))]
    output = folder / f"output{index}"
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines:
        with os.fdopen(writing, "wb"), output.open("wb") as file:
            process = subprocess.Popen(
                place.command(host, argv),
                env={**os.environ, **environment, "PENSTOCK_ANNOUNCE_FD": str(writing)},
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        said = lines.readline().strip()
    if not said:
        process.wait()
        raise BenchError(f"server {index} did not start", output.read_text(errors="replace"))
    return process, said
