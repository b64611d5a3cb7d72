"""A point in time that several waits share."""

from __future__ import annotations

import time


class Deadline:
    """
    The end of a span that begins now.

    Examples
    --------
    >>> Deadline(0.0).left()
    0.0
    """

    def __init__(self, seconds: float) -> None:
        self._started = time.monotonic()
        self._end = self._started + seconds

    def left(self) -> float:
        """Seconds until it, never below zero."""
        return max(0.0, self._end - time.monotonic())

    def waited(self) -> float:
        """Seconds since the span began."""
        return time.monotonic() - self._started
