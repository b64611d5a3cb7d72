"""
Parameters on a GPU: lanes and mirrors are page-locked, so that the copy engine moves gradients and parameters
straight between the device and the memory that the servers read and write.

A gradient is copied on a side stream behind an event, while backward goes on; a thread waits for the event
and then announces the lane. Page-locking is undone when the transfer goes away.

With `check`, the device holds a copy of each gradient and of each parameter: comparing there costs less than
reading the host's memory from there.
"""

from __future__ import annotations

from concurrent.futures import Future

import torch

from ...tensor import Tensor
from ..pinned import PinnedMemory, side_stream
from .bits import converted, same_bits
from .transfer import Seen


class CudaTransfer:
    """For parameters in the memory of a CUDA device."""

    # On the device, where no filter comes.
    keeps_sent = True

    def __init__(
        self, parameter: torch.Tensor, tensor: Tensor, check: bool, mean: Tensor | None = None
    ) -> None:
        self._tensor = tensor
        self._sends_to = tensor if mean is None else mean
        self._check = check
        self._device = parameter.device
        # Lent for good: the device may still be copying there when a step has broken off.
        self._lane = PinnedMemory(self._sends_to._core.lane(), tensor.shape, parameter.dtype)
        self._mirror = PinnedMemory(tensor._core.mirror(), tensor.shape, parameter.dtype)
        self._sent: Future[int] | None = None
        self._taken = torch.cuda.Event()
        self._held: torch.Tensor | None = None
        self._received: torch.Tensor | None = None
        self._torn: int | None = None

    def hold(self, gradient: torch.Tensor) -> None:
        """Copies it on the device."""
        if self._held is None:
            self._held = torch.empty_like(gradient, requires_grad=False)
        # What the copy engine read of it last has been announced: `settle` saw to that.
        self._held.copy_(gradient)

    def send(self, gradient: torch.Tensor, *, held: bool = False) -> None:
        """Starts the copy into the lane; the lane is announced when the copy engine is through."""
        if gradient.layout is not torch.strided:
            # What it names comes to the host first.
            self._sends_to.push(gradient)
            return
        if self._check and not held:
            self.hold(gradient)
        if self._check and self._held is not None:
            # What the script does to its own gradient meanwhile cannot mix with what leaves.
            gradient = self._held
        side = side_stream(self._device)
        # The gradient is ready when the stream that made it says so.
        side.wait_stream(torch.cuda.current_stream(self._device))
        copied = torch.cuda.Event()
        # The lane is free: the pull that ended the last iteration saw its contribution folded. It may hold
        # what was published since.
        self._sends_to._core.lane_until_push()
        with torch.cuda.stream(side):
            self._lane.tensor.copy_(gradient, non_blocking=True)
            copied.record(side)
        # The allocator must not hand out the gradient's memory again before the side stream has read it.
        gradient.record_stream(side)
        self._sent = self._tensor._job._submit_push(self._announce, copied)

    def _announce(self, copied: torch.cuda.Event) -> int:
        copied.synchronize()
        return self._sends_to.push()

    def holds(self, gradient: torch.Tensor) -> bool:
        """Compares it with the copy on the device, and waits for the result."""
        return self._held is not None and same_bits(gradient, self._held)

    def settle(self) -> None:
        """Waits for the copy, and for the announcement; raises what it raised."""
        if self._sent is not None:
            self._sent.result()
            self._sent = None

    def receive(
        self, into: torch.Tensor, *, moves: bool, seen: Seen | None = None, exact: bool = False
    ) -> None:
        """Fills the mirror, then starts its copy to the device, in the order of the current stream."""
        del moves  # what is compared is on the device, and stands still
        self._torn = into._version
        if exact:
            # The mirror holds what others read: this one is seldom, and comes by memory that is not locked.
            came = torch.empty(into.shape, dtype=into.dtype, device="cpu")
            self._tensor.pull(out=came, exact=True)
        else:
            # The mirror may still be read by the copy that the last `receive` started.
            self._taken.synchronize()
            self._tensor._core.pull_mirror(None, None)
            came = self._mirror.tensor
        if seen is not None:
            seen.comes(came)
        into.copy_(came, non_blocking=not exact)
        self._torn = into._version
        if seen is not None:
            seen.came()
        self._taken.record(torch.cuda.current_stream(self._device))
        if self._check:
            if self._received is None:
                self._received = torch.empty_like(into, requires_grad=False)
            self._received.copy_(into)
        self._torn = None

    def received(self, value: torch.Tensor) -> bool:
        """Compares it with the copy on the device, and waits for the result."""
        if self._torn is not None:
            return value._version == self._torn
        return self._received is None or same_bits(value, self._received)

    def converted(self, value: torch.Tensor) -> bool:
        """Compares it with what the copy is in other types."""
        return self._received is None or converted(value, self._received)
