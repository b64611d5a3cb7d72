"""The end that asks: both searches, in turns, so that one way is tried while the other rests."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock import _core
from penstock_bench.link import sockets
from penstock_bench.link.control import PATIENCE, VERSION, Control, LinkError
from penstock_bench.link.search import LEAST, Found, Search
from penstock_bench.link.streams import BUCKET, Heard, Sent, Stream, judged

WAYS = ("to", "from")
"""Seen from the end that asks."""
LOAD = 0.1
"""Of the rate that is tried, on the average over its streams and the pauses between them."""
LEAST_PAUSE = 0.02
"""Seconds after a stream in which queues drain, whatever the load."""
IN_TIME = 0.95
"""Of the seconds of a measurement: a stream that would end later is not begun."""


@dataclass(frozen=True)
class Settings:
    """What a measurement may do."""

    rate: float
    """The highest to try, in bits per second."""
    seconds: float
    """For all of it; then what has been found by then is the result."""
    resolution: float
    load: float = LOAD
    bucket: int = BUCKET


@dataclass(frozen=True)
class Way:
    """What was found one way."""

    way: str
    """`to` the other end, or `from` it."""
    found: Found
    bytes: int
    """Of all frames that were sent."""
    seconds: float
    """From the first stream to the last."""


@dataclass(frozen=True)
class Result:
    """Of a measurement."""

    peer: str
    frame: int
    """Bytes of each frame."""
    ways: tuple[Way, ...]
    seconds: float


class _Searching:
    """One way."""

    def __init__(self, way: str, most: float, settings: Settings) -> None:
        self.way = way
        self.search = Search(most, settings.resolution)
        self.bytes = 0
        self.rested = self.start = self.end = time.monotonic()
        self._bucket = settings.bucket

    def next(self, number: int, payload: int, headers: int, latest: float) -> tuple[float, Stream] | None:
        """A rate and its stream; None: the search is at its end, or the stream would end after `latest`."""
        if (trial := self.search.next()) is None:
            return None
        stream = Stream.of(trial, number, payload, headers, self._bucket)
        begun = max(self.rested, time.monotonic())
        return (trial.rate, stream) if begun + stream.whole_seconds <= latest else None

    def result(self) -> Way:
        return Way(self.way, self.search.found(), self.bytes, self.end - self.start)


def measure(host: str, port: int, settings: Settings, note: Callable[[str], None]) -> Result:
    """
    Measures both ways.

    Parameters
    ----------
    host, port
        Of a listener.
    settings
        What it may do.
    note
        Is told how far it is.

    Raises
    ------
    LinkError
        There is no listener, it refuses, or it does what ours would not.
    """
    start = time.monotonic()
    with _connected(host, port) as control:
        control.say("hello", version=VERSION)
        welcome = control.hear("welcome")
        token, peer = welcome.token(), control.peer
        most = min(settings.rate, welcome.real("rate", LEAST, 1e18))
        seconds = min(settings.seconds, welcome.real("seconds", 0, 1e9))
        udp = sockets.bound(control.here, 0)
        sockets.connect(udp, peer, port)
        payload = min(sockets.payload(udp, peer), _met(control, udp, token))
        headers = sockets.headers(peer)
        ways = [_Searching(way, most, settings) for way in WAYS]
        end = start + seconds
        latest = start + IN_TIME * seconds
        for number in itertools.count(1):
            # The way that has rested longest goes next, if there is time for its stream.
            for one in sorted(ways, key=lambda one: one.rested):
                if (turn := one.next(number, payload, headers, latest)) is not None:
                    break
            else:
                break
            rate, stream = turn
            time.sleep(max(0.0, one.rested - time.monotonic()))
            note(f"{one.way} {peer}: {rate / 1e6:.1f} Mbit/s, stream {number}")
            begun = time.monotonic()
            exchange = _send if one.way == "to" else _receive
            try:
                said, heard = exchange(control, udp, token, stream, end)
            except LinkError:
                if time.monotonic() < end:
                    raise
                # The time is over at both ends, in the middle of a stream: what was found before stands.
                break
            one.search.heard(judged(stream, said, heard, headers))
            sent = stream.bytes(headers, said.messages)
            one.bytes += sent
            one.end = time.monotonic()
            one.rested = max(begun + 8 * sent / (settings.load * rate), one.end + LEAST_PAUSE)
        with contextlib.suppress(LinkError):
            control.say("done")
        return Result(peer, payload + headers, tuple(one.result() for one in ways), time.monotonic() - start)


def _connected(host: str, port: int) -> Control:
    try:
        return Control(socket.create_connection((host, port), PATIENCE))
    # UnicodeError: a name that cannot be one.
    except (OSError, UnicodeError) as error:
        raise LinkError(
            f"nobody answers at {host}:{port}: {getattr(error, 'strerror', None) or error}",
            "start `penstock bench link --listen` there",
        ) from None


def _met(control: Control, udp: _core.LinkSocket, token: bytes) -> int:
    """Shows the token until the other end has seen it; bytes of a datagram that fits into its packets."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            udp.greet(token)
        except OSError as error:
            raise LinkError(f"no datagram can be sent to the listener: {error.strerror or error}") from None
        if control.has_something(sockets.GREETINGS):
            break
    return control.hear("met").whole("payload", 64, 1 << 16)


def _send(
    control: Control, udp: _core.LinkSocket, token: bytes, stream: Stream, end: float
) -> tuple[Sent, Heard]:
    control.say("receive", **sockets.told(stream))
    control.hear("ready", sockets.within(end, PATIENCE))
    sent = sockets.send(udp, token, stream, end - time.monotonic(), control.quiet)
    control.say("sent", **sockets.told(sent))
    return sent, control.hear("heard", sockets.within(end, PATIENCE + sockets.DRAIN)).heard(stream)


def _receive(
    control: Control, udp: _core.LinkSocket, token: bytes, stream: Stream, end: float
) -> tuple[Sent, Heard]:
    receiving = sockets.Receiving(udp, token, stream)
    control.say("send", **sockets.told(stream))
    return receiving.heard(control.sent(stream), end - time.monotonic())
