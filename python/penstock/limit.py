"""One timeout for a call that waits several times."""

from __future__ import annotations

import time

from penstock import _core


class Limit:
    """
    What is left of a timeout; None stays None.

    Raises
    ------
    OptionError
        `timeout` is not a valid number of seconds.

    Examples
    --------
    >>> Limit(None).left() is None
    True
    >>> Limit(0).left()
    0.0
    """

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + _core.seconds(timeout)

    def left(self) -> float | None:
        """Seconds, never below zero."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())
