"""Turns: one thread at a time, whatever a signal handler raises in between."""

from __future__ import annotations

import threading

from .bells import Bells


class Ticket:
    """Of one call of one thread."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Turn:
    """
    A lock that is taken by one call, which notes whose it is, and let go of by a statement. A signal handler
    may raise behind every call, and so behind that of a lock's `acquire`, before its caller has noted that it
    has it: then nobody would let go of it. `with` is no way out: since Python 3.14 a handler may run between
    its `__enter__` and its block.

    Examples
    --------
    >>> turn, ticket = Turn(), Ticket()
    >>> try:
    ...     taken = turn.take(ticket, 1.0)
    ... finally:
    ...     if turn.holder is ticket:
    ...         del turn.holder
    """

    holder: Ticket | None = None
    """Whose it is. To be deleted by that call, and no other."""

    def __init__(self) -> None:
        self._bells = Bells()

    def is_mine(self) -> bool:
        """Whether an earlier call of this thread has it: a signal handler asks."""
        holder = self.holder
        return holder is not None and holder.thread == threading.get_ident()

    def take(self, ticket: Ticket, seconds: float) -> bool:
        """Whether it could be had in that time."""
        # One call, of which no other thread sees a half: with or without a lock around the interpreter.
        return self._bells.wait(lambda: self.__dict__.setdefault("holder", ticket) is ticket, seconds)

    def wake(self) -> None:
        """Another may take it now."""
        self._bells.ring()
