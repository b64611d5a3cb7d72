"""
One rank: it trains on its own batch in a compiled step, as one of the systems.

In the time: the step from its call until its parameters are there. Waiting is what the job's own counter has;
XLA computes on threads of its own, so the kernel says nothing of it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import numpy as np

from penstock.launch import ranks as launched
from penstock_bench import ranks
from penstock_bench.training.jax_models import task_of
from penstock_bench.training.names import ALONE

LEARNING_RATE = 0.01
TOLERANCE = 1e-5
"""Largest difference of a parameter from one process's on everybody's batches, after the checked steps."""


class JaxRank:
    """A rank that does what it is told."""

    def __init__(self, system: str) -> None:
        self._job: Any = None
        self.rank, self.size = 0, 1
        if system == ALONE:
            self.rank = int(os.environ["RANK"])
        else:
            import penstock as ps

            self._job = ps.init()
            self.rank, self.size = self._job.rank, self._job.size

    def open(self, model: str) -> None:
        """Compiles the step and takes the checked ones, which give what they give in one process."""
        self._task = task_of(model)
        self._params = jax.device_put(self._task.params(np.random.default_rng(0)))
        self._batch = jax.device_put(self._task.batch_of(self.rank))
        start = self._params
        gradient = jax.grad(self._task.loss)

        def step(params: Any, inputs: Any, wanted: Any) -> Any:
            grads = gradient(params, inputs, wanted)
            if self._job is not None:
                import penstock.jax as distributed

                grads = distributed.average(grads, job=self._job)
            return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)

        self._step = jax.jit(step)
        for _ in range(ranks.CHECKED_STEPS):
            self.step()
        if self._job is not None:
            _compare(self._params, self._in_one_process(start))

    def _in_one_process(self, params: Any) -> Any:
        """The checked steps on the batches of all workers, whose loss is the mean of theirs."""
        parts = [self._task.batch_of(rank) for rank in range(self.size)]
        inputs, wanted = (np.concatenate(column) for column in zip(*parts, strict=True))
        gradient = jax.jit(jax.grad(self._task.loss))
        for _ in range(ranks.CHECKED_STEPS):
            grads = gradient(params, inputs, wanted)
            params = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
        return params

    def step(self) -> None:
        """A training step."""
        wait: Any = jax.block_until_ready
        self._params = wait(self._step(self._params, *self._batch))

    def run(self, repeats: int) -> dict[str, Any]:
        """When steps ended, and of all steps: seconds of waiting, and of processor."""
        waited, used = self._waited(), time.process_time()
        ends = ranks.ends(self, repeats)
        waiting = (self._waited() - waited) / ranks.steps(repeats)
        return {"ends": ends, "processor": time.process_time() - used, "parts": {"waiting": waiting}}

    def _waited(self) -> float:
        """Seconds that the job's own counter has of waits so far."""
        return 0.0 if self._job is None else float(self._job.stats()["waited_seconds"])

    def serve(self) -> None:
        """Does what the runner says."""

        def opened(command: dict[str, Any]) -> dict[str, Any]:
            self.open(command["model"])
            return {"process": os.getpid(), "parent": os.getppid()}

        launched.serve(self.rank, {"open": opened, "run": lambda command: self.run(command["repeats"])})


def _compare(mine: Any, theirs: Any) -> None:
    """
    Raises
    ------
    WrongAnswerError
        A parameter is not what one process has; says by how much.
    """
    differences = [
        np.abs(np.asarray(one) - np.asarray(other)).max()
        for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True)
    ]
    furthest = float(max(differences))
    if not furthest <= TOLERANCE:
        raise ranks.WrongAnswerError(
            f"a parameter is {furthest:.1e} from one process's after {ranks.CHECKED_STEPS} steps, "
            f"expected at most {TOLERANCE:.0e}"
        )


if __name__ == "__main__":
    import sys

    JaxRank(sys.argv[1]).serve()
