"""
What a cluster costs to buy: PHub's model (4.9), capital only.

A port into the network costs A = (N + S + C) + F (4 S + 2 C): its card N, its port S on the rack's switch,
its cable C, and with F = 1 / oversubscription its part of the ports and cables above the rack. The paper adds
the card to a worker's price once more (W + N + 4 G + A, and N is in A already); here it is bought once.
`penstock.plan.paper` has the formula as printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.model import Job, Outcome

WORKER = 4117.0
"""A worker's host without GPUs."""
GPU = 699.0
SERVER = 8407.0
"""A host for a server alone, without cards: PHub's."""
SWITCH = 21077.0
"""A switch of 32 ports of 100 Gbit."""
SWITCH_PORTS = 32


@dataclass(frozen=True)
class Gear:
    """Network gear of one speed, as the paper prices it."""

    speed: int
    """Bits a second of one port."""
    nic: float
    """A port of a worker's card."""
    server_nic: float
    """A port of a server's card."""
    cable: float
    port: float
    """A port on a switch."""


GEAR_25 = Gear(25 * 10**9, nic=260.0, server_nic=162.5, cable=31.25, port=SWITCH / SWITCH_PORTS / 4)
"""25 Gbit: four hosts share a port of the switch by a breakout cable."""
GEAR_100 = Gear(100 * 10**9, nic=795.0, server_nic=795.0, cable=94.0, port=SWITCH / SWITCH_PORTS)


def gear_for(link: int) -> Gear:
    """The cheapest gear of the paper that carries `link`; above its fastest, hosts take several ports."""
    return GEAR_25 if link <= GEAR_25.speed else GEAR_100


@dataclass(frozen=True)
class Prices:
    """What things cost, in dollars."""

    gear: Gear
    worker: float = WORKER
    gpu: float = GPU
    gpus: int = 1
    """GPUs of a worker."""
    server: float = SERVER
    oversubscription: float = 1.0
    """Bandwidth of a rack's hosts over that of its uplink; 1: none."""

    def network(self, nic: float) -> float:
        """The amortized cost A of a port whose card costs `nic`."""
        above = (4 * self.gear.port + 2 * self.gear.cable) / self.oversubscription
        return nic + self.gear.port + self.gear.cable + above

    def ports(self, link: int) -> int:
        """Ports that a host with such a link needs."""
        return -(-link // self.gear.speed)

    def worker_host(self, job: Job) -> float:
        """A worker's host, connected."""
        network = self.ports(job.link) * self.network(self.gear.nic)
        return self.worker + self.gpus * self.gpu + network

    def server_host(self, job: Job) -> float:
        """A host for a server alone, connected."""
        return self.server + self.ports(job.server_link) * self.network(self.gear.server_nic)

    def cluster(self, job: Job, outcome: Outcome) -> float:
        """All hosts of a topology."""
        return outcome.worker_hosts * self.worker_host(job) + outcome.server_hosts * self.server_host(job)

    def per_1000(self, job: Job, outcome: Outcome) -> float | None:
        """Throughput for 1000 dollars; None where everything is free."""
        cost = self.cluster(job, outcome)
        return 1000 * outcome.throughput / cost if cost > 0 else None
