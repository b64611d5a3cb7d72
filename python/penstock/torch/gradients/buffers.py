"""
Buffers, such as batch statistics: they travel with the gradients, at the end of each pass.

"rank0", as DistributedDataParallel has it: every worker continues with rank 0's (when rank 0 has left, with
those of the first that is there). It sends them before each
forward pass; sent after each backward pass they are the same by then, and also where a model is only
evaluated, without a collective in a forward pass that one worker may do alone. "mean": the average over the
workers; whole numbers and flags are rank 0's. "local": they stay each worker's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...exceptions import DtypeError, ShapeError
from ...job import Job
from ...optim import Replace
from ...tensor import Tensor
from .patience import patiently

KINDS = ("rank0", "mean", "local")
_LOCAL = 'pass buffers="local" to `ps.torch.distribute`, if it need not be the same everywhere'
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(eq=False)
class _Group:
    """Buffers that travel as one tensor."""

    mean: bool
    dtype: torch.dtype
    """In which they travel: whole numbers and flags as float64, which holds them up to 2**53."""
    of: list[tuple[str, Callable[[], torch.Tensor], torch.Size]] = field(default_factory=list)
    tensor: Tensor | None = None

    @property
    def elements(self) -> int:
        return sum(shape.numel() for _, _, shape in self.of)


class Buffers:
    """A model's buffers."""

    def __init__(
        self,
        job: Job,
        name: str,
        model: torch.nn.Module,
        kind: str,
        timeout: float | None,
        patience: float,
    ) -> None:
        self._rank = job.rank
        self._giver = 0
        self._patience = patience
        groups: dict[tuple[bool, torch.dtype], _Group] = {}
        if kind != "local" and job.size > 1:
            for label, read, buffer in _buffers(model):
                is_float = buffer.dtype in _FLOATS
                if not is_float and (buffer.is_complex() or buffer.is_floating_point()):
                    kind_of_number = str(buffer.dtype).removeprefix("torch.")
                    raise DtypeError(f"buffer `{label}` is {kind_of_number}, which cannot be sent", _LOCAL)
                dtype = buffer.dtype if is_float else torch.float64
                mean = kind == "mean" and is_float
                group = groups.setdefault((mean, dtype), _Group(mean, dtype))
                group.of.append((label, read, buffer.shape))
        self._groups = list(groups.values())
        for number, group in enumerate(self._groups):
            group.tensor = job.tensor(
                f"{name}{number}",
                shape=group.elements,
                dtype=str(group.dtype).removeprefix("torch."),
                optimizer=Replace(),
                consistency="bsp",
                reduce="mean" if group.mean else "sum",
                timeout=timeout,
            )

    def send(self) -> None:
        """Contributes what all are to have: one worker alone, or everyone to a mean."""
        for group in self._groups:
            assert group.tensor is not None
            if group.mean or self._rank == self._giver:
                parts = [
                    _checked(label, read(), shape).to("cpu", group.dtype).reshape(-1)
                    for label, read, shape in group.of
                ]
                group.tensor.push(torch.cat(parts))

    def take(self, present: Sequence[int]) -> None:
        """Takes in what all have now. `present`: the ranks that took part in this pass."""
        given, self._giver = self._giver in present, min(present)
        for group in self._groups:
            assert group.tensor is not None
            value = patiently(group.tensor.pull, self._patience)
            if not group.mean and not (given and self._rank != self._giver):
                continue
            if group.dtype is torch.bfloat16:
                flat = torch.from_numpy(value.view(np.uint16).copy()).view(torch.bfloat16)
            else:
                flat = torch.from_numpy(value.copy())
            at = 0
            for label, read, shape in group.of:
                piece = flat[at : at + shape.numel()].reshape(shape)
                at += shape.numel()
                buffer = _checked(label, read(), shape)
                # A second backward pass through the same graph must still find what its forward pass saved.
                with torch.autograd.grad_mode._unsafe_preserve_version_counter(buffer):
                    buffer.copy_(piece)


def _buffers(model: torch.nn.Module) -> list[tuple[str, Callable[[], torch.Tensor], torch.Tensor]]:
    """Each buffer once: its name, how it is read (a module may put another in its place), and itself."""
    found: list[tuple[str, Callable[[], torch.Tensor], torch.Tensor]] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is None or id(buffer) in seen or not buffer.numel():
                continue
            seen.add(id(buffer))
            found.append((f"{prefix}.{name}" if prefix else name, _reader(module, name), buffer))
    return found


def _reader(module: torch.nn.Module, name: str) -> Callable[[], torch.Tensor]:
    def read() -> Any:
        return module._buffers[name]

    return read


def _checked(label: str, buffer: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    if buffer.shape == shape:
        return buffer
    raise ShapeError(
        f"buffer `{label}` was distributed with shape {tuple(shape)}, and has {tuple(buffer.shape)} now",
        _LOCAL,
    )
