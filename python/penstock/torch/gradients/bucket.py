"""
Buckets: gradients of many parameters as one tensor of the job, in the order in which backward makes them.

A sparse gradient goes as the dense one that it means, and its average is dense: every worker has others of
its rows.

A gradient is copied once into the lane, when all of its bucket are there, and the average once from the
servers' memory into `p.grad`. `p.grad` stays the array that autograd made: a script may keep it, and nothing
writes to it after the pass.

Tried and left: `p.grad` as a view of the lane (`gradient_as_bucket_view`). Autograd hands over an array
that it has made, but adds to one that is there, which must be zeroed before; and the average must be copied
all the same, to where the script may write. A pass with these copies took 26.0 and 26.6 ms of processor
time, with views 26.1 and 27.0 (ten layers of 1024 x 1024, 19.5 ms without an exchange); with 452 tensors of
up to 256 elements 7.8 and 8.3 against 8.1 and 8.7.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from ...exceptions import DtypeError, OptionError, PenstockError, ShapeError
from ...job import Job
from ...optim import Replace
from ..layouts import refusal
from .memory import CudaMemory, HostMemory, Memory

ALIGNMENT_BYTES = 64
"""Each gradient begins at a cache line of its own: copies of neighbours share none."""


class Member:
    """A parameter that is averaged: not held, as what holds it here hangs on its own hooks."""

    __slots__ = ("bucket", "device", "dtype", "held", "name", "place", "shape")

    def __init__(self, parameter: torch.Tensor, name: str, place: int) -> None:
        self.held = weakref.ref(parameter)
        self.name = name
        self.place = place
        """Its number among the model's."""
        self.bucket: Bucket | None = None
        """None while it has never had a gradient anywhere."""
        self.dtype, self.device, self.shape = parameter.dtype, parameter.device, parameter.shape

    @property
    def parameter(self) -> torch.Tensor | None:
        """None when the script has dropped it."""
        return self.held()

    @property
    def gradient(self) -> torch.Tensor | None:
        parameter = self.held()
        return None if parameter is None else parameter.grad

    @property
    def elements(self) -> int:
        return self.shape.numel()

    def refusal(self, gradient: torch.Tensor) -> PenstockError | None:
        """Why its bucket does not take the gradient: for its layout, or the model was converted or moved."""
        if (refused := refusal(gradient, self.name)) is not None:
            return refused
        hint = "convert or move the model, as by `model.double()` or `model.to(...)`, before `distribute`"
        if gradient.dtype is not self.dtype:
            was, now = _word(self.dtype), _word(gradient.dtype)
            parameter = self.parameter
            if parameter is not None and parameter.dtype is self.dtype:
                return DtypeError(
                    f"the gradient of `{self.name}` is {now}, expected {was} as the parameter is",
                    "leave its grad_dtype at the parameter's own type",
                )
            return DtypeError(f"parameter `{self.name}` was distributed as {was} and is {now} now", hint)
        if gradient.device != self.device:
            return OptionError(
                f"parameter `{self.name}` was distributed on {self.device} and is on {gradient.device} now",
                hint,
            )
        if gradient.shape == self.shape:
            return None
        was, now = str(tuple(self.shape)), str(tuple(gradient.shape))
        return ShapeError(
            f"parameter `{self.name}` was distributed with shape {was}, and has {now} now", hint
        )


class Bucket:
    """Some parameters of one dtype on one device, as one tensor of the job."""

    def __init__(
        self,
        job: Job,
        name: str,
        members: Sequence[Member],
        declaration: dict[str, Any],
        timeout: float | None,
        patience: float,
    ) -> None:
        self.members = list(members)
        self.missing = len(members)
        """How many of its gradients are not complete in this pass."""
        self.has_left = False
        first = members[0]
        align = max(1, ALIGNMENT_BYTES // first.dtype.itemsize)
        offsets, elements = [], 0
        for member in members:
            offsets.append(elements)
            elements += math.ceil(member.elements / align) * align
        if len(members) == 1:
            elements = first.elements
        self.tensor = job.tensor(
            name,
            shape=elements,
            dtype=first.dtype,
            optimizer=Replace(),
            consistency="bsp",
            timeout=timeout,
            **declaration,
        )
        make: type[HostMemory] | type[CudaMemory] = HostMemory if first.device.type == "cpu" else CudaMemory
        self._memory: Memory = make(self.tensor, first.dtype, first.device, patience)
        self._lanes = [
            _part(self._memory.lane, at, member) for member, at in zip(members, offsets, strict=True)
        ]
        self._values = [
            _part(self._memory.value, at, member) for member, at in zip(members, offsets, strict=True)
        ]
        for member in members:
            member.bucket = self
        # Looked at in each pass: a list of what is needed is faster than the members.
        self._held = [member.held for member in members]
        self._shapes = [member.shape for member in members]
        self._dtype, self._device = first.dtype, first.device

    def begin(self) -> None:
        """Nothing has come in the pass that begins next."""
        self.has_left = False
        self.missing = len(self.members)

    def send(self) -> None:
        """
        Contributes the gradients as they are now; zeros where there is none.

        Raises DtypeError, OptionError or ShapeError if one is not what the bucket was made for, and as
        `Tensor.push`.
        """
        gradients = gradients_of(self._held)
        present = [gradient for gradient in gradients if gradient is not None]
        self._check(gradients, present)
        lanes = self._lanes
        self._memory.await_lane()
        if len(present) < len(lanes):
            for lane, gradient in zip(lanes, gradients, strict=True):
                if gradient is None:
                    lane.zero_()
            lanes = [lane for lane, gradient in zip(lanes, gradients, strict=True) if gradient is not None]
        present = [one if one.layout is torch.strided else one.to_dense() for one in present]
        self.has_left = True
        try:
            self._memory.send(lanes, present)
        except PenstockError:
            # Refused: nothing of it has left.
            self.has_left = False
            raise

    def _check(self, gradients: list[torch.Tensor | None], present: list[torch.Tensor]) -> None:
        dtype, strided = self._dtype, torch.strided
        if (
            all(gradient.dtype is dtype and gradient.layout is strided for gradient in present)
            and [gradient.shape for gradient in present]
            == [
                shape for shape, gradient in zip(self._shapes, gradients, strict=True) if gradient is not None
            ]
            and (not present or present[0].device == self._device)
        ):
            return
        for member, gradient in zip(self.members, gradients, strict=True):
            if gradient is not None and (refusal := member.refusal(gradient)) is not None:
                raise refusal

    def take(self) -> None:
        """Waits for the average, and puts it where there is a gradient."""
        gradients = gradients_of(self._held)
        present = [gradient for gradient in gradients if gradient is not None]
        values = self._values
        if len(present) < len(values):
            values = [value for value, one in zip(values, gradients, strict=True) if one is not None]
        if any(gradient.requires_grad for gradient in present):
            # Of `backward(create_graph=True)`: what they hold is part of the graph.
            warnings.warn(
                "backward(create_graph=True): averaged gradients have no graph of their own, so nothing "
                "can be derived from them; use torch.autograd.grad for what is to be derived again",
                stacklevel=2,
            )
            for parameter in (member.parameter for member in self.members):
                if parameter is not None and parameter.grad is not None and parameter.grad.requires_grad:
                    parameter.grad = torch.empty_like(parameter, requires_grad=False)
            present = [gradient for gradient in gradients_of(self._held) if gradient is not None]
        dense: list[tuple[torch.Tensor, torch.Tensor]] = []
        if any(gradient.layout is not torch.strided for gradient in present):
            # Others have gradients of other rows: the average is dense. Until it is there each keeps its own.
            held = [one() for one in self._held]
            parameters = [one for one in held if one is not None and one.grad is not None]
            for place, parameter in enumerate(parameters):
                if present[place].layout is not torch.strided:
                    present[place] = torch.empty_like(parameter, requires_grad=False)
                    dense.append((parameter, present[place]))
        self._memory.take(values, present)
        for parameter, gradient in dense:
            parameter.grad = gradient

    def give(self, member: Member) -> None:
        """Gives its average to a parameter that has no gradient here but has one elsewhere."""
        parameter = member.parameter
        if parameter is None:
            return
        gradient = torch.empty_like(parameter, requires_grad=False)
        self._memory.take([self._values[self.members.index(member)]], [gradient])
        parameter.grad = gradient


def gradients_of(held: Sequence[weakref.ref[torch.Tensor]]) -> list[torch.Tensor | None]:
    """Of the parameters that there are, and have one."""
    return [None if (parameter := one()) is None else parameter.grad for one in held]


def buckets_of(members: Sequence[Member], bytes_each: int) -> list[list[Member]]:
    """
    Which parameters share a bucket: neighbours of one dtype on one device, up to `bytes_each`, beginning with
    the last, whose gradients come first. A parameter of that size has one of its own.
    """
    groups: dict[tuple[torch.dtype, torch.device], list[Member]] = {}
    filled: list[list[Member]] = []
    for member in reversed(members):
        nbytes = member.elements * member.dtype.itemsize
        if nbytes >= bytes_each:
            filled.append([member])
            continue
        kind = (member.dtype, member.device)
        group = groups.setdefault(kind, [])
        group.append(member)
        if sum(one.elements * one.dtype.itemsize for one in group) >= bytes_each:
            filled.append(groups.pop(kind))
    return filled + list(groups.values())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory without gaps, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _part(flat: torch.Tensor, at: int, of: Member) -> torch.Tensor:
    """The piece of `flat` from `at` on, laid out as gradients of a parameter are."""
    piece, like = flat[at : at + of.elements], of.parameter
    if like is None or not is_dense(like):
        return piece.view(of.shape)
    return piece.as_strided(like.shape, like.stride())


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
