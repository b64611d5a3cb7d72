"""
Filters that programs bring: how one runs at a push, and how workers tell that they have the same.

The core computes what is due, without changing anything; the program's code says what is sent of it; and the
core contributes that and carries the rest in one step, unless something else is due by then. So the program's
code runs under no lock, may raise and may take its time, and whatever ends a push before that step changes
nothing.

Another thread may change what is due meanwhile: then the code runs again. What it changes itself it would
change each time: so it may not complete the iteration, nor push, flush or load the tensor that it filters.
"""

from __future__ import annotations

import hashlib
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from .arrays import Array, ArrayLike, as_array, is_float
from .exceptions import DtypeError, LaneTimeout, NonFiniteError, OptionError, ShapeError
from .limit import Limit

if TYPE_CHECKING:
    from .filters import OwnFilter
    from .job import Job
    from .tensor import Tensor


def refuse_inside(of: Tensor | Job, call: str) -> None:
    """Raises OptionError if the filter of this tensor, or of one of this job, makes the `call`."""
    # The stack knows, whatever signal handlers have raised; a note that somebody must take back may stay.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is push.__code__:
            tensor = frame.f_locals["tensor"]
            if tensor is of or tensor._job is of:
                raise OptionError(
                    f"the filter of `{tensor.name}` called {call} in its `send`, which would change what it "
                    "was asked for, again and again",
                    f"call {call} outside of `send`, which only says what is sent; nothing of this push was "
                    "sent, and what is held back is as it was",
                )
        frame = frame.f_back


def push(
    tensor: Tensor,
    own: OwnFilter,
    data: Any | None,
    settings: Any,
    timeout: float | None,
    *,
    is_array: bool,
) -> int:
    """
    Contribute what `own` sends of what is due with `data`, or with what is in the lane; the clock.
    `is_array`: whether the program gave an array, or has filled the lane.
    """
    limit = Limit(timeout)
    core = tensor._core
    while True:
        due = np.empty(core.elements, tensor._accumulator())
        seen = core.due(data, due, settings, limit.left())
        # A copy: that it is read-only does not keep all libraries from writing it.
        shown = due.copy()
        shown.flags.writeable = False
        sent, kept = divide(due, own.send(shown, seen[0]), tensor.name, tensor.dtype)
        # The buffer protocol does not know bfloat16, only its bits.
        stamp = core.push_divided(sent.view(np.uint8), kept, is_array, seen, settings, limit.left())
        if stamp is not None:
            return stamp
        # Another thread has pushed a part meanwhile, or completed the iteration: now something else is due.
        if timeout is not None and limit.left() == 0:
            raise LaneTimeout(
                f"`{tensor.name}`: other threads have pushed parts of it all the time, {timeout} s long",
                "push from one thread, or raise `timeout`",
            )


def divide(due: Array, given: ArrayLike, name: str, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """
    What is sent of `due`, as `given` says, rounded to `dtype`, and the rest, which is kept.

    Raises
    ------
    ShapeError, DtypeError
        `given` has another shape than `due`, or elements that are no real floating point numbers.
    NonFiniteError
        It is not finite where `due` is, or so far from it that the rest would not be.
    """
    given = as_array(given)
    what = f"the filter of `{name}`"
    if given.shape != due.shape:
        raise ShapeError(f"expected {what} to return an array of shape {due.shape}, got {given.shape}")
    if not is_float(given.dtype):
        raise DtypeError(
            f"expected {what} to return real floating point numbers, got dtype {given.dtype.name}",
            "such as numpy.where(mask, due, 0)",
        )
    with np.errstate(all="ignore"):
        if given.dtype not in (np.float32, np.float64):
            given = given.astype(np.float64 if given.dtype.itemsize > 8 else due.dtype)
        # `due * mask` has -0.0 where nothing is sent of a negative number, which would take bytes between
        # hosts as any other number does. Where -0.0 is due it may be meant.
        given = np.where(due == 0, given, given + 0.0)
        sent: Array = given.astype(dtype)
        kept: Array = due - sent.astype(due.dtype, copy=False)
        if not np.isfinite(kept).all():
            _correct(due, given, sent, kept, what)
        # An empty carry is -0.0, which changes no bit of what it is added to.
        kept[kept == 0] = -0.0
    return sent, kept


def _correct(due: Array, given: Array, sent: Array, kept: Array, what: str) -> None:
    """Where something is not finite, or the dtype cannot hold it: what is sent, and what is kept."""
    # Of a number that the dtype cannot hold its largest is sent, and the rest kept.
    at = np.flatnonzero(np.isfinite(given) & ~np.isfinite(sent))
    largest = due.dtype.type(ml_dtypes.finfo(sent.dtype).max)  # type: ignore[no-untyped-call]
    sent[at] = np.copysign(largest, given[at]).astype(sent.dtype)
    kept[at] = due[at] - sent[at].astype(due.dtype)
    is_finite = np.isfinite(due)
    for at in np.flatnonzero(~np.isfinite(kept) & is_finite)[:1]:
        raise NonFiniteError(
            f"{what} sends {given[at]} of {due[at]} (element {at} of the flattened array): what is left "
            "would not be finite",
            "send numbers where numbers are due; what is not finite is sent by itself",
        )
    sent[~is_finite] = due[~is_finite].astype(sent.dtype)
    kept[~is_finite] = -0.0


def which(own: OwnFilter) -> float:
    """
    A whole number below 2**48 for the filter's class and settings: the same on every worker that has the same
    filter, and hardly ever on one that has another.

    Raises
    ------
    OptionError
        A setting is nothing that workers can compare.
    """
    text = told(own)
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "little"))


def told(own: OwnFilter) -> str:
    """The filter's class and settings, in words. Raises as `which`."""
    kind = type(own)
    settings = ", ".join(
        f"{name}={_text(value, f'`{name}` of {kind.__qualname__}')}" for name, value in _settings(own)
    )
    # The main script of a process that multiprocessing has spawned is called so.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}({settings})"


def _settings(own: OwnFilter) -> list[tuple[str, Any]]:
    """Attributes of the object whose names begin with no underscore, by name."""
    names = set(getattr(own, "__dict__", ()))
    for kind in type(own).__mro__:
        slots = vars(kind).get("__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    return [(name, getattr(own, name)) for name in sorted(names) if name[0] != "_" and hasattr(own, name)]


def _text(value: Any, what: str) -> str:
    match value:
        case None | bool() | int() | str() | bytes():
            return repr(value)
        case float():
            return repr(float(value))
        case np.generic() if is_float(value.dtype):
            return repr(float(value))
        case np.bool_() | np.integer() | np.str_():
            return repr(value.item())
        case list() | tuple():
            return f"[{', '.join(_text(one, what) for one in value)}]"
        case set() | frozenset():
            return f"{{{', '.join(sorted(_text(one, what) for one in value))}}}"
        case dict():
            pairs = sorted((_text(key, what), _text(one, what)) for key, one in value.items())
            return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
        case np.ndarray() if not value.dtype.hasobject and not isinstance(value, np.ma.MaskedArray):
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            return f"array({value.dtype}, {value.shape}, {digest})"
        case _:
            raise OptionError(
                f"expected for {what}, a filter's setting, something that workers can compare: None, a "
                f"number, text, an array, or lists, sets and dicts of them; got {type(value).__name__}",
                "begin the attribute's name with an underscore if it is no setting, such as a generator of "
                "random numbers",
            )
