"""
Output of many processes on one terminal: whole lines, each under the name of the process that wrote it.

Bytes stay bytes: nothing is decoded, so that no output, however odd, is lost or stops a run.
"""

from __future__ import annotations

import os
import select
from typing import Literal, NamedTuple

Stream = Literal["stdout", "stderr"]

LINE_LIMIT = 1 << 20
"""
Bytes of one line that are held back until its end comes; a longer line is shown in pieces, so that memory
stays bounded.
"""

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_SERVER_COLOUR = 90


class Name(NamedTuple):
    """Which process: its role and its rank in that role."""

    role: Literal["worker", "server"]
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"


class Lines:
    """
    Cuts a stream of bytes into lines. A carriage return ends a line too: progress bars are seen while they
    move.
    """

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        held = self._held + data
        # A return at the very end may be half of a line end: it waits for what follows.
        waits = held.endswith(b"\r")
        body = (held[:-1] if waits else held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = body.split(b"\n")
        rest = lines.pop()
        while len(rest) > LINE_LIMIT:
            lines.append(rest[:LINE_LIMIT])
            rest = rest[LINE_LIMIT:]
        self._held = rest + b"\r" if waits else rest
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it had no end."""
        held, self._held = self._held.removesuffix(b"\r"), b""
        return [held] if held else []


class Console:
    """Writes the lines of all processes to standard output and standard error, prefixed by name."""

    def __init__(self, *, colour: bool = False) -> None:
        self._colour = colour
        self.closed: Stream | None = None
        """The stream whose reader has gone, once one has."""

    def emit(self, name: Name, stream: Stream, lines: list[bytes]) -> None:
        """Writes `lines`; each goes out whole, so that no two processes' lines mix."""
        if lines:
            head = self.prefix(name)
            self.write(stream, b"".join(head + line + b"\n" for line in lines))

    def prefix(self, name: Name) -> bytes:
        """What stands before each line of a process."""
        text = f"[{name}]"
        if self._colour:
            colour = _SERVER_COLOUR if name.role == "server" else _COLOURS[name.rank % len(_COLOURS)]
            text = f"\x1b[{colour}m{text}\x1b[0m"
        return text.encode() + b" "

    def write(self, stream: Stream, data: bytes) -> None:
        """Writes all of `data`, however slowly it is taken; to a stream whose reader has gone, nothing."""
        descriptor = 1 if stream == "stdout" else 2
        view = memoryview(data)
        while view and self.closed != stream:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                select.select([], [descriptor], [])
            except OSError:
                self.closed = stream
