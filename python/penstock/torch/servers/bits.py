"""
Tensors compared bit for bit: a NaN equals itself, and 0 does not equal -0. On the CPU both are read once, at
the speed of memory.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

import torch

from ... import _core
from ...arrays import as_array
from ...first import checksum
from ...tensor import _as_buffer

_memcmp: Any = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors on one device have the same shape, element type and bits."""
    if one.dtype is not other.dtype or one.shape != other.shape or one.layout is not other.layout:
        return False
    if one.is_contiguous() and other.is_contiguous() and one.device.type == "cpu":
        return not _memcmp(one.data_ptr(), other.data_ptr(), one.nbytes)
    integers = INTEGERS[one.element_size()]
    return torch.equal(one.detach().view(integers), other.detach().view(integers))


def sum_of(value: torch.Tensor) -> int:
    """A checksum of its bits, in the usual order of elements, wherever it is."""
    return checksum([_as_buffer(as_array(value.detach().contiguous()))])


def converted(one: torch.Tensor, other: torch.Tensor) -> bool:
    """
    Whether `one` is what becomes of `other` by conversions of its element type, such as by `model.half()`, or
    by that and `model.float()` after it.
    """
    ways = [dtype for dtype in _FLOATS if dtype is not other.dtype]
    return any(same_bits(one, other.detach().to(way).to(one.dtype)) for way in (other.dtype, *ways))


def over(memory: _core.Memory, like: torch.Tensor) -> torch.Tensor:
    """The core's memory as a tensor of that shape and element type, in the usual order of elements."""
    with warnings.catch_warnings():
        # The value is mapped read-only: it is only ever read.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.frombuffer(memoryview(memory), dtype=like.dtype, count=like.numel()).reshape(like.shape)
