"""The address by which other hosts reach this one."""

from __future__ import annotations

import os
import socket

from penstock import _core
from penstock.exceptions import OptionError
from penstock.limit import Limit


def reachable(rendezvous_host: str, deadline: Limit[float]) -> str:
    """
    The address of this host for the others: PENSTOCK_ADDRESS, else that of the interface that leads to where
    all meet, else that of the way out of this host, else that of any of its interfaces.

    Raises
    ------
    OptionError
        There is none but the loopback address.
    """
    given = os.environ.get("PENSTOCK_ADDRESS", "")
    if given:
        return given
    found = _core.reachable(rendezvous_host, deadline.left())
    if found is not None:
        return found
    raise OptionError(
        f"host {socket.gethostname()} has no address but loopback, so the job's other hosts cannot reach its "
        "server",
        "set PENSTOCK_ADDRESS on this host to the address by which the others reach it",
    )


def endpoint_host(address: str) -> str:
    """An address as it is written in an endpoint string."""
    return f"[{address}]" if ":" in address else address
