"""
Who learns: a worker through the parameter server, or one process alone. Both have the same face, so that one
loop trains both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.demo import model
from penstock.demo.data import Array
from penstock.demo.optimizers import stepper
from penstock.demo.settings import Settings

if TYPE_CHECKING:
    from penstock import Job


class Learner(Protocol):
    """A model that learns from batches."""

    def step(self, x: Array, y: Array) -> int | None:
        """Takes one step; returns how many iterations behind its parameters were, None if unknown."""

    def parameters(self) -> model.Parameters:
        """The parameters as they are now, as float32 arrays of its own."""

    def scores(self, x: Array) -> Array:
        """Scores (samples, 10) by the parameters as they are now."""


class Alone:
    """The NumPy model and a NumPy optimizer in this process: what the parameter server is compared with."""

    def __init__(self, settings: Settings) -> None:
        self._parameters = model.initial(settings.seed)
        self._steps = {name: stepper(settings.rule) for name in self._parameters}

    def step(self, x: Array, y: Array) -> int:
        """Takes one step."""
        for name, gradient in model.gradients(self._parameters, x, y).items():
            self._steps[name](self._parameters[name], gradient)
        return 0

    def parameters(self) -> model.Parameters:
        """The parameters as they are now."""
        return {name: value.copy() for name, value in self._parameters.items()}

    def scores(self, x: Array) -> Array:
        """Scores by the parameters as they are now."""
        return model.logits(self._parameters, x)[0]


class Shared:
    """The NumPy model with its parameters on the server: pull, gradient, push, clock."""

    def __init__(self, job: Job, settings: Settings) -> None:
        import penstock as ps

        self._job = job
        self._tensors = {
            name: job.tensor(name, value, optimizer=getattr(ps, settings.rule.ours)(**settings.rule.settings))
            for name, value in model.initial(settings.seed).items()
        }

    def step(self, x: Array, y: Array) -> int:
        """Takes one step; under BSP nothing is copied: the arrays are the server's own memory."""
        values = {name: tensor.pull() for name, tensor in self._tensors.items()}
        staleness = max(tensor.staleness for tensor in self._tensors.values())
        for name, gradient in model.gradients(values, x, y).items():
            self._tensors[name].push(gradient)
        self._job.clock()
        return staleness

    def parameters(self) -> model.Parameters:
        """
        The parameters with all updates of this worker and, if every worker is at the same clock, of all
        others.
        """
        return {name: np.array(tensor.pull(slack=0)) for name, tensor in self._tensors.items()}

    def scores(self, x: Array) -> Array:
        """Scores by the parameters as this worker sees them now."""
        return model.logits({name: tensor.pull() for name, tensor in self._tensors.items()}, x)[0]
