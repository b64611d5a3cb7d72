"""
What compiled programs call, by way of the extension: `crates/penstock-python/src/xla` is the function that
XLA has, and decides what XLA is told. Here are the calls by number, and arrays over XLA's memory.
"""

from __future__ import annotations

import gc
import secrets
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .. import _core
from ..arrays import DTYPES, Array
from ..exceptions import PenstockError

Fill = Callable[[list[Array], list[Array]], None]
"""
Takes arrays, and fills arrays. One to fill may be over the memory of the argument in its place: it is filled
when the arguments have been read.
"""

_TOKEN = (17, ())
_NUMBERS: dict[np.dtype[Any], int] = {
    **{
        np.dtype(name): number
        for number, name in {
            1: "bool",
            2: "int8",
            3: "int16",
            4: "int32",
            5: "int64",
            6: "uint8",
            7: "uint16",
            8: "uint32",
            9: "uint64",
            10: "float16",
            11: "float32",
            12: "float64",
            15: "complex64",
            18: "complex128",
        }.items()
    },
    DTYPES["bfloat16"]: 16,
}
"""XLA's numbers of the element types that are in memory as NumPy's are."""

_PAUSE = 1e-3
"""Seconds between two looks whether arrays are still held."""
_PAUSES = 5000
_PAUSES_A_COLLECTION = 200
Given = tuple[int, tuple[int, ...], Any]
"""A buffer: XLA's number of its element type, its shape, and its memory, lent until the call returns."""


class Called(Protocol):
    """A call, as a program has it; arguments and results are of these shapes and types."""

    fill: Fill
    arguments: Sequence[Any]
    results: Sequence[Any]


class Registry:
    """The calls of this process's compiled programs. There is one of these, also if this is loaded again."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[int, Called] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._taken: bool | None = None
        self._kept = False

    def __len__(self) -> int:
        return len(self._known)

    def add(self, called: Called) -> int:
        """
        Its number, by which programs know it. JAX keeps the call itself for as long as it has the program.

        By chance: a program that another process has compiled must not find a call of this one.
        """
        number = secrets.randbits(63)
        self._known[number] = called
        return number

    def taken(self, register: Callable[[Any], None]) -> bool:
        """Whether XLA takes our function, and has asked it for its version. `register` is called once."""
        with self._lock:
            if self._taken is None:
                try:
                    register(_core.xla_target())
                    self._taken = _core.xla_has_asked()
                except Exception:  # Whatever it raises: there is another way.
                    self._taken = False
            return self._taken

    def __call__(self, number: int, arguments: Sequence[Given], results: Sequence[Given]) -> bool:
        """What XLA calls, on a thread of its own. True, and nothing else, where all is done."""
        self.check()
        called = self._known.get(number)
        if called is None:
            raise PenstockError(
                "a compiled program makes a call that this process does not know",
                "a program with calls of ps.jax cannot be loaded by another process: compile it there",
            )
        called.fill(_arrays(arguments, called.arguments), _arrays(results, called.results))
        return True

    def check(self) -> None:
        """
        Raises PenstockError for the rest of the process once a call was carried out and failed afterwards:
        who repeats it would go on in another iteration than the other workers.
        """
        if self._kept:
            raise PenstockError(
                "an array over XLA's memory was kept beyond a call before, which had been carried out",
                "end the program: to repeat an iteration would count it twice",
            )

    def pause(self, rounds: int, done: bool) -> bool:
        """
        Passes a little time, so that others drop the arrays of a call that has ended: whoever looks at
        frames, or a cycle. False when they had time enough. `done`: the call has been carried out.
        """
        try:
            if rounds < _PAUSES:
                # Most are only looked at, and gone after a pause or two.
                if rounds % _PAUSES_A_COLLECTION == _PAUSES_A_COLLECTION - 1:
                    gc.collect()
                time.sleep(_PAUSE)
                return True
        except BaseException:  # Ctrl-C, too.
            self._kept |= done
            raise
        self._kept |= done
        return False


def number_of(dtype: np.dtype[Any]) -> int | None:
    """XLA's number of an element type; None for one that may be in memory in another way."""
    return _NUMBERS.get(dtype)


def _arrays(given: Sequence[Given], likes: Sequence[Any]) -> list[Array]:
    """The arrays, if they are what the program was traced with. In the first place is the token."""
    found = [(dtype, shape) for dtype, shape, _ in given]
    expected = [_TOKEN, *((_NUMBERS[like.dtype], tuple(like.shape)) for like in likes)]
    if found != expected:
        raise PenstockError(f"XLA gave buffers of types and shapes {found}, expected {expected}")
    # Which hold the memory: one that is there beyond the call is noticed, and is an error of the program.
    return [
        np.frombuffer(memory, like.dtype).reshape(like.shape)
        for like, (_, _, memory) in zip(likes, given[1:], strict=True)
    ]


def _shown(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).rstrip()
    finally:
        _let_go(error)


def _let_go(error: BaseException) -> None:
    """Whoever else holds the exception, as a future does, holds the arrays in its frames."""
    # But not what the script is handling meanwhile: its frames may be generators', which this would close.
    chain, seen = [error], {id(sys.exc_info()[1])}
    while chain:
        one = chain.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            chain += [other for other in (one.__cause__, one.__context__) if other is not None]


known_calls: Registry = _core.keep_xla_call(Registry(), _shown)
"""
Those of this process. What was kept first stays: programs that were compiled before this was loaded again
call it.
"""
