"""
Arrays in and out: whatever holds numbers becomes a C-contiguous NumPy array over the same memory, or an
error.

NumPy arrays, torch and JAX arrays, anything with the buffer protocol, DLPack or `__array__`, and plain lists
come in. Only plain Python numbers are converted; an array of another element type is refused, because a
silent cast loses bits. torch is never imported here: its tensors can only come from a process that has loaded
it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from .exceptions import DtypeError, PenstockError, ShapeError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of any shape and element type."""
ArrayLike: TypeAlias = Any
"""
A NumPy array, or anything that supports the buffer protocol, DLPack or `__array__`, or (nested) lists of
numbers.
"""
DtypeLike: TypeAlias = Any
"""The name of an element type, or an object of NumPy, ml_dtypes, torch or JAX for it."""

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Element types of tensors, by the names that the core knows. Half types are summed in float32."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIASES = {"bf16": "bfloat16"}
_EXPECTED = "float32, float64, float16 or bfloat16"


def dtype_name(dtype: DtypeLike) -> str:
    """
    The core's name for an element type.

    Raises
    ------
    DtypeError
        It is not one of the four that tensors may have.

    Examples
    --------
    >>> dtype_name("f4"), dtype_name(np.float64)
    ('float32', 'float64')
    """
    if isinstance(dtype, str):
        name = _ALIASES.get(dtype, dtype)
        if name in DTYPES:
            return name
    elif type(dtype).__module__.partition(".")[0] == "torch":
        name = str(dtype).removeprefix("torch.")
        if name in DTYPES:
            return name
    try:
        found = _NAMES.get(np.dtype(dtype))
    except TypeError:
        found = None
    if found is None:
        wanted = _native(dtype)
        raise DtypeError(
            f"expected dtype {_EXPECTED}, got {dtype!r}{_foreign(dtype)}",
            f"convert the array first, `x.astype({wanted!r})`: nothing is cast silently"
            if wanted
            else "convert the array first: nothing is cast silently",
        )
    return found


def _native(dtype: DtypeLike) -> str:
    """The name of this machine's element type, if `dtype` has the other byte order; else ""."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        return ""
    return "" if found.isnative else found.newbyteorder("=").str


def _foreign(dtype: DtypeLike) -> str:
    """What a message adds after an element type of the other byte order."""
    return ", which has the other byte order" if _native(dtype) else ""


def shape_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    """
    `shape` as a tuple; () is a scalar.

    Raises
    ------
    ShapeError
        A dimension is below 1 or not a whole number. A tensor without elements would have no chunk, and so no
        version.
    """
    try:
        if isinstance(shape, bool):
            raise TypeError
        dimensions = (
            (operator.index(shape),)
            if hasattr(shape, "__index__")
            else tuple(operator.index(d) for d in shape)
        )
    except TypeError:
        raise ShapeError(f"expected a shape of whole numbers, got {shape!r}") from None
    if any(dimension < 1 for dimension in dimensions):
        raise ShapeError(
            f"expected every dimension to be at least 1, got shape {dimensions}",
            "leave out tensors without elements: they have nothing to share",
        )
    return dimensions


def as_array(value: ArrayLike) -> Array:
    """
    `value` as a NumPy array, over the same memory where that is possible; not yet contiguous, of any element
    type.

    Raises
    ------
    DtypeError
        It does not hold numbers, is a masked array or has one in it, or is a torch tensor that is sparse,
        nested or on the meta device.
    """
    if isinstance(value, np.ndarray):
        refuse_mask(value)
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value, torch)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    try:
        _refuse_masks_in(value)
        array = np.asarray(value)
    except PenstockError:
        raise
    # RuntimeError is torch's, for tensors in a list, and that of a list that contains itself.
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"expected an array of numbers, got {type(value).__name__}: {error}") from None
    if array.dtype == object:
        raise DtypeError(f"expected an array of numbers, got {type(value).__name__}")
    return array


def refuse_mask(value: object) -> None:
    """Raises DtypeError for a masked array: what is under the mask would be taken for numbers."""
    if isinstance(value, np.ma.MaskedArray):
        raise DtypeError(
            "expected an array in which every element counts, got a masked array",
            "say what the masked elements are, such as `x.filled(0)`",
        )


def _refuse_masks_in(value: object) -> None:
    """The same for those in lists, of which NumPy would drop the mask."""
    if type(value) in _LISTS and not set(map(type, value)) <= _NUMBERS:  # type: ignore[call-overload]
        for one in value:  # type: ignore[attr-defined]
            refuse_mask(one)
            _refuse_masks_in(one)


def target(out: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """
    The array over `out`'s own memory, to be written to.

    Raises
    ------
    ShapeError, DtypeError
        What would be written would not reach `out`, or does not fit it.
    """
    array = out if type(out) is np.ndarray else _own_memory(out)
    if array is None:
        raise ShapeError(
            f"`{name}`: expected `out` to be a writable C-contiguous array on the host, got "
            f"{type(out).__name__}",
            "give a NumPy array (numpy.empty makes one), a torch tensor on the CPU, or anything with the "
            "buffer protocol",
        )
    if array.shape != shape:
        raise ShapeError(f"`{name}` has shape {shape}, got `out` of shape {array.shape}")
    if array.dtype != dtype:
        raise DtypeError(
            f"`{name}` has dtype {dtype.name}, got `out` of dtype {array.dtype.name}{_foreign(array.dtype)}",
            f"make it with dtype={dtype.name!r}",
        )
    flags = array.flags
    if not flags.c_contiguous or not flags.writeable:
        lacks = "is read-only" if flags.c_contiguous else f"has strides {array.strides}"
        raise ShapeError(
            f"expected `out` to be writable and C-contiguous; it {lacks}", "pass numpy.empty_like(...)"
        )
    return array


def _own_memory(out: Any) -> Array | None:
    """The array over the memory of `out` itself; None if there is none, or it may be a copy's."""
    if isinstance(out, np.ndarray):
        refuse_mask(out)
        return out
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        # What has to be copied on the way, from a device or for its layout, is elsewhere.
        array = _from_torch(out, torch)
        return array if array.__array_interface__["data"][0] == out.data_ptr() else None
    try:
        # Not through `__array__`: it cannot be told whether it returns a copy.
        return np.asarray(memoryview(out))
    except (TypeError, ValueError):
        return None


def _from_torch(tensor: Any, torch: Any) -> Array:
    """
    The memory of a torch tensor; one on another device is copied to the host, one that is not contiguous as
    well.
    """
    if tensor.is_nested:
        raise DtypeError(
            "expected a tensor of one shape, got a nested one",
            "pad it, as by `torch.nested.to_padded_tensor(x, 0.0)`",
        )
    if tensor.layout != torch.strided:
        raise DtypeError(
            f"expected a dense tensor, got layout {tensor.layout}",
            "call `to_dense()`, or build the layer with sparse=False",
        )
    if tensor.is_meta:
        raise DtypeError(
            "expected a tensor with values, got one on the meta device",
            "give it memory first, as by `model.to_empty(device=...)`, and values",
        )
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        # NumPy has no bfloat16 of its own, so torch cannot hand it over, but it can hand over the bits.
        bits: Array = tensor.view(torch.uint16).numpy()
        return bits.view(DTYPES["bfloat16"])
    array: Array = tensor.numpy()
    return array


def is_plain(value: object) -> bool:
    """
    Whether `value` is plain Python numbers, in lists or not, which have no element type of their own.

    Not a list of arrays, nor one with NumPy's numbers in it.
    """
    # Exactly these: NumPy's float64 scalar is a Python float too, but it knows its element type.
    if type(value) not in _LISTS:
        return type(value) in _NUMBERS
    inside = set(map(type, value))  # type: ignore[call-overload]
    if inside <= _LISTS:
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return inside <= _NUMBERS


_LISTS = {list, tuple}
_NUMBERS = {bool, int, float, complex}


def contribution(value: ArrayLike, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """
    `value` as a C-contiguous array of exactly this shape and element type.

    Raises
    ------
    ShapeError, DtypeError
        It has another shape or element type; plain numbers are converted, if the element type can hold them.
    """
    array = value if type(value) is np.ndarray else as_array(value)
    if array.shape != shape:
        raise ShapeError(f"`{name}` has shape {shape}, got {array.shape}")
    if array.dtype != dtype and is_plain(value):
        array = _of_numbers(array, name, dtype)
    if array.dtype != dtype:
        raise DtypeError(
            f"`{name}` has dtype {dtype.name}, got {array.dtype.name}{_foreign(array.dtype)}",
            _conversion(value, _native(array.dtype) or dtype.name),
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(shape)


def _conversion(value: object, dtype: str) -> str:
    # A list goes there in one step: on the way through float64, 2**64 - 1 beside 0 would lose bits.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        how = f"x.to(torch.{dtype})"
    else:
        how = f"numpy.array(x, {dtype!r})" if type(value) in _LISTS else f"x.astype({dtype!r})"
    return f"convert it: `{how}`"


def _of_numbers(array: Array, name: str, dtype: np.dtype[Any]) -> Array:
    """
    Plain numbers as `dtype`: rounded, where it is one of floating point, else exactly; as they came, where
    they are of a kind that `dtype` does not take.

    Raises
    ------
    DtypeError
        One is too large, or below zero where nothing is.
    """
    kinds = _TAKES.get("f" if is_float(dtype) else dtype.kind, "")
    if not array.size and kinds:
        return array.astype(dtype)  # an empty list is float64 to NumPy
    if array.dtype.kind not in kinds:
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        if dtype.kind in "iu":
            # And back. The sign as well: where it turned, the way back turns it again.
            lost = (converted.astype(array.dtype) != array) | ((converted < 0) != (array < 0))
        else:
            lost = np.isfinite(array) & ~np.isfinite(converted)
    if lost.any():
        raise DtypeError(
            f"`{name}` has dtype {dtype.name}, which cannot hold {array[lost][0]}",
            "nothing is cast silently: convert it with NumPy, or declare another dtype",
        )
    return converted


_TAKES = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc"}
"""Kinds of plain numbers that elements of a kind can hold."""


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is a real floating point type; those of ml_dtypes are not of NumPy's kind `f`."""
    if dtype.kind == "V" and dtype.names is None and dtype.type is not np.void:
        try:
            ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        except ValueError:
            return False
        return True
    return dtype.kind == "f"


def initial(
    value: ArrayLike | None, name: str, shape: int | Sequence[int] | None, dtype: DtypeLike | None
) -> tuple[Array | None, tuple[int, ...], str]:
    """
    What a declaration says: the value (None: zeros), the shape, and the core's name of the element type.

    An explicit `dtype` converts the value. Without one, plain numbers are float32, like a declaration by
    shape alone.

    Raises
    ------
    ShapeError
        Neither value nor shape, both and they differ, or a dimension is below 1.
    DtypeError
        The element type is not one that tensors may have.
    """
    if value is None:
        if shape is None:
            raise ShapeError(f"`{name}`: expected a value or a shape, got neither")
        return None, shape_of(shape), dtype_name(dtype) if dtype is not None else "float32"
    array = as_array(value)
    if dtype is not None:
        wanted = dtype_name(dtype)
    elif array.dtype.kind in "iuf" and is_plain(value):
        wanted = "float32"
        array = _of_numbers(array, name, DTYPES[wanted])
    else:
        wanted = dtype_name(array.dtype)
    if shape is not None and shape_of(shape) != array.shape:
        raise ShapeError(
            f"`{name}` is declared with shape {shape_of(shape)}, but its value has {array.shape}"
        )
    shape_of(array.shape)
    if array.dtype.kind not in "iufV" and array.dtype != DTYPES["bfloat16"]:
        raise DtypeError(f"`{name}`: expected real numbers, got dtype {array.dtype.name}")
    # `reshape`: NumPy would make a 0-d array one-dimensional.
    try:
        contiguous = np.ascontiguousarray(array, dtype=DTYPES[wanted]).reshape(array.shape)
    except (TypeError, ValueError):
        # Bytes and structures are of kind V too, like the real numbers of ml_dtypes.
        raise DtypeError(f"`{name}`: expected real numbers, got dtype {array.dtype}") from None
    return contiguous, contiguous.shape, wanted
