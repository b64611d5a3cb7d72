"""
One model whose gradients are averaged: its buckets, its hooks, and what happens when backward ends.

| when | what |
|---|---|
| a gradient is complete | its bucket leaves if it was the last of it |
| backward ends | buckets that are not full leave with zeros; the roll is called; the job's clock moves on |
| then | the averages are copied to `p.grad`, buffers are taken in, and the roll is heard |

In the first pass everything leaves at its end: how often backward adds to each gradient is learned there
(once, but for parameters inside nested passes). A bucket that left too early would be an error (never a
silent difference): one that is added to afterwards raises.

A parameter that was frozen, or had no gradient on any worker, is in no bucket. When the roll says that
somebody has a gradient of it, all workers give it a bucket of its own, in a second exchange of the same pass.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...exceptions import DeclarationConflict, DtypeError, JobClosed, OptionError
from ...job import Job
from ..arrivals import Newcomers, watch, when_added_to, whenever_computed
from ..copies import Ours, leave_hooks_behind
from ..data import epochs_of
from ..known import Known, Parts
from ..layouts import is_any
from .backward import Backward, _this_pass, backward_of
from .bucket import Bucket, Member, buckets_of, gradients_of
from .buffers import Buffers
from .roll import Heard, Roll, digest_of

if TYPE_CHECKING:
    from ..counters import Times

BUCKET_BYTES = 1 << 20
"""
Gradients share a bucket up to here. A larger one leaves later; a smaller one costs a call more for each
bucket.
"""
SAME_INPUTS = 3
"""Batches that are compared between workers."""
CHECK_EVERY = 100
"""Passes from one comparison of parameters to the next, by default."""

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Averaging:
    """Averages the gradients of a model over the job's workers. Made by `ps.torch.distribute`."""

    when_dropped: Callable[[str], None] | None = None
    """Hears the prefix, when the script has dropped all of the model after a pass that ended well."""

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Mapping[str, torch.Tensor],
        job: Job,
        *,
        prefix: str,
        declaration: dict[str, Any],
        overlap: bool,
        buffers: str,
        check_every: int,
        bucket_bytes: int,
        timeout: float | None,
        patience: float,
    ) -> None:
        self._model = weakref.ref(model)
        self._parts = Parts(model)
        self.job = job
        self.prefix = prefix
        self._declaration = declaration
        self._timeout = timeout
        self._patience = patience
        self._members = [
            Member(parameter, name, place)
            for place, (name, parameter) in enumerate(check(parameters).items())
        ]
        self._held = [member.held for member in self._members]
        # By the member's place: how often backward adds to its gradient in a pass, by what earlier ones did,
        # and how often it still will in this one.
        self._expected = [1] * len(self._members)
        self._to_come = list(self._expected)
        self._backward: Backward = backward_of(job)
        self._buckets: list[Bucket] = []
        self._reached = False
        self._rest_has_left = False
        """Whether what goes beside the gradients has left: the buffers, the roll."""
        # A model on several devices: autograd has a thread for each, and both may come first.
        self._beginning = threading.Lock()
        self._found: list[Member] = []
        self._learned = not overlap
        self._overlap = overlap
        self._synchronized = True
        self.unsent = False
        """Whether gradients may not be averages: the last pass was inside `no_sync`, or did not end well."""
        self.is_at_rest = True
        """Whether the last pass outside of `no_sync` ended well."""
        self._count = 0
        self.averaged_in = 0
        """The job's iteration when the last pass ended: the same on all workers, and it only grows."""
        self._check_every = check_every
        self._ask = self._compare = False
        self._marks: list[tuple[float, float]] | None = None
        self._inputs: tuple[int, int] | None = None
        self._same = 0
        self._epochs = 0
        self._warned = False
        """That epochs differ."""
        # One worker's sum is its mean.
        self._idempotent = (
            (declaration["reduce"] == "mean" or job.size == 1)
            and declaration["rescale"] == 1
            and declaration["clip"] is None
        )
        self._averaged: set[int] = set()
        """
        Places of members that may still hold an average of an earlier pass; none where an average of averages
        is what they are.
        """
        self._looked = -1
        """The last pass before which it was looked whether they do."""
        self.times: Times | None = None
        """Once somebody has asked for them."""
        self._ours: list[tuple[Member, int]] = []
        self._handles: list[Any] = []
        self._calls: Any = None
        """The handle of the hook that sees the model called, while somebody needs it."""
        self.known = Known(parameters.values())
        """All parameters that the model and the optimizer had."""
        self._newcomers = Newcomers(self, self.known, self._parts.parameters, when_added_to, _came_late)
        self._is_needed = True
        if job.size == 1:
            self._is_needed = not self._idempotent or declaration["refuse_nonfinite"]
            # Nobody else could be given the same.
            self._same = -1
        if not self._is_needed:
            return
        trained = [member for member in self._members if parameters[member.name].requires_grad]
        for number, group in enumerate(buckets_of(trained, bucket_bytes)):
            self._buckets.append(self._bucket(str(number), group))
        self._roll = Roll(job, f"{prefix}/roll", len(self._members), timeout, patience)
        self._buffers = Buffers(job, f"{prefix}/buffers", model, buffers, timeout, patience)

    def hook(self, model: torch.nn.Module, parameters: Mapping[str, torch.Tensor]) -> None:
        """
        From now on it hears of the model's gradients, loads and calls. Whatever ends this early, `let_go`
        takes back.
        """
        if not self._is_needed:
            return
        # Each is there as soon as it is registered.
        self._handles += (self._hook(member) for member in self._members)
        if not self._idempotent:
            self._handles += (self._hook_before(member) for member in self._members)
        for name, parameter in parameters.items():
            # Frozen, as yet.
            if parameter.dtype not in _DTYPES and (parameter.is_floating_point() or parameter.is_complex()):
                self._handles.append(when_added_to(parameter, self._refusal_of(name)))
        loaded = _Loaded(self)
        for module in model.modules():
            # A part of the model may be loaded by itself.
            self._handles.append(module.register_load_state_dict_post_hook(loaded))
        self._see_calls()
        watch(model, self._newcomers, instead=True)
        leave_hooks_behind(model)

    def _bucket(self, name: str, members: list[Member]) -> Bucket:
        return Bucket(
            self.job,
            f"{self.prefix}/gradients/{name}",
            members,
            self._declaration,
            self._timeout,
            self._patience,
        )

    # -- while backward runs

    def _hook(self, member: Member) -> Any:
        """Has the member's gradient noticed. Frozen parameters too: they may be unfrozen later."""
        backward, to_come, place = self._backward, self._to_come, member.place
        parameter = member.parameter
        assert parameter is not None

        def came(_: torch.Tensor) -> None:
            if not self._synchronized:
                self.unsent = True
                if place in self._averaged:
                    self._refuse_leftover(place)
                return
            if backward.known != _this_pass():
                # Also where it is refused.
                self._begin_to_differ()
                backward.enter()
            if not self._reached:
                self._begin(member)
            left = to_come[place] - 1
            to_come[place] = left
            bucket = member.bucket
            if bucket is None:
                return
            if left == 0:
                bucket.missing -= 1
                if bucket.missing == 0 and self._learned and self._overlap:
                    if self.times is None:
                        bucket.send()
                    else:
                        self.times.sending(bucket.send)
            elif bucket.has_left:
                raise OptionError(
                    f"the gradient of `{member.name}` was added to after it had left for the other workers",
                    "pass overlap=False to `ps.torch.distribute`: gradients then leave after backward",
                )

        handle = when_added_to(parameter, came)
        self._ours.append((member, handle.id))
        return handle

    def _begin(self, member: Member) -> None:
        """The pass reaches this model, with the gradient of `member`."""
        with self._beginning:
            if self._reached:
                return
            if self.job.closed:
                self._refuse_end()
            # Also where it is refused, and another of the pass's models came first.
            self._begin_to_differ()
            if self._averaged:
                self._refuse_leftover(min(self._averaged))
            self._backward.reach(self)
            self._come_last(member)
            self._reached = True

    def _begin_to_differ(self) -> None:
        """From now on this worker's gradients are its own, until the pass has ended well."""
        self.unsent = True
        self.is_at_rest = False

    def _refuse_end(self) -> NoReturn:
        try:
            self.job.clocks()
        except JobClosed as error:
            # A job that failed: it says who is to blame.
            if type(error) is not JobClosed:
                raise
        raise JobClosed(
            "the job has ended, and this model's gradients are averaged by it",
            "`ps.torch.unwrap(model)` makes it an ordinary model again",
        ) from None

    def _come_last(self, member: Member | None) -> None:
        """
        Moves our hooks behind those that the script has registered since: what these do to a gradient is part
        of it, as under DistributedDataParallel.
        """
        for one, ours in self._ours:
            hooks: Any = getattr(one.parameter, "_post_accumulate_grad_hooks", None)
            if not hooks or next(reversed(hooks)) == ours:
                continue
            if one is member:
                # Its hooks are being called: the script's come after ours this once, and it leaves late.
                if one.bucket is not None:
                    one.bucket.missing += 1
                continue
            # Taken out and put in again: autograd reads the dictionary beneath, which `move_to_end` leaves.
            hooks[ours] = hooks.pop(ours)

    def _hook_before(self, member: Member) -> Any:
        """Has it looked, before a pass adds to any gradient, which of them are averages of another."""
        parameter = member.parameter
        assert parameter is not None

        def comes(_: torch.Tensor) -> None:
            if self._looked != _this_pass():
                self._look_for_leftovers()

        return whenever_computed(parameter, comes)

    @torch.no_grad()
    def _look_for_leftovers(self) -> None:
        """
        Whatever the script has made of an average, it is none any more once it was seen to be gone, or zero.
        That lasts until this model's next pass has ended: one that is nested in it finds what this one added.
        """
        with self._beginning:
            if self._looked == _this_pass():
                return
            for place in list(self._averaged):
                gradient = self._members[place].gradient
                if gradient is None or not is_any(gradient):
                    self._averaged.discard(place)
            self._looked = _this_pass()

    def _refuse_leftover(self, place: int) -> None:
        raise OptionError(
            f"backward began while `{self._members[place].name}` still had a gradient: with reduce='sum', "
            "rescale or clip what was summed before would be summed again",
            "clear gradients before each pass, or collect them inside no_sync()",
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are added up in this worker; the next pass outside sends the sums."""
        before, self._synchronized = self._synchronized, False
        try:
            yield
        finally:
            self._synchronized = before

    # -- when it has ended

    @property
    def has_sent(self) -> bool:
        return self._rest_has_left or any(bucket.has_left for bucket in self._buckets)

    @torch.no_grad()
    def send_rest(self) -> None:
        used = [gradient is not None for gradient in gradients_of(self._held)]
        if not all(used):
            self._refuse_theft(used)
        for bucket in self._buckets:
            if not bucket.has_left:
                bucket.send()
        self._buffers.send()
        self._rest_has_left = True
        self._marks = self._measured() if self._compares() else None
        self._epochs = epochs_of(self.job)
        self._roll.call(used, self._count, self._epochs, self._inputs, self._ask, self._marks)

    def _refuse_theft(self, used: list[bool]) -> None:
        for member, has, to_come, expected in zip(
            self._members, used, self._to_come, self._expected, strict=True
        ):
            if not has and to_come != expected:
                raise OptionError(
                    f"the gradient of `{member.name}` was taken away during backward, before it was averaged",
                    "step and clear gradients after backward, not in hooks of it",
                )

    def _compares(self) -> bool:
        every = self._check_every
        return self._compare or bool(every and (self._count == 1 or self._count % every == 0))

    def _measured(self) -> list[tuple[float, float]]:
        """Norm and sum of each parameter; zeros of what is gone."""
        self._newcomers.look()
        marks = []
        for member in self._members:
            parameter = member.parameter
            if parameter is None:
                marks.append((0.0, 0.0))
                continue
            held = parameter.detach()
            norm = torch.linalg.vector_norm(held, dtype=_wide(member.dtype))
            marks.append((float(norm), float(held.sum(dtype=torch.float64))))
        return marks

    @property
    def watches(self) -> bool:
        """Whether the model is averaged still, and parameters that come after `distribute` are refused."""
        return bool(self._handles) and not self.job.closed

    @torch.no_grad()
    def take_average(self) -> bool:
        for bucket in self._buckets:
            bucket.take()
        heard = self._roll.hear()
        if absent := heard.absent():
            raise DeclarationConflict(
                f"worker {self.job.rank} averaged gradients of `{self.prefix}` in a backward pass that did "
                f"not reach this model on workers {absent}",
                "have every backward pass reach the same models on all workers",
            )
        if heard.differs(self._count):
            raise DeclarationConflict(
                f"worker {self.job.rank} has averaged gradients of `{self.prefix}` {self._count} times; "
                "another worker has done so more or less often",
                "have every backward pass reach the same models on all workers",
            )
        if self._marks is not None and (apart := heard.apart(self._marks)) is not None:
            raise DeclarationConflict(
                f"parameter `{self._members[apart].name}` is not the same on all workers any more: worker "
                f"{self.job.rank} noticed after {self._count} averages of gradients",
                "take every step, and make every change and every load, on all workers in the same way; if "
                "their processors differ so much that rounding does it, pass check_every=0 to "
                "`ps.torch.distribute`",
            )
        self._buffers.take(heard.present)
        self._compare, self._ask = heard.asked, False
        self._notice_same_inputs(heard)
        self._notice_other_epochs(heard)
        self._found = []
        for place in heard.used.nonzero()[0]:
            member = self._members[int(place)]
            if member.bucket is None:
                self._found.append(member)
            elif member.gradient is None:
                member.bucket.give(member)
        self._learn()
        self.distrust()
        self._count += 1
        self.averaged_in = self.job.iteration
        self.unsent = bool(self._found)
        self.is_at_rest = not self.unsent
        return self.unsent

    @torch.no_grad()
    def send_found(self) -> None:
        for member in self._found:
            self._buckets.append(self._bucket(f"of {member.name}", [member]))
            self._buckets[-1].send()

    @torch.no_grad()
    def take_found(self) -> None:
        for bucket in self._buckets[-len(self._found) :]:
            bucket.take()
            member = bucket.members[0]
            if member.gradient is None:
                bucket.give(member)
        self.unsent, self.is_at_rest = False, True

    def distrust(self) -> None:
        if not self._idempotent:
            self._averaged.update(range(len(self._members)))

    def begin_anew(self) -> None:
        self._reached = self._rest_has_left = False
        self._come_last(None)
        self._inputs = None
        self._found = []
        for bucket in self._buckets:
            bucket.begin()
        self._to_come[:] = self._expected

    def _learn(self) -> None:
        if min(self._to_come) < 0:
            for place, to_come in enumerate(self._to_come):
                self._expected[place] -= min(to_come, 0)
        self._learned = True

    def gradients_of(self, parameters: Known) -> Iterator[tuple[str, torch.Tensor]]:
        """Of those parameters, by their names."""
        for member in self._members:
            parameter = member.parameter
            if parameter is not None and parameter.grad is not None and parameter in parameters:
                yield member.name, parameter.grad

    # -- what is noticed on the way

    def _notice_same_inputs(self, heard: Heard) -> None:
        if self._same < 0 or self._inputs is None:
            return
        if self._inputs == (0, 0) or not heard.same_inputs(self._inputs):
            self._same = -1
        else:
            self._same += 1
        if self._same == SAME_INPUTS and self.job.rank == 0:
            warnings.warn(
                f"all {self.job.size} workers were given the same batch {SAME_INPUTS} times: each computes "
                "what the others compute. ps.torch.loader(dataset, ...) or ps.torch.sampler(dataset) gives "
                "every worker its own part",
                stacklevel=2,
            )
        if not 0 <= self._same < SAME_INPUTS:
            self._same = -1
            self._look_away()

    def _notice_other_epochs(self, heard: Heard) -> None:
        if not self._warned and heard.shuffles_otherwise(self._epochs):
            self._warned = True
            warnings.warn(
                f"worker {self.job.rank} has begun {self._epochs} epochs of data that it shuffles, another "
                "worker more or fewer: their orders differ, so some samples come twice and others not at "
                "all. Go through ps.torch.loader and ps.torch.sampler equally often on every worker, or call "
                "set_epoch before each epoch",
                stacklevel=2,
            )

    def _see_calls(self) -> None:
        model = self._model()
        if self._calls is None and model is not None:
            self._calls = model.register_forward_pre_hook(_Given(self), with_kwargs=True)

    def _look_away(self) -> None:
        """The model's calls need not be seen any more."""
        if self._calls is not None and self._same < 0:
            self._calls.remove()
            self._calls = None

    def given(self, inputs: Any) -> None:
        """The model is called with a batch."""
        if not torch.is_grad_enabled() or self.job.closed:
            return
        if torch.compiler.is_compiling() or torch._C._is_tracing():
            return
        if self._same >= 0 and self._inputs is None:
            self._inputs = digest_of(inputs)
        self._look_away()

    def loaded(self) -> None:
        """
        A state of the model or the optimizer was loaded, or a step refused, here at least: the pass after the
        next compares parameters.
        """
        self._ask = True

    @property
    def passes(self) -> int:
        """How many have ended."""
        return self._count

    def _refusal_of(self, name: str) -> Callable[[torch.Tensor], None]:
        """What raises when the parameter of that name has a gradient: its type cannot be averaged."""

        def came(parameter: torch.Tensor) -> None:
            if self._handles:
                self._begin_to_differ()
                raise _of_another_type(name, parameter)

        return came

    def hold(self, handles: Iterable[Any]) -> None:
        """Takes hooks in that go with the model's, each as it comes."""
        self._handles += handles

    def __del__(self) -> None:
        if self.when_dropped is not None and self._handles and self.is_at_rest:
            self.when_dropped(self.prefix)

    def let_go(self) -> None:
        """
        `distribute` has not come to its end. A signal handler may have raised before a hook's handle was
        kept: such a hook does nothing.
        """
        self.forget()
        self._synchronized = False

    def forget(self) -> None:
        """Removes the hooks: the model is an ordinary one again."""
        for handle in self._handles:
            handle.remove()
        self._newcomers.forget()
        if self._calls is not None:
            self._calls.remove()
        if self.times is not None:
            self.times.stop()
        self._handles, self._ours, self._calls = [], [], None


class _Loaded(Ours):
    """After `load_state_dict`."""

    def __init__(self, averaging: Averaging | None = None) -> None:
        self._averaging = averaging

    def __call__(self, *_: Any) -> None:
        if self._averaging is not None:
            self._averaging.loaded()


class _Given(Ours):
    """Before the model is called."""

    def __init__(self, averaging: Averaging | None = None) -> None:
        self._averaging = averaging

    def __call__(self, _: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if self._averaging is not None:
            self._averaging.given((args, kwargs))


def check_shapes(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raises OptionError if one has no shape yet."""
    for name, parameter in parameters.items():
        if isinstance(parameter, torch.nn.UninitializedParameter):
            raise OptionError(
                f"parameter `{name}` has no shape yet", "call the model once before `distribute`"
            )


def check(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that have elements. Raises DtypeError or OptionError if one cannot be averaged."""
    for name, parameter in parameters.items():
        if parameter.requires_grad and parameter.dtype not in _DTYPES:
            raise _of_another_type(name, parameter)
        if parameter.device.type not in ("cpu", "cuda"):
            raise OptionError(
                f"expected parameters on the CPU or a CUDA device, `{name}` is on {parameter.device}",
                "move the model to the CPU before `distribute`",
            )
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.numel() and parameter.dtype in _DTYPES
    }


def _came_late(name: str) -> OptionError:
    return OptionError(
        f"parameter `{name}` came after `distribute`: its gradient is not averaged",
        "build the model first; ps.torch.distribute(ps.torch.unwrap(model)) takes in what is new; "
        "freeze what is not to be trained (requires_grad_(False))",
    )


def _of_another_type(name: str, parameter: torch.Tensor) -> DtypeError:
    return DtypeError(
        f"parameter `{name}` is {str(parameter.dtype).removeprefix('torch.')}, expected float32, float64, "
        "float16 or bfloat16",
        "for complex parameters keep real and imaginary part, as by torch.view_as_real",
    )


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
