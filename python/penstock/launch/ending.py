"""SIGTERM as an exception: a server or a manager that is told to end leaves its blocks in order."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Stopped(BaseException):
    """This process was told to end. The launcher does so when no worker is left."""


def stop_at_sigterm() -> None:
    """From now on SIGTERM raises `Stopped` in the main thread."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped
