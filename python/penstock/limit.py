"""A span of time that several waits share."""

from __future__ import annotations

import time
from typing import Generic, TypeVar, cast, overload

from penstock import _core

Left = TypeVar("Left", bound=float | None)


class Limit(Generic[Left]):
    """
    A span that begins now; or none, where a caller named none.

    Raises
    ------
    OptionError
        `seconds` is not a valid number of seconds.

    Examples
    --------
    >>> Limit(0).left()
    0.0
    >>> Limit(None).left() is None
    True
    """

    @overload
    def __init__(self: Limit[float], seconds: float) -> None: ...
    @overload
    def __init__(self: Limit[float | None], seconds: float | None) -> None: ...
    def __init__(self, seconds: float | None) -> None:
        self._began = time.monotonic()
        self._end = None if seconds is None else self._began + _core.seconds(seconds)

    def left(self) -> Left:
        """Seconds until its end, never below zero."""
        left = None if self._end is None else max(0.0, self._end - time.monotonic())
        return cast(Left, left)

    def waited(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began
