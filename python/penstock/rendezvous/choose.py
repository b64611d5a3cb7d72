"""Which exchange this process uses: what the user set goes first, then the launcher's own means."""

from __future__ import annotations

from penstock import _core
from penstock.exceptions import NotUnderLauncher
from penstock.limit import Limit
from penstock.rendezvous import environment
from penstock.rendezvous.environment import PAGES, Place, Way
from penstock.rendezvous.exchange import Exchange


def exchange(way: Way, place: Place, deadline: Limit[float]) -> Exchange:
    """
    How the processes of `place`, which go this way, find each other.

    Raises
    ------
    NotUnderLauncher
        There is none; the hint says what the launcher needs.
    PenstockError
        There is one, but it cannot be reached.
    """
    if way.kind == "rendezvous" and way.secret is not None:
        from penstock.rendezvous import tcp

        host, port = _core.rendezvous_address(way.to[0])
        return tcp.own_side(place, host, port, way.secret, environment.job_name(), deadline)
    if place.launcher == "torchrun":
        from penstock.rendezvous import torch_store

        return torch_store.connect(place, deadline, environment.job_name())
    if place.launcher == "mpirun":
        from penstock.rendezvous import mpi

        return mpi.required(place)
    if place.launcher == "srun":
        from penstock.rendezvous import slurm, tcp

        secret = environment.required_secret(
            f"{place.announced_by} says that srun started {place.size} processes, which must know each other"
        )
        return tcp.own_side(place, *slurm.rendezvous_address(), secret, environment.job_name(), deadline)
    raise NotUnderLauncher(
        f"{place.announced_by} says that {place.size} processes were started, but nothing says where they "
        "meet",
        "set PENSTOCK_RENDEZVOUS=HOST:PORT and PENSTOCK_SECRET, the same for all, or let a launcher start "
        f"them: {', '.join(PAGES.values())}",
    )
