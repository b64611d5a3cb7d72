"""`penstock bench`: finds the benchmarks, which are a package of their own."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli import extra


def main(arguments: Sequence[str]) -> int:
    """
    Runs a benchmark.

    Raises
    ------
    OptionError
        The benchmarks are not installed, or the command line is wrong.
    """
    return extra.command("bench", "penstock bench")(arguments)
