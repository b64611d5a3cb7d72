"""
What XLA hands to a function that compiled programs call: the part of its C interface that `compiled.py`
needs. The interface is in jaxlib, xla/ffi/api/c_api.h.

| structure | says |
|---|---|
| frame | what is asked: the interface's version, or the call itself |
| values | the buffers of arguments, or of results |
| attributes | constants of the call: of ours one, its number |
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array

LEAST = (0, 3)
"""Version of the interface that these structures are of; a later minor one only adds to them."""

_METADATA = 1
_INTERNAL = 13


class _Start(Structure):
    """What structures begin with."""

    _fields_: ClassVar[Sequence[Any]] = (("struct_size", c_size_t), ("extension", c_void_p))


class _Buffer(_Start):
    _fields_ = (
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Values(_Start):
    _fields_ = (
        ("size", c_int64),
        ("types", c_void_p),
        ("values", POINTER(POINTER(_Buffer))),
    )


class _Scalar(Structure):
    _fields_ = (("dtype", c_int), ("value", POINTER(c_uint64)))


class _Attributes(_Start):
    _fields_ = (
        ("size", c_int64),
        ("types", c_void_p),
        ("names", c_void_p),
        ("values", POINTER(POINTER(_Scalar))),
    )


class _Version(_Start):
    _fields_ = (("major", c_int), ("minor", c_int))


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _Extension(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    )


class _Error(_Start):
    _fields_ = (("message", c_char_p), ("code", c_int))


class _Interface(_Start):
    _fields_ = (
        ("version", _Version),
        ("internal", c_void_p),
        ("create_error", ctypes.CFUNCTYPE(c_void_p, POINTER(_Error))),
    )


class Frame(Structure):
    """A call."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("interface", POINTER(_Interface)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Values),
        ("results", _Values),
        ("attributes", _Attributes),
    )

    def asks_version(self) -> bool:
        """Whether it only asks which version of the interface the function is for."""
        return bool(self.extension) and self.extension.contents.type == _METADATA

    def answer_version(self) -> tuple[int, int]:
        """Answers that it is for XLA's own, if that is known; returns the answer."""
        found = self.interface.contents.version if self.interface else None
        answer = LEAST if found is None else (int(found.major), int(found.minor))
        metadata = self.extension.contents.metadata.contents
        metadata.version.major, metadata.version.minor = answer
        metadata.traits = 0
        return answer

    def number(self) -> int:
        """The call's only attribute."""
        return int(self.attributes.values[0].contents.value[0])

    def argument(self, place: int, like: Any) -> Array:
        """An argument, of the shape and type of `like`: its memory, until the call returns."""
        array = _over(self.arguments, place, like)
        array.flags.writeable = False
        return array

    def result(self, place: int, like: Any) -> Array:
        """A result, to be filled."""
        return _over(self.results, place, like)

    def failed(self, text: str) -> int | None:
        """What to return for an error, which JAX then raises."""
        error = _Error(ctypes.sizeof(_Error), None, text.encode(), _INTERNAL)
        made: int | None = self.interface.contents.create_error(ctypes.byref(error))
        return made


def _over(values: _Values, place: int, like: Any) -> Array:
    # The memory is there until the call returns, and nobody keeps the array for longer. It is as large as
    # this: XLA compiled the call for these shapes and types.
    address = values.values[place].contents.data
    memory = (ctypes.c_ubyte * (math.prod(like.shape) * like.dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, like.dtype).reshape(like.shape)
