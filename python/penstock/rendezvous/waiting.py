"""Says what is waited for while a process joins, so that a wrong address is seen long before the deadline."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock.rendezvous import hints

SLOW_SECONDS = 2.0


@contextmanager
def told_if_slow(what: str, limit: str = "the option `deadline`") -> Iterator[None]:
    """
    One line on standard error if the block takes longer than two seconds: it still waits for `what`.

    None with PENSTOCK_HINTS=off.
    """
    if not hints.are_wanted():
        yield
        return
    timer = threading.Timer(SLOW_SECONDS, _tell, [what, limit])
    timer.daemon = True
    try:
        # Where there is no thread to be had, nothing is said.
        with suppress(RuntimeError):
            timer.start()
        yield
    finally:
        timer.cancel()


def _tell(what: str, limit: str) -> None:
    line = f"penstock: still waiting for {what}; gives up after {limit}\n"
    line = line.encode("ascii", "backslashreplace").decode()
    # There may be no standard error, or one that is closed or of the script's own making.
    with suppress(AttributeError, OSError, ValueError):
        stderr = sys.stderr
        try:
            descriptor = stderr.fileno()
        except (AttributeError, OSError, ValueError):
            stderr.write(line)
            stderr.flush()
        else:
            # Not by the stream: a thread that waits inside for a full pipe keeps its lock, of which the
            # interpreter dies at its end, or it waits there. Without room for the line it is left out.
            if _has_room(descriptor):
                os.write(descriptor, line.encode())


def _has_room(descriptor: int) -> bool:
    """Whether a short line can be written without waiting."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(flags & select.POLLOUT for _, flags in poll.poll(0))
