"""
How bytes move between a parameter on the CPU and the servers: gradients are copied once into the lane,
parameters are filled in place. `cuda.py` has the same methods for parameters on a GPU.

With `check`, it is also known whether the script has changed them since:

| what | is compared with | costs, beside reading both |
|---|---|---|
| a gradient | the lane: there is what left, or a copy that leaves from there | nothing |
| a gradient that is filtered | a copy: the lane will have what is sent of it | memory, and writing it |
| a parameter, under BSP, that is sent in `step()` | the value, which stands still until then | nothing |
| any other parameter | a copy, made when it was read | memory, and writing it |
| rows of a table | them, as they were read; others, checksums | memory for them, 8 bytes a row |

A value of which something is held back, or that is broadcast out of step, changes at a flush: it is copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from ...exceptions import DtypeError, OptionError
from ...tensor import Tensor
from ..layouts import refusal
from .bits import converted, over, same_bits, sum_of


class Flushed(NamedTuple):
    """Of a parameter whose tensor a flush that has not ended has sent."""

    iteration: int | None
    """In which."""
    given: int
    """What the parameter held then, as a checksum; without checks 0."""


class Seen:
    """
    Of a publication that has not returned: what a parameter holds as long as the script has not written to
    it, as checksums.
    """

    def __init__(self, given: int) -> None:
        self.given = given
        """What the publication gave."""
        self._came: tuple[int, ...] = ()
        """What was read behind it: the last, and what was about to be."""

    def has(self, now: int) -> bool:
        """Whether the parameter may hold this without the script's doing."""
        return now == self.given or now in self._came

    def comes(self, value: torch.Tensor) -> None:
        """The parameter is about to be filled with this."""
        self._came = (*self._came, sum_of(value))

    def came(self) -> None:
        """It was."""
        self._came = self._came[-1:]


class Transfer(Protocol):
    """Moves one parameter's bytes."""

    keeps_sent: bool
    """Whether `holds` knows what `send` was given; if not, only what `hold` was."""

    def hold(self, gradient: torch.Tensor) -> None:
        """Keeps a copy of a dense gradient that has not left."""

    def send(self, gradient: torch.Tensor, *, held: bool = False) -> None:
        """
        Contributes `gradient`, which may be changed after `settle`; `held`: `holds` is true of it. A sparse
        one is not kept.
        """

    def holds(self, gradient: torch.Tensor) -> bool:
        """
        Whether this gradient is what was sent, if that is kept, or held last, bit for bit. Needs `check`.
        """

    def settle(self) -> None:
        """Returns when everything sent is in the lane and announced."""

    def receive(
        self, into: torch.Tensor, *, moves: bool, seen: Seen | None = None, exact: bool = False
    ) -> None:
        """
        Fills `into`, of the parameter's shape, with the value; it may be read on its own device at once. With
        `moves`, the servers' value may change before `received` is asked. `seen` notes what came, before
        `into` has any of it; and `into` never has a part. With `exact`, nothing is held back of it.
        """

    def received(self, value: torch.Tensor) -> bool:
        """
        Whether this is what was received last, bit for bit, as far as that is known. Needs `check`.
        """

    def converted(self, value: torch.Tensor) -> bool:
        """Whether this is what was received last, in another type, or back from one. Needs `check`."""


class HostTransfer:
    """For parameters in the host's memory."""

    def __init__(
        self,
        parameter: torch.Tensor,
        tensor: Tensor,
        check: bool,
        mean: Tensor | None = None,
        *,
        filtered: bool = False,
    ) -> None:
        self._tensor = tensor
        self._sends_to = tensor if mean is None else mean
        self._check = check
        self._lane = over(self._sends_to._core.lane_until_push(), parameter)
        self.keeps_sent = not filtered
        self._kept = torch.empty_like(self._lane) if filtered and check else None
        stands_still = tensor._stable and not tensor._core.lags
        self._model = over(tensor._core.model(), parameter) if stands_still else None
        # Where the last `receive` went: making a NumPy view costs more than the rest of the call.
        self._address = 0
        self._view: Any = None
        self._received: torch.Tensor | None = None
        # Of a parameter with a part of what came, as a `receive` has not returned: its version.
        self._torn: int | None = None

    def hold(self, gradient: torch.Tensor) -> None:
        """Copies it into the lane, when that is free; if it is to be filtered, elsewhere."""
        if self._kept is not None:
            self._kept.copy_(gradient)
            return
        self._sends_to._core.lane_until_push()
        self._lane.copy_(gradient)

    def send(self, gradient: torch.Tensor, *, held: bool = False) -> None:
        """Copies it into the lane, unless it is there; of a sparse one what it names."""
        tensor = self._sends_to
        if gradient.layout is not torch.strided:
            tensor.push(gradient)
        elif held and self._kept is None:
            tensor._core.push(None, tensor._optimizer._packed, False, None)
        elif gradient.dtype == torch.bfloat16 or not gradient.is_contiguous() or gradient.ndim == 0:
            tensor.push(gradient)
        else:
            # The shape is the parameter's, autograd sees to it, and `dense` to the type: what `push`
            # checks needs no second look.
            tensor._core.push(gradient.numpy(), tensor._optimizer._packed, False, None)

    def holds(self, gradient: torch.Tensor) -> bool:
        """Compares it with the lane, or with the copy."""
        return same_bits(gradient, self._lane if self._kept is None else self._kept)

    def settle(self) -> None:
        """`send` is done when it returns."""

    def receive(
        self, into: torch.Tensor, *, moves: bool, seen: Seen | None = None, exact: bool = False
    ) -> None:
        """Fills `into` in place, or through a copy: if it is not contiguous, or `seen` is to know first."""
        # The bytes change behind autograd's back: a backward through the old value must be noticed as usual.
        torch.autograd.graph.increment_version(into)
        self._torn = into._version
        if seen is not None or not into.is_contiguous():
            scratch = torch.empty(into.shape, dtype=into.dtype, device=into.device)
            self._tensor.pull(out=scratch, exact=exact)
            if seen is not None:
                seen.comes(scratch)
            into.copy_(scratch)
            self._torn = into._version
            if seen is not None:
                seen.came()
        else:
            if into.data_ptr() != self._address:
                self._view = self._tensor._incoming(into)
                self._address = into.data_ptr()
            self._tensor.pull(out=self._view, exact=exact)
        if self._check:
            if not moves and self._model is not None and not exact:
                self._received = self._model
            else:
                if self._received is None or self._received is self._model:
                    self._received = torch.empty_like(into, requires_grad=False)
                self._received.copy_(into)
        self._torn = None

    def received(self, value: torch.Tensor) -> bool:
        """Compares it with the servers' value, or with the copy."""
        if self._torn is not None:
            return value._version == self._torn
        return self._received is None or same_bits(value, self._received)

    def converted(self, value: torch.Tensor) -> bool:
        """Compares it with what the servers' value, or the copy, is in other types."""
        return self._received is None or converted(value, self._received)


def transfer_for(
    parameter: torch.Tensor,
    tensor: Tensor,
    check: bool,
    mean: Tensor | None = None,
    *,
    filtered: bool = False,
) -> Transfer:
    """
    The transfer for where `parameter` lives; raises OptionError for devices other than CPU and CUDA. With
    `mean`, gradients go to that tensor. `filtered`: a filter decides what is sent of them.
    """
    if parameter.device.type == "cpu":
        return HostTransfer(parameter, tensor, check, mean, filtered=filtered)
    if parameter.device.type == "cuda":
        from .cuda import CudaTransfer

        return CudaTransfer(parameter, tensor, check, mean)
    raise OptionError(
        f"expected parameters on the CPU or a CUDA device, `{tensor.name}` is on {parameter.device}",
        "move the model to the CPU before `distribute`",
    )


def sendable(gradient: torch.Tensor, name: str, dtype: torch.dtype) -> torch.Tensor:
    """
    `gradient`, detached; raises DtypeError if it is sparse in another layout than COO, or of another type
    than its parameter.
    """
    if (refused := refusal(gradient, name)) is not None:
        raise refused
    if gradient.dtype is not dtype:
        mine, its = (str(one).removeprefix("torch.") for one in (gradient.dtype, dtype))
        raise DtypeError(
            f"the gradient of `{name}` is {mine}, expected {its} as the parameter is",
            "leave its grad_dtype at the parameter's own type",
        )
    return gradient.detach()
