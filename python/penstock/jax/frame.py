"""
What XLA hands to a function that compiled programs call: the part of its C interface (xla/ffi/api/c_api.h) that
`compiled.py` needs.

| structure | says |
|---|---|
| frame | what is asked: the interface's version, or the call itself |
| values | the buffers of arguments, or of results |
| attributes | constants of the call: of ours one, its number |
"""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

from ..arrays import Array

MAJOR, LEAST_MINOR = 0, 3
"""Versions of the interface that these structures are of; a later minor one only adds to them."""

_METADATA = 1
_INTERNAL = 13
_START = [("struct_size", c_size_t), ("extension", c_void_p)]


class _Buffer(Structure):
    _fields_ = (
        *_START,
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Values(Structure):
    _fields_ = (
        *_START,
        ("size", c_int64),
        ("types", c_void_p),
        ("values", POINTER(POINTER(_Buffer))),
    )


class _Scalar(Structure):
    _fields_ = (("dtype", c_int), ("value", POINTER(c_uint64)))


class _Attributes(Structure):
    _fields_ = (
        *_START,
        ("size", c_int64),
        ("types", c_void_p),
        ("names", c_void_p),
        ("values", POINTER(POINTER(_Scalar))),
    )


class _Version(Structure):
    _fields_ = (*_START, ("major", c_int), ("minor", c_int))


class _Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _Extension(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    )


class _Error(Structure):
    _fields_ = (*_START, ("message", c_char_p), ("code", c_int))


class _Interface(Structure):
    _fields_ = (
        *_START,
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

    def version(self) -> tuple[int, int]:
        """Of the interface that XLA has."""
        version = self.interface.contents.version
        return int(version.major), int(version.minor)

    def asks_version(self) -> bool:
        """Whether it only asks which version the function is of; answers that it is of XLA's own."""
        if not self.extension or self.extension.contents.type != _METADATA:
            return False
        metadata = self.extension.contents.metadata.contents
        metadata.version.major, metadata.version.minor = self.version()
        metadata.traits = 0
        return True

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
    address = values.values[place].contents.data
    memory = (ctypes.c_ubyte * (math.prod(like.shape) * like.dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, like.dtype).reshape(like.shape)
