"""
Who takes part in a step, and with what, under BSP: the servers' mean counts a worker without a gradient as
zeros, and cannot tell one that was not there at all, or whose gradient came in another iteration.

Each step, every worker fills a tensor, and reads the mean.

| part | this worker gives | what the mean says |
|---|---|---|
| present | 1 at its rank | sums up to less than 1: somebody's iteration went by without this step |
| | | 0 at a place, with a sum of 1: that worker has left the job |
| left | 1 for each parameter whose gradient has left | above 0: somebody has one |
| ages | for these, how many iterations ago | not so many for each that has one: another's left in another |
| flush | 1 if it brings only what filters have held back | neither 0 nor 1: others take a step |
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import Array
from ...exceptions import DeclarationConflict
from ...job import Job
from ...optim import Replace
from ..script import of_the_script

if TYPE_CHECKING:
    from .delivery import Shared

OLDEST = 1000
"""Iterations are counted up to here: the mean over a thousand workers still tells a difference of one."""


class Attendance:
    """The steps of one distributed optimizer."""

    def __init__(self, job: Job, prefix: str, timeout: float | None) -> None:
        self._job = job
        self._prefix = prefix
        self._timeout = timeout
        self._all: list[Shared] = []
        self._gone: set[int] = set()

    def take_in(self, everything: Sequence[Shared]) -> None:
        """From now on the parameters are these. Collective."""
        self._all = list(everything)
        count = len(self._all)
        self._tensor = self._job.tensor(
            f"{self._prefix}/attendance of {count}",
            shape=self._job.size + 2 * count + 1,
            optimizer=Replace(),
            consistency="bsp",
            timeout=self._timeout,
        )

    def give(self, flushed: Collection[Shared] | None = None) -> None:
        """
        This worker takes the step: what will leave has left. With `flushed`, it flushes: of these parameters
        something was held back.
        """
        size, now = self._job.size, self._job.iteration
        if flushed is None:
            left = [shared.left for shared in self._all]
            ages = [min(now - shared.stamp, OLDEST) * shared.left for shared in self._all]
        else:
            left, ages = [shared in flushed for shared in self._all], [0] * len(self._all)
        self._given = np.array([left, ages], dtype=np.float32)
        self._flushes = flushed is not None
        lane = self._tensor.lane()
        lane[:size] = 0
        lane[self._job.rank] = 1
        lane[size:-1] = self._given.reshape(-1)
        lane[-1] = self._flushes
        self._tensor.push()

    def take(self) -> tuple[list[int], Array]:
        """
        Waits for the others; returns who was there, and which parameters somebody has a gradient of. Raises
        DeclarationConflict if one was elsewhere; warns, once, of each that left.
        """
        mean, size = self._tensor.pull(), self._job.size
        present, (left, ages) = mean[:size], mean[size:-1].reshape(2, len(self._all))
        gone = {int(rank) for rank in np.flatnonzero(present == 0)}
        # Rounding: the mean of N whole numbers, summed up again.
        if present.sum() < 1 - 1 / (4 * size):
            raise DeclarationConflict(
                f"worker {self._job.rank} took a step of `{self._prefix}` in an iteration that workers "
                f"{sorted(gone)} completed without it",
                "have all workers take the same steps of the same optimizers in the same order",
            )
        if abs(mean[-1] - self._flushes) > 1 / (2 * size):
            mine, others = ("flushed", "took a step of") if self._flushes else ("took a step of", "flushed")
            raise DeclarationConflict(
                f"worker {self._job.rank} {mine} `{self._prefix}` in an iteration where others {others} it",
                "have all workers call flush() after the same steps",
            )
        apart = (self._given[0] > 0) & (np.abs(ages - self._given[1] * left) > 1 / (2 * size))
        if apart.any():
            raise DeclarationConflict(
                f"the gradient of `{self._all[int(apart.argmax())].name}` left in another iteration on "
                f"worker {self._job.rank} than on others, so the servers took the mean of neither",
                "pass overlap=False to `ps.torch.distribute` on every worker: gradients leave in step() then",
            )
        if gone - self._gone:
            self._gone = gone
            warnings.warn(
                f"workers {sorted(gone)} have left the job, or were lost, after fewer steps of "
                f"`{self._prefix}`: from this step on, gradients are averaged over the other workers",
                stacklevel=of_the_script(),
            )
        return [int(rank) for rank in np.flatnonzero(present)], left > 0
