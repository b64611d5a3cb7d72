"""
Whether the delays of a stream grow (Jain and Dovrolis 2002, section 4).

The delays, in the order of the messages, are cut into about sqrt(K) groups, and only each group's median
counts: a bump of a few messages is not a trend. Two tests look at the medians D:

    PCT = share of k with D[k] > D[k - 1]              0.5 where there is no trend, 1 for a clear one
    PDT = (D[last] - D[0]) / sum |D[k] - D[k - 1]|     0 where there is no trend, 1 for a clear one

Both are blind to how much the delays grow. Where nothing else happens on a path, the drift between two
hosts' clocks (up to 0.01 %) is a perfect trend. So a trend counts only if the delays grow by at least
`LEAST_GROWTH` of the time that it takes, which is what a rate above the available one by that share causes.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

PCT = (0.54, 0.66)
"""Below the first there is no trend, above the second there is one; between them the test does not know."""
PDT = (0.45, 0.55)
LEAST_GROWTH = 0.005
"""Of a stream's duration: far above what clocks drift, far below what a search resolves."""
LEAST_GROUPS = 5
"""With fewer medians the tests say nothing."""
MOST_GROUPS = 32
"""With more, each is a median of few enough to be noise."""


class Trend(enum.Enum):
    """What a stream says of its rate."""

    GROWS = "grows"
    STILL = "still"
    UNCLEAR = "unclear"


def medians(delays: Sequence[float]) -> list[float]:
    """Of consecutive groups of about as many as there are groups."""
    groups = min(math.isqrt(len(delays)), MOST_GROUPS)
    edges = [index * len(delays) // groups for index in range(groups + 1)] if groups else []
    return [statistics.median(delays[start:end]) for start, end in pairwise(edges)]


def pct(values: Sequence[float]) -> float:
    """The pairwise comparison test; 0.5 where nothing changes at all."""
    changes = [after - before for before, after in pairwise(values)]
    # An equal pair says as much for growth as against it: clocks have grains.
    return sum(1.0 if change > 0 else 0.5 if change == 0 else 0.0 for change in changes) / len(changes)


def pdt(values: Sequence[float]) -> float:
    """The pairwise difference test; 0 where nothing changes at all."""
    ways = sum(abs(after - before) for before, after in pairwise(values))
    return (values[-1] - values[0]) / ways if ways else 0.0


def trend(delays: Sequence[float], seconds: float) -> Trend:
    """
    Judges a stream.

    Parameters
    ----------
    delays
        Of its messages, in order; up to a constant, which two clocks add.
    seconds
        From its first message to its last.
    """
    values = medians(delays)
    if len(values) < LEAST_GROUPS:
        return Trend.UNCLEAR
    said = {_judged(pct(values), PCT), _judged(pdt(values), PDT)}
    if said == {Trend.GROWS, Trend.STILL} or said == {Trend.UNCLEAR}:
        return Trend.UNCLEAR
    if Trend.STILL in said:
        return Trend.STILL
    # From the middle of the first group to that of the last.
    grown = (values[-1] - values[0]) * len(values) / (len(values) - 1)
    return Trend.GROWS if grown >= LEAST_GROWTH * seconds else Trend.STILL


def _judged(value: float, limits: tuple[float, float]) -> Trend:
    below, above = limits
    return Trend.GROWS if value > above else Trend.STILL if value < below else Trend.UNCLEAR
