"""The address by which other hosts reach this one."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct

from penstock.exceptions import OptionError

_SOME_ADDRESS_ELSEWHERE = "192.0.2.1"
"""Reserved for documentation: nothing is ever sent there, only asked which way it would go."""
_SIOCGIFADDR = 0x8915


def reachable(rendezvous_address: str) -> str:
    """
    The address of this host for the others: PENSTOCK_ADDRESS, else that of the interface that leads to where
    all meet, else that of the way out of this host.

    Raises
    ------
    OptionError
        There is none but the loopback address.
    """
    given = os.environ.get("PENSTOCK_ADDRESS", "")
    if given:
        return given
    for target in filter(None, (rendezvous_address, _SOME_ADDRESS_ELSEWHERE)):
        address = _on_the_way_to(target)
        if address is not None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
    for _, name in socket.if_nameindex():
        address = _of_interface(name)
        if address is not None and not ipaddress.ip_address(address).is_loopback:
            return address
    raise OptionError(
        f"host {socket.gethostname()} has no address but loopback, so the job's other hosts cannot reach its "
        "server",
        "set PENSTOCK_ADDRESS on this host to the address by which the others reach it",
    )


def endpoint_host(address: str) -> str:
    """An address as it is written in an endpoint string."""
    return f"[{address}]" if ":" in address else address


def _on_the_way_to(host: str) -> str | None:
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, where in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(where)  # sends nothing: it only chooses the way
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _of_interface(name: str) -> str | None:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
