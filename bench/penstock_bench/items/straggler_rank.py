"""
One worker of the straggler benchmark: softmax regression of scikit-learn's digits, by steps on a table.

The parameters W are a table of 65 rows (64 pixels and a constant) of 10 classes, fold="sum": every worker
adds its steps, and reads the sum of everyone's with a slack. An iteration: `get` of W, the gradient of a
batch of the worker's own part of the data, `add`, perhaps a sleep, `job.clock()`.

Who sleeps in which iteration, and how long, is drawn from a seed that all slacks share.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.launch.ranks import serve

Floats = npt.NDArray[np.float64]

CLASSES = 10
BATCH = 64
RATE = 0.05
"""Learning rate of one worker's step: small enough for steps as stale as the largest slack allows."""
WHO = ("any", "last")
AUTO_MAX = 16
"""The bound of slack "auto"."""


def data() -> tuple[Floats, npt.NDArray[np.int64]]:
    """1797 pictures of 8 x 8, scaled to 0..1, with a constant; and which digit each is."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.asarray(digits.data, np.float64) / 16.0
    return np.hstack([pixels, np.ones((len(pixels), 1))]), np.asarray(digits.target, np.int64)


def probabilities(weights: Floats, pixels: Floats) -> Floats:
    """Of each class, for each picture."""
    scores: Floats = pixels @ weights
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def loss(weights: Floats, pixels: Floats, digits: npt.NDArray[np.int64]) -> float:
    """Mean cross-entropy."""
    chosen = probabilities(weights, pixels)[np.arange(len(digits)), digits]
    return float(-np.log(np.maximum(chosen, 1e-300)).mean())


def gradient(weights: Floats, pixels: Floats, digits: npt.NDArray[np.int64]) -> Floats:
    """Of the mean cross-entropy."""
    error = probabilities(weights, pixels)
    error[np.arange(len(digits)), digits] -= 1.0
    found: Floats = pixels.T @ error / len(digits)
    return found


def sleeps(seed: int, iterations: int, workers: int, mean: float, who: str) -> Floats:
    """
    Seconds that each worker sleeps in each iteration: one worker sleeps, an exponentially distributed time.

    `who` is "any" (another one each time, at random) or "last" (always the last).
    """
    generator = np.random.default_rng(seed)
    result = np.zeros((iterations, workers))
    sleeper = generator.integers(workers, size=iterations) if who == "any" else workers - 1
    result[np.arange(iterations), sleeper] = generator.exponential(mean, iterations)
    return result


def slack_named(text: str) -> Any:
    """What a table is declared with: a whole number, or "auto"."""
    return ps.SSP(slack="auto", max=AUTO_MAX) if text == "auto" else int(text)


class Worker:
    """A worker of a job that stays for all runs."""

    def __init__(self) -> None:
        self._job = ps.init()
        self.rank, self.size = self._job.rank, self._job.size
        self._pixels, self._digits = data()
        self._runs = 0

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """One run; rank 0 answers with times since the start and the loss of what it had read by then."""
        self._runs += 1
        seed, iterations = command["seed"], command["iterations"]
        table = self._job.table(
            f"W{self._runs}",
            rows=self._pixels.shape[1],
            width=CLASSES,
            dtype="f8",
            produce="all",
            consume="all",
            fold="sum",
            slack=slack_named(command["slack"]),
        )
        pauses = sleeps(seed, iterations, self.size, command["sleep"], command["who"])[:, self.rank]
        mine = np.arange(self.rank, len(self._digits), self.size)
        batches = np.random.default_rng([seed, self.rank]).choice(mine, (iterations, BATCH))
        rows = np.arange(table.rows, dtype=np.uint64)
        kept, times = np.empty((iterations + 1, table.rows, CLASSES)), np.empty(iterations + 1)
        self._job.barrier()
        start = time.monotonic()
        for number, (pause, batch) in enumerate(zip(pauses, batches, strict=True)):
            weights = table.get(rows, out=kept[number])
            times[number] = time.monotonic() - start
            table.add(rows, -RATE * gradient(weights, self._pixels[batch], self._digits[batch]))
            if pause:
                time.sleep(pause)
            self._job.clock()
        took = time.monotonic() - start
        self._job.barrier()
        stats = table.stats()
        answer = {"took": took, "waited": stats["waited"], "max_staleness": stats["max_staleness"]}
        if self.rank:
            return answer
        table.get(rows, out=kept[iterations], slack=0)
        times[iterations] = took
        return {
            **answer,
            "times": times.tolist(),
            "losses": [loss(weights, self._pixels, self._digits) for weights in kept],
        }


def main() -> None:
    """One worker."""
    worker = Worker()
    serve(worker.rank, {"train": worker.run})


if __name__ == "__main__":
    main()
