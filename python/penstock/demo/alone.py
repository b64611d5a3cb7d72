"""
Training in a single process: the same model on the same batches, each the workers' batches put together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.demo import model
from penstock.demo.data import Digits, epoch_batches
from penstock.demo.learner import Alone, Learner
from penstock.demo.settings import Settings


@dataclass
class Curve:
    """Accuracy on the test samples and loss on the training samples, after each epoch."""

    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def add(self, accuracy: float, loss: float) -> None:
        """The next epoch."""
        self.accuracy.append(accuracy)
        self.loss.append(loss)


@dataclass(frozen=True)
class Single:
    """What single-process training came to."""

    curve: Curve
    parameters: model.Parameters
    seconds: float


def train(settings: Settings, digits: Digits, on_epoch: Callable[[int], None]) -> Single:
    """Trains; judging the model is not in the time."""
    learner: Learner
    if settings.torch:
        import torch

        from penstock.demo.torch_learner import TorchAlone

        # One thread, as each worker has on a small host: on a model of this size, threads that wait for one
        # another cost more than they bring (0.6 s became 7 s on two busy cores).
        torch.set_num_threads(1)
        learner = TorchAlone(settings)
    else:
        learner = Alone(settings)
    curve = Curve()
    seconds = 0.0
    for epoch in range(settings.epochs):
        start = time.perf_counter()
        for batch in epoch_batches(
            len(digits.train_y), settings.batch, settings.workers, settings.seed, epoch
        ):
            together = batch.reshape(-1)
            learner.step(digits.train_x[together], digits.train_y[together])
        seconds += time.perf_counter() - start
        accuracy, _ = model.judge(learner.scores(digits.test_x), digits.test_y)
        _, loss = model.judge(learner.scores(digits.train_x), digits.train_y)
        curve.add(accuracy, loss)
        on_epoch(epoch + 1)
    return Single(curve, learner.parameters(), seconds)


def largest_difference(one: model.Parameters, other: model.Parameters) -> float:
    """The largest |difference| of any parameter."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
