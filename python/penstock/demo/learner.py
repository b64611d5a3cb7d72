"""
The two kinds of learner: a worker through the parameter server, or one process alone. Both have the same
face, so that one loop trains both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.demo import model
from penstock.demo.data import Array
from penstock.demo.optimizers import stepper
from penstock.demo.settings import Settings

if TYPE_CHECKING:
    from penstock import Job


@dataclass(frozen=True)
class Taken:
    """A step that was taken, and the state of the model before it."""

    accuracy: float
    loss: float
    """Both on the step's own samples, by the scores that its gradient came from."""
    staleness: int | None = None
    """Iterations that its parameters lagged behind; None if unknown."""


class Learner(Protocol):
    """A model that learns from batches."""

    def step(self, x: Array, y: Array) -> Taken:
        """Takes one step."""

    def parameters(self) -> model.Parameters:
        """The parameters as the last step has left them, as float32 arrays of its own."""

    def now(self) -> model.Parameters:
        """The parameters as the next step will see them, likewise, without any further wait."""


class Alone:
    """The NumPy model and a NumPy optimizer in this process: what the parameter server is compared with."""

    def __init__(self, settings: Settings) -> None:
        self._parameters = model.initial(settings.seed)
        self._steps = {name: stepper(settings.rule) for name in self._parameters}

    def step(self, x: Array, y: Array) -> Taken:
        """Takes one step."""
        gradients, scores = model.gradients(self._parameters, x, y)
        for name, gradient in gradients.items():
            self._steps[name](self._parameters[name], gradient)
        return Taken(*model.judge(scores, y), staleness=0)

    def parameters(self) -> model.Parameters:
        """The parameters as they are now."""
        return {name: value.copy() for name, value in self._parameters.items()}

    now = parameters


class Shared:
    """The NumPy model with its parameters on the server: pull, gradient, push, clock."""

    def __init__(self, job: Job, settings: Settings) -> None:
        import penstock as ps

        self._job = job
        self._tensors = {
            name: job.tensor(name, value, optimizer=getattr(ps, settings.rule.name)(**settings.rule.settings))
            for name, value in model.initial(settings.seed).items()
        }

    def step(self, x: Array, y: Array) -> Taken:
        """Takes one step; under BSP nothing is copied: the arrays are the server's own memory."""
        values = {name: tensor.pull() for name, tensor in self._tensors.items()}
        staleness = max(tensor.staleness for tensor in self._tensors.values())
        gradients, scores = model.gradients(values, x, y)
        for name, gradient in gradients.items():
            self._tensors[name].push(gradient)
        self._job.clock()
        return Taken(*model.judge(scores, y), staleness)

    def parameters(self) -> model.Parameters:
        """
        The parameters with all updates of this worker and, if every worker is at the same clock, of all
        others.
        """
        return {name: np.array(tensor.pull(slack=0)) for name, tensor in self._tensors.items()}

    def now(self) -> model.Parameters:
        """The parameters as this worker sees them now."""
        return {name: np.array(tensor.pull()) for name, tensor in self._tensors.items()}
