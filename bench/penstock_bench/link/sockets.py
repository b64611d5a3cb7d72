"""
Sending and receiving one stream, and what both ends say of it. Neither takes longer than it is told, whatever
the path or the other end does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from penstock import _core
from penstock_bench.link.control import PATIENCE, LinkError, limit
from penstock_bench.link.streams import ETHERNET, PACKET, UDP_IP, Heard, Sent, Stream, summary

PART = 0.1
"""
Seconds of what is sent ahead that go in one call. Between two calls interrupts are heard, and a delay is not
made up for.
"""
GREETINGS = 0.1
"""Seconds after which the token is shown again, since a datagram may be lost."""
SLICE = 0.05
"""Seconds without a datagram after which is looked whether the sender is done."""
QUIET = 0.2
"""Seconds without a datagram after which a stream whose sender is done is over."""
DRAIN = 5.0
"""Seconds in which what stands in queues when the sender is done may still come."""


def bound(address: str, port: int) -> _core.LinkSocket:
    """
    A socket.

    Raises
    ------
    LinkError
        The kernel refuses.
    """
    try:
        return _core.LinkSocket(address, port)
    except OSError as error:
        raise LinkError(f"UDP port {port} of {address} cannot be had: {error.strerror or error}") from None


def headers(address: str) -> int:
    """Bytes of a frame beside its payload."""
    return ETHERNET + UDP_IP[6 if ":" in address else 4]


def payload(udp: _core.LinkSocket, address: str) -> int:
    """
    Bytes of a datagram that fits into a packet of this path.

    Raises
    ------
    LinkError
        The kernel does not say.
    """
    try:
        return min(udp.mtu(), PACKET) - UDP_IP[6 if ":" in address else 4]
    except OSError as error:
        raise LinkError(f"there is no path to {address}: {error.strerror or error}") from None


def meet(udp: _core.LinkSocket, token: bytes, peer: str) -> None:
    """
    Waits for a datagram with the token, and sends to where it came from only.

    Raises
    ------
    LinkError
        None came from this host.
    """
    end = time.monotonic() + PATIENCE
    try:
        while not udp.met(token, peer, GREETINGS):
            if time.monotonic() > end:
                raise LinkError(
                    f"no datagram with the token came from {peer} in {PATIENCE:g} s",
                    f"UDP port {udp.port()} may be closed by a firewall",
                )
    except OSError as error:
        raise LinkError(f"there is no path to {peer}: {error.strerror or error}") from None


def connect(udp: _core.LinkSocket, peer: str, port: int) -> None:
    """
    Sends to this port only.

    Raises
    ------
    LinkError
        The kernel refuses.
    """
    try:
        udp.connect(peer, port)
    except OSError as error:
        raise LinkError(f"there is no path to {peer}: {error.strerror or error}") from None


def send(
    udp: _core.LinkSocket, token: bytes, stream: Stream, seconds: float, quiet: Callable[[], None]
) -> Sent:
    """
    Sends a stream.

    Parameters
    ----------
    udp, token, stream
        Where, with what, and what.
    seconds
        After which it is given up, if not before.
    quiet
        Raises a `LinkError` if the other end no longer waits for it.

    Raises
    ------
    LinkError
        The kernel refuses, or the other end no longer waits for it.
    """
    end = time.monotonic() + min(limit(stream), seconds)
    part = max(1, int(PART * 1e9 / max(stream.ahead_gap, 1)))

    def sent(messages: int, ahead: int) -> Sent:
        one = replace(stream, messages=messages, ahead=ahead)
        counted = (one.messages, one.together, one.gap)
        left = max(0.0, min(end - time.monotonic(), limit(one)))
        return Sent(*udp.send(token, one.number, one.payload, counted, (one.ahead, one.ahead_gap), left))

    try:
        ahead = stream.ahead
        while ahead > part and (now := time.monotonic()) < end:
            quiet()
            sent(0, part)
            ahead -= part
            time.sleep(max(0.0, min(end, now + part * stream.ahead_gap / 1e9) - time.monotonic()))
        return sent(stream.messages, min(ahead, part))
    except OSError as error:
        raise LinkError(
            f"datagrams of {stream.payload} bytes cannot be sent: {error.strerror or error}"
        ) from None


class Receiving:
    """A stream that is being received: made before it is sent."""

    def __init__(self, udp: _core.LinkSocket, token: bytes, stream: Stream) -> None:
        self._udp, self._stream = udp, stream
        self._dropped = udp.dropped()
        udp.expect(token, stream.number, stream.messages, stream.together)

    def heard(self, sent: Callable[[float], Sent | None], seconds: float) -> tuple[Sent, Heard]:
        """
        Receives until all of it is there, or the other end says that it is done and nothing comes any more.

        Parameters
        ----------
        sent
            What the other end says of it, if it says it within so many seconds.
        seconds
            After which it is given up, if not before.

        Raises
        ------
        LinkError
            The kernel refuses, or the other end has said nothing of it by then.
        """
        last = time.monotonic() + seconds
        end = min(last, time.monotonic() + limit(self._stream) + DRAIN)
        said: Sent | None = None
        try:
            while not self._udp.receive(SLICE, SLICE):
                if (said := sent(0.0)) is not None:
                    self._udp.end(said.messages)
                    self._udp.receive(QUIET, within(last, DRAIN))
                    break
                if time.monotonic() > end:
                    break
            said = said or sent(within(last, PATIENCE))
            assert said is not None, "it is late, which is an error"
            self._udp.end(said.messages)
            arrived, datagrams, _, _ = self._udp.heard()
            dropped = (self._udp.dropped() - self._dropped) % (1 << 32)
        except OSError as error:
            raise LinkError(f"datagrams cannot be received: {error.strerror or error}") from None
        return said, summary(self._stream, arrived, datagrams, dropped)


def within(end: float, seconds: float) -> float:
    """So many seconds, or what is left until then; a moment at least, in which what is there is heard."""
    return max(SLICE, min(seconds, end - time.monotonic()))


def told(what: Heard | Sent | Stream) -> dict[str, Any]:
    """As it stands in a message."""
    fields = asdict(what)
    if isinstance(what, Heard):
        fields["trend"] = what.trend.value
    return fields
