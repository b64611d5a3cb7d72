"""
The end that is asked.

A listener serves strangers: the connection is neither authenticated nor encrypted. So it serves one at a
time, and

- sends datagrams to one address only: the host at the other end of the connection, at the port from which
  that host has sent a random token, which it was told over the connection. So nobody can have it send to a
  third party;
- sends streams at no higher rate than its options allow. What goes ahead of one, `MOST_BUCKET` times
  `AHEAD_LENGTH` or so, may go at `AHEAD_SPEED` times that; then it rests until the mean is no more than the
  rate, whatever is asked for, and by whom;
- ends what takes longer than its options allow, in the middle of a stream, and what says nothing when its
  answer is due.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock import _core
from penstock_bench.link import sockets
from penstock_bench.link.control import TOKEN, VERSION, Control, LinkError
from penstock_bench.link.streams import AHEAD_LENGTH, AHEAD_SPEED, MOST_BUCKET, Stream
from penstock_bench.netns.testbed import BURST_SECONDS

ROUNDING = 1.01
"""A gap is whole nanoseconds."""


@dataclass(frozen=True)
class Limits:
    """What a listener does for others."""

    rate: float
    """Bits per second, of frames."""
    seconds: float
    """Of a measurement, once the other end has shown the token."""


class Listener:
    """
    Waits for others to measure.

    Raises
    ------
    LinkError
        The address or the port cannot be had.
    """

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        self._limits = limits
        self.met = False
        """Whether the one that was served last has shown the token: not so a port scan."""
        self._rested = 0.0
        """When the next stream may go, whoever asks for it."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(4)
        except OSError as error:
            self._socket.close()
            raise LinkError(
                f"port {port} of {host} cannot be had: {error.strerror or error}",
                "give another one: --listen ADDRESS:PORT",
            ) from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Listens no longer."""
        self._socket.close()

    def serve(self, note: Callable[[str], None]) -> None:
        """
        Serves the next one that connects, to its end.

        Raises
        ------
        LinkError
            It did not end as it should; the other end was told why, if it still hears.
        """
        self.met = False
        connection, _ = self._socket.accept()
        with Control(connection) as control:
            try:
                self._serve(control, note)
            except LinkError as error:
                control.refuse(str(error))
                raise

    def _serve(self, control: Control, note: Callable[[str], None]) -> None:
        hello = control.hear("hello")
        if (version := hello.whole("version", 0, 1 << 31)) != VERSION:
            raise LinkError(f"expected version {VERSION} of penstock bench link, got {version}")
        peer = control.peer
        note(f"measuring with {peer}")
        udp = sockets.bound(control.here, self.port)
        token = secrets.token_bytes(TOKEN)
        control.say("welcome", token=token.hex(), rate=self._limits.rate, seconds=self._limits.seconds)
        sockets.meet(udp, token, peer)
        self.met = True
        end = time.monotonic() + self._limits.seconds
        control.say("met", payload=sockets.payload(udp, peer))
        while True:
            left = end - time.monotonic()
            if left < 0:
                raise LinkError(
                    f"expected a measurement of at most {self._limits.seconds:g} s, as the listener allows",
                    "its --most-seconds allows more",
                )
            asked = control.hear(("receive", "send", "done"), left)
            if asked.kind == "done":
                return
            stream = asked.stream()
            self._allowed(stream, sockets.headers(peer))
            if asked.kind == "send":
                self._send(control, udp, token, stream, end)
            else:
                receiving = sockets.Receiving(udp, token, stream)
                control.say("ready")
                _, heard = receiving.heard(control.sent(stream), end - time.monotonic())
                control.say("heard", **sockets.told(heard))

    def _send(
        self, control: Control, udp: _core.LinkSocket, token: bytes, stream: Stream, end: float
    ) -> None:
        # Our own program rests for longer than that: only others wait here.
        while (rest := min(self._rested, end) - time.monotonic()) > 0:
            control.quiet(rest)
        begun = time.monotonic()
        sent = sockets.send(udp, token, stream, end - begun, control.quiet)
        bits = 8 * stream.bytes(sockets.headers(control.peer), sent.messages)
        self._rested = begun + bits / self._limits.rate
        control.say("sent", **sockets.told(sent))

    def _allowed(self, stream: Stream, headers: int) -> None:
        bits = 8 * stream.together * (stream.payload + headers)
        rate = bits / (stream.gap / 1e9)
        most = ROUNDING * self._limits.rate
        quick = stream.ahead * bits > AHEAD_SPEED * most * stream.ahead * stream.ahead_gap / 1e9
        saved = max(8 * MOST_BUCKET, most * BURST_SECONDS)
        long = stream.ahead * bits > AHEAD_LENGTH * saved + bits
        if rate > most or quick or long:
            raise LinkError(
                f"expected a stream of at most {self._limits.rate:g} bit/s, as the listener allows, "
                f"got {rate:g}, and ahead of it {stream.ahead} messages every {stream.ahead_gap} ns",
                "its --most-rate allows more",
            )
