"""
Parameters on a GPU: lanes and mirrors are page-locked, so that the copy engine moves gradients and parameters
straight between the device and the memory that the servers read and write.

A gradient is copied on a side stream behind an event, while backward goes on; a thread waits for the event
and then announces the lane. Page-locking is undone when the transfer goes away.
"""

from __future__ import annotations

from concurrent.futures import Future

import torch

from ...tensor import Tensor
from ..pinned import PinnedMemory, side_stream


class CudaTransfer:
    """For parameters in the memory of a CUDA device."""

    def __init__(self, parameter: torch.Tensor, tensor: Tensor) -> None:
        self._tensor = tensor
        self._device = parameter.device
        self._lane = PinnedMemory(tensor._core.lane(), tensor.shape, parameter.dtype)
        self._mirror = PinnedMemory(tensor._core.mirror(), tensor.shape, parameter.dtype)
        self._sent: Future[int] | None = None
        self._received = torch.cuda.Event()
        self._carry: torch.Tensor | None = None

    def send(self, gradient: torch.Tensor, *, more: bool = False) -> None:
        """Starts the copy into the lane; the lane is announced when the copy engine is through."""
        if self._carry is not None:
            gradient, self._carry = gradient + self._carry, None
        if more:
            # The lane is written once an iteration, by the copy engine: what is to be added
            # stays on the device.
            self._carry = gradient.clone()
            return
        side = side_stream(self._device)
        # The gradient is ready when the stream that made it says so.
        side.wait_stream(torch.cuda.current_stream(self._device))
        copied = torch.cuda.Event()
        with torch.cuda.stream(side):
            # The lane is free: the pull that ended the last iteration saw its contribution folded.
            self._lane.tensor.copy_(gradient, non_blocking=True)
            copied.record(side)
        # The allocator must not hand out the gradient's memory again before the side stream has read it.
        gradient.record_stream(side)
        self._sent = self._tensor._job._submit_push(self._announce, copied)

    def _announce(self, copied: torch.cuda.Event) -> int:
        copied.synchronize()
        return self._tensor.push()

    def settle(self) -> None:
        """Waits for the copy, and for the announcement; raises what it raised."""
        if self._sent is not None:
            self._sent.result()
            self._sent = None

    def receive(self, into: torch.Tensor) -> None:
        """Fills the mirror, then starts its copy to the device, in the order of the current stream."""
        # The mirror may still be read by the copy that the last `receive` started.
        self._received.synchronize()
        self._tensor._core.pull_mirror(None, None)
        into.copy_(self._mirror.tensor, non_blocking=True)
        self._received.record(torch.cuda.current_stream(self._device))
