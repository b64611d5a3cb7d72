"""
Buffers, such as batch statistics: they travel with the gradients, at the end of each pass.

"rank0": every worker continues with rank 0's (when rank 0 has left, with those of the first that is there).
DistributedDataParallel sends them before each forward pass that follows one with gradients outside `no_sync`,
so also between two of one backward pass. Here they are the same after each backward pass that reaches the
model outside `no_sync`, and what forward passes make of them from there on is each worker's own until the
next: no forward pass, which one worker may do alone, waits for others. "mean": the average over the workers;
whole numbers and flags are rank 0's. "local": they stay each worker's own.

A buffer that the model was given after `distribute`, such as a pruning mask, travels from the end of the pass
on that finds it, if every worker's has it then.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from ...arrays import Array
from ...exceptions import DtypeError, ShapeError
from ...job import Job
from ...optim import Replace
from ...tensor import Tensor
from .patience import patiently
from .roll import numbers_of

KINDS = ("rank0", "mean", "local")
_LOCAL = 'pass buffers="local" to `ps.torch.distribute`, if it need not be the same everywhere'
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Of a batch norm, by the names that all give them."""
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
    """As it was last: if the script drops the module, or takes the buffer out of it."""
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
        there = None if module is None else module._buffers.get(self.name)
        if there is not None:
            # The module may have put another in its place.
            self.held = there
        buffer = self.held
        if buffer.shape == self.shape:
            return buffer
        raise ShapeError(
            f"buffer `{self.label}` was distributed with shape {tuple(self.shape)}, and has "
            f"{tuple(buffer.shape)} now",
            _LOCAL,
        )

    def was_taken_out(self) -> bool:
        """What the script does with it then is its own."""
        module = self.module()
        return module is not None and module._buffers.get(self.name) is None


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
        self._job, self._name, self._model = job, name, weakref.ref(model)
        self._rank = job.rank
        self._giver = 0
        self._mean = kind == "mean"
        self._travel = kind != "local" and job.size > 1
        self._timeout = timeout
        self._patience = patience
        self._places: Any = WeakIdKeyDictionary()
        """Which names of which modules travel, by the module."""
        self._grown = False
        """Whether there may be others."""
        self.new: list[_Buffer] = []
        """What this pass found."""
        self._groups: list[_Group] = []
        self._late: list[_Group] = []
        """Those of the new ones."""
        if self._travel:
            self._declare(self._found(), as_first=True)

    def _declare(self, buffers: Sequence[_Buffer], *, as_first: bool) -> list[_Group]:
        """
        Has them travel. Raises DtypeError if one has no mean, and as `Job.tensor`.
        """
        groups: dict[tuple[bool, torch.dtype | None], _Group] = {}
        for one in buffers:
            # Of a complex one, of its real and imaginary parts.
            real = one.dtype.to_real() if one.dtype.is_complex else one.dtype
            mean = self._mean and real.is_floating_point
            if mean and real not in _FLOATS:
                kind_of_number = str(one.dtype).removeprefix("torch.")
                raise DtypeError(
                    f"buffer `{one.label}` is {kind_of_number}, of which there is no mean",
                    'pass buffers="rank0" or "local" to `ps.torch.distribute`',
                )
            dtype = real if mean or one.dtype in _FLOATS else None
            groups.setdefault((mean, dtype), _Group(mean, dtype)).of.append(one)
        for group in groups.values():
            name = f"{self._name}{len(self._groups)}"
            if not as_first:
                # Another model that uses this one's memory may be given others.
                name += f" of {group.elements} {'mean' if group.mean else 'given'} {group.dtype}"
            group.tensor = self._job.tensor(
                name,
                shape=group.elements,
                dtype=str(group.dtype or torch.float32).removeprefix("torch."),
                optimizer=Replace(),
                consistency="bsp",
                reduce="mean" if group.mean else "sum",
                timeout=self._timeout,
            )
            self._groups.append(group)
        for one in buffers:
            self._places.setdefault(one.module(), set()).add(one.name)
        return list(groups.values())

    def _found(self) -> list[_Buffer]:
        """The model's that do not travel yet, each once."""
        found: list[_Buffer] = []
        model = self._model()
        places = list(_places_of(model)) if model is not None else []
        seen = {id(buffer) for _, module, name, buffer in places if name in self._places.get(module, ())}
        for prefix, module, name, buffer in places:
            if id(buffer) in seen or name in self._places.get(module, ()):
                continue
            seen.add(id(buffer))
            label = f"{prefix}.{name}" if prefix else name
            found.append(_Buffer(label, weakref.ref(module), name, buffer, buffer.dtype, buffer.shape))
        return found

    def may_be_given(self, module: torch.nn.Module | None = None, name: str = "") -> None:
        """The model may have buffers that do not travel: this one, if it is said, or any."""
        if module is None or name not in self._places.get(module, ()):
            self._grown = self._travel

    def look(self) -> tuple[int, int]:
        """Whether there are new ones: what they are known by, or zeros."""
        if not self._grown:
            self.new = []
            return 0, 0
        self.new = self._found()
        self._grown = bool(self.new)
        if not self.new:
            return 0, 0
        told = [(one.label, str(one.dtype), tuple(one.shape)) for one in self.new]
        return numbers_of(repr(told).encode())

    def send_new(self) -> None:
        """All workers have found the same new ones: from now on they travel."""
        self._late = self._declare(self.new, as_first=False)
        self.new, self._grown = [], False
        self._send(self._late)

    def take_new(self) -> None:
        """Takes them in."""
        for group in self._late:
            self._take(group, given=True)
        self._late = []

    def send(self) -> None:
        """Contributes what all are to have: one worker alone, or everyone to a mean."""
        self._send(self._groups)

    def _send(self, groups: Sequence[_Group]) -> None:
        for group in groups:
            if group.mean or self._rank == self._giver:
                group.send()

    def take(self, present: Sequence[int]) -> None:
        """Takes in what all have now. `present`: the ranks that took part in this pass."""
        given, self._giver = self._giver in present, min(present)
        for group in self._groups:
            self._take(group, given)

    def _take(self, group: _Group, given: bool) -> None:
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
    if one.was_taken_out():
        return
    buffer, module = one.now(), one.module()
    if one.name in _STATISTICS and module is not None and module.training:
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


def _places_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Where the model has buffers: the module's prefix, the module, the buffer's name in it, the buffer."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel():
                yield prefix, module, name, buffer
