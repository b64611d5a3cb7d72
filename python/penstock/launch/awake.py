"""Time as those had it whom the launcher waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOKS = 8
"""How often the clock is looked at, at least, in the time that is waited."""
LEAST_INTERVAL = 0.02


class Awake:
    """
    A clock that stands still while this process is suspended, or gets no time: what it waits for may have
    been suspended with it, as by a batch system, and may be continued after it.

    It has to be looked at at least every `interval` seconds while something is waited for. A look that comes
    later than twice that finds it unmoved, and the next one moved by one interval.

    Parameters
    ----------
    span
        The longest time that is waited by this clock, in seconds.
    now
        The clock of the host.

    Examples
    --------
    >>> host = iter([100.0, 101.0, 999.0, 999.5])
    >>> awake = Awake(8.0, lambda: next(host))
    >>> awake.look(), awake.look(), awake.look()
    (1.0, 1.0, 2.5)
    """

    def __init__(self, span: float, now: Callable[[], float] = time.monotonic) -> None:
        self.interval = max(span / LOOKS, LEAST_INTERVAL)
        self._host = now
        self._last = now()
        self._owed = 0.0
        self._now = 0.0

    def after(self, seconds: float) -> float:
        """The time of this clock in so many seconds. It need not have been looked at before."""
        self.look()
        return self.look() + seconds

    def look(self) -> float:
        """Seconds since the clock was made."""
        now = self._host()
        passed, self._last = now - self._last, now
        self._now += self._owed
        self._owed = 0.0
        if passed <= 2 * self.interval:
            self._now += passed
        else:
            # Not nothing, or whoever is always late would wait for ever.
            self._owed = self.interval
        return self._now
