"""
Trees: which workers pass on what a server broadcasts to workers on other hosts.

The option `tree` takes a word ("star", "auto", "chain", "striped", "striped:8") or a `Tree`.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from .exceptions import OptionError

MAX_EDGES = 2**32 - 1
"""The largest degree and depth."""
MAX_LEAF_PENALTY = 1e6
"""The largest penalty on a leaf; no edge costs more than 1."""


@dataclass(frozen=True)
class Tree:
    """
    The tree of least cost, for the option `tree`: `ps.init(tree=ps.Tree(degree=2))`.

    Parameters
    ----------
    degree
        The most children that a node may have, 1 or more: a server sends to so many workers itself, and each
        of these passes on to as many.
    depth
        The most edges from the server to a worker, 1 or more. Default None: as few as reach all.
    leaf_penalty
        What a leaf costs beside the edges, which cost 0.1 inside a rack, 0.5 inside a zone and else 1: from
        0, the default, to 1e6.

    Raises
    ------
    OptionError
        `degree`, `depth` or `leaf_penalty` is no number in its range.

    Notes
    -----
    Equation 12 of Parameter Flow; docs/trees.md says what it costs. All workers say the same.

    Examples
    --------
    >>> str(Tree(degree=2)), str(Tree(degree=3, depth=4, leaf_penalty=0.5))
    ('tree:degree=2', 'tree:degree=3,depth=4,leaf_penalty=0.5')
    """

    degree: int
    depth: int | None = None
    leaf_penalty: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "degree", _count(self.degree, "degree"))
        if self.depth is not None:
            object.__setattr__(self, "depth", _count(self.depth, "depth"))
        object.__setattr__(self, "leaf_penalty", _penalty(self.leaf_penalty))

    def __str__(self) -> str:
        depth = "" if self.depth is None else f",depth={self.depth}"
        penalty = f",leaf_penalty={self.leaf_penalty!r}" if self.leaf_penalty else ""
        return f"tree:degree={self.degree}{depth}{penalty}"


def _count(given: object, what: str) -> int:
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(given, bool) or not 1 <= number <= MAX_EDGES:
        hint = "leave the depth out: then it is the least that reaches all" if what == "depth" else None
        raise OptionError(f"expected a {what} of at least 1, got {given!r}", hint)
    return number


def _penalty(given: object) -> float:
    try:
        penalty = math.nan if isinstance(given, bool | str) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        penalty = math.nan
    if not 0 <= penalty <= MAX_LEAF_PENALTY:
        raise OptionError(
            f"expected a leaf_penalty from 0 to {MAX_LEAF_PENALTY:g}, got {given!r}",
            "0 for none; 0.5 weighs two leaves like one edge between zones",
        )
    return penalty + 0.0
