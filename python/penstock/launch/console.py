"""
Output of many processes on one terminal: whole lines, each under the name of the process that wrote it.

Bytes stay bytes: nothing is decoded, so that no output, however odd, is lost or stops a run. Nor does a
reader that reads nothing (a paused pager, Ctrl-S): nothing here waits for it. What is not taken at once is
kept, and a writer of more than `QUEUE_LIMIT` must wait.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from typing import Literal, NamedTuple

Stream = Literal["stdout", "stderr"]

QUEUE_LIMIT = 1 << 20
"""
Bytes kept for a reader. From there on the processes' pipes are not read until half of it is taken. What one
read, or a process that has ended, leaves may make it more.
"""

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


class Outlet:
    """Where output goes: what the reader takes now is written, and the rest kept."""

    def __init__(self, descriptor: int) -> None:
        self.closed = False
        """Whether the reader has gone: what is still written is forgotten."""
        self.full = False
        """Whether so much is kept that a writer of more must wait."""
        self.stuck_since = 0.0
        """When the reader last took something of what is kept (`time.monotonic`)."""
        self._kept = bytearray()
        has_reader = _has_reader(descriptor)
        self._own = _own_way(descriptor) if has_reader else None
        self.descriptor = descriptor if self._own is None else self._own
        """What becomes writable when the reader takes more."""
        # A file takes everything at once. What others share would wait for a reader, but takes so many bytes
        # without waiting when it can be written.
        self._piece = sys.maxsize if not has_reader else select.PIPE_BUF if self._own is None else 1 << 16

    @property
    def waits(self) -> bool:
        """Whether something is kept."""
        return bool(self._kept)

    def put(self, data: bytes) -> None:
        """Writes `data` after what is kept."""
        if not self._kept:
            self.stuck_since = time.monotonic()
        self._kept += data
        self.flush()

    def flush(self) -> None:
        """Writes what the reader takes now."""
        takes = select.poll()
        takes.register(self.descriptor, select.POLLOUT)
        while self._kept and not self.closed and takes.poll(0):
            try:
                written = os.write(self.descriptor, bytes(self._kept[: self._piece]))
            except BlockingIOError:
                break
            except OSError:
                self.closed = True
            else:
                del self._kept[:written]
                self.stuck_since = time.monotonic()
        if self.closed:
            self._kept.clear()
        self.full = len(self._kept) >= (QUEUE_LIMIT // 2 if self.full else QUEUE_LIMIT)

    def release(self) -> None:
        """Closes what it opened. Nothing can be written any more."""
        self.closed = True
        if self._own is not None:
            os.close(self._own)
            self._own = None


class Console:
    """
    Writes the lines of all processes to standard output and standard error, prefixed by name.

    Its user lets the `waiting` outlets write when they can, and ends with `release`.
    """

    def __init__(self, *, colour: bool = False) -> None:
        self._colour = colour
        out = Outlet(1)
        # One queue where both are one pipe or terminal: a line goes out whole, and in its turn.
        self._outlets: dict[Stream, Outlet] = {"stdout": out, "stderr": out if _are_one(1, 2) else Outlet(2)}

    def emit(self, name: Name, stream: Stream, lines: list[bytes]) -> None:
        """Writes `lines`; each goes out whole, so that no two processes' lines mix."""
        if lines:
            head = self.prefix(name)
            self.write(stream, b"".join(head + line + b"\n" for line in lines))

    def prefix(self, name: Name) -> bytes:
        """The prefix of each line of a process."""
        text = f"[{name}]"
        if self._colour:
            colour = _SERVER_COLOUR if name.role == "server" else _COLOURS[name.rank % len(_COLOURS)]
            text = f"\x1b[{colour}m{text}\x1b[0m"
        return text.encode() + b" "

    def write(self, stream: Stream, data: bytes) -> None:
        """Writes `data`, or keeps what is not taken now; to a stream whose reader has gone, nothing."""
        self._outlets[stream].put(data)

    def is_full(self, stream: Stream) -> bool:
        """Whether so much is kept for the stream that its writers must wait."""
        return self._outlets[stream].full

    def is_closed(self, stream: Stream) -> bool:
        """Whether the stream's reader has gone."""
        return self._outlets[stream].closed

    def is_waiting(self, stream: Stream) -> bool:
        """Whether something is kept for the stream."""
        return self._outlets[stream].waits

    def waiting(self) -> list[Outlet]:
        """The outlets that keep something: they are to `flush` when their descriptors can be written."""
        return [outlet for outlet in dict.fromkeys(self._outlets.values()) if outlet.waits]

    def release(self) -> None:
        """Closes what it opened. Nothing can be written any more."""
        for outlet in self._outlets.values():
            outlet.release()


_PTMX = os.makedev(5, 2)


def _has_reader(descriptor: int) -> bool:
    """Whether what is written waits for a reader: a pipe, a socket or a terminal."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _own_way(descriptor: int) -> int | None:
    """
    Another descriptor for the same pipe or terminal, whose writes never wait; None where the system gives
    none.

    The flags of `descriptor` itself belong to every process that has it, such as the shell.
    """
    with contextlib.suppress(OSError):
        # Opening the other side of a terminal gives a new terminal.
        if os.fstat(descriptor).st_rdev != _PTMX:
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return None


def _are_one(first: int, second: int) -> bool:
    """Whether two descriptors lead to the same file, pipe or terminal."""
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False
