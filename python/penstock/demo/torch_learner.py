"""
The same two learners with PyTorch: a small convolutional network, alone or through
`penstock.torch.distribute`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from penstock.demo.data import Array
from penstock.demo.learner import Taken
from penstock.demo.model import DIGITS, Parameters, judge
from penstock.demo.settings import Settings

if TYPE_CHECKING:
    from penstock import Job


def network(seed: int) -> nn.Module:
    """Two layers of 3 x 3 convolutions, a pooling, and a linear layer: about 10,000 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, DIGITS),
    )


class TorchAlone:
    """Plain PyTorch in this process."""

    def __init__(self, settings: Settings, wrap: Callable[[nn.Module], nn.Module] | None = None) -> None:
        self._model = network(settings.seed)
        if wrap is not None:
            self._model = wrap(self._model)
        self._optimizer: Any = getattr(torch.optim, settings.rule.name)(
            self._model.parameters(), **settings.rule.settings
        )

    def step(self, x: Array, y: Array) -> Taken:
        """Takes one step."""
        self._optimizer.zero_grad()
        scores = self._model(torch.from_numpy(x))
        nn.functional.cross_entropy(scores, torch.from_numpy(y)).backward()
        self._optimizer.step()
        return Taken(*judge(scores.detach().numpy(), y))

    def parameters(self) -> Parameters:
        """The parameters as they are now."""
        named = self._model.named_parameters()
        return {name.removeprefix("module."): value.detach().numpy().copy() for name, value in named}

    now = parameters


class TorchShared(TorchAlone):
    """The same network and loop, shared by the workers: `distribute` is the only difference."""

    def __init__(self, job: Job, settings: Settings) -> None:
        import penstock.torch

        super().__init__(settings)
        self._model, self._optimizer = penstock.torch.distribute(self._model, self._optimizer, job=job)


def scores(parameters: Parameters, x: Array) -> Array:
    """Scores of pictures by given parameters."""
    judged = network(seed=0)
    judged.load_state_dict({name: torch.from_numpy(value) for name, value in parameters.items()})
    with torch.no_grad():
        return np.asarray(judged(torch.from_numpy(x)).numpy())
