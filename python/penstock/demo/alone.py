"""
Training in a single process: the same model on the same batches, each the workers' batches put together.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from penstock.demo import model
from penstock.demo.data import Digits, epoch_batches, steps_per_epoch
from penstock.demo.judging import Album, Curve
from penstock.demo.learner import Alone, Learner
from penstock.demo.settings import Settings

THREADED_EPOCHS = 2
"""
Enough for a rate: where others are at work too, BLAS threads that wait for one another are slower than one.
"""


@dataclass(frozen=True)
class Single:
    """What single-process training came to."""

    curve: Curve
    seconds: float
    """With one thread, as each worker has."""
    album: Album
    threads: int
    threaded_rate: float | None
    """Samples a second with BLAS on every core, `threads` of them; None where that is not asked."""


def train(settings: Settings, digits: Digits) -> Single:
    """Trains; judging the model is not in the time."""
    cores = len(os.sched_getaffinity(0))
    with threadpool_limits(1):
        learner = make(settings)
        album = Album(settings.epochs)
        seconds = run(learner, settings, digits, album)
        curve = album.judged(settings, digits)
    threaded = None
    # Not asked of PyTorch: on a model of this size, its own threads, which wait for one another, cost more
    # than they bring (0.6 s became 7 s on two busy cores).
    if cores > 1 and not settings.torch:
        few = replace(settings, epochs=min(settings.epochs, THREADED_EPOCHS))
        with threadpool_limits(cores):
            threaded = samples_of(few, digits) / run(make(few), few, digits)
    return Single(curve, seconds, album, cores, threaded)


def samples_of(settings: Settings, digits: Digits) -> int:
    """Samples that a training takes in all."""
    steps = steps_per_epoch(len(digits.train_y), settings.batch, settings.workers)
    return settings.epochs * steps * settings.batch * settings.workers


def make(settings: Settings) -> Learner:
    """Who learns."""
    if settings.torch:
        import torch

        from penstock.demo.torch_learner import TorchAlone

        torch.set_num_threads(1)
        return TorchAlone(settings)
    return Alone(settings)


def run(learner: Learner, settings: Settings, digits: Digits, album: Album | None = None) -> float:
    """The training loop; its seconds."""
    samples = len(digits.train_y)
    start = time.perf_counter()
    for epoch in range(1, settings.epochs + 1):
        for batch in epoch_batches(samples, settings.batch, settings.workers, settings.seed, epoch - 1):
            together = batch.reshape(-1)
            learner.step(digits.train_x[together], digits.train_y[together])
        if album is not None and album.wants(epoch):
            album.pictures[epoch] = learner.now()
    return time.perf_counter() - start


def largest_difference(one: model.Parameters, other: model.Parameters) -> float:
    """The largest |difference| of any parameter."""
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
