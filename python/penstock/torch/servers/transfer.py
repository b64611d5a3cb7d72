"""
How bytes move between a parameter on the CPU and the servers: gradients are copied once into the lane,
parameters are filled in place. `cuda.py` has the same methods for parameters on a GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ...exceptions import DtypeError, OptionError
from ...tensor import Tensor


class Transfer(Protocol):
    """Moves one parameter's bytes."""

    def send(self, gradient: torch.Tensor, *, more: bool = False) -> None:
        """
        Contributes `gradient`, which may be changed at once after `settle`. With `more`, later ones are
        added.
        """

    def settle(self) -> None:
        """Returns when everything sent is in the lane and announced."""

    def receive(self, into: torch.Tensor) -> None:
        """
        Fills `into`, of the parameter's shape, with the value; it may be read on its own device at once.
        """


class HostTransfer:
    """For parameters in the host's memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        # Where the last `receive` went: making a NumPy view costs more than the rest of the call.
        self._address = 0
        self._view: Any = None

    def send(self, gradient: torch.Tensor, *, more: bool = False) -> None:
        """Copies it into the lane."""
        tensor = self._tensor
        if gradient.dtype == torch.bfloat16 or not gradient.is_contiguous() or gradient.ndim == 0:
            tensor.push(gradient, more=more)
        else:
            # The shape and dtype are the parameter's, autograd sees to it: what `push` checks needs
            # no second look.
            tensor._core.push(gradient.numpy(), tensor._optimizer._packed, more, None)

    def settle(self) -> None:
        """`send` is done when it returns."""

    def receive(self, into: torch.Tensor) -> None:
        """Fills `into` in place, or through a copy if it is not contiguous."""
        if not into.is_contiguous():
            scratch = torch.empty(into.shape, dtype=into.dtype)
            self._tensor.pull(out=scratch)
            into.copy_(scratch)
            return
        if into.data_ptr() != self._address:
            self._view = self._tensor._incoming(into)
            self._address = into.data_ptr()
        self._tensor.pull(out=self._view)
        # The bytes changed behind autograd's back: a backward through the old value must be noticed as usual.
        torch.autograd.graph.increment_version(into)


def transfer_for(parameter: torch.Tensor, tensor: Tensor) -> Transfer:
    """The transfer for where `parameter` lives; raises OptionError for devices other than CPU and CUDA."""
    if parameter.device.type == "cpu":
        return HostTransfer(tensor)
    if parameter.device.type == "cuda":
        from .cuda import CudaTransfer

        return CudaTransfer(parameter, tensor)
    raise OptionError(
        f"expected parameters on the CPU or a CUDA device, `{tensor.name}` is on {parameter.device}",
        "move the model to the CPU before `distribute`",
    )


def dense(gradient: torch.Tensor, name: str) -> torch.Tensor:
    """`gradient`, detached; raises DtypeError if it is sparse."""
    if gradient.layout != torch.strided:
        raise DtypeError(
            f"the gradient of `{name}` has layout {gradient.layout}, expected a dense one",
            "build the layer with sparse=False",
        )
    return gradient.detach()
