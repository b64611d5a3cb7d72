"""XLA's interface as its header has it, and what is made of frames that are not as it is known here."""

from __future__ import annotations

import ctypes
import importlib.util
import re
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
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import _core

ROOT = Path(__file__).parents[2]
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


NAMES = {
    "PRED": "bool",
    **{
        f"{letter}{bits}": f"{kind}{bits}"
        for letter, kind in (("S", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "C64": "complex64",
    "C128": "complex128",
}
"""XLA's element types that are in memory as NumPy's are."""


STRUCTURES = {
    "Extension": "Extension_Base",
    "Asking": "Metadata_Extension",
    "Version": "Api_Version",
    "Metadata": "Metadata",
    "Failing": "Error_Create_Args",
    "Interface": "Api",
    "Buffer": "Buffer",
    "Values": "Args",
    "Scalar": "Scalar",
    "Attributes": "Attrs",
    "Frame": "CallFrame",
}
"""XLA's names of ours."""


@pytest.fixture(scope="module")
def header() -> str:
    found = importlib.util.find_spec("jaxlib")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "include", "xla", "ffi", "api", "c_api.h")
        if path.exists():
            return path.read_text()
    pytest.skip("there is no jaxlib that comes with xla/ffi/api/c_api.h")


@pytest.fixture(scope="module")
def rust() -> str:
    return (ROOT / "crates" / "penstock-python" / "src" / "xla" / "structures.rs").read_text()


def test_xlas_numbers_are_those_of_its_header(header: str, rust: str) -> None:
    registry = pytest.importorskip("penstock.jax.registry")
    said = {name: int(value) for name, value in re.findall(r"XLA_FFI_(\w+) = (\d+),", header)}
    version = {name: int(value) for name, value in re.findall(r"#define XLA_FFI_API_(M\w+) (\d+)", header)}
    ours = {str(dtype): number for dtype, number in registry._NUMBERS.items()}
    assert ours == {name: said[f"DataType_{theirs}"] for theirs, name in NAMES.items()}
    assert (said["DataType_TOKEN"], ()) == registry._TOKEN
    constants = {name: int(value) for name, value in re.findall(r"^const (\w+): c_int = (\d+);", rust, re.M)}
    # A later minor version only adds to the interface.
    assert constants.pop("MINOR") <= version["MINOR"]
    assert constants == {
        "MAJOR": version["MAJOR"],
        "METADATA": said["Extension_Metadata"],
        "EXECUTE": said["ExecutionStage_EXECUTE"],
        "BUFFER": said["ArgType_BUFFER"],
        "SCALAR": said["AttrType_SCALAR"],
        "U64": said["DataType_U64"],
        "INTERNAL": said["Error_Code_INTERNAL"],
    }
    widths = {
        int(number): int(width)
        for numbers, width in re.findall(r"^        ([\d| ]+) => Some\((\d+)\),", rust, re.M)
        for number in numbers.split("|")
    }
    assert widths == {said["DataType_TOKEN"]: 0} | {
        number: dtype.itemsize for dtype, number in registry._NUMBERS.items()
    }


def test_xlas_structures_are_those_of_its_header(header: str, rust: str) -> None:
    """What is read of them lies where XLA has it; a later version may add more behind that."""
    theirs = {
        name: [
            "*" if "*" in field or "STRUCT_FIELD" in field else field.split()[-2].removeprefix("XLA_FFI_")
            for field in re.sub(r"//.*", "", body).split(";")
            if field.strip()
        ]
        for name, body in re.findall(r"struct XLA_FFI_(\w+) \{(.*?)\n\}", header, re.DOTALL)
    }
    ours = {
        name: ["*" if "*" in kind or "Option" in kind else kind for kind in re.findall(r"\w+: (.*),", body)]
        for name, body in re.findall(
            r"^#\[repr\(C\)\]\n(?:pub\(super\) )?struct (\w+) \{(.*?)^\}", rust, re.DOTALL | re.MULTILINE
        )
    }
    assert set(ours) - {"Start"} == set(STRUCTURES)
    for name, their_name in STRUCTURES.items():
        found, _ = members(name, ours)
        assert found == members(their_name, theirs)[0][: len(found)], name
    for one in (Version, Metadata, Asking, Failing, Interface, Values, Attributes, Scalar, Frame):
        assert ctypes.sizeof(one) == members(one.__name__, ours)[1], one


LONG = ("*", "size_t", "usize", "int64_t", "i64")


def members(name: str, structures: dict[str, list[str]]) -> tuple[list[tuple[int, int]], int]:
    """Where each plain member begins, with its bytes, those of structures inside too; and all bytes."""
    found: list[tuple[int, int]] = []
    end = 0
    for kind in structures[name]:
        if kind in structures:
            inside, size = members(kind, structures)
            # Each begins with a long one.
            start = -(-end // 8) * 8
        else:
            # Other than long ones there are only enumerations and such, of 4 bytes.
            size = 8 if kind in LONG else 4
            inside, start = [(0, size)], -(-end // size) * size
        found += [(start + at, bytes_) for at, bytes_ in inside]
        end = start + size
    return found, -(-end // 8) * 8


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
