"""
The search for the available bandwidth: which rate is tried next, and what has been found.

First the rate doubles until a stream's delays grow. Then the bracket is halved until it is narrow. Each rate
is tried by a *fleet* of streams, which ends as soon as one verdict leads by `LEAD`. A fleet that does not
agree makes its rate *grey*: the available bandwidth itself changes around it while the fleet runs (Jain and
Dovrolis 2002, section 4). Both sides of the grey region are then narrowed, and all of it is in the result.

No time and no socket here: `next` says what to send, `heard` is told what came of it.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

FLEET = 5
LEAD = 3
"""Of a fleet of 5: the first three alike, or four of all."""
RAMP_LEAD = 2
"""While the rate doubles: one disturbed stream must not end that."""
MOST_DISCARDED = 30
"""Streams of one fleet that the hosts disturbed: then they cannot do its rate. Most end early."""
MOST_STREAMS = 1000
"""Of a search, those among them: ten times what any has taken."""
FIRST = 16e6
"""Bits per second of the first stream."""
LEAST = 1e6
"""Bits per second: where less is available, it is nothing for what this is for."""
DESCENT = 0.75
"""While no rate is known to be below, the next is this much of the one above."""


class Verdict(enum.Enum):
    """What a stream says."""

    ABOVE = "above"
    """Its rate is above the available bandwidth."""
    BELOW = "below"
    UNCLEAR = "unclear"
    """The path does not say."""
    SENDER = "sender late"
    """Nothing: the sending host did not send at the rate."""
    RECEIVER = "receiver late"
    """Nothing: the receiving host threw datagrams away."""


DISCARDED = (Verdict.SENDER, Verdict.RECEIVER)


@dataclass(frozen=True)
class Trial:
    """A stream to be sent."""

    rate: float
    """Bits per second, frames counted whole."""
    ahead: bool
    """Whether what a shaper lets through at once is used up first."""


@dataclass(frozen=True)
class Outcome:
    """What became of it."""

    verdict: Verdict
    came: float | None = None
    """The rate at which it came, where it was `ABOVE`: what the path let through of it."""


@dataclass(frozen=True)
class Found:
    """The result, in bits per second."""

    low: float
    """The highest rate that is known to be available; 0: none is."""
    high: float
    """The lowest rate that is known not to be."""
    grey: tuple[float, float] | None
    """Rates around which the available bandwidth itself changed."""
    limited: Verdict | None
    """
    Why `high` is unknown: which host could not go on; `BELOW`: the highest rate allowed is available;
    `UNCLEAR`: the search ended too early.
    """
    narrow: bool
    """Whether the search came to its end."""
    streams: int
    """How many counted."""
    discarded: dict[str, int]
    """How many did not, and why."""


@dataclass
class Search:
    """
    One search.

    Parameters
    ----------
    most
        The highest rate to be tried, in bits per second.
    resolution
        It ends when the bracket (or each side of the grey region) is at most this part of its upper end.

    Examples
    --------
    >>> search = Search(most=1e9, resolution=0.05)
    >>> while (trial := search.next()) is not None:
    ...     search.heard(Outcome(Verdict.ABOVE if trial.rate > 123e6 else Verdict.BELOW))
    >>> found = search.found()
    >>> found.low <= 123e6 <= found.high <= 1.06 * found.low
    True
    """

    most: float
    resolution: float = 0.05
    _low: float = 0.0
    _high: float | None = None
    _grey: tuple[float, float] | None = None
    _limited: Verdict | None = None
    _rate: float = 0.0
    _ramp: bool = True
    _fleet: Counter[Verdict] = field(default_factory=Counter)
    _guess: float | None = None
    """The rate at which the last stream came that was above."""
    _over_guess: float = 0.0
    """The rate to try once the one just under the guess is known to be available."""
    _counted: int = 0
    _discarded: Counter[str] = field(default_factory=Counter)
    _over: bool = False

    def __post_init__(self) -> None:
        self._rate = min(FIRST, self.most)

    def next(self) -> Trial | None:
        """The next stream; None: the search is at its end."""
        if self._over or self._counted + sum(self._discarded.values()) >= MOST_STREAMS:
            return None
        return Trial(self._rate, ahead=not self._ramp)

    def heard(self, outcome: Outcome) -> None:
        """What became of it."""
        self._fleet[outcome.verdict] += 1
        if outcome.verdict in DISCARDED:
            self._discarded[outcome.verdict.value] += 1
            if sum(self._fleet[one] for one in DISCARDED) >= MOST_DISCARDED:
                self._limit(outcome.verdict)
            return
        self._counted += 1
        if outcome.verdict is Verdict.ABOVE and outcome.came is not None:
            self._guess = outcome.came
        above, below, unclear = (self._fleet[one] for one in (Verdict.ABOVE, Verdict.BELOW, Verdict.UNCLEAR))
        if self._ramp:
            self._ramped(above, below, unclear)
        elif above - below - unclear >= LEAD:
            self._is_above()
        elif below - above - unclear >= LEAD:
            self._is_below()
        elif above + below + unclear >= FLEET:
            low, high = self._grey or (self._rate, self._rate)
            self._grey = (min(low, self._rate), max(high, self._rate))
            self._advance()

    def found(self) -> Found:
        """What is known so far."""
        high, limited = self._high, self._limited
        if high is None:
            high, limited = self.most, limited or Verdict.UNCLEAR
        counts = (self._counted, dict(self._discarded))
        return Found(self._low, high, self._grey, limited, self._over, *counts)

    def _ramped(self, above: int, below: int, unclear: int) -> None:
        if above >= RAMP_LEAD or (above + unclear > RAMP_LEAD and above > 0):
            self._high = self._rate
            self._ramp = False
            self._fleet.clear()
            # What an overloaded path lets through is at least what is available of it, and just that where
            # nothing competes: then a rate on either side of it is the result.
            guess = self._guess if self._guess is not None else 0.0
            under = guess * (1 - 0.45 * self.resolution)
            self._over_guess = guess * (1 + 0.5 * self.resolution)
            lower = DESCENT * self._high
            # The other end says what came: whatever that is, no stream is slower than the least.
            self._rate = max(under, min(LEAST, lower)) if 0 < under < self._high else lower
        elif below or unclear > RAMP_LEAD:
            self._fleet.clear()
            if self._rate < self.most:
                self._rate = min(2 * self._rate, self.most)
            else:
                # The ramp's streams may live on what a shaper has saved: this rate is tried once more.
                self._ramp = False

    def _is_above(self) -> None:
        self._high, self._limited = self._rate, None
        self._over_guess = 0.0
        if self._grey is not None:
            low, high = self._grey
            self._grey = (low, min(high, self._rate)) if low < self._rate else None
        self._advance()

    def _is_below(self) -> None:
        self._low = self._rate
        if self._grey is not None:
            low, high = self._grey
            self._grey = (max(low, self._rate), high) if high > self._rate else None
        if self._high is None and self._rate >= self.most:
            self._limited, self._over = Verdict.BELOW, True
        else:
            self._advance()

    def _limit(self, verdict: Verdict) -> None:
        """The hosts cannot do this rate: what is above it cannot be known."""
        self._high, self._limited = self._rate, verdict
        self._ramp = False
        self._advance()

    def _advance(self) -> None:
        """Chooses the next rate, or ends."""
        self._fleet.clear()
        high = self._high if self._high is not None else self.most
        least = self.resolution * high
        parts = [(self._low, high)]
        if self._grey is not None and high - self._low > least:
            parts = [(self._low, self._grey[0]), (self._grey[1], high)]
            # A part that is no part: the edge of the grey region is the bracket's.
            parts = [part for part in parts if part[1] - part[0] > 0]
        low, high = max(parts, key=lambda part: part[1] - part[0], default=(high, high))
        if high - low <= least:
            self._over = True
        elif low < self._over_guess < high:
            self._rate, self._over_guess = self._over_guess, 0.0
        elif low == 0.0:
            self._rate = DESCENT * high
            self._over = self._rate < LEAST
        else:
            self._rate = (low + high) / 2
