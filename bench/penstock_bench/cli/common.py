"""What the benchmarks' commands share: files that have to be ready, progress, errors, the machine's cores."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from penstock.cli import terminal
from penstock.launch.ranks import RanksError

NEIGHBOUR = "measure each round once more beside a process that is always at work"


def prepare_files(given: argparse.Namespace) -> None:
    """Refuses files that cannot be written, before minutes of measuring."""
    for option in ("json", "plot"):
        _writable(getattr(given, option), f"--{option}")
    if given.plot:
        _plot_ready(given.plot)


def _writable(path: Path | None, option: str) -> None:
    """Refuses, before minutes of measuring, a file that cannot be written after them."""
    if path is None:
        return
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        terminal.refuse(
            f"{option} {path}: {error.strerror}",
            "name a file in a folder that exists and that you may write to",
        )


def _plot_ready(path: Path) -> None:
    from importlib.util import find_spec

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        terminal.refuse(f"--plot {path} has no suffix that can be drawn", "use .png, .svg or .pdf")
    if find_spec("matplotlib") is None:
        terminal.refuse("--plot needs matplotlib, which is not installed", "pip install 'penstock-ps[demo]'")


def distance() -> float:
    """Nanoseconds from core to core and back; NaN without the core."""
    try:
        from penstock import _core
    except ImportError:
        return math.nan
    return _core.core_distance()


def failed(error: RanksError) -> int:
    """Says what went wrong; the exit code."""
    terminal.error(str(error), detail=error.detail or None)
    return 1


def progress(text: str) -> None:
    """One line that is overwritten, where someone is looking."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
