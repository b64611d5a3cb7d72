"""
From processes that a launcher started to one job: they say which host each is on, the first of each host
starts that host's server, and everyone learns all servers.

Two rounds of the exchange. In the first, each process gives its host; rank 0 gives the topology, and the
job's secret where it made one. From the answers every process computes the same plan. In the second, those
who started a server give its endpoint string. A process that fails takes part in the round as one that
failed, so nobody waits for it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock import _core
from penstock.exceptions import NotUnderLauncher, PenstockError, ProtocolError
from penstock.limit import Limit
from penstock.rendezvous import address, environment
from penstock.rendezvous.environment import Place, Topology
from penstock.rendezvous.exchange import Exchange, fields
from penstock.rendezvous.servers import Server

LOOPBACK = "127.0.0.1"
"""Where a server on the only host listens if its workers are to use TCP."""


@dataclass(frozen=True)
class Plan:
    """Who starts servers."""

    owners: tuple[int, ...]
    """The rank that starts each server, in the servers' order."""
    one_host: bool
    """Whether all processes share a host, and with it memory."""


@dataclass(frozen=True)
class Assembled:
    """What is needed to join."""

    servers: list[str]
    secret: str
    own: Server | None
    """The server that this process started."""


def plan(hosts: Sequence[str], topology: Topology) -> Plan:
    """
    Who starts servers, from the host of each rank.

    Examples
    --------
    >>> plan(["a", "a", "b", "b"], "cs")
    Plan(owners=(0, 2), one_host=False)
    >>> plan(["a", "b"], "cc")
    Plan(owners=(0,), one_host=False)
    """
    first: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        first.setdefault(host, rank)
    owners = tuple(first.values()) if topology == "cs" else (0,)
    return Plan(owners[: _core.MAX_SERVERS], len(first) == 1)


def assemble(place: Place, exchange: Exchange, given: Mapping[str, str], deadline: Limit[float]) -> Assembled:
    """
    This process's part in it.

    Raises
    ------
    RendezvousTimeout
        Not every process came; `.missing` holds their ranks.
    JobFailed
        Another process could not go on.
    PenstockError
        This one could not.
    """
    hosts, topology, secret = _introduce(place, exchange, deadline)
    planned = plan(hosts, topology)
    own: Server | None = None
    endpoint = ""
    if place.rank in planned.owners:
        try:
            own = _start(place, planned, exchange, secret, given)
            endpoint = own.listening(deadline)
        except Exception as error:
            exchange.fail(_reason(error), deadline)
            raise
    try:
        endpoints = [one.decode() for one in exchange.gather(endpoint.encode(), deadline)]
        servers = [endpoints[rank] for rank in planned.owners]
        if not all(servers):
            raise ProtocolError("a process that had to start a server named none")
    except BaseException:
        if own is not None:
            own.end()
        raise
    return Assembled(servers, secret, own)


def _introduce(place: Place, exchange: Exchange, deadline: Limit[float]) -> tuple[list[str], Topology, str]:
    """The first round: everyone's host, the topology, and the secret."""
    try:
        own_secret = environment.secret()
        topology = environment.topology()
        host = _core.host_id()
    except Exception as error:
        exchange.fail(_reason(error), deadline)
        raise
    message = {"host": host, "job": environment.job_name(), "has_secret": own_secret is not None}
    if place.rank == 0:
        message["topology"] = topology
        if own_secret is None and exchange.trusted:
            message["secret"] = own_secret = secrets.token_hex(32)
    everyone = [
        fields(one, rank) for rank, one in enumerate(exchange.gather(json.dumps(message).encode(), deadline))
    ]
    _check(everyone)
    first = everyone[0]
    secret = own_secret or first.get("secret")
    if not isinstance(secret, str):
        raise NotUnderLauncher("the job has no secret", environment.HOW_TO_GIVE_ONE)
    return [str(one["host"]) for one in everyone], "cc" if first.get("topology") == "cc" else "cs", secret


def _check(everyone: Sequence[Mapping[str, object]]) -> None:
    """That all processes were told the same; every process comes to the same answer."""
    first = everyone[0]
    for rank, one in enumerate(everyone):
        if one.get("job") != first.get("job"):
            raise NotUnderLauncher(
                f"rank {rank} was started for the job {one.get('job')!r}, rank 0 for {first.get('job')!r}",
                "give all processes the same PENSTOCK_JOB",
            )
        if one.get("has_secret") != first.get("has_secret"):
            having, lacking = (rank, 0) if one.get("has_secret") else (0, rank)
            raise NotUnderLauncher(
                f"rank {having} has a PENSTOCK_SECRET, rank {lacking} has none",
                "give it to all processes (mpirun: -x PENSTOCK_SECRET), or to none",
            )


def _start(place: Place, planned: Plan, exchange: Exchange, secret: str, given: Mapping[str, str]) -> Server:
    """The server of this host."""
    if not planned.one_host:
        host: str | None = address.endpoint_host(address.reachable(exchange.rendezvous_address))
    else:
        # TCP on one host is what a user asks for who wants to see what it costs.
        host = LOOPBACK if given.get("transport") == "tcp" else None
    return Server(
        host,
        planned.owners.index(place.rank),
        len(planned.owners),
        place.size,
        secret=secret,
        job=environment.job_name(),
        settings=as_environment(given),
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


def as_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Options by the names of their environment variables."""
    return {str(one["env"]): given[str(one["name"])] for one in _core.options() if one["name"] in given}
