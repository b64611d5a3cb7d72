"""
What parameters lack of the servers' value, and who is given all of it.

| a parameter lacks | where |
|---|---|
| what a filter of broadcasts holds back | `filter=ps.Filters(broadcast=...)`, in every consistency |
| what is in no version yet, or on its way | `propagation="broadcast"` under SSP and ASP |
| rows that the last batch did not read | `sparse_pull=` |

Training goes on with what parameters hold. Whoever saves or judges the model is given the exact value, or is
told:

| who | what it gets |
|---|---|
| `state_dict()` of the model, or of a part | all, read for it; behind gradients that have left it warns |
| the script inside `with optimizer.exact():` | all, in the parameters; behind it they are what they were |
| the script after `optimizer.flush()` | all, on every worker; training goes on with it |
| the script after `job.close()` | all, read before the job is left |
| an evaluation (a forward pass without gradients), a copy | what parameters hold: it warns, once |

What a filter of pushes holds back is in no value before a flush: `state_dict()` and `exact()` warn, once,
where this worker holds back any.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..copies import Ours
from ..script import of_the_script

if TYPE_CHECKING:
    from .delivery import Shared
    from .optimizer import DistributedOptimizer


INSIDE_EXACT = (
    "on every worker: model.load_state_dict(model.state_dict()) puts back the servers' values; then change "
    "and publish inside `with optimizer.exact():`. Or load all of the model"
)
"""What helps where a parameter was changed that lacks something."""


def exact_of(shared: Shared) -> torch.Tensor:
    """The servers' value of a parameter in a new tensor, on its device and in its order of elements."""
    held = shared.parameter.detach()
    came = torch.empty(held.shape, dtype=held.dtype, device="cpu")
    shared.tensor.pull(out=came, exact=True)
    value = torch.empty_like(held)
    value.copy_(came)
    return value


class Saved:
    """What was read for the last state that was saved: a parameter may have several names in it."""

    def __init__(self) -> None:
        self._state: weakref.ref[Any] = weakref.ref(self)
        self._values: weakref.WeakKeyDictionary[Shared, tuple[int, weakref.ref[torch.Tensor]]] = (
            weakref.WeakKeyDictionary()
        )

    def value(self, shared: Shared, state: dict[str, Any]) -> torch.Tensor:
        """The servers' value of this parameter for `state`, read once; its names share it, as in torch."""
        if self._state() is not state:
            self._values.clear()
            try:
                self._state = weakref.ref(state)
            except TypeError:
                return exact_of(shared)  # a plain dictionary, that the script has given
        # Any step or load since has moved it: into one dictionary states may be saved again and again.
        version = shared.parameter._version
        at, held = self._values.get(shared, (-1, None))
        value = held() if held is not None and at == version else None
        if value is None:
            value = exact_of(shared)
            self._values[shared] = version, weakref.ref(value)
        return value


class SavesExact(Ours):
    """The hook of a module behind `state_dict()`: what its own parameters lack is read for it."""

    def __init__(self, optimizer: DistributedOptimizer | None = None, saved: Saved | None = None) -> None:
        self._optimizer = optimizer
        self._saved = saved

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        if self._optimizer is None or self._saved is None:
            return
        for name, parameter in module._parameters.items():
            key = f"{prefix}{name}"
            # With `keep_vars` it is the parameter itself that is asked for.
            if parameter is not None and state.get(key, parameter) is not parameter:
                shared = self._optimizer.lacking(parameter)
                if shared is not None and self._optimizer.can_read("the state that is saved"):
                    state[key] = self._saved.value(shared, state)


class ToldOfSaves(Ours):
    """The model's hook before `state_dict()`: warns of what this worker's filters of pushes hold back."""

    def __init__(self, optimizer: DistributedOptimizer | None = None) -> None:
        self._optimizer = optimizer

    def __call__(self, *_: Any) -> None:
        if self._optimizer is not None:
            self._optimizer.tell_of_held_back("the state that is saved")


class ToldOfEvaluations(Ours):
    """The model's hook before a forward pass, and its copies': warns of what parameters lack."""

    def __init__(self, optimizer: DistributedOptimizer | None = None) -> None:
        self._optimizer = optimizer

    def __call__(self, *_: Any) -> None:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        self._tell("a forward pass without gradients reads")

    def left_behind(self) -> None:
        """The model is copied."""
        self._tell("a copy of the model has")

    def _tell(self, who: str) -> None:
        optimizer = self._optimizer
        if optimizer is None or optimizer.told_of_lacking or not optimizer.lags():
            return
        optimizer.told_of_lacking = True
        warnings.warn(
            f"{who} parameters that may lack what is held back of them, or on its way: inside `with "
            "optimizer.exact():` they have it, and after optimizer.flush() on every worker",
            stacklevel=of_the_script(),
        )
