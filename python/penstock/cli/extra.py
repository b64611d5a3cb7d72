"""
Commands of the package `penstock_bench`, which is installed apart (`bench/` of the repository): they are
found by an entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import cast

from penstock.cli import terminal

GROUP = "penstock.commands"
"""Of the entry points."""
PACKAGE = "penstock-ps-bench"

Entry = Callable[[Sequence[str]], int]


def command(name: str, said: str) -> Entry:
    """
    The entry of a command.

    Parameters
    ----------
    name
        Of the entry point.
    said
        How the user wrote it, for the error.

    Raises
    ------
    OptionError
        The package is not installed.
    """
    points = metadata.entry_points(group=GROUP, name=name)
    ours = [point for point in points if point.dist is not None and point.dist.name == PACKAGE]
    if not ours:
        terminal.refuse(
            f"`{said}` is in the package `{PACKAGE}`, which is not installed",
            "`pip install ./bench` in a checkout of Penstock; `make build` does it there",
        )
    return cast(Entry, ours[0].load())
