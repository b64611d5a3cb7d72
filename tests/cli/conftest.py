"""Fixtures that start real launchers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from launching import command, gone, nothing_left, script

__all__ = ["command", "gone", "nothing_left", "script"]
