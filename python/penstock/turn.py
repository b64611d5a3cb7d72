"""Turns: one thread at a time, whatever a signal handler raises in between."""

from __future__ import annotations

import threading
import time

LOOK_AGAIN_S = 0.1
"""A thread that was interrupted while it woke the others has not woken them."""


class Ticket:
    """Of one call of one thread."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Turn:
    """
    A lock that is let go of by a plain store. A signal handler may raise behind every call, and so behind
    that of a lock's `acquire`, before its caller has noted that it has it: then nobody would let go of it.

    Examples
    --------
    >>> turn, ticket = Turn(), Ticket()
    >>> try:
    ...     taken = turn.take(ticket, 1.0)
    ... finally:
    ...     if turn.holder is ticket:
    ...         turn.holder = None
    """

    def __init__(self) -> None:
        self.holder: Ticket | None = None
        """Whose it is. To be set to None by that call, and no other."""
        # Held for a moment, also by a handler in the middle of that.
        self._moved = threading.Condition(threading.RLock())

    def is_mine(self) -> bool:
        """Whether an earlier call of this thread has it: a signal handler asks."""
        holder = self.holder
        return holder is not None and holder.thread == threading.get_ident()

    def take(self, ticket: Ticket, seconds: float) -> bool:
        """Whether it could be had in that time."""
        until = time.monotonic() + seconds
        with self._moved:
            while self.holder is not None:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._moved.wait(min(left, LOOK_AGAIN_S))
            self.holder = ticket
        return True

    def wake(self) -> None:
        """Another may take it now."""
        with self._moved:
            self._moved.notify()
