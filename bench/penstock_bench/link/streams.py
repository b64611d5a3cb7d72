"""
How a stream of a given rate looks, and what is to be concluded from what became of it.

Rates count whole frames, as a shaper does: the payload, and 42 bytes of UDP, IPv4 and Ethernet (IPv6: 62).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from penstock_bench.link.search import Outcome, Trial, Verdict
from penstock_bench.link.trend import Trend, trend
from penstock_bench.netns.testbed import BURST_SECONDS, LEAST_BURST

SECONDS = 0.06
"""Of a stream. A rate 2 % above the available one makes its delays grow by 1.2 ms in that time."""
LEAST_MESSAGES = 100
"""Of a stream; slow ones last longer for it. The tests have ten groups of ten then."""
LEAST_GAP = 50e-6
"""Between two messages: several datagrams go in one where they would have to follow more quickly."""
MOST_TOGETHER = 64
MOST_MESSAGE = 65_507
"""Bytes of a message: what a packet holds."""
MOST_MESSAGES = 1 << 14
"""Of a stream, and of what is sent ahead of it: at 100 Gbit/s there are 11 300."""
AHEAD_SPEED = 2
"""What is sent ahead goes at so many times the rate: half of it or more is above what is available."""
AHEAD_LENGTH = 2.5
"""Of what a shaper may have saved: half of that is a quarter more than all of it."""
BUCKET = LEAST_BURST
"""
Bytes that a shaper lets through at once after a pause: those of our test hosts. A stream that has not used
them up measures the bucket, and not the rate.
"""
MOST_BUCKET = 2 << 20
"""Bytes: what is sent ahead of a stream of 1 Mbit/s takes 21 s then."""
UDP_IP = {4: 28, 6: 48}
ETHERNET = 14
PACKET = 1500
"""Bytes, headers of IP included, even where the path takes larger ones."""

LEAST_SHARE = 0.5
"""Of a stream, where the sender ended it since it had not been at work: with less, nothing is concluded."""
LEAST_SHARE_FIRST = 0.25
"""The same while the rate doubles: then it is far from the available bandwidth, one way or the other."""
MOST_LOST = 0.02
"""Of a stream's datagrams: a path that loses more is full. Delays do not grow any more where a queue is."""


@dataclass(frozen=True)
class Stream:
    """A stream, as it is sent."""

    number: int
    payload: int
    """Bytes of each datagram."""
    together: int
    """Datagrams of each message."""
    messages: int
    """That count."""
    gap: int
    """Nanoseconds from one message to the next."""
    ahead: int
    """Messages that are sent first and do not count."""
    ahead_gap: int

    @property
    def seconds(self) -> float:
        """How long the part lasts that counts."""
        return self.messages * self.gap / 1e9

    @property
    def whole_seconds(self) -> float:
        """How long all of it lasts."""
        return self.seconds + self.ahead * self.ahead_gap / 1e9

    @property
    def datagrams(self) -> int:
        """That count."""
        return self.messages * self.together

    def bytes(self, headers: int, messages: int) -> int:
        """Of all frames, of so many messages that count and of those ahead."""
        return (messages + self.ahead) * self.together * (self.payload + headers)

    @classmethod
    def of(cls, trial: Trial, number: int, payload: int, headers: int, bucket: int = BUCKET) -> Stream:
        """
        A stream of this rate.

        Parameters
        ----------
        trial
            The rate, and whether a shaper's bucket is emptied first.
        number
            Of the stream.
        payload
            Bytes of a datagram.
        headers
            Bytes of a frame beside them.
        bucket
            Bytes that a shaper on the path may let through at once; 0: there is none.
        """
        frame = 8 * (payload + headers)
        most = min(MOST_TOGETHER, MOST_MESSAGE // payload)
        together = max(1, min(most, math.ceil(trial.rate * LEAST_GAP / frame)))
        gap = together * frame / trial.rate
        messages = math.ceil(max(SECONDS / gap, LEAST_MESSAGES))
        ahead = 0
        if trial.ahead and bucket:
            saved = AHEAD_LENGTH * max(8 * bucket, trial.rate * BURST_SECONDS)
            ahead = math.ceil(saved / (together * frame))
        nanoseconds = round(gap * 1e9)
        return cls(number, payload, together, messages, nanoseconds, ahead, nanoseconds // AHEAD_SPEED)


@dataclass(frozen=True)
class Sent:
    """What the sender says of a stream."""

    messages: int
    elapsed: float
    paused: float
    """Seconds by which it was late, where it ended the stream for that: the process did not run."""
    blocked: float
    """Seconds in which the host's own queue was full. They count as delay, as in any other queue."""


@dataclass(frozen=True)
class Heard:
    """What the receiver says of a stream."""

    datagrams: int
    """That came, of those that count."""
    dropped: int
    """That the receiving host threw away because the process was late."""
    trend: Trend
    came: float
    """Datagrams a second in the later half, where the path is full if it ever is; 0: not known."""


def summary(stream: Stream, arrived: Sequence[tuple[int, int, int]], datagrams: int, dropped: int) -> Heard:
    """
    Of what a receiver has.

    Parameters
    ----------
    stream
        What was to come.
    arrived
        Of each message that came, in order: its index, and nanoseconds of its send and of its arrival.
    datagrams, dropped
        Of the stream: those that came, and those that came and were thrown away.
    """
    delays = [(came - sent) / 1e9 for _, sent, came in arrived]
    span = (arrived[-1][1] - arrived[0][1]) / 1e9 if arrived else 0.0
    late = arrived[len(arrived) // 2 :]
    seconds = (late[-1][2] - late[0][2]) / 1e9 if late else 0.0
    came = (len(late) - 1) * stream.together / seconds if seconds > 0 else 0.0
    return Heard(datagrams, dropped, trend(delays, span), came)


def judged(stream: Stream, sent: Sent, heard: Heard, headers: int) -> Outcome:
    """What a stream says of its rate."""
    if heard.dropped:
        return Outcome(Verdict.RECEIVER)
    came = 8 * heard.came * (stream.payload + headers) or None
    least = LEAST_SHARE if stream.ahead else LEAST_SHARE_FIRST
    if sent.messages < least * stream.messages:
        # The sender was not at work, or it ran out of time since the host's own queue took nothing.
        return Outcome(Verdict.SENDER) if sent.paused or not sent.blocked else Outcome(Verdict.ABOVE, came)
    if heard.datagrams < (1 - MOST_LOST) * sent.messages * stream.together:
        return Outcome(Verdict.ABOVE, came)
    match heard.trend:
        case Trend.GROWS:
            return Outcome(Verdict.ABOVE, came)
        case Trend.STILL:
            return Outcome(Verdict.BELOW)
        case Trend.UNCLEAR:
            return Outcome(Verdict.UNCLEAR)
