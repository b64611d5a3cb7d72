"""Filters in a few obvious lines of NumPy: equations 6, 10 and 11 of Parameter Flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Chooses: TypeAlias = Callable[[Array, int], Array]
"""Which elements of what is due of a chunk are sent, at a clock."""


def bounded(low: float, decay: str | None, relative: bool) -> Chooses:
    """What `ps.DVF` chooses."""

    def choose(due: Array, clock: int) -> Array:
        bound = low / np.sqrt(clock + 1) if decay else low
        if relative:
            bound *= np.sqrt(np.mean(np.square(due.astype(np.float64))))
        return ~(np.abs(due) <= due.dtype.type(bound))

    return choose


def top(fraction: float) -> Chooses:
    """What `ps.TopK` chooses."""

    def choose(due: Array, _: int) -> Array:
        wanted = max(1, round(due.size * fraction))
        chosen = np.zeros(due.size, bool)
        chosen[np.argsort(-np.abs(due), kind="stable")[:wanted]] = True
        return chosen

    return choose


class Worker:
    """One worker's carry of one tensor."""

    def __init__(self, size: int, chunk: int, choose: Chooses) -> None:
        self.carry = np.zeros(size, np.float32)
        self.chunk = chunk
        self.choose = choose

    def push(self, gradient: Array, clock: int) -> Array:
        """What is sent of it."""
        sent = np.zeros_like(self.carry)
        for start in range(0, sent.size, self.chunk):
            part = slice(start, start + self.chunk)
            due = gradient[part] + self.carry[part]
            chosen = self.choose(due, clock)
            sent[part] = np.where(chosen, due, 0)
            self.carry[part] = np.where(chosen, 0, due)
        return sent

    def flush(self) -> Array:
        """The same of all that is held back."""
        sent, self.carry = self.carry, np.zeros_like(self.carry)
        return sent


class Home:
    """What the servers let pass of one tensor's value."""

    def __init__(self, value: Array, chunk: int, choose: Chooses, *, shrinks: bool = False) -> None:
        self.seen = value.copy()
        self.chunk = chunk
        self.choose = choose
        self.shrinks = shrinks
        self.chosen = 0

    def publish(self, value: Array, version: int) -> Array:
        """What is seen of this version, which has this value, and something new in it."""
        for start in range(0, value.size, self.chunk):
            part = slice(start, start + self.chunk)
            due = value[part] - self.seen[part]
            self.seen[part] = np.where(self.choose(due, version - 1), value[part], self.seen[part])
        self.chosen = version
        return self.seen

    def rest(self, value: Array, version: int) -> Array:
        """What is seen of this version, which brings nothing new: more where the bound has halved."""
        if self.shrinks and version == 4 * self.chosen:
            self.publish(value, version)
        return self.seen
