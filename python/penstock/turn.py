"""Turns: one thread at a time, whatever a signal handler raises in between."""

from __future__ import annotations

import threading
import time

LOOK_AGAIN_S = 0.1
"""A thread that was interrupted while it woke the others has not woken all of them."""


class Ticket:
    """Of one call of one thread."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Turn:
    """
    A lock that is let go of by a plain store. A signal handler may raise behind every call, and so behind
    that of a lock's `acquire`, before its caller has noted that it has it: then nobody would let go of it.
    `with` a lock that is written in C there is no such place; with a Condition or an Event there is.

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
        # Nothing is called under it: so no handler runs there, nor waits for it.
        self._lock = threading.Lock()
        self._bells: list[threading.Lock] = []

    def is_mine(self) -> bool:
        """Whether an earlier call of this thread has it: a signal handler asks."""
        holder = self.holder
        return holder is not None and holder.thread == threading.get_ident()

    def take(self, ticket: Ticket, seconds: float) -> bool:
        """Whether it could be had in that time."""
        until = time.monotonic() + seconds
        bell = None
        while True:
            with self._lock:
                if self.holder is None:
                    self.holder = ticket
                    return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            if bell is None:
                bell = threading.Lock()
                bell.acquire()
                self._bells.append(bell)
            elif bell.acquire(timeout=min(left, LOOK_AGAIN_S)):
                bell = None

    def wake(self) -> None:
        """Another may take it now."""
        bells, self._bells = self._bells, []
        for bell in bells:
            bell.release()
