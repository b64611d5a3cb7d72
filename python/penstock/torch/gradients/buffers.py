"""
Buffers, such as batch statistics: they travel with the gradients, at the end of each pass.

"rank0": every worker continues with rank 0's (when rank 0 has left, with those of the first that is there).
DistributedDataParallel sends them before each forward pass that follows one with gradients outside `no_sync`,
so also between two of one backward pass. Here they are the same after each backward pass that reaches the
model outside `no_sync`, and what forward passes make of them from there on is each worker's own until the
next: no forward pass, which one worker may do alone, waits for others. "mean": the average over the workers;
whole numbers and flags are rank 0's. "local": they stay each worker's own.

A buffer that the model was given after `distribute`, such as a pruning mask or a cache, is each worker's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from ...arrays import Array
from ...exceptions import DtypeError, ShapeError
from ...job import Job
from ...optim import Replace
from ...tensor import Tensor
from .patience import patiently

KINDS = ("rank0", "mean", "local")
_LOCAL = 'pass buffers="local" to `ps.torch.distribute`, if it need not be the same everywhere'
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Of a batch norm."""
_ALIGNMENT = 16
"""Bytes: the largest type's."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(eq=False)
class _Buffer:
    """One buffer, and what it was when the model was distributed."""

    label: str
    module: weakref.ref[torch.nn.Module]
    """What holds the model's buffers must not keep the model."""
    name: str
    held: torch.Tensor
    """As it was last: if the script drops the module."""
    dtype: torch.dtype
    shape: torch.Size

    @property
    def bytes(self) -> int:
        """So many that each begins where any type may."""
        return -(-self.shape.numel() * self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT

    @property
    def numbers(self) -> int:
        """A complex one is two."""
        return self.shape.numel() * (2 if self.dtype.is_complex else 1)

    def now(self) -> torch.Tensor:
        module = self.module()
        now = module._buffers.get(self.name) if module is not None else None
        if now is not None:
            # Another may stand in its place. One that was taken out is nobody's: it travels as it was.
            self.held = now
        buffer = self.held
        if buffer.shape == self.shape:
            return buffer
        raise ShapeError(
            f"buffer `{self.label}` was distributed with shape {tuple(self.shape)}, and has "
            f"{tuple(buffer.shape)} now",
            _LOCAL,
        )


@dataclass(eq=False)
class _Group:
    """Buffers that travel as one tensor."""

    mean: bool
    dtype: torch.dtype | None
    """None: of those that have no mean, whose bytes travel two by two, each pair as a float32."""
    of: list[_Buffer] = field(default_factory=list)
    tensor: Tensor | None = None

    @property
    def elements(self) -> int:
        if self.dtype is None:
            return sum(one.bytes for one in self.of) // 2
        return sum(one.numbers for one in self.of)

    def send(self) -> None:
        """Contributes them as they are."""
        assert self.tensor is not None
        if self.dtype is None:
            lane, at = self.tensor.lane(), 0
            for one in self.of:
                raw = _plain(one).contiguous().reshape(-1).view(torch.uint8).numpy()
                end = at + one.bytes // 2
                lane[at:end] = np.pad(raw, (0, one.bytes - raw.size)).view(np.uint16)
                at = end
            self.tensor.push()
        else:
            parts = [
                (torch.view_as_real(_plain(one)) if one.dtype.is_complex else _plain(one)).reshape(-1)
                for one in self.of
            ]
            self.tensor.push(torch.cat(parts))

    def take(self, value: Array) -> None:
        """Makes them what was sent."""
        if self.dtype is None:
            flat = torch.from_numpy(value.astype(np.uint16).view(np.uint8))
        elif self.dtype is torch.bfloat16:
            flat = torch.from_numpy(value.view(np.uint16).copy()).view(torch.bfloat16)
        else:
            flat = torch.from_numpy(value.copy())
        at = 0
        for one in self.of:
            if self.dtype is None:
                piece = flat[at : at + one.shape.numel() * one.dtype.itemsize].view(one.dtype)
                at += one.bytes
            else:
                piece = flat[at : at + one.numbers]
                at += one.numbers
                if one.dtype.is_complex:
                    piece = torch.view_as_complex(piece.reshape(-1, 2))
            _overwrite(one, piece.reshape(one.shape))


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
        groups: dict[tuple[bool, torch.dtype | None], _Group] = {}
        for one in _buffers(model) if kind != "local" and job.size > 1 else ():
            # Of a complex one, of its real and imaginary parts.
            real = one.dtype.to_real() if one.dtype.is_complex else one.dtype
            mean = kind == "mean" and real.is_floating_point
            if mean and real not in _FLOATS:
                kind_of_number = str(one.dtype).removeprefix("torch.")
                raise DtypeError(
                    f"buffer `{one.label}` is {kind_of_number}, of which there is no mean",
                    'pass buffers="rank0" or "local" to `ps.torch.distribute`',
                )
            dtype = real if mean or one.dtype in _FLOATS else None
            groups.setdefault((mean, dtype), _Group(mean, dtype)).of.append(one)
        self._groups = list(groups.values())
        for number, group in enumerate(self._groups):
            group.tensor = job.tensor(
                f"{name}{number}",
                shape=group.elements,
                dtype=str(group.dtype or torch.float32).removeprefix("torch."),
                optimizer=Replace(),
                consistency="bsp",
                reduce="mean" if group.mean else "sum",
                timeout=timeout,
            )

    def send(self) -> None:
        """Contributes what all are to have: one worker alone, or everyone to a mean."""
        for group in self._groups:
            if group.mean or self._rank == self._giver:
                group.send()

    def take(self, present: Sequence[int]) -> None:
        """Takes in what all have now. `present`: the ranks that took part in this pass."""
        given, self._giver = self._giver in present, min(present)
        for group in self._groups:
            assert group.tensor is not None
            value = patiently(group.tensor.pull, self._patience)
            if group.mean or (given and self._rank != self._giver):
                group.take(value)


def _plain(one: _Buffer) -> torch.Tensor:
    """As it is now, with the bits that it says."""
    return one.now().to("cpu", one.dtype).resolve_conj().resolve_neg()


def _overwrite(one: _Buffer, value: torch.Tensor) -> None:
    """
    Another backward pass through a graph must still find what its forward pass saved. Running statistics are
    saved, but not used in training: autograd need not know that they have changed. It does of other buffers,
    and of statistics where they are used, and refuses such a pass, unless they have not.
    """
    buffer, module = one.now(), one.module()
    if one.name in _STATISTICS and isinstance(module, _NormBase) and module.training:
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(buffer):
            buffer.copy_(value)
    elif not _same(buffer, value.to(buffer)):
        buffer.copy_(value)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all elements are equal; a NaN is to its like."""
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    bits = _BITS.get(one.dtype.itemsize)
    if bits is not None and torch.equal(one.view(bits), other.view(bits)):
        return True
    # Of the smallest types only bits can be compared everywhere.
    return one.dtype in _FLOATS and torch.equal(one, other)


def _buffers(model: torch.nn.Module) -> list[_Buffer]:
    """Each buffer once."""
    found: list[_Buffer] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is None or id(buffer) in seen or not buffer.numel():
                continue
            seen.add(id(buffer))
            label = f"{prefix}.{name}" if prefix else name
            found.append(_Buffer(label, weakref.ref(module), name, buffer, buffer.dtype, buffer.shape))
    return found
