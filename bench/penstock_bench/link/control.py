"""
The messages between the two ends: one JSON object a line, over TCP.

| from | message | answer |
|---|---|---|
| the one that asks | hello: version | welcome: token, limits |
| | (UDP: the token, until the answer is there) | met: bytes of payload |
| | receive: a stream | ready; then, after `sent`, what was heard |
| | send: a stream | (UDP: the stream) sent |
| either | refused: why | the connection ends |

Nothing here is authenticated or encrypted, and what comes from the other end is not trusted: a line has a
greatest length, each number has its bounds, and each wait has its end. See `listen.py` for what a listener
will do for a stranger.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Self

from penstock.exceptions import PenstockError
from penstock_bench.link.streams import MOST_MESSAGE, MOST_MESSAGES, MOST_TOGETHER, Heard, Sent, Stream
from penstock_bench.link.trend import Trend

VERSION = 1
MOST_LINE = 4096
"""Bytes of a message, with the end of its line."""
PATIENCE = 10.0
"""Seconds for an answer that takes the other end no time."""
MOST_STREAM_SECONDS = 60.0
"""Of one stream, with what is sent ahead: twice what the slowest and the largest bucket take."""
MOST_COUNTED_SECONDS = 5.0
"""Of the part that counts: three times what the slowest takes. It is sent in one go, deaf to an interrupt."""
HEADER = 32
"""Bytes of a datagram that are not filler."""
TOKEN = 16
_MOST_SAID = 200
"""Characters of a foreign text that are repeated."""


class LinkError(PenstockError, RuntimeError):
    """The two ends do not understand each other, or one of them is gone."""


class Control:
    """
    A connection to the other end.

    Raises
    ------
    LinkError
        The other end has gone already.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._read = b""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = _plain(connection.getpeername()[0])
            """The other end's address, without a zone and not mapped from IPv4."""
            self.here = _plain(connection.getsockname()[0])
            """Our address, as the other end knows it."""
        except OSError as error:
            connection.close()
            raise self._gone(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def say(self, kind: str, **fields: Any) -> None:
        """
        Sends a message.

        Raises
        ------
        LinkError
            The other end has gone, or takes nothing.
        """
        line = json.dumps({"kind": kind, **fields}).encode() + b"\n"
        assert len(line) <= MOST_LINE, line
        self._socket.settimeout(PATIENCE)
        try:
            self._socket.sendall(line)
        except OSError as error:
            raise self._gone(error) from None

    def has_something(self, seconds: float = 0.0) -> bool:
        """Whether there is something to hear, or the other end has gone."""
        return b"\n" in self._read or bool(select.select([self._socket], [], [], seconds)[0])

    def quiet(self, seconds: float = 0.0) -> None:
        """
        Waits so long, while the other end waits for what it has asked for.

        Raises
        ------
        LinkError
            It has gone, refused, or said something.
        """
        if self.has_something(seconds):
            self.hear("silence", 1.0)

    def hear(self, kind: str | tuple[str, ...], seconds: float = PATIENCE) -> Message:
        """
        The next message, which has to be of this kind.

        Raises
        ------
        LinkError
            It did not come in time, is of another kind, or is nothing that our own program says.
        """
        kinds = (kind,) if isinstance(kind, str) else kind
        message = Message(self._line(kinds, seconds))
        if message.kind == "refused":
            raise LinkError(f"the other end refused: {said(message.fields.get('why'))}")
        if message.kind not in kinds:
            raise LinkError(f"expected {' or '.join(kinds)} from the other end, got {said(message.kind)}")
        return message

    def sent(self, stream: Stream) -> Callable[[float], Sent | None]:
        """
        What the other end says of a stream that it sends: called with seconds. None: it has said nothing yet,
        where that was asked with no time at all.
        """

        def said(seconds: float) -> Sent | None:
            if not seconds and not self.has_something():
                return None
            return self.hear("sent", seconds or PATIENCE).sent(stream)

        return said

    def refuse(self, why: str) -> None:
        """Tells the other end why it will not be served, if it still hears."""
        with contextlib.suppress(LinkError):
            self.say("refused", why=why[:1000])

    def _line(self, kinds: tuple[str, ...], seconds: float) -> bytes:
        end = time.monotonic() + seconds
        while b"\n" not in self._read:
            if len(self._read) > MOST_LINE:
                raise _too_long()
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                raise LinkError(
                    f"expected {' or '.join(kinds)} from the other end, but it was silent for {seconds:g} s",
                    "it may be measuring with another host, or be gone",
                )
            try:
                got = self._socket.recv(MOST_LINE)
            except OSError as error:
                raise self._gone(error) from None
            if not got:
                raise LinkError(
                    f"expected {' or '.join(kinds)} from the other end, but it closed the connection"
                )
            self._read += got
        line, _, self._read = self._read.partition(b"\n")
        if len(line) >= MOST_LINE:
            raise _too_long()
        return line

    def _gone(self, error: OSError) -> LinkError:
        return LinkError(f"the connection to the other end has failed: {error.strerror or error}")


class Message:
    """
    What the other end said.

    Raises
    ------
    LinkError
        The line is not a JSON object with a kind.
    """

    def __init__(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
            raise LinkError(
                f"expected a message of penstock bench link, got {said(line.decode(errors='replace'))}",
                "is something else listening at this port?",
            )
        self.fields: dict[str, Any] = fields
        self.kind: str = fields["kind"]

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number of the message."""
        value = self.fields.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return value

    def real(self, name: str, least: float, most: float) -> float:
        """A number of the message."""
        value = self.fields.get(name)
        # Compared before it is converted: a whole number of a thousand digits is no float.
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
            return float(value)
        raise self._wrong(name, f"a number from {least:g} to {most:g}")

    def token(self) -> bytes:
        """The measurement's token."""
        value = self.fields.get("token")
        with contextlib.suppress(ValueError):
            if isinstance(value, str) and len(value) == 2 * TOKEN:
                return bytes.fromhex(value)
        raise self._wrong("token", f"{2 * TOKEN} hexadecimal digits")

    def stream(self) -> Stream:
        """A stream that is to be sent or received."""
        stream = Stream(
            number=self.whole("number", 0, (1 << 32) - 1),
            payload=self.whole("payload", HEADER, MOST_MESSAGE),
            together=self.whole("together", 1, MOST_TOGETHER),
            messages=self.whole("messages", 1, MOST_MESSAGES),
            gap=self.whole("gap", 1, 10**9),
            ahead=self.whole("ahead", 0, MOST_MESSAGES),
            ahead_gap=self.whole("ahead_gap", 0, 10**9),
        )
        if stream.payload * stream.together > MOST_MESSAGE:
            raise self._wrong("together", f"at most {MOST_MESSAGE} bytes a message")
        if stream.seconds > MOST_COUNTED_SECONDS:
            raise self._wrong("gap", f"at most {MOST_COUNTED_SECONDS:g} s of messages that count")
        if stream.whole_seconds > MOST_STREAM_SECONDS:
            raise self._wrong("gap", f"a stream of at most {MOST_STREAM_SECONDS:g} s")
        return stream

    def sent(self, stream: Stream) -> Sent:
        """What became of a stream that the other end sent."""
        most = limit(stream) + PATIENCE
        return Sent(
            messages=self.whole("messages", 0, stream.messages),
            elapsed=self.real("elapsed", 0, most),
            paused=self.real("paused", 0, most),
            blocked=self.real("blocked", 0, most),
        )

    def heard(self, stream: Stream) -> Heard:
        """What the other end heard of a stream."""
        try:
            trend = Trend(self.fields.get("trend"))
        except ValueError:
            raise self._wrong("trend", " or ".join(one.value for one in Trend)) from None
        return Heard(
            datagrams=self.whole("datagrams", 0, 2 * stream.datagrams),
            dropped=self.whole("dropped", 0, 1 << 32),
            trend=trend,
            came=self.real("came", 0, 1e12),
        )

    def _wrong(self, name: str, expected: str) -> LinkError:
        return LinkError(
            f"expected {expected} as {name} in {said(self.kind)} from the other end, "
            f"got {said(self.fields.get(name))}"
        )


def _plain(address: str) -> str:
    host = address.split("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host


def _too_long() -> LinkError:
    return LinkError(f"expected a line of at most {MOST_LINE} bytes from the other end, got more")


def limit(stream: Stream) -> float:
    """Seconds after which a sender gives a stream up."""
    return 2 * stream.whole_seconds + 0.5


def said(what: object) -> str:
    """What a stranger said, so that it can be printed."""
    text = ascii(what)
    return text if len(text) <= _MOST_SAID else text[:_MOST_SAID] + "..."


__all__ = ["Control", "LinkError", "Message", "limit", "said"]
