"""
From processes that a launcher started to one job: they say which host each is on, the first of each host
starts that host's server, and everyone learns all servers.

Two rounds of the exchange. In the first, each process gives its host; rank 0 gives the topology, and the
job's secret where it made one. From the answers the core computes the same plan for every process, in
Python or in C. In the second, those that started a server give its endpoint string. A process that fails
takes part in the round as one that failed, so no other waits for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock import _core
from penstock.exceptions import NotUnderLauncher, PenstockError
from penstock.limit import Limit
from penstock.rendezvous import address, environment
from penstock.rendezvous.environment import Place
from penstock.rendezvous.exchange import Exchange
from penstock.rendezvous.servers import Server

LOOPBACK = "127.0.0.1"
"""Where a server on the only host listens if its workers are to use TCP."""


@dataclass(frozen=True)
class Plan:
    """Which ranks start servers."""

    owners: tuple[int, ...]
    """The rank that starts each server, in the servers' order."""
    one_host: bool
    """Whether all processes share a host, and with it memory."""


@dataclass(frozen=True)
class Assembled:
    """What is needed to join."""

    servers: list[str]
    secret: str = field(repr=False)
    own: Server | None
    """The server that this process started."""


def assemble(place: Place, exchange: Exchange, given: Mapping[str, str], deadline: Limit[float]) -> Assembled:
    """
    This process's part in it.

    Raises
    ------
    RendezvousTimeout
        Not every process came; `.missing` holds their ranks, if this process knows them.
    JobFailed
        Another process could not go on.
    ProtocolError
        Another process said something that is not understood.
    PenstockError
        This one could not.
    """
    planned, secret = _introduce(place, exchange, deadline)
    own: Server | None = None
    endpoint = ""
    if place.rank in planned.owners:
        try:
            own = _start(place, planned, exchange, secret, given, deadline)
            endpoint = own.listening(deadline)
        except Exception as error:
            exchange.fail(_reason(error), deadline)
            raise
    try:
        told = exchange.gather(endpoint.encode(), deadline)
        servers = _core.named_servers(planned.owners, told)
    except BaseException:
        if own is not None:
            own.end()
        raise
    return Assembled(servers, secret, own)


def _introduce(place: Place, exchange: Exchange, deadline: Limit[float]) -> tuple[Plan, str]:
    """The first round: everyone's host, the topology, and the secret."""
    try:
        secret = environment.secret()
        topology = environment.topology()
        has_secret, made = secret is not None, None
        if place.rank == 0 and not has_secret and exchange.trusted:
            made = secrets.token_hex(32)
        alone = topology == "cc" if place.rank == 0 else None
        message = _core.introduction(_core.host_id(), environment.job_name(), has_secret, alone, made)
    except Exception as error:
        exchange.fail(_reason(error), deadline)
        raise
    owners, one_host, from_rank_0 = _core.agree(exchange.gather(message, deadline))
    secret = secret or from_rank_0
    if secret is None:
        raise NotUnderLauncher("the job has no secret", environment.HOW_TO_GIVE_ONE)
    return Plan(tuple(owners), one_host), secret


def _start(
    place: Place,
    planned: Plan,
    exchange: Exchange,
    secret: str,
    given: Mapping[str, str],
    deadline: Limit[float],
) -> Server:
    """The server of this host."""
    if not planned.one_host:
        host: str | None = address.endpoint_host(address.reachable(exchange.rendezvous_host, deadline))
    else:
        # A user asks for TCP on one host to see what it costs.
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
    """
    Options by the names of their environment variables.

    Examples
    --------
    >>> as_environment({"transport": "tcp"})
    {'PENSTOCK_TRANSPORT': 'tcp'}
    """
    return {str(one["env"]): given[str(one["name"])] for one in _core.options() if one["name"] in given}
