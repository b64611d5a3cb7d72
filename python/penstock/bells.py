"""Bells: threads wait for something, whatever a signal handler raises in between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

LOOK_AGAIN_S = 0.1
"""A thread that was interrupted while it rang has not woken all of them."""


class Bells:
    """
    Where threads wait until something is so. There is no Condition in it: a signal handler that raises as its
    thread enters one leaves it taken, and every other thread stands before it for good.

    Examples
    --------
    >>> bells, found = Bells(), []
    >>> bells.wait(lambda: bool(found), 0.01)
    False
    >>> found.append(1)
    >>> bells.ring()
    >>> bells.wait(lambda: bool(found))
    True
    """

    def __init__(self) -> None:
        self._hung: list[threading.Lock] = []

    def wait(self, is_so: Callable[[], bool], seconds: float | None = None) -> bool:
        """Whether it is so in that time; without one, when it is."""
        until = None if seconds is None else time.monotonic() + seconds
        bell = None
        while not is_so():
            left = LOOK_AGAIN_S if until is None else min(until - time.monotonic(), LOOK_AGAIN_S)
            if left <= 0:
                if bell is not None:
                    with contextlib.suppress(ValueError):
                        self._hung.remove(bell)
                return False
            if bell is None:
                # Looked at once more before it is waited for.
                bell = threading.Lock()
                bell.acquire()
                self._hung.append(bell)
            elif bell.acquire(timeout=left):
                bell = None
        return True

    def ring(self) -> None:
        """It is so now, or may be: all who wait look."""
        for _ in range(len(self._hung)):
            try:
                bell = self._hung.pop()
            except IndexError:
                return
            bell.release()
