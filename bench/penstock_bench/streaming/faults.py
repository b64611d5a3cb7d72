"""
An inner node fails in the middle of a broadcast: what that broadcast takes, and those behind it.

| fault | what happens to the worker that passes most on, once it has passed on half of it | how long |
|---|---|---|
| kill | SIGKILL, in a job that goes on without lost workers | for ever |
| hang | SIGSTOP: its connections stand, and nothing comes | `HOLD` seconds |
| cut | its cable: nothing comes, and nobody is told | `HOLD` seconds |
| slow | its uplink passes a tenth | the broadcast and `SLOW` more |

All workers have contributed by then: the iteration needs nothing of the worker but what it passes on. Every
worker that is left checks every bit of every version, so that none was lost or applied twice.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from penstock_bench.netns import NetworkTestbed, commands
from penstock_bench.netns.testbed import bucket
from penstock_bench.streaming.measure import FIRST
from penstock_bench.streaming.systems import Streaming, Turn
from penstock_bench.streaming.traffic import Traffic
from penstock_bench.systems import BenchError

FAULTS = ("kill", "hang", "cut", "slow")
BEFORE = 7
"""Iterations before the fault, of which the median is compared with."""
AFTER = 7
SLOW = 5
HOLD = 4.0
"""Seconds: several times as long as a worker waits for one that passes nothing on."""
LEASE = 600.0
"""Seconds without a sign of life after which a worker is lost: longer than a pull waits before it fails."""
LEASE_OF_KILLED = 20.0
"""The same where one is killed: the iteration behind waits for it that long, as under BSP with any tree."""
_LOOK = 0.002
"""Seconds between two looks at the counters."""
_PATIENCE = 60.0
"""Seconds until the node has passed on half."""


class NoInnerNodeError(Exception):
    """A shape in which no worker passes anything on."""


@dataclass(frozen=True)
class Outcome:
    """What was found."""

    shape: str
    fault: str
    rank: int
    """The worker that failed."""
    passed_on: float
    """What it had passed on in an iteration, of the value's bytes."""
    before: list[float]
    """Seconds of the iterations before."""
    during: float
    """Of the one in which it failed: until all other workers had the version."""
    itself: float | None
    """Until it had the version itself; None: it was killed."""
    slow: list[float]
    """Of those in which its uplink stayed slow."""
    after: list[float]
    """Of those after that."""
    uplinks: list[float]
    """By host, what it sent in an iteration afterwards, of the value's bytes."""

    @property
    def median(self) -> float:
        """Of the iterations before."""
        return statistics.median(self.before)

    @property
    def added(self) -> float:
        """Seconds that the fault cost the other workers in its iteration."""
        return self.during - self.median


def options(fault: str) -> dict[str, str]:
    """The job's environment."""
    if fault == "kill":
        return {"PENSTOCK_LEASE": f"{LEASE_OF_KILLED:g}", "PENSTOCK_ON_WORKER_LOSS": "continue"}
    return {"PENSTOCK_LEASE": f"{LEASE:g}"}


def run(
    system: Streaming,
    fault: str,
    testbed: NetworkTestbed,
    traffic: Traffic,
    note: Callable[[str], None],
    *,
    before: int = BEFORE,
    after: int = AFTER,
) -> Outcome:
    """
    One fault in a job of one shape, which is started for it and ended.

    Parameters
    ----------
    system
        The job, with `options`.
    fault
        Of `FAULTS`.
    testbed, traffic
        Its hosts, and their counters.
    note
        Told what goes on.
    before, after
        Iterations before the fault, and after it.

    Raises
    ------
    RanksError
        A worker failed that had no reason to.
    NoInnerNodeError
        There is none that could fail.
    """
    try:
        note(f"{system.name}: starts")
        system.open()
        system.run(FIRST)
        counted = traffic.read()
        usual = system.run(before).seconds()
        moved = traffic.read().since(counted)
        sends = [moved.sent[host] / (before * system.nbytes) for host in system.layout.workers]
        rank = max(range(system.workers), key=lambda rank: sends[rank])
        # What a worker sends beside values are contributions of a few bytes, and signs of life.
        if sends[rank] < 0.05:
            raise NoInnerNodeError
        # The worker that contributes is another one.
        contributor = 0 if rank else system.workers - 1
        lost = [rank] if fault == "kill" else []
        note(f"{system.name}: {fault} of worker {rank}")
        failing = _Failing(system, fault, rank, sends[rank], testbed, traffic)
        with failing:
            turn = system.run(1, contributor=contributor, lost=lost)
            slow = system.run(SLOW, contributor=contributor).seconds() if fault == "slow" else []
        during, itself = _seconds(turn, rank, is_lost=bool(lost))
        note(f"{system.name}: after the {fault}")
        counted = traffic.read()
        behind = system.run(after, contributor=contributor, lost=lost).seconds()
        moved = traffic.read().since(counted)
        uplinks = [sent / (after * system.nbytes) for sent in moved.sent]
        return Outcome(system.shape, fault, rank, sends[rank], usual, during, itself, slow, behind, uplinks)
    finally:
        system.end()


def _seconds(turn: Turn, rank: int, *, is_lost: bool) -> tuple[float, float | None]:
    """Of one iteration: until all others had the version, and until `rank` had."""
    start = max(began[0] for began in turn.began)
    if is_lost:
        return (max(ended[0] for ended in turn.ended) - start) / 1e9, None
    others = [ended[0] for other, ended in enumerate(turn.ended) if other != rank]
    return (max(others) - start) / 1e9, (turn.ended[rank][0] - start) / 1e9


class _Failing:
    """Has a worker fail once it has passed on half of what it usually does, and come back where it does."""

    def __init__(
        self,
        system: Streaming,
        fault: str,
        rank: int,
        sends: float,
        testbed: NetworkTestbed,
        traffic: Traffic,
    ) -> None:
        self._pid, self._host = system.pids[rank], system.layout.workers[rank]
        self._fault, self._testbed, self._traffic = fault, testbed, traffic
        self._half = traffic.read().sent[self._host] + sends * system.nbytes / 2
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        # Whatever has become of the others, hosts are left as they were.
        self._thread.join()
        if self._fault == "slow":
            self._shape(rate_of(self._testbed))
        if error is None and self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            deadline = time.monotonic() + _PATIENCE
            while self._traffic.read().sent[self._host] < self._half:
                if time.monotonic() > deadline:
                    raise BenchError(f"the worker that was to fail passed nothing on within {_PATIENCE:g} s")
                time.sleep(_LOOK)
            self._fail()
        # The thread has nobody to raise it to: it is raised at the end of the context.
        except Exception as error:
            self._failed = error

    def _fail(self) -> None:
        match self._fault:
            case "kill":
                os.kill(self._pid, signal.SIGKILL)
            case "hang":
                os.kill(self._pid, signal.SIGSTOP)
                time.sleep(HOLD)
                os.kill(self._pid, signal.SIGCONT)
            case "cut":
                self._testbed.cut(self._host)
                time.sleep(HOLD)
                self._testbed.mend(self._host)
            case _:
                self._shape(rate_of(self._testbed) // 10)

    def _shape(self, rate: int) -> None:
        """Lets so much through its uplink from now on."""
        space = self._testbed.namespace(self._host)
        commands.run("tc", "-n", space, "qdisc", "change", "dev", "eth0", "root", *bucket(rate))


def rate_of(testbed: NetworkTestbed) -> int:
    """Bits a second of every link: here they are always shaped."""
    assert testbed.rate is not None
    return testbed.rate
