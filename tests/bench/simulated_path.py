"""
A path with a shaper and cross traffic, in virtual time, for the tests of `penstock bench link`.

The shaper's state is one number: bytes that wait, or, below zero, bytes that it would let through at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock_bench.link.search import Found, Outcome, Search
from penstock_bench.link.streams import SECONDS, Sent, Stream, judged, summary

HEADERS = 42
PAYLOAD = 1472
CROSS = 1e-3
"""Seconds for which the cross traffic keeps a rate."""


@dataclass
class Path:
    """One way of it."""

    rate: float
    """Bits per second of the shaper."""
    bucket: int = 0
    """Bytes that it lets through at once after a pause."""
    cross: float = 0.0
    """Bits per second of the cross traffic, on the average."""
    burstiness: float = 0.0
    """0: constant; 1: between nothing and twice the average, anew each `CROSS` seconds."""
    queue: int = 2 << 20
    """Bytes that may wait; more are lost."""
    drift: float = 0.0
    """Of the receiver's clock against the sender's."""
    noise: float = 0.0
    """Seconds by which a stamp may be late."""
    disturbed: float = 0.0
    """Seconds between two pauses of the sender, on the average; 0: there are none."""
    lossy: float = 0.0
    """Of the streams, of which the receiving host throws some datagrams away."""
    seed: int = 0
    _waits: float = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._waits = -self.bucket
        self._cross = self._crossing()

    @property
    def available(self) -> float:
        """What is left, on the average over all time."""
        return self.rate - self.cross

    def near(self, found: Found) -> bool:
        """
        Whether that is in what was found, give or take what cannot be told: 2 %, and twice what the average
        over one stream deviates by from that over all time.
        """
        deviation = self.cross * self.burstiness / math.sqrt(3 * SECONDS / CROSS)
        slack = 0.02 * self.available + 2 * deviation
        return found.low - slack <= self.available <= found.high + slack

    def _crossing(self) -> Iterator[float]:
        while True:
            yield self.cross * (1 + self.burstiness * self._random.uniform(-1, 1))

    def _passes(self, seconds: float) -> None:
        """Time: the shaper works, and cross traffic comes."""
        while seconds > 0:
            step = min(seconds, CROSS)
            self._waits = max(-self.bucket, self._waits - step * (self.rate - next(self._cross)) / 8)
            seconds -= step

    def sent(self, stream: Stream) -> tuple[Sent, list[tuple[int, int, int]], int, int]:
        """What becomes of a stream, after a pause."""
        self._passes(10 * stream.whole_seconds)
        bytes_each = stream.together * (stream.payload + HEADERS)
        for _ in range(stream.ahead):
            self._passes(stream.ahead_gap / 1e9)
            self._waits = min(self.queue, self._waits + bytes_each)
        pause = self._random.expovariate(1 / self.disturbed) if self.disturbed else float("inf")
        messages = int(min(stream.messages, pause / (stream.gap / 1e9)))
        arrived = []
        for index in range(messages):
            self._passes(stream.gap / 1e9)
            if self._waits + bytes_each > self.queue:
                continue
            self._waits += bytes_each
            at = index * stream.gap
            delay = max(0.0, self._waits) * 8 / self.rate + self._random.uniform(0, self.noise)
            arrived.append((index, at, round((at + delay * 1e9) * (1 + self.drift)) + 10**18))
        paused = 1e-3 if messages < stream.messages else 0.0
        dropped = 3 if self._random.random() < self.lossy else 0
        sent = Sent(messages, messages * stream.gap / 1e9, paused, 0.0)
        return sent, arrived, len(arrived) * stream.together, dropped

    def searched(self, search: Search, bucket: int = 256 << 10) -> Search:
        """Answers a search until it is at its end."""
        number = 0
        while (trial := search.next()) is not None:
            number += 1
            stream = Stream.of(trial, number, PAYLOAD, HEADERS, bucket)
            search.heard(self.outcome(stream))
        return search

    def outcome(self, stream: Stream) -> Outcome:
        """What one stream says."""
        sent, arrived, datagrams, dropped = self.sent(stream)
        return judged(stream, sent, summary(stream, arrived, datagrams, dropped), HEADERS)
