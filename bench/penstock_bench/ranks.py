"""
How the time of an iteration is taken: the same for every system that consists of processes.

Each rank repeats its step without a pause and notes the end of each on the host's monotonic clock, which all
processes of a host share. Iteration i is complete when the last rank sees its result; its time runs from the
completion of iteration i - 1 to its own. So nothing is counted twice, nothing falls between two iterations,
and no barrier hides a slow rank:

    completion[i] = max over ranks of end[rank][i]        time[i] = completion[i] - completion[i - 1]

What a rank runs is a `Body`, told what to do by `penstock.launch.ranks`. Between measurements it waits and
costs nothing, so that all systems can stay up while their rounds alternate.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.launch import ranks as launched
from penstock.launch.ranks import Command

LEARNING_RATE = 0.5
"""A power of two, so that the check of the answer is exact."""
CHECKED_STEPS = 3
WARMUP = 3
"""Steps before the first that counts, in every round: another system had the caches in between."""

Array = npt.NDArray[np.float32]


class Stepping(Protocol):
    """What can be timed."""

    def step(self) -> None:
        """What is timed: all stands ready; at the end this rank sees the new parameters."""


class Body(Stepping, Protocol):
    """What a rank of a system does."""

    rank: int
    size: int

    def open(self, nbytes: int) -> None:
        """Allocates for gradients of `nbytes` bytes and checks the answer of a few steps."""

    def close(self) -> None:
        """Gives back what `open` took."""


class WrongAnswerError(Exception):
    """A system computed something else than w -= lr * (g0 + g1 + ...)."""


def fill(gradient: Array, rank: int) -> None:
    """Fills in values that tell ranks and places apart; small whole numbers, so that sums are exact."""
    pattern = np.arange(1, 8, dtype=np.float32) * np.float32(rank + 1)
    block = np.tile(pattern, 1024)
    for start in range(0, gradient.size, block.size):
        part = gradient[start : start + block.size]
        part[:] = block[: part.size]


def check(parameters: Array, steps: int, size: int) -> None:
    """
    Checks the parameters after `steps` steps from zero with the gradients of `fill`.

    Raises
    ------
    WrongAnswerError
        An element differs; says which, and by how much.
    """
    factor = -LEARNING_RATE * steps * size * (size + 1) / 2
    expected = np.tile(np.arange(1, 8, dtype=np.float32) * np.float32(factor), 1024)
    for start in range(0, parameters.size, expected.size):
        part = parameters[start : start + expected.size]
        wrong = np.flatnonzero(part != expected[: part.size])
        if wrong.size:
            at = int(wrong[0])
            raise WrongAnswerError(
                f"element {start + at} is {float(part[at])!r} after {steps} steps of {size} workers, "
                f"expected {float(expected[at])!r}"
            )


def ends(body: Stepping, repeats: int) -> list[int]:
    """When `repeats` steps ended, in monotonic nanoseconds; before them, when the one before them ended."""
    step, now = body.step, time.monotonic_ns
    for _ in range(WARMUP - 1):
        step()
    times = [0] * (repeats + 1)
    gc.disable()
    try:
        for i in range(repeats + 1):
            step()
            times[i] = now()
    finally:
        gc.enable()
    return times


def steps(repeats: int) -> int:
    """How many steps `ends` takes: also those that do not count."""
    return WARMUP + repeats


def iteration_times(ends_by_rank: Sequence[Sequence[int]]) -> list[float]:
    """
    Seconds of each iteration from the ends that the ranks noted.

    Examples
    --------
    >>> iteration_times([[0, 1_000_000_000], [500_000_000, 2_000_000_000]])
    [1.5]
    """
    completion = [max(column) for column in zip(*ends_by_rank, strict=True)]
    return [(after - before) / 1e9 for before, after in pairwise(completion)]


def serve(body: Body, more: Mapping[str, Command] | None = None) -> None:
    """Does what the runner says until it says `end`, or is gone. `more`: commands of this body alone."""

    def opened(command: dict[str, Any]) -> dict[str, Any]:
        body.open(command["bytes"])
        return {}

    def run(command: dict[str, Any]) -> dict[str, Any]:
        before = time.process_time()
        noted = ends(body, command["repeats"])
        return {"ends": noted, "processor": time.process_time() - before}

    def closed(_: dict[str, Any]) -> dict[str, Any]:
        body.close()
        return {}

    launched.serve(body.rank, {"open": opened, "run": run, "close": closed, **(more or {})})
