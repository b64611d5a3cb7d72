"""Fixtures that start processes as launchers do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from groups import group, port, script, secret

__all__ = ["group", "port", "script", "secret"]
