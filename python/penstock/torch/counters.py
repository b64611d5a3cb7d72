"""
Where a training step's time goes, part by part, from counters in the program itself.

| part | from | to |
|---|---|---|
| forward | the model is called | it returns |
| backward | its output's gradient is there | autograd's last node |
| exchange | there, and when gradients leave before (which is taken off backward) | averages are in `p.grad` |
| stepping | an optimizer of the model's parameters begins its step | it has taken it |

Of the exchange, waiting is what the job's own counter has of waits, and copying the rest: gradients to shared
memory, averages back, buffers, and all calls for it. Where a pass reaches several models, each counts the
whole exchange.

Autograd calls what was asked for at the end of a pass in the order of asking, and what is asked for meanwhile
after all of it. The end of the computation is asked for when backward begins, so before the exchange is; the
end of the exchange is asked for there.

Nothing is counted, and costs nothing, until `times` is called for a model.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..job import Job
from .copies import Ours, leave_hooks_behind
from .gradients.backward import _engine, _this_pass
from .gradients.roll import _flat
from .known import Known

PARTS = ("forward", "backward", "waiting", "copying", "stepping")


class Times:
    """The counters of one model."""

    def __init__(self, model: torch.nn.Module, parameters: Known, job: Job) -> None:
        self._job = job
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._passes = self._steps = 0
        self._called = self._began = 0.0
        self._stepping: list[float] = []
        """When the steps under way began. A step that raises leaves its own here, below those that come."""
        self._last_step = (0.0, 0.0)
        """When the step that ended last began and ended."""
        self._pass = -1
        self._exchanging = 0.0
        """Seconds of gradients that left while backward was running, in this pass."""
        self._waited = 0.0
        self._parameters = parameters
        self._handles = [
            model.register_forward_pre_hook(_Hook(self, "before_forward")),
            model.register_forward_hook(_Hook(self, "after_forward")),
            register_optimizer_step_pre_hook(_Hook(self, "before_step")),
            register_optimizer_step_post_hook(_Hook(self, "after_step")),
        ]
        leave_hooks_behind(model)
        _counting.add(self)
        for handle in self._handles[2:]:
            # They hang on the class of optimizers.
            weakref.finalize(model, handle.remove)

    def stop(self) -> None:
        """Nothing is counted any more."""
        for handle in self._handles:
            handle.remove()

    def read(self) -> dict[str, float]:
        """Seconds of each part, and how many passes and steps they are of."""
        return {**self._seconds, "passes": self._passes, "steps": self._steps}

    # -- hooks

    def before_forward(self, *_: Any) -> None:
        self._called = time.perf_counter()

    def after_forward(self, _: Any, __: Any, output: Any) -> None:
        self._seconds["forward"] += time.perf_counter() - self._called
        if isinstance(output, torch.Tensor) or not hasattr(output, "__dataclass_fields__"):
            tensors = _flat(output)
        else:
            tensors = _flat(list(vars(output).values()))
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._backward_begins)

    def _backward_begins(self, _: torch.Tensor) -> None:
        """The first of the outputs' gradients is there."""
        if self._pass == _this_pass():
            return
        self._pass, self._exchanging = _this_pass(), 0.0
        self._waited = self._waits()
        _engine.queue_callback(self._backward_ends)
        self._began = time.perf_counter()

    def sending(self, send: Callable[[], None]) -> None:
        """Gradients leave while backward is running."""
        began = time.perf_counter()
        send()
        self._exchanging += time.perf_counter() - began

    def _backward_ends(self) -> None:
        now = time.perf_counter()
        self._seconds["backward"] += now - self._began - self._exchanging
        self._began = now
        _engine.queue_callback(self._exchange_ends)

    def _exchange_ends(self) -> None:
        spent = time.perf_counter() - self._began + self._exchanging
        waited = min(spent, self._waits() - self._waited)
        self._seconds["waiting"] += waited
        self._seconds["copying"] += spent - waited
        self._passes += 1
        self._pass = -1

    def _waits(self) -> float:
        return float(self._job.stats()["waited_seconds"])

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_of(optimizer):
            self._stepping.append(time.perf_counter())

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """
        A step has been taken. Torch calls its hooks around each class's `step`: where a subclass calls its
        parent's, the inner one ends first, and counts as a part of the outer.
        """
        if not self._is_of(optimizer):
            return
        began, ended = self._stepping.pop(), time.perf_counter()
        inner_began, inner_ended = self._last_step
        if began <= inner_began:
            self._seconds["stepping"] -= inner_ended - inner_began
            self._steps -= 1
        self._seconds["stepping"] += ended - began
        self._steps += 1
        self._last_step = (began, ended)

    def _is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it steps parameters of this model: those of a group are one model's."""
        return any(
            group["params"][0] in self._parameters for group in optimizer.param_groups if group["params"]
        )


_counting: weakref.WeakSet[Times] = weakref.WeakSet()


def stop_counting() -> None:
    """No job is open any more."""
    for times in list(_counting):
        times.stop()


class _Hook(Ours):
    """Calls a method of the counters."""

    def __init__(self, times: Times | None = None, name: str = "") -> None:
        self._times, self._name = times, name

    def __call__(self, *args: Any) -> None:
        if self._times is not None:
            getattr(self._times, self._name)(*args)
