"""
The optimizer of a distributed script: torch's interface, with the steps taken by the servers.

Its parameter groups are the original optimizer's own, the same list of the same dictionaries. So
learning-rate schedulers work on either optimizer, and what they change travels with the next push.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import torch

from ...arrays import Array, as_array, dtype_name
from ...consistency import BSP, Consistency, parse, spelled
from ...exceptions import (
    AlreadyPushed,
    DeadlineExceeded,
    DtypeError,
    FirstFailed,
    JobClosed,
    OptionError,
    PenstockError,
    SettingsError,
    ShapeError,
    not_to_be_sent,
)
from ...filters import Filters, HeldBack, Pressure
from ...first import Deed, checksum
from ...handlers import Handlers
from ...job import Job
from ...limit import Limit
from ...optim import updates_in
from ...parameters import propagation_of
from ...tensor import _as_buffer
from ...unsent import warn_of_kept, warn_of_lacking
from ..arrivals import (
    Newcomers,
    owned_elsewhere,
    owners_of_parameters,
    watch,
    when_computed,
    whenever_computed,
)
from ..broadcast import broadcast
from ..copies import Ours, leave_hooks_behind
from ..gradients.averaging import CHECK_EVERY
from ..known import Known
from ..prefixes import prefixes_of
from ..script import of_the_script
from .attendance import Attendance
from .bits import same_bits, sum_of
from .clipping import Clipping, check_limit
from .delivery import Delivery, Shared, cut_short
from .exact import INSIDE_EXACT, Saved, SavesExact, ToldOfEvaluations, ToldOfSaves
from .rows import ReadsRows, RowsTransfer, Tables, changed_outside
from .rules import (
    HOOKS,
    OWN_FLAGS,
    SLOTS,
    GroupRule,
    has_rule,
    kept_by,
    names,
    replaced_in,
    steps_of,
    torch_state,
)
from .state import OnServers
from .transfer import Flushed, Seen, transfer_for

_DISTRIBUTED: weakref.WeakKeyDictionary[
    torch.optim.Optimizer, weakref.ReferenceType[DistributedOptimizer]
] = weakref.WeakKeyDictionary()
"""Which optimizer took the place of one that a script gave, the last time."""


class DistributedOptimizer(torch.optim.Optimizer):
    """
    A torch optimizer whose steps are taken by the servers. Made by `ps.torch.distribute` with
    `where="servers"`.

    `zero_grad`, `step`, `add_param_group`, `state_dict`, `load_state_dict`, hooks and schedulers work as they
    do in torch; hooks are called wherever they were registered, on this optimizer or on the original. `step`,
    `add_param_group`, `load_state_dict`, `publish` and `flush` are collective: every worker calls them. What
    cannot work as in torch, because gradients leave during backward and parameters come from the servers, is
    an OptionError, never a different result:

    - changing, throwing away or adding to a gradient that has left: `step`, `zero_grad` or `backward` raises;
    - changing gradients before `step`, with several workers: `step` raises; the average would not change;
    - changing parameters, such as by a clamp: the next `step` raises, unless `publish` came before; with
      several workers, in steps by hand that go on without a `step`: a later `backward` raises;
    - adding, removing or emptying parameter groups by hand: the next `step` raises; `add_param_group` adds
      one; new settings, in the same dictionaries or in others, are taken over;
    - reading or changing `optimizer.state`: raises; `state_dict` and `load_state_dict` do it;
    - scaling the loss with a GradScaler: its `step` raises;
    - stepping the original optimizer, or another one of the model's parameters: raises; so does saving or
      loading the original's state, while the job is open.

    With `clip_norm`, `total_norm` is the norm that the last step's average had before it was clipped. With
    `filter`, `held_back` tells how much of this worker's gradients waits, and `flush` sends it. Where
    parameters lack something of the servers' value, `with optimizer.exact():` has them hold all of it, and
    `state_dict()` of the model reads it.

    With `overlap=False` gradients may be changed: it says that each worker's own change is meant. With
    `check=False`, changes of parameters are not looked for, and changes of gradients only where torch counts
    them, which it does not for `.data`, NumPy and most of `torch._foreach`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        job: Job,
        *,
        prefix: str,
        kind: str,
        consistency: Consistency | str | None,
        overlap: bool | int | str,
        check: bool,
        lr_scale: str | None,
        clip_norm: float | None,
        filters: Filters,
        propagation: str,
        sparse_pull: bool | tuple[str, ...],
        declaration: dict[str, Any],
        timeout: float | None,
    ) -> None:
        if not has_rule(optimizer):
            raise OptionError(
                f'where="servers" takes the steps of {names()}, got {type(optimizer).__name__}',
                'pass where="gradients", under ps.BSP(): then the optimizer itself steps, whichever it is',
            )
        if (method := replaced_in(optimizer)) is not None:
            raise OptionError(
                f"`{method}` of the optimizer, or of its class, was replaced: the servers take the steps, "
                "and what replaces it would never be called",
                "register_step_pre_hook and register_step_post_hook do such things; or replace it on the "
                'optimizer that `distribute` returns; with where="gradients" the optimizer itself steps',
            )
        self._original = optimizer
        self._model = model
        self.job = job
        self._prefix = prefix
        self._kind = kind
        self._consistency = parse(spelled(consistency) or job._core.default_consistency)
        self._declaration = declaration
        self._filters = filters
        self._asked = propagation
        self._propagation = propagation, repr(propagation)
        """Who moves parameters, in a word and with the reason."""
        self._tables = Tables(model, sparse_pull)
        self.told_of_lacking = False
        self._told_of_held_back = self._told_of_kept = False
        """Whether somebody who read parameters was told what they lack, or who loaded some what stays."""
        self._exact_blocks = 0
        """In how many blocks of `exact()` the script is."""
        self._load: _Load | None = None
        """The last load of the model that has begun, until it is published."""
        self._publishes_load = False
        """Whether a load of the model is being published."""
        self._published: dict[Shared, Seen] = {}
        """Of a publication that has not returned, on worker 0."""
        self._published_in = 0
        """The iteration that it was made in."""
        self._flushed: dict[Shared, Flushed] = {}
        """Of which a flush that has not ended has sent what was held back."""
        self._flushing = False
        """Whether a flush that has not ended has sent all of that, and waits for servers."""
        self._releases = -1, 0
        """
        Of a flush that has not ended, and has taken its step: its iteration, and of how many parameters
        readers were let see all.
        """
        self._timeout = timeout
        self._check = check
        # How many steps the rule takes in an iteration.
        self._updates = updates_in(lr_scale, self._consistency, job.size)
        self._delivery = Delivery(overlap, alone=job.size == 1, check=check, follows=self._follows)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._named: dict[str, torch.Tensor] = {}
        """By the names of tensors, the parameters that they are for, also those that have left the model."""
        self._shared: dict[int, Shared] = {}
        self._everything: list[Shared] = []
        """The same, in the order in which workers tell each other of them."""
        self._fresh: dict[int, Shared] = {}
        """Of them, those whose first state the servers have not been given."""
        self._unread: dict[int, Shared] = {}
        """Of them, those that have it, and whose value this worker has not read since."""
        self._is_retry = False
        """Whether a call that has failed, this one's too, may have declared some of their tensors."""
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._beside = [(name, one) for name, one in model.named_parameters() if id(one) not in trained]
        """The model's parameters that the optimizer does not have."""
        self._reached: set[int] = set()
        """Those of which a gradient was computed, by their id."""
        for _, parameter in self._beside:
            if parameter.is_floating_point() or parameter.is_complex():
                when_computed(parameter, functools.partial(self._reached.add, id(parameter)))
        self._copies: dict[int, torch.Tensor] = {}
        """Of those that are not frozen, as they were after the last step."""
        self._rules: list[GroupRule] = []
        self._steps = 0
        """That were taken."""
        self._warned = False
        """That none was."""
        self._steps_before: list[int] = []
        """When the steps of wrappers that are under way began."""
        self._ready = False
        self._is_gone = False
        self._loaded: str | None = None
        super().__init__(cast(Any, list(optimizer.param_groups)), optimizer.defaults)
        # The same dictionaries: whichever of the two optimizers a hook is registered on, it is called.
        for hooks in HOOKS:
            setattr(self, hooks, getattr(optimizer, hooks))
        for group in self.param_groups:
            self._rules.append(self._next_rule(group))
        self._clipping = self._clipping_to(clip_norm)
        self._hooked: Any = weakref.WeakSet()
        self._after_loads: list[Any] = []
        """The handles of those hooks."""
        self._after_saves: list[Any] = []
        """Of those that are called when a state is saved."""
        self._saved = Saved()
        """What was read for the last state that was saved."""

    def begin(self) -> None:
        """What every worker does together. Before this the model has no hooks; if it raises, `let_go`."""
        job, model = self.job, self._model
        self._is_retry = prefixes_of(job).begin(self._prefix, model, self._kind)
        if self._is_retry:
            # Each state begins with zeros again, so what all do about the first ones does too.
            job._firsts.forget(self._first_states)
        self._attendance = None
        if job.size > 1 and self._consistency == BSP():
            self._attendance = Attendance(job, self._prefix, self._timeout)
        self._declare()
        self._broadcast_rest()
        self._load_first_states(self._shared.values(), self._fresh.clear)
        self._delivery.allow(self._shared.values())
        self._pull_all()
        # A first value passes whole.
        self._have_seen_all(self._shared.values())
        if job.size > 1:
            job._barrier_of_all(self._timeout, "distributing its model and optimizer")
        self._state: Any = OnServers()
        self._keep_copies()
        self._ready = True
        known = Known([*model.parameters(), *self._mine()])
        self._newcomers = Newcomers(self, known, model.named_parameters, whenever_computed, _came_late)
        watch(model, self._newcomers, instead=True)
        self._hook_parts()
        self._refuse_state_of_original()

    def _refuse_state_of_original(self) -> None:
        """It has no part of the state: a checkpoint of it would say that nothing was trained."""
        if self._original not in _DISTRIBUTED:
            self._original.register_state_dict_pre_hook(_refuse_state)
            self._original.register_load_state_dict_pre_hook(_refuse_state)
        _DISTRIBUTED[self._original] = weakref.ref(self)

    def let_go(self) -> None:
        """
        `distribute` has not come to its end: whatever the script does with the model from here on, this knows
        nothing of it.
        """
        self._is_gone = True
        self._delivery.forget()
        for shared in self._shared.values():
            shared.release_layers()

    def _hook_parts(self) -> None:
        # Parts come before the whole, in a load of the whole too.
        for name, part in self._model.named_modules():
            if part not in self._hooked:
                self._hooked.add(part)
                self._after_loads.append(part.register_load_state_dict_post_hook(_AfterLoad(self, name)))
                if self._may_lack and not name:
                    before = _BeforeLoad(self)
                    self._after_loads.append(part.register_load_state_dict_pre_hook(before))
                if self._may_lack:
                    saves = part.register_state_dict_post_hook(SavesExact(self, self._saved))
                    self._after_saves.append(saves)
                    # Before those of the script: they rename keys, and make other values of them.
                    part._state_dict_hooks.move_to_end(saves.id, last=False)
                if self._may_lack and not name:
                    self._after_loads.append(part.register_forward_pre_hook(ToldOfEvaluations(self)))
                if self._filters.push is not None and not name:
                    self._after_loads.append(part.register_state_dict_pre_hook(ToldOfSaves(self)))
        leave_hooks_behind(self._model)

    @property
    def _may_lack(self) -> bool:
        """Whether parameters may hold less than the servers' value."""
        return bool(self._tables) or self._asked != "pull" or self._filters.broadcast is not None

    def __reduce__(self) -> Any:
        raise not_to_be_sent(
            "the optimizer that `distribute` returned",
            "save `optimizer.state_dict()`, and with it `model.state_dict()`",
        )

    def __repr__(self) -> str:
        scaled = f", settings for {self._updates} updates an iteration" if self._updates > 1 else ""
        each = (("pushes", self._filters.push), ("broadcasts", self._filters.broadcast))
        filtered = "".join(f", {what} filtered by {one!r}" for what, one in each if one is not None)
        moved = f", propagation={self._propagation[1]}"
        read = f", rows read of {self._tables!r}" if self._tables else ""
        how = f"steps taken by the servers, {self._consistency}{scaled}{filtered}{moved}{read}"
        return f"DistributedOptimizer({self._original!r}, {how})"

    @property
    def state(self) -> Any:
        """Refuses what one does with it: the state is on the servers."""
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        if self.__dict__.get("_ready"):
            raise OptionError(
                "optimizer.state is on the servers, and cannot be replaced here",
                "optimizer.load_state_dict(...), on every worker, loads a state",
            )
        self._state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The original optimizer's."""
        return self._original.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        # The base class begins with none, and adds the original's one by one.
        if self.__dict__.get("_ready"):
            self._original.param_groups = groups
            self._follow_groups()

    def _refuse_cut(self) -> None:
        """Raises OptionError where a call was cut short that cannot be gone on with."""
        if self._delivery.keeps_back and not self.job.closed:
            raise OptionError(
                f"a call of `add_param_group` was cut short on worker {self.job.rank}: its values of the "
                "group may be its own alone",
                "end the job, and start again from a checkpoint",
            )
        self._delivery.refuse_cut_step()
        if self._flushing and not self.job.closed:
            raise cut_short("a flush()")

    def _refuse_part_of_flush(self) -> None:
        """Raises OptionError where `flush` has sent some of what is held back, and can be gone on with."""
        if self._flushed and not self.job.closed:
            self._refuse_late_flush()
            raise OptionError(
                "a flush() was cut short when it had sent a part of what is held back",
                "call optimizer.flush() again: it sends the rest",
            )

    def _refuse_late_flush(self) -> None:
        """Raises OptionError where a flush has sent a part, and the iteration in which it did is over."""
        if (
            any(sent.iteration != self.job.iteration for sent in self._flushed.values())
            and not self.job.closed
        ):
            raise cut_short("a flush()")

    def _follows(self, rule: GroupRule | None = None) -> bool:
        """
        Whether no dictionary has replaced that of `rule`'s group since the last step; without `rule`, of any.
        """
        groups = self.param_groups
        if len(groups) != len(self._rules):
            return False
        return all(groups[one.place] is one.options() for one in ((rule,) if rule else self._rules))

    def _follow_groups(self) -> None:
        """
        Takes over dictionaries that have replaced those of the groups. Raises OptionError if a group came or
        went otherwise than by `add_param_group`, if one of those was cut short, or if a parameter that the
        servers step left its own.
        """
        self._refuse_cut()
        groups = self.param_groups
        if len(groups) != len(self._rules):
            raise OptionError(
                f"expected the {len(self._rules)} parameter groups whose steps the servers take, found "
                f"{len(groups)} in optimizer.param_groups",
                "optimizer.add_param_group({...}), on every worker, adds one; to train a part no longer, "
                "leave its group and freeze it (requires_grad_(False))",
            )
        here: set[int] = set()
        for group, rule in zip(groups, self._rules, strict=True):
            for parameter in group["params"]:
                shared = self._shared.get(id(parameter))
                if shared is not None and shared.group is rule:
                    here.add(id(parameter))
        for key, shared in self._shared.items():
            if key not in here:
                raise OptionError(
                    f"parameter `{shared.name}` was taken out of its parameter group, or groups stand in "
                    "another order: the servers would go on stepping it as before",
                    "leave them as they were: freeze it (requires_grad_(False)) to train it no longer, and "
                    "give `distribute` the groups as they are to be",
                )
        for group, rule in zip(groups, self._rules, strict=True):
            if group is not rule.options():
                _check_same_flags(type(self._original), group, rule, loaded=False)
                rule.follow(group)

    @property
    def total_norm(self) -> float | None:
        """
        With `clip_norm`, the norm of the last step's average before it was clipped; None before a step. With
        a filter it is that of what was sent; after a flush, of what was held back.
        """
        return None if self._clipping is None else self._clipping.total_norm

    @property
    def held_back(self) -> HeldBack:
        """
        What the filter holds back of this worker's gradients: its norm, of all parameters together, and how
        many elements. It is counted anew each time, in as long as a step's pushes take. 0 without a filter.
        """
        each = [shared.sends_to.held_back for shared in self._shared.values()]
        return HeldBack(math.hypot(*(one.norm for one in each)), sum(one.elements for one in each))

    def pressure(self) -> dict[str, Pressure]:
        """
        How the filters have followed the network, if they do, as `Tensor.pressure`: by parameter, of this
        worker's gradients and of the values. The servers are asked for theirs.
        """
        found = {}
        for shared in self._shared.values():
            pressure = shared.tensor.pressure(timeout=self._timeout)
            if shared.mean is not None:
                pressure = pressure._replace(push=shared.mean.pressure(timeout=self._timeout).push)
            found[shared.name] = pressure
        return found

    @property
    def propagation(self) -> str:
        """
        Who moves parameters between hosts: "pull", "broadcast" or "update". What "auto" has chosen, and why,
        is in the `repr`. Tables with `sparse_pull` are pulled in any case.
        """
        return self._propagation[0]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks before it steps an optimizer."""
        raise OptionError(
            'a GradScaler does not work with where="servers": scaled gradients leave for the servers in '
            "backward, and no worker knows whether one has overflowed on another",
            'pass where="gradients", where loss scaling works as in torch; or train in bfloat16 without it',
        )

    # -- what a training loop calls
    # -------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """
        As in torch.

        Raises
        ------
        OptionError
            Gradients of this iteration have left for the servers already, so `step` must come first; or
            a step, a flush or a call of `add_param_group` was cut short.
        """
        self._refuse_cut()
        self._refuse_part_of_flush()
        self._delivery.refuse_loss()
        super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """
        Contribute the gradients that have not left yet, complete the iteration, and read the parameters.

        If a signal handler raises while it runs, or it times out, when it has sent something or waits for the
        servers, it cannot be gone on with: `step`, `zero_grad`, `publish` and loads raise from then on, and
        what is saved may have a part of the step. Where that comes in `backward`, a step may send a part of
        its gradients only. Start from a checkpoint.

        Parameters
        ----------
        closure
            Evaluates the model again and returns the loss, as for torch.

        Returns
        -------
        Whatever `closure` returns; None without one.

        Raises
        ------
        OptionError
            A gradient or a setting was changed after the gradient had left; gradients were changed, with
            several workers; or a parameter was; or groups came or went otherwise than by `add_param_group`.
            Or it was called inside `exact()`, where parameters lack something otherwise. Or a step or a flush
            before was cut short (of which a part was sent, `flush` can be called again); or a backward pass
            was, and what this step sends has left already.
        DeclarationConflict
            Another worker completed the iteration without this step.
        DtypeError
            A gradient is sparse in another layout than COO, or of another element type than its parameter; or
            the model was converted after `distribute`.
        SettingsError
            A parameter group has a setting that is out of range or no number, or lacks one, or a flag was
            changed; with `clip_norm` also one whose parameters are frozen here. Or, on worker 0, a parameter
            that was unfrozen starts from a state of another optimizer, as for `distribute`.
        FirstFailed
            Not on worker 0, whose own call has failed over such a state.
        SettingsConflict
            Workers step a parameter with different settings: without `clip_norm` those that have a gradient
            of it, with it all of them. The job has ended; if it goes on without a worker that was lost in the
            same step, start from a checkpoint all the same.
        WorkerLost
            With `clip_norm`: a worker was lost within the step, and the job goes on without it
            (`on_worker_loss=continue`); the parameters that it owned may not have taken theirs.
        NonFiniteError, LaneTimeout, PullTimeout, JobClosed
            As for `Tensor.push` and `Tensor.pull`.
        """
        if any(shared.reads_rows or shared.lags for shared in self._everything):
            self._refuse_in_exact("step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._follow_groups()
        self._refuse_part_of_flush()
        self._delivery.check()
        self._refuse_changes()
        if self._steps < 2 or self._steps % CHECK_EVERY == 0:
            self._newcomers.look()
        self._take_in()
        self._refuse_settings()
        self._delivery.finish()
        self._have_stepped()
        # A scheduler that was made for the original checks this: whether the original has been
        # stepped before it.
        cast(Any, self._original)._opt_called = True
        self._delivery.next_iteration()
        self._steps += 1
        return loss

    def _refuse_in_exact(self, what: str) -> None:
        """Raises OptionError inside `exact()`: behind `what` parameters would lack something again."""
        if self._exact_blocks and not self.job.closed:
            raise OptionError(
                f"{what} was called inside `with optimizer.exact():`, where parameters hold all of the "
                "servers' values as long as the block runs: behind it they would lack something again",
                f"end the block before {what}; what is changed in it is followed by publish() there",
            )

    def _refuse_settings(self, also: Collection[Shared] = ()) -> None:
        """
        Raises SettingsError where a step would, before more of it is sent than has left in backward. `also`:
        what is stepped besides.
        """
        if self._clipping is not None:
            # Also of what is frozen here: it is stepped where another worker has trained it.
            taken = list(self._everything)
        else:
            taken = [one for one in self._delivery if not one.left and one.parameter.grad is not None]
        for rule in {shared.group for shared in (*taken, *also)}:
            rule.refresh()

    def _have_stepped(self, flushed: Collection[Shared] | None = None) -> None:
        """All was pushed: the servers step, and the parameters are read. With `flushed`, it was a flush."""
        if self._clipping is None:
            self._complete(flushed)
        else:
            there, used = self._complete(flushed)
            self._clipping.account(there)
            self._clipping.step(there, used)
            self._clipping.account(self._complete(flushed)[0])
        self._pull_all()
        self._keep_copies()

    def _complete(self, flushed: Collection[Shared] | None) -> tuple[list[int], Array]:
        """
        Completes an iteration, with all workers; returns those that were there, and which parameters one of
        them has a gradient of, or has `flushed`.
        """
        if self._attendance is None:
            self.job.clock()
            left = [shared.left if flushed is None else shared in flushed for shared in self._everything]
            return [self.job.rank], np.array(left)
        self._attendance.give(flushed)
        self.job.clock()
        return self._attendance.take()

    def flush(self) -> None:
        """
        Send all that filters hold back, and read the parameters. Collective; where nothing is ever held back
        nothing happens.

        With a filter of pushes it is a step without new gradients, and completes the iteration: of each
        parameter of which some worker held something back, frozen ones too, the servers take one more step,
        with the settings that its group has now, and with momentum, weight decay and all else that a step
        does. Parameters, checkpoints and `state_dict` lack what is held back of gradients: flush before an
        evaluation or a checkpoint that should have it, before a load or a publication, before a learning rate
        falls much, and before the end. Hooks of steps are not called.

        With a filter of broadcasts, or parameters that are broadcast under SSP and ASP, every worker then
        reads all that was folded, and may publish. No step is taken for that. Until its next step the
        parameters, inside `exact()` too, and a state of the model that is saved have what was read here: what
        others push meanwhile, under SSP and ASP, comes with that step. Tables with `sparse_pull` lack rows
        still: with such a table `publish` is for the inside of `exact()`.

        If a signal handler raises while it sends, or it times out there, or while it waits for the other
        workers to call it, call it again, before any other step of the job: it goes on. If that comes while
        it waits for the servers to step, it cannot be made again: start from a checkpoint.

        Raises
        ------
        OptionError
            Gradients of this iteration have left for the servers already, so `step` must come first; or a
            parameter was changed, or groups came or went, as for `step`. Or it was called inside `exact()`
            with a table of which rows are pulled. Or a step, a flush or a backward pass before was cut short.
        DeclarationConflict
            Another worker took a step, or completed the iteration otherwise.
        SettingsError
            A parameter group has a setting that is out of range or no number, or lacks one, or a flag was
            changed.
        SettingsConflict, WorkerLost
            As for `step`.
        BarrierTimeout, CircularWait, FirstFailed
            Where values are held back: as for `Tensor.flush`.
        LaneTimeout, PullTimeout, JobClosed
            As for `Tensor.flush` and `Tensor.pull`. What was not sent is held back still.

        Examples
        --------
        >>> net, filters = torch.nn.Linear(4, 2), ps.Filters(push=ps.TopK(0.1))
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> net, optimizer = ps.torch.distribute(net, optimizer, where="servers", filter=filters)
        >>> net(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.held_back.elements
        8
        >>> optimizer.flush()
        >>> optimizer.held_back.elements
        0
        """
        lagging = [shared for shared in self._everything if shared.lags]
        if self._filters.push is None and not lagging:
            return
        if any(shared.reads_rows for shared in self._everything):
            self._refuse_in_exact("flush()")
        self._follow_groups()
        self._delivery.check()
        self._refuse_late_flush()
        self._delivery.refuse_between("a flush")
        self._refuse_changes()
        goes_on = self._releases[0] == self.job.iteration
        if self._filters.push is not None and not goes_on:
            self._flush_gradients(releases=bool(lagging))
        if lagging:
            self._release(lagging)
        self._delivery.forget_changes()

    def _flush_gradients(self, *, releases: bool) -> None:
        """Takes a step of what is held back of gradients; `releases`: what is of values comes behind it."""
        held = [shared for shared in self._shared.values() if shared.sends_to.held_back.elements]
        # All before the first: what has left could not be sent again once a setting is refused.
        self._refuse_settings(held)
        # A parameter that never had a gradient takes no step: nothing is held back of it anywhere.
        for shared in held:
            # Before it is sent: interrupted behind that, nothing is held back any more.
            given = Flushed(self.job.iteration, sum_of(shared.parameter) if self._check else 0)
            self._delivery.flushes = True
            self._flushed[shared] = given
            try:
                # Not all of a flush: behind that all workers would have to come, and some hold back nothing.
                shared.sends_to._send_held_back(Limit(self._timeout))
            except PenstockError as error:
                # Refused: nothing of it has left.
                del self._flushed[shared]
                self._delivery.flushes = bool(self._flushed)
                if isinstance(error, AlreadyPushed):
                    # That does not end by calling it again.
                    self._flushing = bool(self._flushed)
                    raise cut_short("a backward pass") from None
                raise
        self._flushing = True
        self._have_stepped(self._flushed)
        if releases:
            self._releases = self.job.iteration, 0
        self._flushed.clear()
        self._flushing = self._delivery.flushes = False

    def _release(self, lagging: list[Shared]) -> None:
        """
        Collective: lets readers see all of these parameters, and reads them. Made again in the iteration in
        which it was interrupted, it goes on where it was: what all have done would be another call.
        """
        now = self.job.iteration
        done = self._releases[1] if self._releases[0] == now else 0
        for place in range(done, len(lagging)):
            self._releases = now, place
            lagging[place].tensor._release(Limit(self._timeout))
            self._releases = now, place + 1
        self._pull_all(lagging)
        self._have_seen_all(lagging)
        self._releases = -1, 0

    @contextlib.contextmanager
    def exact(self) -> Iterator[None]:
        """
        Have parameters hold the servers' values themselves while the block runs: for an evaluation, a copy or
        an average of the model. Not collective. Behind it they are again what training goes on with.

        What they lack otherwise is what a filter of broadcasts holds back, what is broadcast under SSP and
        ASP and not there yet, and rows of tables with `sparse_pull` that the last batch did not read. Where
        they lack nothing nothing is read. What a filter of pushes holds back is not in the values: `flush`.
        Inside, parameters may be changed if `publish` follows there, on every worker; a `step` is an
        OptionError, unless no parameter can ever lack something.

        Raises
        ------
        OptionError
            Gradients of this iteration have left for the servers, so `step` must come first; or a parameter
            was changed, before the block or in it, without a `publish`. Or a step or a flush was cut short.
        PullTimeout, DeadlineExceeded
            The servers did not send them in time. Parameters are what they were.
        JobClosed
            The job has ended.

        Examples
        --------
        >>> net, quiet = torch.nn.Linear(1, 1), ps.Filters(broadcast=ps.DVF(0.5, decay=None))
        >>> _ = torch.nn.init.zeros_(net.weight)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
        >>> net, optimizer = ps.torch.distribute(net, optimizer, where="servers", filter=quiet)
        >>> net(torch.ones(1, 1)).sum().backward()
        >>> optimizer.step()
        >>> net.weight.item()
        0.0
        >>> with optimizer.exact():
        ...     net.weight.item()
        -0.25
        >>> net.weight.item()
        0.0
        """
        self._refuse_cut()
        self._refuse_part_of_flush()
        self._delivery.check()
        self._delivery.refuse_between("a look at exact parameters")
        # All of them are about to be overwritten.
        self._refuse_changes(all_rows=True)
        filled = [shared for shared in self._shared.values() if shared.lacks]
        around = self._exact_blocks
        try:
            self._pull_all(filled, exact=True)
            self.tell_of_held_back("what parameters hold inside exact()")
            self._exact_blocks = around + 1
            yield
            self._refuse_changes()
        finally:
            self._exact_blocks = around
            # A publication or a flush in the block, or the end of the job, has left them as they are to be.
            if not self.job.closed:
                self._pull_all(one for one in filled if one.is_whole and not one.is_released)

    def prefetch(self, layer: torch.nn.Module, indices: torch.Tensor) -> None:
        """
        Begin to pull the rows that a layer with `sparse_pull` will look up, while the script goes on. Not
        collective.

        Call it between `step` and the next forward pass of the layer, which waits for what has not come by
        then, and pulls what was not named.

        Parameters
        ----------
        layer
            The `nn.Embedding` or `nn.EmbeddingBag`.
        indices
            What it will be given: whole numbers, in any shape.

        Raises
        ------
        OptionError
            Of this layer not rows are pulled; or its gradient has left, so `step` must come first.
        DtypeError
            `indices` are no whole numbers.
        UnknownElement
            The table has no such row.
        JobClosed
            The job has ended.
        PullTimeout
            What was named in an earlier call did not come in time.

        Examples
        --------
        >>> words = torch.nn.Embedding(100, 2, sparse=True)
        >>> optimizer = torch.optim.SGD(words.parameters(), lr=0.1)
        >>> words, optimizer = ps.torch.distribute(words, optimizer, where="servers", sparse_pull=True)
        >>> batch = torch.tensor([3, 70])
        >>> optimizer.prefetch(words, batch)
        >>> words(batch).sum().backward()
        >>> optimizer.step()
        """
        weight = layer._parameters.get("weight") if isinstance(layer, torch.nn.Module) else None
        shared = self._shared.get(id(weight))
        if shared is None or not isinstance(shared.transfer, RowsTransfer):
            raise OptionError(
                f"expected a layer of which rows are pulled, got {type(layer).__name__}",
                "give `distribute` its name or True for sparse_pull",
            )
        if not isinstance(indices, torch.Tensor) or indices.is_floating_point() or indices.is_complex():
            what = indices.dtype if isinstance(indices, torch.Tensor) else type(indices).__name__
            raise DtypeError(f"expected a tensor of whole numbers for `indices`, got {what}")
        shared.transfer.read_ahead(indices)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """
        As in torch; the group's trainable parameters become tensors. Collective.

        Raises
        ------
        ValueError, TypeError
            As torch's.
        OptionError
            A Parameter is none of the model's, has no shape yet, or is distributed already. The group was not
            added. Or an earlier call was cut short, with several workers, or a step or a flush: every later
            step, load, publication or group raises this (behind a part of a flush, until that is made again).
        DtypeError
            A parameter is not float32, float64, float16 or bfloat16. The group was not added.
        DeclarationConflict
            The workers' groups differ.
        BarrierTimeout
            Not every worker called it in time. The group was added here: end the job.
        FirstFailed
            Not on worker 0, whose own call has failed; the message has its error. As above.
        """
        # The constructor of the base class adds the original's groups one by one, which are there.
        if self.__dict__.get("_ready"):
            self._follow_groups()
            self._refuse_part_of_flush()
            # A worker alone has no other values than its own, and may go on.
            several = self.job.size > 1
            super().add_param_group(param_group)
            group = self.param_groups[-1]
            try:
                self._check_group(group["params"])
                # By name, as workers may order the group differently.
                self._names.update(
                    {id(parameter): name for name, parameter in self._model.named_parameters()}
                )
                rule = self._next_rule(group)
            except BaseException:
                self.param_groups.pop()
                raise
            self._delivery.keeps_back = several
            self._rules.append(rule)
            # First: where a worker is late the group stays, as torch has no way to take it back.
            for parameter in group["params"]:
                owners_of_parameters[parameter] = weakref.ref(self)
                self._newcomers.accept(parameter)
            self._hook_parts()
            self._take_in()
            frozen = self._labelled(one for one in group["params"] if id(one) not in self._shared)
            if frozen:
                name = f"{self._prefix}/group {len(self.param_groups) - 1}"
                broadcast(self.job, name, dict(sorted(frozen.items())), self._timeout)
            self._delivery.keeps_back = False

    def publish(self) -> None:
        """
        Make rank 0's current parameters the servers' values. Collective; `model.load_state_dict` does it too.

        Call it on every worker after changing parameters by hand (a load into a submodule, a clamp, an
        average): the servers do not know of the change, and the next `step` raises. Where parameters lack
        something of the servers' values, change and publish them inside `exact()`, or, if there is no table
        with `sparse_pull`, behind a `flush`: what they lack would be lost.

        Raises
        ------
        BarrierTimeout
            Not every worker called it in time.
        FirstFailed
            Not on worker 0, whose own call has failed; the message has its error. The servers have the old
            values, or a part of the new ones: publish again on every worker.
        DtypeError
            The model was converted after `distribute`.
        OptionError
            Gradients of this iteration have left for the servers already, so `step` must come first; or
            a step, a flush or a call of `add_param_group` was cut short. Or parameters lack something.
        JobClosed
            The job has ended.
        """
        self._refuse_cut()
        self._refuse_part_of_flush()
        self._delivery.check()
        self._delivery.refuse_between("a publication of parameters")
        self._complete_for_publication()
        self._tell_of_kept()
        self._loaded = None
        what = f"{self._prefix}: publish (every worker calls it, or model.load_state_dict)"

        def says() -> int:
            if self._published_in != self.job.iteration:
                self._published, self._published_in = {}, self.job.iteration
            said = self._published
            for shared in self._shared.values():
                now = sum_of(shared.parameter)
                # What was read behind an earlier call that has not returned counts as what that call gave,
                # though it may be from later steps. What was read before it, the script has put back.
                if shared not in said or not said[shared].has(now):
                    said[shared] = Seen(now)
            return checksum(said[shared].given for shared in self._shared.values())

        def behind() -> None:
            self._pull_all()
            # A load passes whole.
            self._have_seen_all(self._shared.values())
            for shared in self._shared.values():
                if isinstance(shared.transfer, RowsTransfer):
                    shared.transfer.accept()
            self._keep_copies()
            # Who steps by hand and publishes does not train alone.
            self._delivery.forget_changes()

        self.job._firsts.do(
            self.job._core, Deed(what, self._write_all, says, behind), self._timeout, self._timeout
        )
        self._published = {}

    def load_begins(self, state: Mapping[str, Any], prefix: str) -> None:
        """The model is about to be loaded, or a module that it is in, of what has the `prefix` in `state`."""
        lacking = (shared for shared in self._shared.values() if shared.lacks)
        self._load = _Load(state, prefix, {shared: shared.parameter._version for shared in lacking})

    def publish_load(self) -> None:
        """Publishes what a load of the model has brought."""
        self._publishes_load = True
        try:
            self.publish()
        finally:
            self._publishes_load, self._load = False, None

    def _complete_for_publication(self) -> None:
        """
        What is published is all of a parameter. Raises OptionError if the script may have changed one that
        lacks something; what a load has not replaced is read here.
        """
        lacking = [shared for shared in self._shared.values() if shared.lacks]
        if not self._publishes_load and lacking and not self._published:
            # Of what lacks least to be said last: that of rows is always so.
            first = next((shared for shared in lacking if not shared.reads_rows), lacking[0])
            rows = ": it has rows of earlier steps, as it is a table with `sparse_pull`"
            raise OptionError(
                f"parameter `{first.name}` lacks something of the servers' value, which would be lost where "
                f"it is published{rows if first.reads_rows else ''}",
                "on every worker, make the change and call publish() inside `with optimizer.exact():`; what "
                "was changed before that, model.load_state_dict(model.state_dict()) puts back first",
            )
        if self._publishes_load and lacking and self.job.rank == 0:
            names: dict[int, set[str]] = defaultdict(set)
            for name, parameter in self._model.named_parameters(remove_duplicate=False):
                names[id(parameter)].add(name)
            load = self._load
            # A class that loads all by itself calls no hook before it.
            kept = [
                one
                for one in lacking
                if (one.is_untouched if load is None else load.left_alone(one, names[id(one.parameter)]))
            ]
            self._pull_all(kept, exact=True)

    def _write_all(self) -> None:
        for shared in self._shared.values():
            core = shared.tensor._core
            array = as_array(shared.parameter)
            with self._delivery.aside(shared):
                core.load(-1, _as_buffer(array), core.steps(self._timeout), self._timeout)

    # -- checkpoints, in torch's own format
    # -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """
        The state in torch's own format: a plain torch optimizer of the same class can load it and continues
        identically, but for AdamW's groups with `decoupled_weight_decay=False`: torch makes that True as it
        loads.

        Not collective: any worker may call it, after a `step`; after one, or a flush, that was cut short it
        warns that the state may have a part of that. The state of half-precision parameters is in float32.

        Raises
        ------
        PullTimeout, JobClosed
            The state could not be read.
        """
        try:
            self._refuse_cut()
            self._refuse_part_of_flush()
        except OptionError as error:
            # Not refused: it may be all that there is to be saved.
            warnings.warn(
                f"{error.args[0].splitlines()[0]}: the state that is saved may have a part of it",
                stacklevel=2,
            )
        kind = type(self._original)
        held, self._state = self._state, defaultdict(dict)
        try:
            for parameter, started in self._original.state.items():
                if id(parameter) not in self._shared and started:
                    self._state[parameter] = started
            for shared in self._shared.values():
                on_servers = shared.tensor.optimizer_state(timeout=self._timeout)
                state = torch_state(kind, on_servers, shared.parameter)
                if state:
                    self._state[shared.parameter] = state
            return super().state_dict()
        finally:
            self._state = held

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """
        Load a state that this class or plain torch saved. Collective: every worker calls it, and rank 0's
        arrays count. Of a parameter that is frozen each worker keeps its own until it is unfrozen.

        Parameters
        ----------
        state_dict
            As `state_dict` returns it, with the same groups and as many parameters in each. Parameters for
            which it has no state start afresh.

        Raises
        ------
        ValueError
            It has other groups. Nothing was loaded.
        SettingsError
            A group has another flag than it was declared with, such as `amsgrad`, or a group or a state lacks
            what those of this optimizer have: it is another's. Nothing was loaded.
        ShapeError
            A state is of a parameter of another shape. Nothing was loaded.
        OptionError
            Gradients of this iteration have left for the servers already, so `step` must come first; or
            a step, a flush or a call of `add_param_group` was cut short.
        DeclarationConflict, OutOfMemory
            As for `step`: parameters that were unfrozen since the last one become tensors here.
        BarrierTimeout
            Not every worker called it in time.
        WorkerLost
            A worker was lost meanwhile. If the job goes on without it, and it was worker 0, start from a
            checkpoint: the servers may have a part of the state.
        FirstFailed
            Not on worker 0, whose own call has failed; the message has its error. The servers have the old
            state, or a part of the new one: load it again on every worker.
        Exception
            On worker 0, whatever reading a state raised that is no state, such as a `ValueError` of a step
            count that is no number; the others' `FirstFailed` has it. Nothing was loaded.

        Notes
        -----
        Groups keep their `capturable` and `differentiable`, which say how a process computes, and not what.
        As in torch, AdamW's groups decay weights apart from the gradient whatever the dictionary says of
        `decoupled_weight_decay`; one that was distributed with False only takes one with False, and keeps it,
        where torch's own load makes it True.

        A ValueError, SettingsError or ShapeError each worker finds in its own dictionary: where only some do,
        the others wait for them until their timeout.
        """
        self._follow_groups()
        self._refuse_part_of_flush()
        self._delivery.refuse_between("a load of the optimizer's state")
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        # As torch: a rate that is a tensor stays the dictionary's own.
        saved = self._with_defaults(copy.deepcopy(state_dict["param_groups"]))
        sizes = [len(group["params"]) for group in self.param_groups]
        found = [len(group["params"]) for group in saved]
        if found != sizes:
            raise ValueError(f"expected parameter groups of {sizes} parameters, got {found}")
        own = state_dict["param_groups"]
        for group, mine, rule, its in zip(saved, self.param_groups, self._rules, own, strict=True):
            group.update({flag: mine[flag] for flag in OWN_FLAGS if flag in mine})
            # Torch's AdamW has the flag set in whatever it loads; this group's rule is without it.
            if rule.decoupled is False and its.get("decoupled_weight_decay") is False:
                if type(self._original) is torch.optim.AdamW:
                    warnings.warn(
                        "decoupled_weight_decay=False stays as it was saved: a load by torch's AdamW would "
                        "make it True, and then weights decay otherwise; torch.optim.Adam computes the same "
                        "and keeps what was saved",
                        stacklevel=2,
                    )
                group["decoupled_weight_decay"] = False
            _check_same_flags(type(self._original), group, rule, loaded=True)
        flat = [parameter for group in self.param_groups for parameter in group["params"]]
        indices = [index for group in saved for index in group["params"]]
        states = {
            parameter: state_dict["state"].get(index, {})
            for parameter, index in zip(flat, indices, strict=True)
        }
        self._check_states(states)
        # What is unfrozen, or of a new group, begins here, and not with another state in the next step.
        self._take_in()
        groups = [group.copy() for group in self.param_groups]
        # They are frozen: that is what they start from.
        kept = [parameter for parameter in states if id(parameter) not in self._shared]
        starts = {parameter: self._original.state.get(parameter) for parameter in kept}
        handlers, is_done = Handlers(), False

        def behind() -> None:
            nonlocal is_done
            is_done = True

        try:
            for parameter in kept:
                self._original.state[parameter] = copy.deepcopy(states[parameter])
            self._adopt_groups(saved)
            self._load_states(states, everything=True, behind=behind)
        except Exception as error:
            # Whoever takes the error for a checkpoint that is of no use trains on as before. Where it is not
            # known that the load has failed for all, it is made again, or is over for the others.
            has_failed = self.job.rank == 0 and not isinstance(error, DeadlineExceeded | JobClosed)
            if (has_failed or isinstance(error, FirstFailed)) and not is_done and not handlers.raised(error):
                self._adopt_groups(groups)
                self._put_back(starts)
            raise

    def _put_back(self, states: Mapping[torch.Tensor, dict[str, Any] | None]) -> None:
        """What parameters start from is this again."""
        for parameter, state in states.items():
            if state is None:
                self._original.state.pop(parameter, None)
            else:
                self._original.state[parameter] = state

    @property
    def _first_states(self) -> str:
        """What worker 0 does for all where parameters begin."""
        return f"{self._prefix}: the optimizer's state"

    def _check_states(self, states: Mapping[torch.Tensor, dict[str, Any]]) -> None:
        """
        Raises ShapeError for a state that is not of its parameter's shape, as NumPy would repeat it, and
        SettingsError for one of an optimizer that keeps something else.
        """
        kind = type(self._original)
        kept = {
            id(parameter): kept_by(kind, group)
            for group in self.param_groups
            for parameter in group["params"]
        }
        for parameter, state in states.items():
            for name, array in state.items():
                # What the rules do not know stays with torch's optimizer, of any shape.
                known = name in SLOTS and isinstance(array, torch.Tensor)
                if known and array.shape != parameter.shape:
                    shape = tuple(array.shape)
                    raise ShapeError(
                        f"`{name}` of parameter `{self._names.get(id(parameter), '')}`: expected the "
                        f"parameter's shape {tuple(parameter.shape)}, got {shape}",
                        "load the state of a model of the same shapes",
                    )
            lacking = [name for name in kept[id(parameter)] if state and name not in state]
            if lacking:
                raise SettingsError(
                    f"the state of parameter `{self._names.get(id(parameter), '')}` has no `{lacking[0]}` in "
                    f"it, but {', '.join(f'`{name}`' for name in state)}",
                    f"load a state of torch.optim.{kind.__name__}",
                )

    def _with_defaults(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The groups, with what an older torch did not save as torch itself takes it then."""
        probe = object.__new__(type(self._original))
        probe.defaults = {}
        probe.__setstate__({"state": {}, "param_groups": groups})
        return groups

    def _adopt_groups(self, groups: Iterable[dict[str, Any]]) -> None:
        """As torch does: what a group does not have, such as a scheduler's `initial_lr`, is gone."""
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            for name in mine.keys() - theirs.keys() - {"params", "param_names"}:
                del mine[name]
            mine.update({name: value for name, value in theirs.items() if name != "params"})

    def _load_states(
        self,
        states: dict[torch.Tensor, dict[str, Any]],
        *,
        everything: bool = False,
        behind: Callable[[], None] = lambda: None,
        checked: bool = True,
    ) -> None:
        """
        Loads rank 0's torch states into the servers, and does what is `behind` that. With `everything`,
        parameters without state start afresh. Unless they are `checked`, worker 0 does that, and the others
        hear what is wrong: theirs do not count.
        """
        if self._clipping is not None:
            self._clipping.forget_steps()
        what = self._first_states
        hooks: dict[int, Callable[[Any], None]] = {}
        if everything:
            hooks = self._optimizer_load_state_dict_post_hooks
            what = f"{self._prefix}: load of a state (every worker calls optimizer.load_state_dict)"

        def arrays() -> Iterator[tuple[Shared, int, Array, int]]:
            for shared in self._shared.values():
                state = states.get(shared.parameter) or (self._fresh_state(shared) if everything else {})
                if state or everything:
                    for slot, array in self._arrays_of(shared, state):
                        yield shared, slot, array, steps_of(state)

        def load() -> None:
            for shared, slot, array, steps in arrays():
                with self._delivery.aside(shared):
                    shared.tensor._core.load(slot, _as_buffer(array), steps, self._timeout)

        def says() -> int:
            if not checked:
                self._check_states(states)
            return checksum(
                part for _, slot, array, steps in arrays() for part in (slot, _as_buffer(array), steps)
            )

        def call_hooks() -> None:
            for after in hooks.values():
                after(self)

        deed = Deed(what, load, says, behind, call_hooks)
        self.job._firsts.do(self.job._core, deed, self._timeout, self._timeout)

    def _fresh_state(self, shared: Shared) -> dict[str, Any]:
        """What torch's optimizer starts from, if that is not zeros."""
        start = shared.group.options().get("initial_accumulator_value")
        if start is None:
            return {}
        return {"step": 0, "sum": torch.full_like(shared.parameter, float(start))}

    def _arrays_of(self, shared: Shared, state: dict[str, Any]) -> Iterator[tuple[int, Array]]:
        for slot, name in enumerate(shared.tensor._core.slots):
            array = np.zeros(shared.tensor.shape, dtype=shared.tensor._accumulator())
            held = state.get(name)
            if held is not None:
                array[...] = held.detach().to(
                    "cpu", torch.float64 if array.dtype == np.float64 else torch.float32
                )
            yield slot, array

    # -- parameters and tensors
    # -----------------------------------------------------------------------------------

    def _clipping_to(self, limit: float | None) -> Clipping | None:
        if limit is None:
            return None
        limit = check_limit(limit)
        if self._consistency != BSP():
            raise OptionError(
                f"clip_norm needs ps.BSP(), got `{self._consistency}`: there each worker's gradient is a "
                "step of its own, as soon as it comes, so there is no average whose norm could be taken",
                "to clip each worker's own: overlap=False, and clip_grad_norm_ before step(); clip=... clips "
                "each element",
            )
        return Clipping(self.job, self._prefix, limit, self._timeout)

    def _next_rule(self, group: dict[str, Any]) -> GroupRule:
        return GroupRule(type(self._original), group, self._updates, len(self._rules))

    def _mine(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _declare(self) -> None:
        """
        Makes tensors of the trainable parameters that are not tensors yet: unfrozen since, or of a new group.
        """
        try:
            for number, (group, rule) in enumerate(zip(self.param_groups, self._rules, strict=True)):
                for index, parameter in enumerate(group["params"]):
                    if id(parameter) in self._shared or not parameter.requires_grad or not parameter.numel():
                        continue
                    name = self._names.get(id(parameter), f"group{number}.{index}")
                    self._share(parameter, self._own_name(parameter, name), rule)
            if self._fresh or not self._ready:
                # Workers may order their groups differently; this order all have.
                self._everything = sorted(self._shared.values(), key=lambda shared: shared.name)
                whole = (shared.tensor for shared in self._everything if not shared.reads_rows)
                self._propagation = propagation_of(whole, self._asked)
                for part in (self._attendance, self._clipping):
                    if part is not None:
                        part.take_in(self._everything)
        except BaseException:
            self._is_retry = True
            raise

    def _own_name(self, parameter: torch.Tensor, name: str) -> str:
        """
        The name; with a number behind it, alike on all workers, if another parameter had it, whose value and
        state its tensor has. It is the parameter's from here on: what was interrupted is declared again.
        """
        number, mine = 1, name
        while self._named.get(mine, parameter) is not parameter:
            number += 1
            mine = f"{name}#{number}"
        self._named[mine] = parameter
        return mine

    def _take_in(self) -> None:
        """
        Like `_declare`, after the start: with the state that torch's optimizer would start from, and worker
        0's value. Takes up what an interrupted call has left.
        """
        if not self._fresh:
            # All that were given their first states are through with it: what begins now is another call.
            self.job._firsts.forget(self._first_states)
        self._declare()
        if self._fresh:

            def loaded() -> None:
                self._unread.update(self._fresh)
                self._fresh.clear()

            # A part of what all do together: behind that an interrupted call would be another one.
            self._load_first_states(self._fresh.values(), loaded)
        if self._unread:
            self._pull_all(self._unread.values(), early=True)
            # Last: a gradient that came before would be of another value, or be stepped from another state.
            self._delivery.allow(self._unread.values())
            self._unread.clear()

    def _load_first_states(self, which: Iterable[Shared], behind: Callable[[], None] = lambda: None) -> None:
        """Gives the servers the state of the original optimizer: a checkpoint's, or a fresh one's."""
        states = {}
        for shared in which:
            state = self._original.state.get(shared.parameter) or self._fresh_state(shared)
            if state:
                states[shared.parameter] = state
        self._load_states(states, behind=behind, checked=False)

    def _share(self, parameter: torch.Tensor, name: str, rule: GroupRule) -> None:
        mean, declaration, filters = None, self._declaration, self._filters
        layers = self._tables.of(parameter)
        if self._clipping is not None:
            # Gradients are pushed to the mean. What is stepped by is the reduced one, from one worker.
            pushes, filters = Filters(push=filters.push), Filters(broadcast=filters.broadcast)
            mean = self._clipping.mean_of(parameter, name, {**declaration, "filter": pushes})
            carried = {what: declaration[what] for what in ("refuse_nonfinite", "compress")}
            declaration = {"reduce": "sum", **carried}
        # A call that has failed may have declared it, for the same model.
        owner = self._prefix, name
        name = f"{self._prefix}/{name}"
        tensor = self.job._tensor(
            owner,
            name,
            parameter,
            shape=tuple(parameter.shape),
            dtype=parameter.dtype,
            optimizer=rule.rule,
            consistency=self._consistency,
            # Of a table all rows would come.
            propagation="pull" if layers else self._asked,
            sparse=bool(layers),
            filter=filters,
            timeout=self._timeout,
            **declaration,
        )
        if self._is_retry and self.job.rank == 0:
            # What a call that failed has declared keeps its value and state; these may be others now. Nobody
            # reads it before all have met.
            tensor._core.load(-1, _as_buffer(as_array(parameter)), 0, self._timeout)
            for slot in range(len(tensor._core.slots)):
                nothing = np.zeros(tensor.shape, dtype=tensor._accumulator())
                tensor._core.load(slot, _as_buffer(nothing), 0, self._timeout)
        # One description for all tensors of a group: a changed learning rate reaches all of them at once.
        tensor._optimizer = rule.rule
        filtered = self._filters.push is not None
        transfer = transfer_for(parameter, tensor, self._check, mean, filtered=filtered)
        if layers:
            transfer = RowsTransfer(parameter, name, tensor, transfer, self._check)
        shared = Shared(parameter, name, tensor, rule, transfer, mean)
        if isinstance(transfer, RowsTransfer):
            transfer.left = lambda: shared.left
            transfer.when_whole = shared.note_read
            hook = ReadsRows(transfer)
            shared.layers = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
        # In place of what a call that was interrupted has made of it.
        self._fresh[id(parameter)] = shared
        self._delivery.add(shared)
        # Last: what stands here is not declared again.
        self._shared[id(parameter)] = shared

    def _broadcast_rest(self) -> None:
        """Broadcasts what the servers hold no value of: frozen parameters and buffers."""
        owned = {id(shared.parameter) for shared in self._shared.values()}
        all_of_it = [*self._model.parameters(), *self._mine(), *self._model.buffers()]
        rest = {id(tensor): tensor for tensor in all_of_it if id(tensor) not in owned}
        # What one worker trains and another has not would be averaged over fewer, without a word.
        trained = self._labelled(shared.parameter for shared in self._shared.values())
        # Where all is frozen as yet, no declaration tells a difference.
        settings = [f"filter={self._filters!r}"]
        settings.append(f"propagation={self._asked} sparse_pull={self._tables!r}")
        if self._clipping is not None:
            settings.append(f"clip_norm={self._clipping.limit}")
        labelled = self._labelled(rest.values())
        broadcast(self.job, f"{self._prefix}/start", labelled, self._timeout, trained, settings)

    def _labelled(self, tensors: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors by their names in the model; those without a name there by their place in the list."""
        names = {id(tensor): name for name, tensor in self._model.named_buffers()}
        names.update(self._names)
        return {names.get(id(tensor), f"tensor {place}"): tensor for place, tensor in enumerate(tensors)}

    # What is kept of them is compared and filled again outside of an evaluation's inference mode.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _pull_all(
        self,
        which: Iterable[Shared] | None = None,
        *,
        early: bool = False,
        exact: bool = False,
    ) -> None:
        """
        Reads all of them, or `which`. With `early`, their gradients may leave in backward from now on. With
        `exact`, nothing is held back of them.
        """
        for shared in self._shared.values() if which is None else which:
            # With a norm to wait for, what leaves in backward does not change the parameter.
            moves = (early or shared.expected is not None) and shared.mean is None
            seen = self._published.get(shared)
            shared.is_whole = shared.is_released = False
            shared.transfer.receive(shared.parameter, moves=moves, seen=seen, exact=exact)
            shared.is_whole = exact
            shared.note_read()

    def _have_seen_all(self, which: Iterable[Shared]) -> None:
        """What was read of these just now is all that there is of them, as every reader sees all of it."""
        for shared in which:
            shared.is_released = shared.is_whole = not shared.reads_rows

    # -- parameters that come after `distribute`

    @property
    def watches(self) -> bool:
        """Whether those that the servers do not step are refused still."""
        return not self.job.closed and not self._is_gone

    def _check_group(self, parameters: Iterable[torch.Tensor]) -> None:
        """Raises OptionError or DtypeError for a Parameter that the optimizer may not have."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        for parameter in parameters:
            if isinstance(parameter, torch.nn.UninitializedParameter):
                raise OptionError(
                    "a parameter of the group has no shape yet",
                    "call the model once before `add_param_group`",
                )
            if isinstance(parameter, torch.nn.Parameter) and id(parameter) not in names:
                raise OptionError(
                    f"the group has a parameter of shape {tuple(parameter.shape)} that the model lacks",
                    "add it to the model first, on every worker, as by `model.head = head`, with "
                    "`nn.ParameterList([it])` for a parameter alone",
                )
            if owned_elsewhere(parameter, self):
                raise OptionError(
                    f"parameter `{names.get(id(parameter), '')}` is distributed already",
                    "let one optimizer step it; `ps.torch.unwrap` ends what averages its gradient",
                )
            if parameter.requires_grad and parameter.numel():
                dtype_name(parameter.dtype)

    def lacking(self, parameter: torch.Tensor) -> Shared | None:
        """It, where the parameter lacks something of the servers' value."""
        shared = self._shared.get(id(parameter)) if self._ready and not self._is_gone else None
        return shared if shared is not None and shared.lacks else None

    def lags(self) -> bool:
        """Whether a parameter that is read whole lacks something."""
        watches = self._ready and not self._is_gone
        return watches and any(one.lacks and not one.reads_rows for one in self._shared.values())

    def tell_of_held_back(self, who: str) -> None:
        """Warns, once, that `who` lacks what this worker's filters of pushes hold back, if they do."""
        if self._told_of_held_back or self._filters.push is None or self._is_gone or self.job.closed:
            return
        if held := self._held_by_name():
            self._told_of_held_back = True
            warn_of_lacking(who, held, of_the_script())

    def _tell_of_kept(self) -> None:
        """Warns, once, of what this worker's filters of pushes will add to values that are published."""
        if not self._told_of_kept and self._filters.push is not None and (held := self._held_by_name()):
            self._told_of_kept = True
            warn_of_kept(held, of_the_script())

    def _held_by_name(self) -> dict[str, HeldBack]:
        each = {shared.name: shared.sends_to.held_back for shared in self._shared.values()}
        return {name: one for name, one in each.items() if one.elements}

    def can_read(self, what: str) -> bool:
        """Whether what parameters lack can be read now; warns if not, of `what` is made of them."""
        why = self.job._why_over
        if why is None:
            try:
                self._refuse_cut()
                self._refuse_part_of_flush()
            except OptionError as error:
                why = str(error.args[0]).splitlines()[0]
        if why is None and self._delivery.has_sent:
            why = "gradients have left for the servers, and no step() came since"
        if why is not None:
            warnings.warn(
                f"{what} lacks what parameters lack of the servers' values: {why}",
                stacklevel=of_the_script(),
            )
        return why is None

    def read_the_rest(self) -> None:
        """The job is about to be left: the script goes on with what the servers have."""
        lacking = [shared for shared in self._shared.values() if shared.lacks]
        if not lacking or self.job.closed or not self._ready or self._is_gone:
            return
        if not self.can_read("the model that is kept"):
            return
        # What the script has changed is its own from here on.
        unchanged = [one for one in lacking if one.is_as_read(self._check)]
        try:
            self._pull_all(unchanged, exact=True)
        except DeadlineExceeded as error:
            warnings.warn(
                f"the model lacks what was held back of its parameters, or not read: {error.args[0]}",
                stacklevel=of_the_script(),
            )
        if changed := [f"`{one.name}`" for one in lacking if one not in unchanged]:
            warnings.warn(
                f"the script has written to {', '.join(changed)} since the servers' value was read: what was "
                "held back of it, or not read, is lacking in the model that is kept. Before the job ends, "
                "state_dict() has all of the servers' values",
                stacklevel=of_the_script(),
            )

    def refuse_step_of(self, optimizer: torch.optim.Optimizer) -> NoReturn:
        """Raises OptionError for a step that another optimizer is about to take of the model's parameters."""
        if optimizer is self._original:
            raise OptionError(
                "the optimizer that was given to `distribute` steps in this worker alone, apart from others",
                "step the one that it returns: model, optimizer = ps.torch.distribute(model, optimizer)",
            )
        raise OptionError(
            f"another {type(optimizer).__name__} than the one given to `distribute` steps parameters of its "
            "model in this worker alone, apart from others",
            "give `distribute` one optimizer with all of the groups, or add them by add_param_group; with "
            'where="gradients" any number of optimizers step',
        )

    def step_of_wrapper_begins(self) -> None:
        """An optimizer that holds this one begins its step."""
        self._steps_before.append(self._steps)

    def step_of_wrapper_ends(self) -> None:
        """
        It has ended. Raises OptionError if it stepped in place of this one: one that leaves out a step, as in
        accumulation, changes nothing.
        """
        # One that raised in its step has left a number above.
        if self._steps_before and self._steps_before.pop() == self._steps:
            self._refuse_changes()

    def drop_hooks(self, *, goes_on: bool = False) -> None:
        """
        No job is open any more, or the model `goes_on` in another. Its hooks, and its parameters', do nothing
        from then on, but hold all of this: torch hides the latter from the collector of garbage.
        """
        self._delivery.forget()
        while self._after_loads:
            self._after_loads.pop().remove()
        # Where something could not be read any more, who reads it is told so.
        lacks = not goes_on and any(shared.lacks for shared in self._shared.values())
        while self._after_saves and not lacks:
            self._after_saves.pop().remove()
        for shared in self._shared.values():
            if goes_on or not shared.lacks:
                shared.release_layers()

    def warn_of_no_step(self) -> None:
        """
        Warns, where the job is about to be left, if this worker has trained alone since its last step. Where
        none was taken it may have done so out of sight, by copies: then any change counts.
        """
        is_cut_short = self._delivery.began or self._flushing or self._flushed
        if self._warned or self.job.closed or is_cut_short:
            return
        found = self._delivery.changed_without_step(ever=not self._steps)
        if found is None:
            return
        self._warned = True
        since = "after its last step()" if self._steps else "and never stepped"
        if found.computed:
            times = f"{found.computed} times without a step"
            what = f"gradients were computed {times}: this worker has trained alone"
        else:
            what = "if this worker has trained, it has trained alone"
        warnings.warn(
            f"parameter `{found.name}` was changed outside of the optimizer that `distribute` returned, "
            f'{since}; {what}. Call its step(), or pass where="gradients", where a script may step by hand',
            stacklevel=4,
        )

    def _refuse_changes(self, *, all_rows: bool = False) -> None:
        """
        Raises OptionError if a parameter is not what was read from the servers last. Without the check, if it
        was loaded with a part of the model. With `all_rows`, rows of tables are looked at that were not read
        for this step, whether or not torch has counted a write.
        """
        if self.job.closed:
            return
        if not self._check:
            if self._loaded is not None:
                if self._flushed:
                    raise cut_short("a flush()")
                raise OptionError(
                    f"part `{self._loaded}` of the model has loaded a state: the servers do not know of "
                    "that, and their values would replace it",
                    INSIDE_EXACT
                    if any(shared.lacks for shared in self._shared.values())
                    else "call optimizer.publish(), on every worker, after a load into a part",
                )
            return
        for shared in self._shared.values():
            if (sent := self._flushed.get(shared)) is not None:
                # The servers may have stepped it by now.
                same = sum_of(shared.parameter) == sent.given
            elif all_rows and isinstance(shared.transfer, RowsTransfer):
                same = shared.transfer.unchanged()
            else:
                same = shared.transfer.received(shared.parameter)
            if not same:
                # It may as well be the servers' value that has changed.
                self._refuse_cut()
                raise changed_outside(
                    shared.name,
                    "put back what it held and call flush() again, or end the job and start from a checkpoint"
                    if self._flushed
                    else INSIDE_EXACT
                    if any(shared.lacks for shared in self._shared.values())
                    else "call optimizer.publish(), on every worker, after such a change",
                )
        for name, parameter in self._others():
            # What had no gradient, such as a moving average, was not stepped by one.
            copy = self._copies.get(id(parameter)) if id(parameter) in self._reached else None
            if copy is not None and not same_bits(parameter.detach(), copy):
                raise OptionError(
                    f"parameter `{name}` was changed outside of step(), and is not in the optimizer that was "
                    "given to `distribute`: a step by this worker's own gradient is apart from the others",
                    "give `distribute` an optimizer that has it, or freeze it (requires_grad_(False)); a "
                    "change that is the same on every worker is followed by optimizer.publish(), inside "
                    "`with optimizer.exact():` where parameters lack something",
                )

    def _others(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The model's parameters that are not frozen, and of which the servers have none."""
        for name, parameter in self._beside:
            if parameter.requires_grad and id(parameter) not in self._shared:
                yield name, parameter

    def _keep_copies(self) -> None:
        if self._check:
            self._copies = {id(one): one.detach().clone() for _, one in self._others()}


class _Load(NamedTuple):
    """A load of the model that has begun."""

    state: Mapping[str, Any]
    """The dictionary itself: other hooks may change it before anything is read."""
    prefix: str
    """What the names of the model's parameters have before them there: it may be a part of what is loaded."""
    versions: dict[Shared, int]
    """Of the parameters that lacked something, as they were before it."""

    def left_alone(self, shared: Shared, names: Iterable[str]) -> bool:
        """Whether it has written nothing to this parameter, of these `names` in the model."""
        version = self.versions.get(shared)
        if version is not None and shared.parameter._version != version:
            return False
        # What is written through `data` is not counted. Of another shape torch loads nothing.
        found = (self.state.get(f"{self.prefix}{name}") for name in names)
        size = shared.parameter.numel()
        return not any(isinstance(one, torch.Tensor) and one.numel() == size for one in found)


class _BeforeLoad(Ours):
    """The model's hook before a load, of it or of a module that it is a part of."""

    def __init__(self, optimizer: DistributedOptimizer | None = None) -> None:
        self._optimizer = optimizer

    def __call__(self, _: torch.nn.Module, state: Mapping[str, Any], prefix: str, *__: Any) -> None:
        if self._optimizer is not None and self._optimizer.watches:
            self._optimizer.load_begins(state, prefix)


class _AfterLoad(Ours):
    """The model's hook after `load_state_dict`, and that of each part, which is named."""

    def __init__(self, optimizer: DistributedOptimizer | None = None, part: str = "") -> None:
        self._optimizer = optimizer
        self._part = part

    def __call__(self, module: torch.nn.Module, _: Any) -> None:
        optimizer = self._optimizer
        if optimizer is None or not optimizer.watches:
            return
        if not self._part:
            # Torch's list of what is missing has the names that the root of the load has; and hooks edit it.
            optimizer.publish_load()
            return
        for parameter in module.parameters():
            shared = optimizer._shared.get(id(parameter))
            if shared is not None:
                optimizer._loaded = self._part
                if isinstance(shared.transfer, RowsTransfer):
                    shared.transfer.loaded = True


def _refuse_state(original: torch.optim.Optimizer, *_: Any) -> None:
    distributed = _DISTRIBUTED.get(original, lambda: None)()
    if distributed is not None and distributed.watches:
        raise OptionError(
            "the optimizer that was given to `distribute` has no state: it is on the servers",
            "save and load that of the one that it returns: "
            "model, optimizer = ps.torch.distribute(model, optimizer)",
        )


def _check_same_flags(
    kind: type[torch.optim.Optimizer], group: dict[str, Any], rule: GroupRule, *, loaded: bool
) -> None:
    """Raises SettingsError where a group, `loaded` with a state or set by the script, needs another rule."""
    what = "the state" if loaded else "the dictionary that took its place"
    if (name := rule.lacking_in(group)) is not None:
        raise SettingsError(
            f"the group was declared as {rule.rule!r}, {what} has no `{name}` in it",
            f"load a state of torch.optim.{kind.__name__}" if loaded else "keep what is not to change",
        )
    fresh = GroupRule(kind, group).rule
    if (fresh.rule(), fresh.flags()) != (rule.rule.rule(), rule.rule.flags()):
        before = "construct the optimizer with the flags of the checkpoint" if loaded else "set flags"
        raise SettingsError(
            f"the group was declared as {rule.rule!r}, {what} is of {fresh!r}",
            f"{before} before `distribute`",
        )


def _came_late(name: str) -> OptionError:
    return OptionError(
        f"parameter `{name}` came after `distribute`: the servers do not step it, and a step in each "
        "worker is apart from the others",
        'optimizer.add_param_group({"params": ...}), on every worker, has the servers step it; '
        "freeze what is not to be trained (requires_grad_(False))",
    )
