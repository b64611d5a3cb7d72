"""
When a parameter's gradient leaves: as soon as backward has computed the last part of it, if that moment can
be known.

`overlap="auto"` watches two iterations in which everything leaves in `step()`, and learns how often each
gradient is added to between two steps (more than once, if the script accumulates). From then on it leaves at
that addition, while backward continues with the layers below.

What has left cannot be called back, so a script that touches gradients or learning rates between backward and
`step()` (clips them, unscales them, throws them away) must not overlap. If such a touch is seen while
learning, gradients leave in `step()` from then on. If it is seen later, it is an error, never a silently
different result. An addition after the gradient has left is not lost: it is carried over into the next
iteration's contribution.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...exceptions import DtypeError, OptionError, PenstockError, ShapeError
from ...optim import Settings
from ...tensor import Tensor
from .rules import GroupRule, NoRule
from .transfer import Transfer, dense

LEARNING_STEPS = 2
"""
Iterations that `overlap="auto"` watches. The second is the first complete one: it runs from one step to the
next.
"""


@dataclass(eq=False)
class Shared:
    """A parameter, the tensor that it is, and how far its gradient has come in this iteration."""

    parameter: torch.Tensor
    name: str
    tensor: Tensor
    group: GroupRule | NoRule
    transfer: Transfer
    additions: int = 0
    """How often backward added to the gradient in this iteration."""
    expected: int | None = None
    """At which addition it leaves; None: in `step()`."""
    left: bool = False
    carry: torch.Tensor | None = None
    """What was added after it had left: part of the next iteration's contribution."""
    seen: tuple[torch.Tensor, int, Settings] | None = None
    """The gradient, its version and the settings, as they were after the last addition."""
    folds: int = 0
    """Updates that this process has applied; counted where its own optimizer steps."""
    handles: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._place = (self.parameter.dtype, self.parameter.device, self.parameter.shape)

    def check(self) -> None:
        """Raises DtypeError, OptionError or ShapeError if the parameter is no longer what the tensor is."""
        dtype, device, shape = self._place
        now = self.parameter
        if now.dtype is dtype and now.device == device and now.shape == shape:
            return
        if now.dtype is not dtype:
            error: type[PenstockError] = DtypeError
            what = f"was distributed as {_word(dtype)} and is {_word(now.dtype)} now"
        elif now.device != device:
            error, what = OptionError, f"was distributed on {device} and is on {now.device} now"
        else:
            error, what = (
                ShapeError,
                f"was distributed with shape {tuple(shape)}, and has {tuple(now.shape)} now",
            )
        raise error(
            f"parameter `{self.name}` {what}",
            "convert or move the model, as by `model.double()` or `model.to(...)`, before `distribute`",
        )

    def remember(self) -> None:
        """Notes the gradient and the settings as they are."""
        gradient = self.parameter.grad
        if gradient is not None:
            self.group.refresh()
            self.seen = (gradient, gradient._version, self.tensor._optimizer._packed)

    def touched(self) -> bool:
        """Whether the gradient or the settings changed since `remember`, other than by backward."""
        if self.seen is None:
            return False
        gradient, version, settings = self.seen
        self.group.refresh()
        same = self.parameter.grad is gradient and gradient._version == version
        return not same or self.tensor._optimizer._packed != settings


class Delivery:
    """Sends the gradients of a set of parameters, early where that is allowed."""

    def __init__(self, overlap: bool | int | str) -> None:
        number = isinstance(overlap, int) and overlap is not True and overlap >= 1
        if overlap is not False and overlap != "auto" and not number:
            raise OptionError(
                f'expected overlap "auto", False or a number of backward passes per step, got {overlap!r}'
            )
        self._learns = overlap == "auto"
        self._lessons = LEARNING_STEPS if self._learns else 0
        self._count = int(overlap) if not self._learns and overlap is not False else None
        self._all: list[Shared] = []
        self._warned = False

    def __iter__(self) -> Iterator[Shared]:
        return iter(self._all)

    def add(self, shared: Shared) -> None:
        """Takes a parameter in; its hooks stay until `forget`."""
        shared.expected = self._count
        if self._learns:
            self._lessons = max(self._lessons, LEARNING_STEPS)
        parameter = shared.parameter
        shared.handles = [
            parameter.register_hook(lambda part: self._before(shared, part)),
            parameter.register_post_accumulate_grad_hook(lambda _: self._after(shared)),
        ]
        self._all.append(shared)

    def forget(self) -> None:
        """Removes the hooks."""
        for shared in self._all:
            for handle in shared.handles:
                handle.remove()
            shared.handles = []

    def _before(self, shared: Shared, part: torch.Tensor) -> None:
        """Backward is about to add `part` to the gradient."""
        if shared.left:
            self._refuse_touch(shared)
            part = dense(part, shared.name)
            shared.carry = part.clone() if shared.carry is None else shared.carry.add_(part)
        elif shared.additions and self._learns and shared.touched():
            self._stop_overlapping()

    def _after(self, shared: Shared) -> None:
        """Backward has added to the gradient."""
        shared.additions += 1
        if shared.additions == shared.expected:
            self.send(shared)
        shared.remember()

    def send(self, shared: Shared) -> None:
        """
        Contributes the parameter's gradient, if any, with the current settings of its group.
        """
        gradient, carry = shared.parameter.grad, shared.carry
        if gradient is None and carry is None:
            return
        shared.check()
        shared.group.refresh()
        if gradient is None:
            gradient, carry = carry, None
        assert gradient is not None
        if carry is not None:
            shared.transfer.send(carry, more=True)
        shared.transfer.send(dense(gradient, shared.name))
        shared.carry = None
        shared.left = True

    def check(self) -> None:
        """Raises DtypeError, OptionError or ShapeError if a parameter is no longer what its tensor is."""
        for shared in self._all:
            shared.check()

    def finish(self) -> None:
        """Sends what has not left, in `step()`, and learns."""
        for shared in self._all:
            if shared.left:
                self._refuse_touch(shared)
            elif self._learns and shared.touched():
                self._stop_overlapping()
        late = [shared for shared in self._all if shared.left and shared.carry is not None]
        for shared in self._all:
            if not shared.left:
                self.send(shared)
        for shared in self._all:
            shared.transfer.settle()
        if late:
            self._learn_anew(late)
        elif self._learns:
            self._learn()

    def next_iteration(self) -> None:
        """Everything left, and the clock has moved."""
        for shared in self._all:
            shared.additions, shared.left, shared.seen = 0, False, None

    def refuse_loss(self) -> None:
        """Gradients are about to be thrown away: those that have left cannot be."""
        gone = next((shared for shared in self._all if shared.left), None)
        if gone is not None:
            raise _left_already(gone, "was thrown away")

    def _refuse_touch(self, shared: Shared) -> None:
        if shared.touched():
            raise _left_already(shared, "or its learning rate was changed")

    def _stop_overlapping(self) -> None:
        self._learns, self._lessons = False, 0
        for shared in self._all:
            shared.expected = None

    def _learn(self) -> None:
        if self._lessons > 0:
            self._lessons -= 1
            for shared in self._all:
                if self._lessons == 0 and shared.additions:
                    shared.expected = shared.additions

    def _learn_anew(self, late: list[Shared]) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{len(late)} gradients, the first of `{late[0].name}`, were added to after they had left; "
                f"the late part goes with the next iteration's. This step had more backward passes than the "
                f"ones before it: pass overlap=False, or their number, to `ps.torch.distribute`",
                stacklevel=4,
            )
        for shared in self._all:
            shared.expected = self._count
        self._lessons = 1 if self._learns else 0


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _left_already(shared: Shared, what: str) -> OptionError:
    return OptionError(
        f"the gradient of `{shared.name}` {what} after it had left for the servers",
        "pass overlap=False to `ps.torch.distribute`: gradients then leave in step(), as they are by then",
    )
