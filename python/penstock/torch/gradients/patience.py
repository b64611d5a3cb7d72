"""
How long a backward pass waits for the other workers: for as long as they are alive, up to a limit that is far
above the job's deadline. One worker may evaluate or save for minutes while the others have begun the next
pass; torch.distributed gives them half an hour, and so do we. A worker that dies is noticed by its lease.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TypeVar

from ...exceptions import CircularWait, PullTimeout

PATIENCE = 1800.0
"""Seconds; torch.distributed's default."""

T = TypeVar("T")


def patiently(read: Callable[[], T], patience: float) -> T:
    """
    `read()`, again and again while it only ends because the job's deadline has passed. Raises its PullTimeout
    when patience is at an end.
    """
    begun = time.monotonic()
    while True:
        asked = time.monotonic()
        try:
            return read()
        except CircularWait:
            # No patience helps where workers wait for each other.
            raise
        except PullTimeout as error:
            now = time.monotonic()
            if now - begun + (now - asked) > patience:
                raise
            warnings.warn(
                f"backward has waited {now - begun:.0f} s for the gradients of workers {error.missing}, and "
                f"goes on waiting, up to {patience:.0f} s in all",
                stacklevel=2,
            )
