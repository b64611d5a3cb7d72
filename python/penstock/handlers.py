"""Signal handlers: whether an exception is one of theirs."""

from __future__ import annotations

import signal

# Without what `signal` puts around each answer, which costs many times as much.
from _signal import getsignal  # type: ignore[import-not-found]
from functools import partial
from types import CodeType
from typing import Any

_SIGNALS = sorted(signal.valid_signals())


class Handlers:
    """The signal handlers when a call begins: one may take itself away before it raises."""

    def __init__(self) -> None:
        self._found = [getsignal(number) for number in _SIGNALS]

    def raised(self, error: BaseException) -> bool:
        """
        Whether one of them did, as far as the traceback tells: then it says nothing of the object at hand.
        """
        found = [*self._found, *(getsignal(number) for number in _SIGNALS)]
        codes = {code for handler in found if callable(handler) and (code := _code_of(handler)) is not None}
        frames = error.__traceback__
        while frames is not None:
            if frames.tb_frame.f_code in codes:
                return True
            frames = frames.tb_next
        return False


def _code_of(call: Any) -> CodeType | None:
    while isinstance(call, partial):
        call = call.func
    code = getattr(call, "__code__", None)
    # Else it is an object that can be called.
    return code or getattr(getattr(type(call), "__call__"), "__code__", None)  # noqa: B004, B009
