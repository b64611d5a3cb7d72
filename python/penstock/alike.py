"""
Whether two objects would be the same to whoever unpickles them. Their pickles are not always the same bytes:
of sets that were filled in another order, or where one text stands twice, once as one object and once as two.
"""

from __future__ import annotations

import copyreg
import sys
from typing import Any

import numpy as np

from .arrays import as_array


def alike(one: Any, other: Any) -> bool:
    """Whether they are, to the bit where they are numbers. An object that says that it is equal is."""
    return _alike(one, other, set())


def _alike(one: Any, other: Any, under_way: set[tuple[int, int]]) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    # Of what holds itself, what is compared already decides.
    pair = id(one), id(other)
    if pair in under_way:
        return True
    under_way.add(pair)
    try:
        return _compared(one, other, under_way)
    finally:
        under_way.remove(pair)


def _compared(one: Any, other: Any, under_way: set[tuple[int, int]]) -> bool:
    if isinstance(one, float | complex):
        # A NaN is its like, and zeros have signs.
        return repr(one) == repr(other)
    if isinstance(one, str | bytes | int):
        return bool(one == other)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(
            _alike(mine, its, under_way) for mine, its in zip(one, other, strict=True)
        )
    if type(one) is dict:
        return len(one) == len(other) and all(
            key in other and _alike(value, other[key], under_way) for key, value in one.items()
        )
    if (held := _held(one)) is not None and (its := _held(other)) is not None:
        return (held.dtype, held.shape, held.tobytes()) == (its.dtype, its.shape, its.tobytes())
    return _says_so(one, other) or _reduced_alike(one, other, under_way)


def _held(value: Any) -> Any:
    """The elements of an array of numbers."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if isinstance(value, np.ndarray | np.generic):
        return None if value.dtype.hasobject else np.asarray(value)
    is_tensor = torch is not None and type(value) is torch.Tensor and value.layout is torch.strided
    if is_tensor or (jax is not None and isinstance(value, jax.Array)):
        return np.asarray(as_array(value.detach() if is_tensor else value))
    return None


def _says_so(one: Any, other: Any) -> bool:
    try:
        return (one == other) is True
    except Exception:
        return False


def _reduced_alike(one: Any, other: Any, under_way: set[tuple[int, int]]) -> bool:
    """Whether they are made of the same parts."""
    try:
        mine, its = _reduced(one), _reduced(other)
    except Exception:
        return False
    return mine is not None and _alike(mine, its, under_way)


def _reduced(value: Any) -> Any:
    reduce = copyreg.dispatch_table.get(type(value))
    parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
    if isinstance(parts, str):
        # A name: what it names is one object.
        return None
    # Behind its state come what a list and a dictionary hold, one by one.
    return [*parts[:3], *(None if more is None else list(more) for more in parts[3:5])]
