"""
The memory of a bucket: the lane that its gradients leave by, and the value that is their average.

On the CPU both are shared with the servers. On a GPU they are page-locked, so that the copy engine moves
gradients straight between the device and them: on a side stream behind an event, while backward goes on; a
thread waits for the event and then announces the lane.
"""

from __future__ import annotations

import warnings
from typing import Protocol

import torch

from ... import _core
from ...tensor import Tensor
from ..pinned import PinnedMemory, side_stream
from .patience import patiently

PIPELINED_BYTES = 1 << 20
"""From here on the core copies an array piece by piece, and the servers fold one while the next is copied."""


class Memory(Protocol):
    """A bucket's lane and value."""

    lane: torch.Tensor
    value: torch.Tensor

    def await_lane(self) -> None:
        """Returns when the servers have taken what the lane held."""

    def send(self, lanes: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Copies the gradients to their pieces of the lane, and tells the servers that it is full."""

    def take(self, values: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        """Waits for the average, and copies pieces of it to the gradients."""


class HostMemory:
    """Of parameters on the CPU."""

    def __init__(self, tensor: Tensor, dtype: torch.dtype, _: torch.device, patience: float) -> None:
        self._tensor = tensor
        self._patience = patience
        self.lane = _over(tensor._core.lane_until_push(), dtype)
        self.value = _over(tensor._core.model(), dtype)
        self._whole = tensor.nbytes >= PIPELINED_BYTES and tensor._plain

    def await_lane(self) -> None:
        self._tensor._core.lane_until_push()

    def send(self, lanes: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        tensor = self._tensor
        data = None
        if self._whole and len(gradients) == 1 and lanes[0].numel() == tensor.size:
            gradient = gradients[0]
            if gradient.stride() == lanes[0].stride():
                data = gradient.detach().as_strided((tensor.size,), (1,)).numpy()
        if data is None and gradients:
            torch._foreach_copy_(lanes, gradients)
        tensor._core.push(data, tensor._optimizer._packed, False, None)

    def take(self, values: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        patiently(lambda: self._tensor._core.pull(None, None), self._patience)
        if gradients:
            torch._foreach_copy_(gradients, values)


class CudaMemory:
    """Of parameters on a GPU."""

    def __init__(self, tensor: Tensor, dtype: torch.dtype, device: torch.device, patience: float) -> None:
        self._tensor = tensor
        self._patience = patience
        self._device = device
        # Lent for good: the device may still be copying there when a pass has broken off.
        self._locked_lane = PinnedMemory(tensor._core.lane(), tensor.shape, dtype)
        self._locked_value = PinnedMemory(tensor._core.mirror(), tensor.shape, dtype)
        self.lane = self._locked_lane.tensor
        self.value = self._locked_value.tensor
        self._received = torch.cuda.Event()
        self._pulled = -1

    def await_lane(self) -> None:
        self._tensor._core.lane_until_push()

    def send(self, lanes: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        side = side_stream(self._device)
        # The gradients are ready when the stream that made them says so.
        side.wait_stream(torch.cuda.current_stream(self._device))
        copied = torch.cuda.Event()
        with torch.cuda.stream(side):
            for lane, gradient in zip(lanes, gradients, strict=True):
                lane.copy_(gradient.detach(), non_blocking=True)
                # The allocator must not hand out the gradient's memory again before this stream has read it.
                gradient.record_stream(side)
            copied.record(side)
        self._tensor._job._submit_push(self._announce, copied)

    def _announce(self, copied: torch.cuda.Event) -> int:
        copied.synchronize()
        return self._tensor.push()

    def take(self, values: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        iteration = self._tensor._job.iteration
        if iteration != self._pulled:
            # The mirror may still be read by the copies that the last `take` started.
            self._received.synchronize()
            patiently(lambda: self._tensor._core.pull_mirror(None, None), self._patience)
            self._pulled = iteration
        for gradient, value in zip(gradients, values, strict=True):
            gradient.copy_(value, non_blocking=True)
        self._received.record(torch.cuda.current_stream(self._device))


def _over(memory: _core.Memory, dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        # The value is read-only for us: it is only ever the source of a copy.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.frombuffer(memoryview(memory), dtype=dtype)
