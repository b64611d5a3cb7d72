"""
The script's own optimizer under `where="gradients"`: it steps as ever, on averages. What it must know is
looked after by hooks that torch has for that; the optimizer stays the same object.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ...exceptions import DeadlineExceeded, OptionError
from ...gather import Gathering, printable, unreadable
from ...handlers import Handlers
from ...job import Job
from ..broadcast import broadcast_bytes
from ..known import Known
from ..layouts import is_any
from .averaging import Averaging

SET_BY_LOADS = "decoupled_weight_decay"
"""What torch's AdamW makes True in whatever it loads."""
MOST_TOLD = 64
"""Elements of a tensor among an optimizer's settings that are compared one by one; of more a digest is."""


def described(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[str]:
    """
    What must be the same on all workers, a line each: class, settings of every group, and which parameters it
    has. Their order too, where the optimizer may go by it. `names`: of parameters, by their id.
    """
    kind = type(optimizer)
    lines = [f"optimizer {kind.__module__}.{kind.__qualname__}"]
    for number, group in enumerate(optimizer.param_groups):
        settings = {
            name: _told(value) for name, value in group.items() if name not in ("params", "param_names")
        }
        # A function, say, lies elsewhere in each process.
        told = re.sub(r" at 0x[0-9a-f]+", "", f"{dict(sorted(settings.items()))}")
        lines.append(f"group {number} of {len(group['params'])} parameters with {told}")
        known = [names[id(parameter)] for parameter in group["params"]]
        if _steps_one_by_one(optimizer):
            lines += [f"group {number}: `{name}`" for name in sorted(known)]
        else:
            lines += [f"group {number}, place {place}: `{name}`" for place, name in enumerate(known)]
    return lines


def _told(setting: Any) -> Any:
    """A tensor's text would have its device, which may be each worker's own, and four of its digits."""
    if isinstance(setting, torch.Tensor):
        if setting.layout != torch.strided or setting.is_nested or setting.is_quantized or setting.is_meta:
            # It can be neither listed nor read; torch has a text of it.
            return setting
        if setting.numel() <= MOST_TOLD:
            return setting.dtype, setting.tolist()
        # Some optimizers keep all parameters' first values there.
        held = setting.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return (
            held.dtype,
            tuple(setting.shape),
            hashlib.sha256(held.view(torch.uint8).numpy().data).hexdigest(),
        )
    if isinstance(setting, Mapping):
        return {name: _told(value) for name, value in setting.items()}
    return tuple(map(_told, setting)) if type(setting) in (tuple, list) else setting


def _steps_one_by_one(optimizer: torch.optim.Optimizer) -> bool:
    """
    Whether each parameter's step and state are its own, whatever its place: of torch's rules, all but LBFGS.
    Others may keep what is a whole group's with its first parameter.
    """
    return type(optimizer).__module__.startswith("torch.optim.") and not closure_required(optimizer)


def start_alike(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], job: Job, name: str, timeout: float | None
) -> bool:
    """
    Gives every worker rank 0's optimizer state, by the names of parameters: a checkpoint may have been loaded
    there alone. Returns whether it has its parameters in the order of rank 0's. Collective.

    Raises OptionError, on every worker, if the state holds objects that cannot be sent, GatherConflict if
    what came is not a state.
    """
    if job.size == 1:
        return True
    mine = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    data, failure = None, None
    if job.rank == 0:
        data, failure = _written(optimizer, mine)
    received = broadcast_bytes(job, name, data, timeout)
    if job.rank == 0:
        if failure is not None:
            raise _unsent(optimizer, failure) from failure
        return True
    try:
        sent = _read(received)
    except Exception as error:
        raise _unsent(optimizer, error) from None  # its message is worker 0's, as it came
    if isinstance(sent, dict) and isinstance(sent.get("unsent"), str):
        raise _unsent(optimizer, sent["unsent"])
    try:
        theirs, state = sent["order"], sent["state"]
        # A class may have states of a form of its own, which only it can judge.
        is_torchs = type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        if state is not None and is_torchs:
            sizes = [len(group["params"]) for group in state["param_groups"]]
            if not isinstance(state["state"], dict) or sizes != [len(group) for group in mine]:
                raise TypeError("no state")
            if theirs != mine:
                state = _in_order(state, theirs, mine)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise unreadable(0) from None
    if state is not None and theirs != mine and not is_torchs:
        raise _in_another_order(optimizer)
    if state is not None:
        # The same on all workers: settings were compared before.
        flags = [group.get(SET_BY_LOADS) for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        for group, flag in zip(optimizer.param_groups, flags, strict=False):
            if flag is not None:
                group[SET_BY_LOADS] = flag
    elif optimizer.state:
        optimizer.state.clear()
    return bool(theirs == mine)


def _written(optimizer: torch.optim.Optimizer, order: list[list[str]]) -> tuple[bytes, Exception | None]:
    """Worker 0's order and state as bytes; where others cannot read these, why, as bytes and by itself."""
    handlers, stream = Handlers(), io.BytesIO()
    try:
        torch.save({"order": order, "state": optimizer.state_dict() if optimizer.state else None}, stream)
        _read(stream.getvalue())
    except Exception as error:
        if handlers.raised(error):
            raise
        stream = io.BytesIO()
        torch.save({"unsent": _words(error)}, stream)
        return stream.getvalue(), error
    return stream.getvalue(), None


def _read(data: bytes) -> Any:
    """Only tensors and plain values: nothing that another process sends is run here."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _words(error: object) -> str:
    return printable(" ".join(str(error).split()))


def _unsent(optimizer: torch.optim.Optimizer, why: object) -> OptionError:
    return OptionError(
        f"the state of {type(optimizer).__name__} on worker 0 holds what cannot be sent: {_words(why)}",
        "load the optimizer's state on every worker before `distribute`, or after it",
    )


def _in_another_order(optimizer: torch.optim.Optimizer) -> OptionError:
    return OptionError(
        f"this worker's {type(optimizer).__name__} has its parameters in another order than worker 0's, and "
        "a state goes by their places: it would be another parameter's here or there",
        "give the optimizer its parameters in the same order on every worker; a state in torch's own form "
        "may also be loaded before `distribute`, which sends worker 0's by name",
    )


def _in_order(state: dict[str, Any], theirs: list[list[str]], mine: list[list[str]]) -> dict[str, Any]:
    """A state that goes by the places of `theirs`, by those of `mine`: the same names in each group."""
    groups = []
    for group, names, wanted in zip(state["param_groups"], theirs, mine, strict=True):
        place_of = {name: place for place, name in enumerate(names)}
        places = [place_of[name] for name in wanted]
        group = {**group, "params": [group["params"][place] for place in places]}
        if "param_names" in group:
            group["param_names"] = [group["param_names"][place] for place in places]
        groups.append(group)
    # States go by the numbers in "params", which a load takes as they come.
    return {"state": state["state"], "param_groups": groups}


def look_after(optimizer: torch.optim.Optimizer, averaging: Averaging, same_order: bool) -> None:
    """Refuses steps and loads that would leave the workers apart, and averages what closures return."""
    job = averaging.job
    if job.size == 1:
        return
    needs_closure = closure_required(optimizer)
    last = _Step()

    def before_step(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if not averaging.watches:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            refuse_own(stepped)
            refuse_new(stepped)
            return None
        refuse_new(stepped)

        def watched() -> Any:
            loss = closure()
            refuse_own(stepped)
            return _averaged(job, loss) if needs_closure else loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        # The optimizer itself comes first.
        return (args[0], watched, *args[2:]), kwargs

    def refuse_own(stepped: torch.optim.Optimizer) -> None:
        """Gradients that are this worker's alone."""
        if averaging.unsent:
            raise OptionError(
                "the last backward pass ran inside no_sync() or did not end well, so the gradients of this "
                "step are this worker's alone",
                "run the last backward pass before step() outside of no_sync()",
            )
        if last.passes != averaging.passes:
            return
        parameters = [parameter for group in stepped.param_groups for parameter in group["params"]]
        # Zeros leave nobody apart: by such a step torch.distributed.checkpoint has state made.
        if not any(
            parameter.grad is not None and not last.had(parameter) and is_any(parameter.grad)
            for parameter in parameters
        ):
            return
        own = "no backward pass has averaged gradients yet"
        if last.passes:
            # The script may have scaled the last average, to take back a part of a step.
            differs = _difference_of_gradients(averaging, parameters)
            if differs is None:
                return
            own = f"no backward pass has averaged gradients since the last step, and {differs}"
        raise OptionError(
            f"{own}, so the gradients of this step are this worker's alone",
            "let loss.backward() make them; what `torch.autograd.grad` gives, or the script sets or changes "
            "itself, is not averaged. An average that a step was taken on may be changed, on every worker in "
            "the same way",
        )

    def refuse_new(stepped: torch.optim.Optimizer) -> None:
        for parameter in (parameter for group in stepped.param_groups for parameter in group["params"]):
            if parameter not in averaging.known:
                raise OptionError(
                    f"the optimizer steps a parameter of shape {tuple(parameter.shape)} that came after "
                    "`distribute`, and whose gradient is not averaged",
                    "make it part of the model or of the optimizer before `distribute`",
                )

    def after_step(stepped: torch.optim.Optimizer, _: Any, __: Any) -> None:
        last.note(stepped, averaging.passes)

    def before_load(loading: torch.optim.Optimizer, _: Any) -> None:
        if averaging.watches and not same_order:
            raise _in_another_order(loading)

    ours: tuple[tuple[Callable[[Any], Any], Any], ...] = (
        (optimizer.register_step_pre_hook, before_step),
        (optimizer.register_step_post_hook, after_step),
        (optimizer.register_load_state_dict_pre_hook, before_load),
        # A state that was loaded on one worker alone shows in the parameters after its next step.
        (optimizer.register_load_state_dict_post_hook, lambda _: averaging.loaded()),
    )
    averaging.hold(register(hook) for register, hook in ours)


def _difference_of_gradients(averaging: Averaging, parameters: Iterable[torch.Tensor]) -> str | None:
    """
    None if all workers have the same gradients of the parameters, bit for bit: then whoever made them has
    made them of averages. Else how they differ. Collective, and only where a script steps again without a
    pass in between; the others may not, so it waits no longer than the job's deadline.
    """
    job = averaging.job
    digest = hashlib.sha256()
    for name, gradient in averaging.gradients_of(Known(parameters)):
        digest.update(name.encode())
        digest.update(gradient.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    prefix = averaging.prefix
    gatherings = _gatherings.setdefault(job, {})
    gathering = gatherings.setdefault(prefix, Gathering(f"{prefix}/steps", all_needed=False))
    try:
        found = gathering.bytes_of_all(
            job,
            "optimizer.step",
            "gradients that no backward pass has averaged",
            digest.digest(),
            digest.digest_size,
            None,
            # By the pass: a step that one worker has tried alone is behind it then. Whoever has made another
            # pass knows that all others are in it too, so that nobody is still comparing.
            least=averaging.averaged_in << _STEP_BITS,
        )
    except DeadlineExceeded as error:
        # The others may take the same step yet, and find that it was begun here.
        averaging.loaded()
        missing = ", ".join(map(str, error.missing))
        who = f"worker{'s' * (len(error.missing) > 1)} {missing}" if missing else "another worker"
        return f"{who} took no such step within {job.deadline:g} s"
    except BaseException:
        averaging.loaded()
        raise
    return None if len({one for one in found if one is not None}) == 1 else "gradients are not the same"


_STEP_BITS = 24
"""Of the number of a comparison: the lower ones count those between two passes."""

_gatherings: weakref.WeakKeyDictionary[Job, dict[str, Gathering]] = weakref.WeakKeyDictionary()
"""By which workers compare gradients, for each model: by its prefix, which a later one may have again."""


class _Step:
    """The optimizer's last step: what another one without a pass in between may step on once more."""

    def __init__(self) -> None:
        self.passes = 0
        """That had averaged gradients by then."""
        self._gradients: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def note(self, optimizer: torch.optim.Optimizer, passes: int) -> None:
        """It has been taken. Gradients are held weakly: the script may throw them away."""
        self.passes = passes
        self._gradients = {
            id(parameter): (weakref.ref(gradient), _changes(gradient))
            for group in optimizer.param_groups
            for parameter in group["params"]
            if (gradient := parameter.grad) is not None
        }

    def had(self, parameter: torch.Tensor) -> bool:
        """
        Whether the parameter's gradient was the same object then, and torch has counted no change since. It
        counts those through `.data` and NumPy nowhere.
        """
        gradient, version = self._gradients.get(id(parameter), (None, 0))
        now = parameter.grad
        return gradient is not None and gradient() is now and now is not None and _changes(now) == version


def _changes(gradient: torch.Tensor) -> int:
    """How often it was changed in place, as torch counts."""
    return 0 if gradient.is_inference() else gradient._version


def closure_required(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer evaluates the model several times in one step, and decides by the loss."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _averaged(job: Job, loss: Any) -> Any:
    """A closure's loss, averaged over the workers: what is decided by it must be decided everywhere alike."""
    if not isinstance(loss, torch.Tensor):
        return float(job.mean(loss))
    return job.mean(loss.detach())
