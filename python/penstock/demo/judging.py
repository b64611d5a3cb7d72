"""
How good a model was after each epoch: judged when the training is over, from the parameters that were kept,
so that it costs the workers no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.demo import model
from penstock.demo.data import Array, Digits
from penstock.demo.settings import Settings

MOST_POINTS = 100
"""Epochs of which parameters are kept at most, 100 KB each: a curve shows no more."""


@dataclass
class Curve:
    """Accuracy on the test samples and loss on the training samples, after some epochs."""

    epochs: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)


@dataclass
class Album:
    """Parameters after those epochs that are judged: the last one, and before it every one or every few."""

    epochs: int
    pictures: dict[int, model.Parameters] = field(default_factory=dict)

    def wants(self, epoch: int) -> bool:
        """Whether the parameters after `epoch`, 1 for the first, are to be kept."""
        every = -(-self.epochs // MOST_POINTS)
        return (self.epochs - epoch) % every == 0

    def judged(self, settings: Settings, digits: Digits) -> Curve:
        """How good they were."""
        scores = scorer(settings)
        curve = Curve()
        for epoch, parameters in sorted(self.pictures.items()):
            accuracy, loss = judge(scores, parameters, digits)
            curve.epochs.append(epoch)
            curve.accuracy.append(accuracy)
            curve.loss.append(loss)
        return curve


Scorer = Callable[[model.Parameters, Array], Array]


def scorer(settings: Settings) -> Scorer:
    """Scores of pictures by given parameters."""
    if settings.torch:
        from penstock.demo.torch_learner import scores

        return scores
    return model.logits


def judge(scores: Scorer, parameters: model.Parameters, digits: Digits) -> tuple[float, float]:
    """Accuracy on the test samples, loss on the training samples."""
    accuracy, _ = model.judge(scores(parameters, digits.test_x), digits.test_y)
    _, loss = model.judge(scores(parameters, digits.train_x), digits.train_y)
    return accuracy, loss


def mean(values: Iterable[float]) -> float:
    """The mean of an epoch's steps."""
    given = list(values)
    return sum(given) / len(given)
