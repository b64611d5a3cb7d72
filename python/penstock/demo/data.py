"""
Handwritten digits: 1,797 pictures of 8 x 8 pixels from 43 people (scikit-learn's `load_digits`, the test part
of the UCI set).

Every worker computes by itself which samples are its own in a step: all shuffle in the same way, from the
seed and the epoch, and the worker of rank r takes the r-th part of each global batch. So one process that
takes whole global batches sees the same work.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

TEST_SHARE = 0.2
SPLIT_SEED = 2026
"""The split into training and test samples is the same in every run, so that accuracies can be compared."""


@dataclass(frozen=True)
class Digits:
    """Pictures (samples, 64), float32 from 0 to 1, and their digits (samples,), int64."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array

    def to_bytes(self) -> bytes:
        """For `from_bytes` in another process."""
        file = io.BytesIO()
        np.savez(file, **vars(self))
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Digits:
        """What `to_bytes` wrote."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**{name: arrays[name] for name in arrays.files})


def load() -> Digits:
    """Reads the pictures that ship inside scikit-learn; nothing is downloaded."""
    from sklearn.datasets import load_digits

    pictures, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits))
    x = (pictures[order] / 16).astype(np.float32)
    y = digits[order].astype(np.int64)
    held_out = round(len(y) * TEST_SHARE)
    return Digits(x[held_out:], y[held_out:], x[:held_out], y[:held_out])


def steps_per_epoch(samples: int, batch: int, workers: int) -> int:
    """Full global batches in an epoch; the samples that are left over differ from epoch to epoch."""
    return samples // (batch * workers)


def epoch_batches(samples: int, batch: int, workers: int, seed: int, epoch: int) -> Iterator[Array]:
    """For each step of an epoch the indices of its samples, (workers, batch)."""
    order = np.random.default_rng((seed, epoch)).permutation(samples)
    steps = steps_per_epoch(samples, batch, workers)
    yield from order[: steps * workers * batch].reshape(steps, workers, batch)
