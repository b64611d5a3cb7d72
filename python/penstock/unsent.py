"""
What of a worker's pushes has not been sent, and who is told: what a filter holds back, and parts that were
pushed with `more`. Warnings, since it may be meant.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

from .filters import HeldBack

_NAMED = 3
"""Tensors that a warning names."""


def warn_of_parts(names: set[str], why: str) -> None:
    """Warns about tensors of which parts were pushed that will not be sent."""
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    warnings.warn(
        f"{listed}: {why}, and what was pushed with more=True is lost; leave out `more` in the last push of "
        f"an iteration, or call push() without an argument before its clock, which sends the sum",
        stacklevel=3,
    )


def warn_of_lost(held: Mapping[str, HeldBack]) -> None:
    """Warns about tensors of which something is held back, as the job is closed."""
    warnings.warn(
        f"What filters of pushes hold back is lost, as the job is closed: {_counted(held)}; call flush() on "
        "every worker before",
        stacklevel=4,
    )


def warn_of_lacking(who: str, held: Mapping[str, HeldBack], stacklevel: int) -> None:
    """
    Warns that `who` is to have all there is, and lacks what this worker holds back of these tensors. The
    stack's levels count from the caller.
    """
    warnings.warn(
        f"What filters of pushes hold back is not in {who}: {_counted(held)} of this worker's; call "
        "flush() on every worker before",
        stacklevel=stacklevel + 1,
    )


def warn_of_kept(held: Mapping[str, HeldBack], stacklevel: int) -> None:
    """
    Warns that values are loaded, and that what this worker holds back of these tensors will be added to them.
    The stack's levels count from the caller.
    """
    warnings.warn(
        "What filters of pushes hold back stays where values are loaded, and the next pushes add it to them: "
        f"{_counted(held)} of this worker's; call flush() on every worker before a load or a publication",
        stacklevel=stacklevel + 1,
    )


def _counted(held: Mapping[str, HeldBack]) -> str:
    elements = sum(one.elements for one in held.values())
    norm = math.hypot(*(one.norm for one in held.values()))
    named = [f"`{name}`" for name in list(held)[:_NAMED]]
    if len(held) > _NAMED:
        named.append(f"{len(held) - _NAMED} more")
    unit = "element" if elements == 1 else "elements"
    return f"{elements:,} {unit} of {', '.join(named)} (norm {norm:.3g})"
