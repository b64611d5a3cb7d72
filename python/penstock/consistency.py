"""
Consistency: how stale a value a reader may see.

A worker's *clock* counts the iterations it has completed. Its *position* on a tensor is its clock, plus one
once it has pushed the tensor in this iteration. A pull at position t with slack s returns a version >= t - s,
and *version v* includes every update stamped < v from every live worker: a worker always reads its own
writes.

| | a pull at position t sees | it waits |
|---|---|---|
| `BSP()` | exactly version t | for the slowest worker, in every iteration |
| `SSP(s)` | at least version t - s, and all own updates | only when more than s iterations ahead |
| `ASP()` | all own updates, and whatever else has arrived | never for others |

A value that is broadcast (`propagation="broadcast"`) holds own updates under SSP and ASP once they come back
with the others'.

Stale synchronous parallel: Ho et al. 2013, section 2.
"""

from __future__ import annotations

import operator
from dataclasses import KW_ONLY, dataclass
from typing import SupportsIndex, TypeAlias, cast

from .exceptions import OptionError
from .units import digits

MAX_SLACK = 1 << 30
"""The largest slack that can be asked for, in iterations; beyond it, ask for `ASP`."""


@dataclass(frozen=True)
class BSP:
    """
    Bulk synchronous: everyone's updates of the last iteration, and the same bits in every run.

    Examples
    --------
    >>> str(BSP())
    'bsp'
    """

    def __str__(self) -> str:
        return "bsp"


@dataclass(frozen=True)
class SSP:
    """
    Stale synchronous: at most `slack` iterations behind.

    Parameters
    ----------
    slack
        Iterations that a value may lag behind, 0 to 2**30; "auto": adapts between `min` and `max` to how long
        this worker waits (see docs/consistency.md). Default 1.
    min, max
        Bounds of an automatic slack: no read ever lags behind by more than `max`. Default 0 and 16.

    Raises
    ------
    OptionError
        `slack` is not a whole number in its range, or `min` is above `max`.

    Examples
    --------
    >>> str(SSP(slack=4)), str(SSP(slack="auto", max=8))
    ('ssp:4', 'ssp:auto:0:8')
    """

    slack: int | str = 1
    _: KW_ONLY
    min: int = 0
    max: int = 16

    def __post_init__(self) -> None:
        if self.slack == "auto":
            if not check_slack(self.min) <= check_slack(self.max):
                raise OptionError(
                    f"expected min <= max for an automatic slack, got {self.min} and {self.max}"
                )
            return
        object.__setattr__(self, "slack", check_slack(self.slack))

    @property
    def bounds(self) -> str | None:
        """The bounds of an automatic slack in the core's form; None for a fixed one."""
        return f"{self.min}:{self.max}" if self.slack == "auto" else None

    def __repr__(self) -> str:
        between = "" if self.bounds is None else f", min={self.min}, max={self.max}"
        return f"SSP(slack={self.slack!r}{between})"

    def __str__(self) -> str:
        return f"ssp:{self.slack}" if self.bounds is None else f"ssp:auto:{self.bounds}"


@dataclass(frozen=True)
class ASP:
    """
    Asynchronous: own updates (but of a value that is broadcast), and whatever else has arrived.

    Examples
    --------
    >>> str(ASP())
    'asp'
    """

    def __str__(self) -> str:
        return "asp"


Consistency: TypeAlias = BSP | SSP | ASP


def check_slack(slack: object) -> int:
    """`slack` as an int from 0 to `MAX_SLACK`; raises OptionError."""
    hint = "slack counts iterations: 0 is the newest version; for no bound at all use ps.ASP()"
    try:
        number = operator.index(cast(SupportsIndex, slack))
    except TypeError:
        number = -1
    if isinstance(slack, bool) or not 0 <= number <= MAX_SLACK:
        raise OptionError(f"expected a slack from 0 to {MAX_SLACK} iterations, got {slack!r}", hint)
    return number


def parse(text: str) -> Consistency:
    """
    The consistency that `text` names: "bsp", "ssp:SLACK", "ssp:auto:MAX", "ssp:auto:MIN:MAX" or "asp".

    Raises
    ------
    OptionError
        `text` is none of these, or the slack is out of range.

    Examples
    --------
    >>> parse("ssp:4"), parse("ssp:auto:8")
    (SSP(slack=4), SSP(slack='auto', min=0, max=8))
    """
    word, colon, slack = text.strip().lower().partition(":")
    if word == "ssp" and (constant := digits(slack)) is not None:
        return SSP(constant)
    automatic, _, bounds = slack.partition(":")
    if word == "ssp" and automatic == "auto":
        lower, both, upper = bounds.rpartition(":")
        least, most = digits(lower) if both else 0, digits(upper)
        if least is not None and most is not None:
            return SSP("auto", min=least, max=most)
    if not colon and word in ("bsp", "asp"):
        return BSP() if word == "bsp" else ASP()
    raise OptionError(
        f"expected consistency `bsp`, `ssp:SLACK` or `asp`, got `{text}`",
        "for example `ssp:4`: at most 4 iterations stale",
    )


def spelled(consistency: Consistency | str | None) -> str:
    """In the core's form; "" is the job's default. Raises OptionError."""
    if consistency is None:
        return ""
    if isinstance(consistency, str):
        return str(parse(consistency))
    if isinstance(consistency, BSP | SSP | ASP):
        return str(consistency)
    raise OptionError(
        f"expected ps.BSP(), ps.SSP(slack) or ps.ASP(), got {consistency!r}",
        "write ps.BSP(), with parentheses" if isinstance(consistency, type) else None,
    )


def check_propagation(propagation: object) -> None:
    """Raises OptionError unless it says who moves values."""
    known = ("pull", "broadcast", "update", "auto")
    if propagation not in known:
        named = ", ".join(f'"{word}"' for word in known[:-1])
        raise OptionError(f'expected propagation {named} or "{known[-1]}", got {propagation!r}')
