"""
What takes turns: a job of each shape, one link, Gloo. Each has processes of its own on the same test hosts,
which sleep while it is not their turn.

Host 0 is the server's, worker i's host is i + 1; more servers stand on hosts behind these.
"""

from __future__ import annotations

import contextlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from penstock.launch.ranks import Ranks, rank_command
from penstock_bench.netns import NetworkTestbed
from penstock_bench.network.places import Layout, Place, Servers, processor_of, servers
from penstock_bench.systems import BenchError

LINK = "link"
GLOO = "gloo"
PEERS = (LINK, GLOO)


@dataclass(frozen=True)
class Turn:
    """What ranks noted, in monotonic nanoseconds: a row for each rank, a column an iteration."""

    began: Sequence[Sequence[int]]
    ended: Sequence[Sequence[int]]

    def seconds(self) -> list[float]:
        """
        Of each iteration: from the moment in which the last rank had begun until the last one had ended.

        Examples
        --------
        >>> Turn([[0], [500_000_000]], [[2_000_000_000], [1_000_000_000]]).seconds()
        [1.5]
        """
        columns = zip(zip(*self.began, strict=True), zip(*self.ended, strict=True), strict=True)
        return [(max(ended) - max(began)) / 1e9 for began, ended in columns]


class System(ABC):
    """Processes that do iterations when they are told to."""

    name: str
    wants: Sequence[str] = ()
    """Modules without which it cannot be measured."""

    def __init__(self, place: Place, workers: int, nbytes: int) -> None:
        self.place, self.workers, self.nbytes = place, workers, nbytes
        self.stack = contextlib.ExitStack()
        self.ranks: Ranks | None = None
        self.pids: list[int] = []

    def missing(self) -> str | None:
        """Why it cannot be measured here; None if it can."""
        for module in self.wants:
            if find_spec(module) is None:
                return f"{module} is not installed (pip install {module})"
        return None

    @abstractmethod
    def start(self) -> tuple[list[list[str]], list[dict[str, str]]]:
        """Commands of the ranks, and what each finds in its environment."""

    def open(self) -> None:
        """Starts the processes. They stand until `end`."""
        commands, environments = self.start()
        self.ranks = Ranks(self.name, len(commands), commands, environments)
        self.stack.callback(self.ranks.end)
        self.pids = [answer["pid"] for answer in self.ranks.ask(do="open", bytes=self.nbytes)]

    def run(self, iterations: int, *, contributor: int = 0, lost: Sequence[int] = ()) -> Turn:
        """Does so many iterations. `lost`: ranks that have gone, or may go meanwhile."""
        if self.ranks is None:
            raise BenchError(f"{self.name}: not started")
        command = {"iterations": iterations, "contributor": contributor, "bytes": self.nbytes}
        self.ranks.lost = lost
        answers = [answer for answer in self.ranks.ask(do="run", **command) if answer]
        return Turn([answer["began"] for answer in answers], [answer["ended"] for answer in answers])

    def processor(self) -> float:
        """Processor seconds of all its processes so far."""
        return sum(map(processor_of, self.pids))

    def end(self) -> None:
        """Ends the processes."""
        self.stack.close()
        self.ranks = None


class Streaming(System):
    """
    Penstock, by one shape.

    Parameters
    ----------
    shape
        The option `tree`.
    number
        Servers.
    options
        More of the job's environment.
    """

    def __init__(
        self,
        place: Place,
        workers: int,
        nbytes: int,
        *,
        shape: str,
        number: int = 1,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(place, workers, nbytes)
        self.name = self.shape = shape
        # On hosts of its own a job's threads are bound to cores; here all hosts share this machine's.
        self._job = {
            "PENSTOCK_TREE": shape,
            "PENSTOCK_TRANSPORT": "tcp",
            "PENSTOCK_PIN": "off",
            **(options or {}),
        }
        self.layout = layout(workers, number)
        self._servers = Servers([], [])

    def start(self) -> tuple[list[list[str]], list[dict[str, str]]]:
        """Starts the servers; says how workers start."""
        job = {**self._job, "PENSTOCK_SECRET": secrets.token_hex(32), "PENSTOCK_JOB": "bench"}
        running = servers(self.place, self.layout, job, shared_memory=False)
        self._servers = self.stack.enter_context(running)
        common = {**job, "PENSTOCK_SERVERS": ",".join(self._servers.endpoints), "OMP_NUM_THREADS": "1"}
        common["PENSTOCK_SIZE"] = str(self.workers)
        command = rank_command("penstock_bench.streaming.rank")
        commands = [self.place.command(host, command) for host in self.layout.workers]
        return commands, [{**common, "PENSTOCK_RANK": str(rank)} for rank in range(self.workers)]

    def processor(self) -> float:
        """Processor seconds of all its processes so far."""
        return super().processor() + self._servers.processor()


class Link(System):
    """The same bytes by a plain TCP stream, from the server's host to the first worker's."""

    name = LINK

    def start(self) -> tuple[list[list[str]], list[dict[str, str]]]:
        """The sender, and the receiver."""
        ends = [self.place.address(host) for host in (0, 1)]
        command = rank_command("penstock_bench.streaming.link")
        commands = [self.place.command(host, [*command, ends[host], ends[1 - host]]) for host in (0, 1)]
        return commands, [{"RANK": str(rank)} for rank in (0, 1)]


class Gloo(System):
    """`torch.distributed.broadcast` over Gloo, from the server's host to the workers'."""

    name = GLOO
    wants = ("torch",)

    def start(self) -> tuple[list[list[str]], list[dict[str, str]]]:
        """The root is rank 0. They meet in a file."""
        size = self.workers + 1
        command = [*rank_command("penstock_bench.streaming.gloo"), "{folder}"]
        shared = {"WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": self.place.interface, "OMP_NUM_THREADS": "1"}
        commands = [self.place.command(host, command) for host in range(size)]
        return commands, [{**shared, "RANK": str(rank)} for rank in range(size)]


def layout(workers: int, number: int) -> Layout:
    """Where workers and servers stand."""
    places = tuple(range(1, workers + 1))
    return Layout(places, (0, *range(workers + 1, workers + number)))


def testbed(workers: int, number: int, rate: int) -> NetworkTestbed:
    """Hosts for so many workers and servers."""
    return NetworkTestbed(hosts=workers + number, rate=rate)
