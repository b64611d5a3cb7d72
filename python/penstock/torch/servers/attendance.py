"""
Who takes part in a step, under BSP: the servers' mean counts a worker without a gradient as zeros, and cannot
tell one that was not there at all.

Each step, every worker gives 1 at its own place of a tensor with a place for each rank, and reads the mean.

| the mean | means |
|---|---|
| sums up to 1 | all workers that are left were there; a place with 0 is that of one that has left |
| sums up to less | somebody's iteration went by without this step |
"""

from __future__ import annotations

import warnings

import numpy as np

from ...exceptions import DeclarationConflict
from ...job import Job
from ...optim import Replace


class Attendance:
    """The steps of one distributed optimizer."""

    def __init__(self, job: Job, prefix: str, timeout: float | None) -> None:
        self._job = job
        self._prefix = prefix
        self._tensor = job.tensor(
            f"{prefix}/attendance", shape=job.size, optimizer=Replace(), consistency="bsp", timeout=timeout
        )
        self._left: set[int] = set()

    def give(self) -> None:
        """This worker takes the step."""
        lane = self._tensor.lane()
        lane[:] = 0
        lane[self._job.rank] = 1
        self._tensor.push()

    def take(self) -> list[int]:
        """
        Waits for the others; returns who was there. Raises DeclarationConflict if one was elsewhere; warns,
        once, of each that left.
        """
        mean = self._tensor.pull()
        gone = {int(rank) for rank in np.flatnonzero(mean == 0)}
        # Rounding: the mean of N whole numbers, summed up again.
        if mean.sum() < 1 - 1 / (4 * len(mean)):
            raise DeclarationConflict(
                f"worker {self._job.rank} took a step of `{self._prefix}` in an iteration that workers "
                f"{sorted(gone)} completed without it",
                "have all workers take the same steps of the same optimizers in the same order",
            )
        if gone - self._left:
            self._left = gone
            warnings.warn(
                f"workers {sorted(gone)} have left the job, or were lost, after fewer steps of "
                f"`{self._prefix}`: from this step on, gradients are averaged over the other workers",
                stacklevel=5,
            )
        return [int(rank) for rank in np.flatnonzero(mean)]
