"""Lines on standard error that nobody asked for: PENSTOCK_HINTS=off keeps them away."""

from __future__ import annotations

import os


def are_wanted() -> bool:
    """Whether hints may be written."""
    return os.environ.get("PENSTOCK_HINTS", "").lower() not in ("off", "0", "false", "no")
