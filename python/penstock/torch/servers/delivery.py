"""
When a parameter's gradient leaves: as soon as backward has computed the last part of it, if that moment can
be known.

`overlap="auto"` watches two iterations in which everything leaves in `step()`, and learns how often each
gradient is added to between two steps (more than once, if the script accumulates). From then on it leaves at
that addition, while backward continues with the layers below.

What has left cannot be called back, and what each worker changes in its own gradient is not a change of the
average. So what happens to a gradient between backward and `step()` is looked for, by its bits:

| what the script does there | it has left | not yet, one worker | not yet, several |
|---|---|---|---|
| changes the gradient (clips, unscales) | error | no more overlap | error |
| throws it away, or zeroes it | error | no more overlap | no more overlap |
| changes a setting, such as the learning rate | error | no more overlap | no more overlap |
| adds to it, in more backward passes than before | error | counts | counts |

A sparse gradient is known by its object and version alone: what is written through its `data` is not
seen.

`overlap=False` looks for nothing: whatever the gradient is by then leaves in `step()`.

A script that steps by hand never comes to `step()`, where parameters are compared: so they are, now and then,
in backward passes that no step follows. What is seen too rarely for an error is kept for a warning in the
end.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...exceptions import AlreadyPushed, DtypeError, OptionError, PenstockError, ShapeError
from ...optim import Settings
from ...tensor import Tensor
from ..layouts import is_any
from ..script import of_the_script
from .bits import same_bits
from .rows import RowsTransfer
from .rules import GroupRule
from .transfer import Transfer, sendable

LEARNING_STEPS = 2
"""
Iterations that `overlap="auto"` watches. The second is the first complete one: it runs from one step to the
next.
"""

LOOK_EVERY = 8
"""
Backward passes since the last step after which a parameter is looked at, and again. A script may change
parameters between passes and put them back before it steps, as SAM does, or with more values a few inner
steps: those must not be taken for a training that goes on so.
"""


@dataclass(eq=False)
class Shared:
    """A parameter, the tensor that it is, and how far its gradient has come in this iteration."""

    parameter: torch.Tensor
    name: str
    tensor: Tensor
    group: GroupRule
    transfer: Transfer
    mean: Tensor | None = None
    """What its gradients go to, if the step waits for a norm: then settings are read after that."""
    additions: int = 0
    """How often backward added to the gradient in this iteration."""
    expected: int | None = None
    """At which addition it leaves; None: in `step()`."""
    left: bool = False
    stamp: int = 0
    """The job's iteration in which it left."""
    held: bool = False
    """Whether the transfer knows the bits of the gradient after the last addition."""
    seen: tuple[torch.Tensor, int, Settings | None] | None = None
    """
    The gradient, its version and the settings, as they were after the last addition; None for settings that
    only `step()` takes over, or refuses.
    """
    computed: int = 0
    """How often a gradient was computed since the last step, `torch.autograd.grad`'s too."""
    place: tuple[int, int] | None = None
    """Where the parameter was, and its version, when that was last."""
    watched: bool = False
    """Whether all that backward has added to its gradient since the last step was seen."""
    moved: bool = False
    """Whether the script had changed it since the last step when a gradient was computed."""
    handles: list[Any] = field(default_factory=list)
    layers: list[Any] = field(default_factory=list)
    """The handles of the hooks that read rows of it before they are looked up."""
    is_whole: bool = False
    """Whether the parameter was filled with all of the servers' value when it was read last."""
    is_released: bool = False
    """Whether every reader was let see all of it then."""
    read_at: int = -1
    """The parameter's version then."""

    @property
    def reads_rows(self) -> bool:
        """Whether of the parameter only the rows are read that are looked up."""
        return isinstance(self.transfer, RowsTransfer)

    @property
    def lacks(self) -> bool:
        """Whether the parameter may lack something of the servers' value."""
        return not self.is_whole and (self.reads_rows or self.lags)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has changed the parameter since it was read, as far as torch counts."""
        return self.parameter._version == self.read_at

    def note_read(self) -> None:
        """It is what was read just now."""
        self.read_at = self.parameter._version

    def is_as_read(self, check: bool) -> bool:
        """
        Whether nobody has changed the parameter since it was read. With `check`, where all of its bits are
        known, they decide: what a script has changed and put back is unchanged.
        """
        if isinstance(self.transfer, RowsTransfer):
            same = self.transfer.unchanged()
        else:
            same = self.transfer.received(self.parameter)
        return same and (check or self.is_untouched)

    @property
    def sends_to(self) -> Tensor:
        """The tensor that its gradients are pushed to."""
        return self.tensor if self.mean is None else self.mean

    def __post_init__(self) -> None:
        self._was = (self.parameter.dtype, self.parameter.device, self.parameter.shape)
        self.lags = self.tensor._core.lags
        """Whether what is pulled may lack some of what was folded. It is known after the job too."""

    def check(self) -> None:
        """Raises DtypeError, OptionError or ShapeError if the parameter is no longer what the tensor is."""
        dtype, device, shape = self._was
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

    def look(self) -> None:
        """A gradient is computed: notes whether the parameter was changed since one was before."""
        self.computed += 1
        place = self.parameter.data_ptr(), self.parameter._version
        self.moved = self.moved or (self.place is not None and self.place != place)
        self.place = place
        # A change through `.data` is not counted. Where `backward` adds, it is looked for there.
        if not self.additions and self.computed % LOOK_EVERY == 0:
            self.moved = self.moved or self.changed()

    def changed(self) -> bool:
        """
        Whether the parameter, where it was distributed, is not what was received. A conversion of the model
        is no change: what is rounded by it was not trained.
        """
        if self.parameter.device != self._was[1] or self.transfer.received(self.parameter):
            return False
        return not self.transfer.converted(self.parameter)

    def forget(self) -> None:
        """What was noted of changes is everybody's by now."""
        self.computed, self.place, self.moved = 0, None, False

    def hold(self) -> None:
        """Has the transfer keep the gradient's bits, if it is dense."""
        gradient = self.parameter.grad
        if gradient is not None and gradient.layout is torch.strided:
            self.check()
            self.transfer.hold(sendable(gradient, self.name, self.parameter.dtype))
            self.held = True

    def remember(self, *, follows: bool) -> None:
        """
        Notes the gradient and the settings as they are. `follows`: whether the group reads them where they
        are now.
        """
        gradient = self.parameter.grad
        if gradient is not None:
            self.seen = (gradient, gradient._version, self._settings() if follows else None)

    def release(self) -> None:
        """Removes its hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def release_layers(self) -> None:
        """Its layers read what is in the parameter from now on."""
        while self.layers:
            self.layers.pop().remove()

    def gradient_changed(self) -> bool:
        """
        Whether the gradient changed since `remember`, other than by backward: its bits where they are held,
        else the object or its version.
        """
        if self.seen is None:
            return False
        gradient, version, _ = self.seen
        now = self.parameter.grad
        if now is None or not self.held:
            return now is not gradient or gradient._version != version
        return not self.transfer.holds(now)

    def settings_changed(self) -> bool:
        """Whether the settings changed since `remember`."""
        if self.seen is None or self.seen[2] is None or self.mean is not None:
            return False
        return self._settings() != self.seen[2]

    def _settings(self) -> Settings | None:
        """The settings as they are now; None where they are refused, as `step()` says."""
        return self.tensor._optimizer._packed if self.group.fits() else None


class Delivery:
    """
    Sends the gradients of a set of parameters, early where that is allowed.

    `alone`: no other worker has a part in the average. `check`: changes are looked for by bits. `follows`:
    whether the settings that a rule reads, or without one every rule, are those of its group as they are now.
    """

    def __init__(
        self,
        overlap: bool | int | str,
        *,
        alone: bool,
        check: bool,
        follows: Callable[[GroupRule | None], bool],
    ) -> None:
        number = isinstance(overlap, int) and overlap is not True and overlap >= 1
        if overlap is not False and overlap != "auto" and not number:
            raise OptionError(
                f'expected overlap "auto", False or a number of backward passes per step, got {overlap!r}'
            )
        self._learns = overlap == "auto"
        self._lessons = LEARNING_STEPS if self._learns else 0
        self._count = int(overlap) if not self._learns and overlap is not False else None
        self._looks = overlap is not False
        self._alone = alone
        self._told_of_others = False
        self._check = check
        self._follows = follows
        self._all: dict[int, Shared] = {}
        """By the number of their parameter."""
        self._forgotten = False
        self.began = False
        """Whether `step()` has sent, or may have, some of what had not left, or waits for the servers."""
        self._fits: bool | None = None
        """
        Whether all settings were valid, and read where they are, when the first gradient of this iteration
        was to leave; None: none was yet.
        """
        self.keeps_back = False
        """Whether nothing leaves before `step()`: values may be this worker's alone."""
        self.flushes = False
        """Nor then: a flush has sent something that has not ended."""
        self._apart: tuple[Shared, torch.Tensor] | None = None
        """One whose parameter the script had changed when it was looked at, and what it was then."""
        self._beside: set[int] = set()
        """Others, changed too, that were looked at since."""

    def __iter__(self) -> Iterator[Shared]:
        return iter(self._all.values())

    def add(self, shared: Shared) -> None:
        """
        Takes a parameter in, in place of what it was taken in with by a call that was interrupted. Its hooks
        stay until `forget`. Until `allow` its gradient leaves in `step()`.
        """
        if self._learns:
            self._lessons = max(self._lessons, LEARNING_STEPS)
        parameter = shared.parameter
        before, after = (lambda part: self._before(shared, part)), (lambda _: self._after(shared))
        shared.handles.append(parameter.register_hook(before))
        shared.handles.append(parameter.register_post_accumulate_grad_hook(after))
        earlier = self._all.get(id(parameter))
        # Last: the hooks do nothing until then, and those of an earlier one nothing from then on.
        self._all[id(parameter)] = shared
        if earlier is not None:
            earlier.release()
            earlier.release_layers()

    def allow(self, which: Iterable[Shared]) -> None:
        """The servers have what these start from: their gradients may leave early."""
        for shared in which:
            shared.expected = self._count
            # Its hooks stand; a gradient that is there already may be backward's.
            shared.watched = shared.parameter.grad is None

    @contextlib.contextmanager
    def aside(self, shared: Shared) -> Iterator[None]:
        """Around a load, which goes through the lane: a gradient is held there again behind it, if it was."""
        if shared.held:
            self._look_at(shared)
        held, shared.held = shared.held, False
        yield
        if held:
            shared.hold()

    def forget(self) -> None:
        """Removes the hooks. One whose registration was interrupted does nothing."""
        self._forgotten = True
        for shared in self:
            shared.release()

    @property
    def _watches(self) -> bool:
        """
        Whether changes of gradients that have not left matter: to several workers always, to one alone until
        it has learned.
        """
        return self._looks and (not self._alone or self._lessons > 0)

    def _before(self, shared: Shared, part: torch.Tensor) -> None:
        """
        A gradient was computed, `part`. Backward is about to add it, or `torch.autograd.grad` to return it.
        """
        if isinstance(shared.transfer, RowsTransfer) and not self._is_over(shared):
            shared.transfer.computed(part)
        if self._check and not self._alone and not self._is_over(shared):
            shared.look()
        if (
            shared.additions
            and not shared.left
            and not self._is_over(shared)
            and (shared.held or self._watches)
        ):
            self._look_at(shared)

    def _after(self, shared: Shared) -> None:
        """Backward has added to the gradient."""
        if self._is_over(shared):
            return
        if shared.left:
            self.refuse_cut_step()
            raise OptionError(
                f"the gradient of `{shared.name}` was added to after it had left for the servers: there "
                "were more backward passes since the last step() than before",
                "pass overlap=False to `ps.torch.distribute`, or the number of backward passes per step "
                "if that is always the same",
            )
        if isinstance(shared.transfer, RowsTransfer):
            shared.transfer.refuse_unpulled()
        shared.additions += 1
        if self._check and not self._alone and shared.additions % LOOK_EVERY == 0:
            self._look_for_steps(shared)
        if not self._looks:
            return
        shared.held = False
        stays = self.keeps_back or self.flushes
        if shared.additions == shared.expected and not stays and self._may_leave(shared):
            if self._check and not shared.transfer.keeps_sent:
                shared.hold()
            self.send(shared)
        elif self._check and self._watches:
            shared.hold()
        shared.remember(follows=self._follows(shared.group))

    def _may_leave(self, shared: Shared) -> bool:
        """
        Whether a gradient leaves in backward. If a setting is refused all leave in `step()`, which raises for
        it while they are all here to be stepped with another; if it is refused later, those that are here.
        """
        if self._fits is None:
            groups = {shared.group for shared in self}
            self._fits = self._follows(None) and all(group.fits() for group in groups)
        return self._fits and self._follows(shared.group) and shared.group.fits()

    def _look_for_steps(self, shared: Shared) -> None:
        """Raises OptionError for a parameter that changes again and again without a step of the servers."""
        shared.check()
        apart = self._apart
        if shared.transfer.received(shared.parameter):
            if apart is not None and apart[0] is shared:
                self._apart = None
            return
        shared.moved = True
        now = shared.parameter.detach()
        if apart is not None and apart[0] is shared:
            if same_bits(now, apart[1]):
                # It stands still: another may not.
                self._apart = None
                return
            raise OptionError(
                f"parameter `{shared.name}` was changed outside of step() again and again, in "
                f"{shared.additions} backward passes without a step(): each worker trains alone",
                "call step() of the optimizer that `distribute` returned; a script that steps by hand passes "
                'where="gradients", which averages gradients; where what changes is put back before step(), '
                "check=False",
            )
        # One that was looked at, and again, while the noted one was not: that is not trained any more.
        if apart is None or id(shared) in self._beside:
            self._apart = shared, now.clone()
            self._beside.clear()
        else:
            self._beside.add(id(shared))

    def changed_without_step(self, *, ever: bool) -> Shared | None:
        """
        One whose parameter was changed and is no longer what was received; unless `ever`, where gradients
        were computed with it since the last step. A last change after those is none of a training.
        """
        if not self._check or self._alone:
            return None
        return next(
            (shared for shared in self if (ever or shared.moved) and shared.changed()),
            None,
        )

    def _is_over(self, shared: Shared) -> bool:
        """
        Whether the job has ended, or never had the model: then it is an ordinary one. Or what was taken in is
        another.
        """
        is_mine = self._all.get(id(shared.parameter)) is shared
        return self._forgotten or not is_mine or shared.tensor._job._core.closed

    def send(self, shared: Shared) -> None:
        """
        Contributes the parameter's gradient, if any, with the current settings of its group.
        """
        gradient = shared.parameter.grad
        if gradient is None:
            return
        shared.check()
        shared.group.refresh()
        transfer = shared.transfer
        sends = sendable(gradient, shared.name, shared.parameter.dtype)
        try:
            transfer.send(sends, held=shared.held)
        except AlreadyPushed:
            left = f"a gradient of `{shared.name}` has left for the servers in iteration"
            raise cut_short(
                f"{left} {shared.tensor._job.iteration} already: a backward pass, a step() or a flush()"
            ) from None
        # Of a sparse one nothing is kept: it is known by its version.
        keeps = transfer.keeps_sent and sends.layout is torch.strided
        shared.left, shared.held = True, self._check and (shared.held or keeps)
        shared.stamp = shared.tensor._job.iteration

    def check(self) -> None:
        """Raises DtypeError, OptionError or ShapeError if a parameter is no longer what its tensor is."""
        for shared in self:
            shared.check()

    def finish(self) -> None:
        """Sends what has not left, in `step()`, and learns."""
        for shared in self:
            if self._is_over(shared):
                continue
            if shared.left:
                self._refuse_change(shared)
            elif shared.held or self._watches:
                self._look_at(shared)
        if self._watches and not self._alone and not self._told_of_others:
            self._look_for_others()
        # Before the first of them is sent.
        for shared in self:
            gradient = shared.parameter.grad
            if gradient is None or shared.left or self._is_over(shared):
                continue
            if isinstance(shared.transfer, RowsTransfer):
                shared.check()
                shared.transfer.prepare(sendable(gradient, shared.name, shared.parameter.dtype))
        for shared in self:
            if shared.left or shared.parameter.grad is None:
                continue
            before, self.began = self.began, True
            try:
                self.send(shared)
            except PenstockError:
                # Refused: nothing of it has left.
                self.began = before
                raise
        self.began = self.began or not all(map(self._is_over, self))
        for shared in self:
            shared.transfer.settle()
        if self._learns:
            self._learn()

    def next_iteration(self) -> None:
        """Everything left, and the clock has moved."""
        self._apart, self._fits = None, None
        for shared in self:
            shared.additions, shared.left, shared.held, shared.seen = 0, False, False, None
            shared.watched = True
            shared.forget()
        # Last: cut short before, some have left still.
        self.began = False

    def forget_changes(self) -> None:
        """What was changed without a step is everybody's by now."""
        self._apart = None
        for shared in self:
            shared.forget()

    def refuse_loss(self) -> None:
        """Gradients are about to be thrown away: those that have left cannot be."""
        self.refuse_cut_step()
        gone = self._first_gone()
        if gone is not None:
            raise _left_already(gone, "was thrown away")

    def refuse_between(self, what: str) -> None:
        """Values are about to be loaded into the servers: what has left may be part of theirs by now."""
        self.refuse_cut_step()
        gone = self._first_gone()
        if gone is not None:
            raise OptionError(
                f"{what} came between backward and step(), when the gradient of `{gone.name}` had left for "
                "the servers, whose update would be lost",
                "do it after step(), or pass overlap=False to `ps.torch.distribute`",
            )

    def refuse_cut_step(self) -> None:
        """Raises OptionError if a step has begun that did not return, in a job that goes on."""
        if self.began and not all(map(self._is_over, self)):
            raise cut_short("a step()")

    @property
    def has_sent(self) -> bool:
        """Whether gradients of a step that is to come have left."""
        return self._first_gone() is not None

    def _first_gone(self) -> Shared | None:
        return next((shared for shared in self if shared.left and not self._is_over(shared)), None)

    def _refuse_change(self, shared: Shared) -> None:
        if shared.gradient_changed():
            gone = shared.parameter.grad is None
            raise _left_already(shared, "was thrown away" if gone else "was changed")
        if shared.settings_changed():
            # One that is refused says so.
            shared.group.refresh()
            raise _left_already(shared, "got another learning rate, or another setting,")

    def _look_for_others(self) -> None:
        """Warns once of a gradient that no backward pass has added to: what was done to it is not seen."""
        for shared in self:
            gradient = shared.parameter.grad
            unseen = shared.watched and not shared.left and not shared.additions
            if not unseen or gradient is None or self._is_over(shared) or not is_any(gradient):
                continue
            self._told_of_others = True
            warnings.warn(
                f"no backward pass since the last step() has made the gradient of `{shared.name}`: the "
                "servers take what stands there, so what was done to it, such as clipping, is done to each "
                "worker's own and not to what all have; overlap=False says that it is meant",
                stacklevel=of_the_script(),
            )
            return

    def _look_at(self, shared: Shared) -> None:
        """Looks at a gradient that has not left, for what the script did to it since the last addition."""
        if shared.gradient_changed():
            gradient = shared.parameter.grad
            thrown_away = gradient is None or not is_any(gradient)
            if not thrown_away and not self._alone:
                raise OptionError(
                    f"the gradient of `{shared.name}` was changed between backward and step(): the servers "
                    "would average what each worker has changed by itself; the average would not change so",
                    'where="gradients", under ps.BSP(), has the average in p.grad before step(), to clip or '
                    "change as under DistributedDataParallel; clip_norm=... clips the average by norm, "
                    "clip=... each element of it; overlap=False says that each worker's own change is meant",
                )
            # What is held is not what will leave.
            shared.held = False
            if self._learns:
                self._stop_overlapping()
        elif self._learns and shared.settings_changed():
            self._stop_overlapping()

    def _stop_overlapping(self) -> None:
        self._learns, self._lessons = False, 0
        for shared in self:
            shared.expected = None

    def _learn(self) -> None:
        if self._lessons > 0:
            self._lessons -= 1
            for shared in self:
                if self._lessons == 0 and shared.additions:
                    shared.expected = shared.additions


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cut_short(what: str) -> OptionError:
    """`what` was cut short, and cannot be gone on with."""
    return OptionError(
        f"{what} was cut short, by an error or a signal handler that raised",
        "end the job, and start again from a checkpoint: it is not known what of the step was taken",
    )


def _left_already(shared: Shared, what: str) -> OptionError:
    return OptionError(
        f"the gradient of `{shared.name}` {what} after it had left for the servers",
        "pass overlap=False to `ps.torch.distribute`: gradients then leave in step(), as they are by then",
    )
