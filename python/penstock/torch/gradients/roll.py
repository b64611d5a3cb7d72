"""
The roll: what workers tell each other at the end of each pass, beside gradients. A few numbers a parameter,
as one more tensor, of which every worker reads the mean.

| part | this worker gives | what the mean says |
|---|---|---|
| used | 1 for each parameter with a gradient | above 0: somebody has one |
| present | 1 at its rank | their sum is below 1: a live worker's iteration went by without this pass |
| count | its passes so far | not its own: another has had more or fewer |
| epochs | how often its samplers' epochs have moved on | not its own: it shuffles otherwise than others |
| inputs | a digest of the first batches | its own: all were given the same |
| ask | 1 after a load of a state | above 0: the next pass compares parameters |
| norms, sums | of each parameter, in passes that compare | not its own: models have come apart |

Means of small whole numbers are exact but for rounding, which each comparison allows for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...arrays import Array
from ...job import Job
from ...optim import Replace
from .patience import patiently

COUNTS = 1 << 12
"""
Passes are counted up to here, then from 0 again: so small that the mean over a thousand workers still tells a
difference of one.
"""
TOLERANCE = 1e-5
"""
Of the norm. Processors of different kinds round differently, by 1e-7 a step and not always upwards. A step
that one worker has left out changes the norm, or the sum (of n elements by about sqrt(n) times the learning
rate, for rules such as Adam), by more than this unless learning rates are tiny.
"""
ROUNDING = 1e-6
"""Of the sum: what a float32 loses of it."""


class Roll:
    """The tensor and its parts."""

    def __init__(self, job: Job, name: str, parameters: int, timeout: float | None, patience: float) -> None:
        self._patience = patience
        self._rank, self._size = job.rank, job.size
        sizes = {
            "used": parameters,
            "present": job.size,
            "count": 1,
            "epochs": 1,
            "inputs": 2,
            "ask": 1,
            "norms": parameters,
            "sums": parameters,
        }
        self._parts: dict[str, slice] = {}
        end = 0
        for part, size in sizes.items():
            self._parts[part] = slice(end, end + size)
            end += size
        self._tensor = job.tensor(
            name, shape=end, dtype="float32", optimizer=Replace(), consistency="bsp", timeout=timeout
        )

    def call(
        self,
        used: Sequence[bool],
        count: int,
        epochs: int,
        inputs: tuple[int, int] | None,
        ask: bool,
        marks: Sequence[tuple[float, float]] | None,
    ) -> None:
        """Gives this worker's answers."""
        lane = self._tensor.lane()
        lane[:] = 0
        lane[self._parts["used"]] = used
        lane[self._parts["present"]][self._rank] = 1
        lane[self._parts["count"]] = count % COUNTS
        lane[self._parts["epochs"]] = epochs % COUNTS
        if inputs is not None:
            lane[self._parts["inputs"]] = inputs
        lane[self._parts["ask"]] = ask
        if marks is not None:
            lane[self._parts["norms"]], lane[self._parts["sums"]] = np.asarray(marks, dtype=np.float32).T
        self._tensor.push()

    def hear(self) -> Heard:
        """Waits for everybody's."""
        value = patiently(self._tensor.pull, self._patience)
        return Heard({part: value[where] for part, where in self._parts.items()})


class Heard:
    """The mean of what all have given."""

    def __init__(self, parts: dict[str, Array]) -> None:
        self._parts = parts

    @property
    def used(self) -> Array:
        """Which parameters somebody has a gradient of."""
        return self._parts["used"] > 0

    @property
    def asked(self) -> bool:
        """Whether somebody asks to compare parameters."""
        return bool(self._parts["ask"][0] > 0)

    @property
    def present(self) -> list[int]:
        """The ranks that took part."""
        return [int(rank) for rank in np.flatnonzero(self._parts["present"])]

    def absent(self) -> list[int]:
        """The ranks that were not there, if a live worker among them went through its iteration elsewhere."""
        present = self._parts["present"]
        if present.sum() > 1 - 1 / (4 * len(present)):
            return []
        return [int(rank) for rank in np.flatnonzero(present == 0)]

    def differs(self, count: int) -> bool:
        """Whether another worker has had more or fewer passes."""
        return self._counts_otherwise("count", count)

    def shuffles_otherwise(self, epochs: int) -> bool:
        """Whether another worker's samplers have moved on more or less often."""
        return self._counts_otherwise("epochs", epochs)

    def _counts_otherwise(self, part: str, mine: int) -> bool:
        size = len(self._parts["present"])
        return bool(abs(self._parts[part][0] - mine % COUNTS) > 1 / (2 * size))

    def same_inputs(self, inputs: tuple[int, int]) -> bool:
        """Whether all workers gave these inputs."""
        return bool((np.abs(self._parts["inputs"] - np.asarray(inputs)) < 0.5).all())

    def apart(self, marks: Sequence[tuple[float, float]]) -> int | None:
        """The first parameter whose norm or sum is not everybody's."""
        norms, sums = np.asarray(marks, dtype=np.float32).T
        with np.errstate(invalid="ignore", over="ignore"):
            allowed = TOLERANCE * np.abs(norms)
            near = np.abs(norms - self._parts["norms"]) <= allowed
            near &= np.abs(sums - self._parts["sums"]) <= allowed + ROUNDING * np.abs(sums)
        # A NaN or an infinity on all workers is one in the mean too.
        near |= ~np.isfinite(norms) & ~np.isfinite(self._parts["norms"])
        return None if near.all() else int(np.flatnonzero(~near)[0])


def digest_of(inputs: Any) -> tuple[int, int]:
    """What a batch is known by: 40 bits of a hash of its first tensor, as numbers that a float32 holds."""
    for value in _flat(inputs):
        if isinstance(value, torch.Tensor) and value.numel():
            data = value.detach()
            if data.is_sparse or data.is_quantized:
                continue
            try:
                raw = data.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()
            except (RuntimeError, TypeError, NotImplementedError):
                # Inside torch.func's transforms, on the meta device: there are no bytes to look at.
                return 0, 0
            found = hashlib.sha256(raw.tobytes()).digest()
            return int.from_bytes(found[:3], "little") >> 4, int.from_bytes(found[3:6], "little") >> 4
    return 0, 0


def _flat(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        inputs = list(inputs.values())
    if isinstance(inputs, tuple | list):
        for value in inputs:
            yield from _flat(value)
    else:
        yield inputs
