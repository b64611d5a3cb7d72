"""
One worker: `python -m penstock_bench.streaming.rank`.

    gate    until all workers stand here
    began   the contributor pushes, the others complete the iteration without a push
            pull: until this worker has the version
    ended
    check   every element

What is timed is the broadcast and little else. One worker contributes, by two vectors whose product is the
gradient: so much less than the value that no link notices. A broadcast runs from the moment in which the last
worker has begun to contribute until the last one has the version; all hosts have this machine's clock.

The gate is a small tensor that all push and pull, as in a training that shares a loss. It is no
`job.barrier()`, behind which a pull fetches anew what a worker has already.

The value after t iterations is known exactly, since all numbers are small and whole: an update that was lost,
applied twice or mixed up is seen in the iteration in which that happens.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import numpy as np

import penstock as ps
from penstock.launch import ranks as launched
from penstock_bench.ranks import WrongAnswerError

LEARNING_RATE = 0.5
COLUMNS = (1024, 1000)
"""A value is a matrix of so many columns: of the first of these that its size is a multiple of."""


def shape_of(nbytes: int) -> tuple[int, int]:
    """
    Rows and columns of a float32 matrix of so many bytes.

    Examples
    --------
    >>> shape_of(16_000_000), shape_of(16 << 20)
    ((4000, 1000), (4096, 1024))
    """
    for columns in COLUMNS:
        if nbytes and nbytes % (4 * columns) == 0:
            return nbytes // (4 * columns), columns
    wanted = " or ".join(str(4 * columns) for columns in COLUMNS)
    raise ValueError(f"expected a multiple of {wanted} bytes, got {nbytes}")


class Worker:
    """A worker of the job that its environment names."""

    def __init__(self) -> None:
        self.job = ps.init()
        self._tensor: Any = None
        self._gate: Any = None
        self._nothing = np.zeros(1, np.float32)
        self._iterations = 0
        self._vectors: tuple[Any, Any] = (np.empty(0), np.empty(0))
        self._product = np.empty(0, np.float32)

    def open(self, command: dict[str, Any]) -> dict[str, Any]:
        """Declares the tensor."""
        rows, columns = shape_of(command["bytes"])
        u = np.arange(rows, dtype=np.float32) % 7 + 1
        v = np.arange(columns, dtype=np.float32) % 5 + 1
        self._vectors = u.reshape(rows, 1), v.reshape(1, columns)
        self._product = u[:, None] * v[None, :]
        self._tensor = self.job.tensor(
            "value",
            shape=(rows, columns),
            optimizer=ps.SGD(LEARNING_RATE),
            reduce="sum",
            consistency="bsp",
            propagation="broadcast",
            low_rank=1,
        )
        self._gate = self.job.tensor("gate", shape=(1,), reduce="sum", consistency="bsp")
        self._tensor.pull()
        return {"pid": os.getpid()}

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Iterations: when each began and ended here, in monotonic nanoseconds."""
        began, ended = [], []
        gc.disable()
        try:
            for _ in range(command["iterations"]):
                self._gate.pushpull(self._nothing)
                began.append(time.monotonic_ns())
                if self.job.rank == command["contributor"]:
                    self._tensor.push_factors(*self._vectors)
                self.job.clock()
                value = self._tensor.pull()
                ended.append(time.monotonic_ns())
                self._iterations += 1
                self._check(value)
        finally:
            gc.enable()
        return {"began": began, "ended": ended}

    def _check(self, value: Any) -> None:
        expected = self._product * np.float32(-LEARNING_RATE * self._iterations)
        if not np.array_equal(value, expected):
            row, column = np.argwhere(value != expected)[0]
            raise WrongAnswerError(
                f"element [{row}, {column}] is {float(value[row, column])!r} after {self._iterations} "
                f"broadcasts, expected {float(expected[row, column])!r}"
            )


if __name__ == "__main__":
    worker = Worker()
    launched.serve(worker.job.rank, {"open": worker.open, "run": worker.run})
    worker.job.close()
