"""Where in the user's script a warning belongs."""

from __future__ import annotations

import inspect


def of_the_script() -> int:
    """
    The `stacklevel` of the nearest caller that is neither torch's nor ours: torch wraps `step`, and a
    scheduler does once more; `contextlib` enters a block.
    """
    between = ("penstock", "torch", "contextlib")
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in between:
        frame, level = frame.f_back, level + 1
    return max(level, 1)
