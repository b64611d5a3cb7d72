"""
Shared memory that a GPU's copy engine reads and writes itself: page-locked, with a side stream for copies.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch

from .. import _core
from ..exceptions import OutOfMemory

# One side stream a device, for all parameters: the copy engine does one copy at a time anyway, in order.
_streams: dict[torch.device, torch.cuda.Stream] = {}


#: cudaErrorHostMemoryAlreadyRegistered
_ALREADY_REGISTERED = 712


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which bytes move between the device and the host."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


class PinnedMemory:
    """A piece of the core's memory, page-locked, as a torch tensor on the host."""

    def __init__(self, memory: _core.Memory, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        with warnings.catch_warnings():
            # The mirror is read-only for Python: it is only ever the source of a copy.
            warnings.filterwarnings("ignore", message=".*not writable.*")
            self.tensor = torch.frombuffer(memoryview(memory), dtype=dtype).reshape(shape)
        # Portable: the registration holds for every CUDA context of the process.
        cudart: Any = torch.cuda.cudart()
        status = int(cudart.cudaHostRegister(memory.address, memory.nbytes, 1))
        if status == _ALREADY_REGISTERED:
            # A small tensor on a page with others, one of which has locked it: copies are as right without.
            return
        if status != 0:
            raise OutOfMemory(
                f"CUDA could not page-lock {memory.nbytes} bytes of shared memory (error {status})",
                "raise RLIMIT_MEMLOCK; `penstock doctor` shows it",
                needed=memory.nbytes,
                available=0,
            )
        weakref.finalize(self, _unpin, memory)


def _unpin(memory: _core.Memory) -> None:
    # At the interpreter's end the driver may be gone already; the process takes its locks with it.
    cudart: Any = torch.cuda.cudart()
    cudart.cudaHostUnregister(memory.address)
