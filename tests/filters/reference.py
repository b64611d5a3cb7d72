"""Filters in a few obvious lines of NumPy: equations 6, 10 and 11 of Parameter Flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Chooses: TypeAlias = Callable[[Array, int], Array]
"""Which elements of what is due of a chunk are sent, at a clock."""
Rounds: TypeAlias = Callable[[Array], Array]
"""What is sent of what is due of a chunk."""


def bounded(low: float, decay: str | None, relative: bool) -> Chooses:
    """What `ps.DVF` chooses."""

    def choose(due: Array, clock: int) -> Array:
        bound = low / np.sqrt(clock + 1) if decay else low
        if relative:
            bound *= np.sqrt(np.mean(np.square(due.astype(np.float64))))
            bound = min(bound, 0.875 * np.abs(due).max().astype(np.float64))
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


def half(dtype: Any) -> Rounds:
    """What `ps.Quantize` sends as a number of half precision."""
    largest = 65504 if dtype == np.float16 else 255 * 2.0**120
    return lambda due: np.where(
        np.abs(due) > largest, due, np.clip(due, -largest, largest).astype(dtype).astype(due.dtype)
    )


def multiples(due: Array) -> Array:
    """What `ps.Quantize("int8")` sends of numbers that are neither tiny nor huge."""
    sent = np.zeros_like(due)
    for start in range(0, due.size, 256):
        part = slice(start, start + 256)
        if (largest := np.abs(due[part]).max()) > 0:
            step = due.dtype.type(2.0 ** (np.floor(np.log2(float(largest))) - 6))
            sent[part] = np.clip(np.rint(due[part] / step), -127, 127) * step
    return sent


def thirds(threshold: float) -> Rounds:
    """What `ps.Quantize("2bit")` sends."""

    def some(due: Array) -> Array:
        sent = np.where(np.abs(due) >= threshold, np.copysign(due.dtype.type(threshold), due), 0)
        return np.where(np.abs(due) >= 1024 * threshold, due, sent)

    return some


def signs(due: Array) -> Array:
    """What `ps.Quantize("1bit")` sends, the mean added up in eight parts as it is there."""
    sent = np.zeros_like(due)
    for start in range(0, due.size, 1024):
        part = due[start : start + 1024]
        sums = np.zeros(8)
        for eight in range(0, part.size, 8):
            numbers = np.abs(part[eight : eight + 8]).astype(np.float64) / 1024
            sums[: numbers.size] += numbers
        total = 0.0
        for one in sums.tolist():
            total += one
        mean = total / (part.size / 1024)
        sent[start : start + 1024] = np.copysign(due.dtype.type(mean), part)
    return sent


class Worker:
    """One worker's carry of one tensor, which sends what is chosen or what rounding gives."""

    def __init__(
        self, size: int, chunk: int, choose: Chooses | None = None, *, rounds: Rounds | None = None
    ) -> None:
        # An empty carry has no effect, on the sign of a zero either.
        self.carry = np.full(size, -0.0, np.float32)
        self.chunk = chunk
        self.choose = choose
        self.rounds = rounds

    def push(self, gradient: Array, clock: int) -> Array:
        """What is sent of it."""
        sent = np.zeros_like(self.carry)
        for start in range(0, sent.size, self.chunk):
            part = slice(start, start + self.chunk)
            due = gradient[part] + self.carry[part]
            if self.choose:
                sent[part] = np.where(self.choose(due, clock), due, 0)
            if self.rounds:
                sent[part] = self.rounds(due)
            left = due - sent[part]
            self.carry[part] = np.where(left == 0, np.float32(-0.0), left)
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
