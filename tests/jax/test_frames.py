"""What the function that XLA calls makes of frames that are not as it knows them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

import pytest

from penstock import _core

INTERFACE_BYTES = 56
FRAME_BYTES = 168


class Start(Structure):
    _fields_: ClassVar[Sequence[Any]] = (("size", c_size_t), ("extension", c_void_p))


class Version(Start):
    _fields_ = (("major", c_int), ("minor", c_int))


class Metadata(Structure):
    _fields_ = (("size", c_size_t), ("version", Version), ("traits", c_uint32))


class Asking(Structure):
    _fields_ = (("size", c_size_t), ("kind", c_int), ("next", c_void_p), ("metadata", POINTER(Metadata)))


class Failing(Start):
    _fields_ = (("message", c_char_p), ("code", c_int))


class Interface(Start):
    _fields_ = (
        ("version", Version),
        ("internal", c_void_p),
        ("create", CFUNCTYPE(c_void_p, POINTER(Failing))),
    )


class Values(Start):
    _fields_ = (("count", c_int64), ("kinds", c_void_p), ("values", c_void_p))


class Attributes(Start):
    _fields_ = (("count", c_int64), ("kinds", c_void_p), ("names", c_void_p), ("values", c_void_p))


class Scalar(Structure):
    _fields_ = (("dtype", c_int), ("value", POINTER(c_uint64)))


class Frame(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("extension", c_void_p),
        ("interface", POINTER(Interface)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", Values),
        ("results", Values),
        ("attributes", Attributes),
    )


class Xla:
    """Calls the function as XLA does, with one attribute and no buffers."""

    def __init__(self) -> None:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
        address = pointer(_core.xla_target(), b"xla._CUSTOM_CALL_TARGET")
        self._function = CFUNCTYPE(c_void_p, POINTER(Frame))(address)
        self._told: list[str] = []

        def create(failing: Any) -> int:
            assert failing.contents.size == 28
            assert failing.contents.code == 13
            self._told.append(failing.contents.message.decode())
            return 1

        version = Version(24, None, 0, 3)
        self.interface = Interface(
            INTERFACE_BYTES, None, version, None, CFUNCTYPE(c_void_p, POINTER(Failing))(create)
        )
        self._number = c_uint64(7)
        self.scalar = Scalar(9, ctypes.pointer(self._number))
        self._scalars = (POINTER(Scalar) * 1)(ctypes.pointer(self.scalar))
        self.kinds = (c_int * 1)(3)
        attributes = Attributes(
            48, None, 1, ctypes.addressof(self.kinds), None, ctypes.addressof(self._scalars)
        )
        none = Values(40, None, 0, None, None)
        self.frame = Frame(FRAME_BYTES, None, ctypes.pointer(self.interface), None, 3, none, none, attributes)

    def error(self) -> str | None:
        self._told.clear()
        found = self._function(ctypes.byref(self.frame))
        assert (found is None) == (not self._told)
        return self._told[0] if self._told else None


def test_the_structures_are_as_long_as_xla_s() -> None:
    assert ctypes.sizeof(Interface) == INTERFACE_BYTES
    assert ctypes.sizeof(Frame) == FRAME_BYTES


def test_a_frame_that_is_not_as_known_is_an_error_before_it_is_read() -> None:
    def changed(part: str, name: str, value: Any) -> str | None:
        xla = Xla()
        found: Any = xla
        for one in part.split("."):
            found = getattr(found, one)
        setattr(found, name, value)
        return xla.error()

    assert "stage 2" in str(changed("frame", "stage", 2))
    for part, size in (("attributes", 47), ("attributes", 56)):
        assert f"has {size} bytes, expected 48" in str(changed(f"frame.{part}", "size", size))
    assert "list of -1 values" in str(changed("frame.attributes", "count", -1))
    assert "at no address" in str(changed("frame.attributes", "values", None))
    assert "expected one scalar" in str(changed("frame.attributes", "count", 0))
    assert "attribute of type 8" in str(changed("scalar", "dtype", 8))
    assert "without value" in str(changed("scalar", "value", None))


@pytest.mark.parametrize("long", [0, 16])
def test_it_is_asked_for_its_version_and_says_the_one_that_it_was_written_for(long: int) -> None:
    """Not XLA's own, which may be later. A longer question is one of a later version."""
    xla = Xla()
    metadata = Metadata(36 + long, Version(24, None, 0, 9), 5)
    asking = Asking(32 + long, 1, None, ctypes.pointer(metadata))
    other = Asking(24, 77, ctypes.addressof(asking), None)
    xla.frame.extension = ctypes.addressof(other)
    xla.interface.version.minor = 9
    assert xla.error() is None
    assert (metadata.version.major, metadata.version.minor, metadata.traits) == (0, 3, 0)
    # Without an interface there are no errors: XLA finds that it was not answered.
    xla.frame.interface = None
    metadata = Metadata(35, Version(24, None, 0, 9), 5)
    asking.metadata = ctypes.pointer(metadata)
    assert xla.error() is None
    assert (metadata.version.minor, metadata.traits) == (9, 5)
