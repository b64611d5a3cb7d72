"""
What each topology moves over its busiest host's link, and what that makes of a step.

Every byte count is for one direction of a full-duplex link: a host that receives M bytes and sends M bytes
needs M in each direction. PHub's own figures add the two; `both_ways` gives theirs.

With model bytes M, N workers, K servers, per step and direction:

    cc   server's host  (N - 1) M       its own worker's share stays inside
    cs   every host     2 (N - 1) M/N   as a worker (N - 1) M/N, as a server for the others as much again
    ncc  server's host  N M             a worker M
    ncs  server's host  N M/K           a worker M

A step is hidden when these bytes pass while the workers compute: PHub's lower bound, with servers that take
no time and communication that overlaps all of the computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Topology(Enum):
    """Where the servers are, and how many (PHub, figure 4)."""

    CC = "cc"
    CS = "cs"
    NCC = "ncc"
    NCS = "ncs"

    @property
    def colocated(self) -> bool:
        """Whether servers run on hosts of workers."""
        return self in (Topology.CC, Topology.CS)

    @property
    def words(self) -> str:
        """The topology for a reader who does not know the letters."""
        return {
            Topology.CC: "one server, on a worker's host",
            Topology.CS: "a server on each worker's host",
            Topology.NCC: "one server, on a host of its own",
            Topology.NCS: "several servers, on hosts of their own",
        }[self]


@dataclass(frozen=True)
class Job:
    """One training job: what it moves and how long it computes."""

    nbytes: int
    """Bytes of the model, and so of a gradient."""
    workers: int
    compute: float
    """Seconds that a worker computes in each step."""
    link: int
    """Bits a second in each direction of a worker's link."""
    server_link: int
    """The same of a server's host of its own."""
    servers: int
    """Servers of `ncs`."""
    batch: int | None = None
    """Samples of one worker in one step; None: throughput is told in batches."""


@dataclass(frozen=True)
class Load:
    """What one kind of host moves in a step."""

    host: str
    nbytes: float
    """Bytes in each direction."""
    link: int
    """Bits a second that it can move in each direction."""

    @property
    def time(self) -> float:
        """Seconds on the wire."""
        return 8 * self.nbytes / self.link


@dataclass(frozen=True)
class Outcome:
    """What a topology makes of a job."""

    topology: Topology
    servers: int
    worker_hosts: int
    server_hosts: int
    """Hosts with a server and no worker."""
    loads: tuple[Load, ...]
    """Each kind of host, once."""
    compute: float
    samples: int
    """Samples of all workers in a step; their batches where the job names no batch."""

    @property
    def hosts(self) -> int:
        """All of them."""
        return self.worker_hosts + self.server_hosts

    @property
    def busiest(self) -> Load:
        """The kind of host whose link takes longest."""
        return max(self.loads, key=lambda load: load.time)

    @property
    def each_way(self) -> float:
        """Bits a second, in each direction, that the busiest host needs to hide communication."""
        return 8 * self.busiest.nbytes / self.compute

    @property
    def both_ways(self) -> float:
        """The two directions added, as in PHub's table 2."""
        return 2 * self.each_way

    @property
    def communication(self) -> float:
        """Seconds of a step on the busiest link."""
        return self.busiest.time

    @property
    def hidden(self) -> bool:
        """Whether communication takes no longer than computation."""
        return self.communication <= self.compute

    @property
    def step(self) -> float:
        """Seconds of a step when everything overlaps: no step is shorter."""
        return max(self.compute, self.communication)

    @property
    def step_in_turn(self) -> float:
        """Seconds of a step when nothing overlaps."""
        return self.compute + self.communication

    @property
    def throughput(self) -> float:
        """Samples (or batches) a second, of all workers."""
        return self.samples / self.step


def evaluate(job: Job, topology: Topology) -> Outcome:
    """The outcome of `job` in `topology`."""
    alone = 0 if topology.colocated else servers_of(job, topology)
    return Outcome(
        topology=topology,
        servers=servers_of(job, topology),
        worker_hosts=job.workers,
        server_hosts=alone,
        loads=_loads(job, topology),
        compute=job.compute,
        samples=job.workers * (job.batch or 1),
    )


def evaluate_all(job: Job) -> list[Outcome]:
    """The outcomes of all topologies, in the paper's order."""
    return [evaluate(job, topology) for topology in Topology]


def servers_of(job: Job, topology: Topology) -> int:
    """How many servers the topology has."""
    if topology is Topology.CS:
        return job.workers
    return job.servers if topology is Topology.NCS else 1


def factor(topology: Topology, workers: int, servers: int) -> float:
    """
    Model sizes that a server's host moves in each direction in a step.

    Times 2 M/T this is a cell of PHub's table 2 (with as many servers as workers in `ncs`).
    """
    return {
        Topology.CC: workers - 1,
        Topology.CS: 2 * (workers - 1) / workers,
        Topology.NCC: workers,
        Topology.NCS: workers / servers,
    }[topology]


def _loads(job: Job, topology: Topology) -> tuple[Load, ...]:
    server = factor(topology, job.workers, servers_of(job, topology)) * job.nbytes
    if topology is Topology.CS:
        return (Load("each host", server, job.link),)
    if topology is Topology.CC:
        own = (Load("the server's host", server, job.link),)
        # The only worker shares the server's host: there is no other.
        return own if job.workers == 1 else (*own, Load("a worker's host", job.nbytes, job.link))
    return (
        Load("a server's host", server, job.server_link),
        Load("a worker's host", job.nbytes, job.link),
    )
