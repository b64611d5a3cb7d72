"""
Workers of one host read one copy of what is broadcast: what that saves, and that whoever lends it may die,
hang or leave without anybody else losing a bit, or a view changing that was handed out.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from placing import PATIENCE, PROGRAMS, Job, Running

from penstock_bench.netns import NetworkTestbed
from penstock_bench.streaming.traffic import Traffic

MakeTestbed = Callable[..., NetworkTestbed]

ELEMENTS = 2_000_000
BYTES = 4 * ELEMENTS
KIB = BYTES // 1024


class Sharing(Job):
    """A job whose workers are told what to do, and say what came of it."""

    def begin(
        self,
        testbed: NetworkTestbed,
        servers: Sequence[int],
        workers: Sequence[int],
        consistency: str = "bsp",
        **more: str,
    ) -> None:
        """Starts it, and waits until all have the value."""
        self.serve(testbed, servers, len(workers), **more)
        argv = [sys.executable, str(PROGRAMS / "sharing.py"), str(ELEMENTS), consistency]
        for rank, host in enumerate(workers):
            given = {
                **self.environment,
                "PENSTOCK_SERVERS": ",".join(self.endpoints),
                "PENSTOCK_RANK": str(rank),
                "PENSTOCK_SIZE": str(len(workers)),
            }
            self.workers.append(Running(testbed, host, argv, given, stdin=subprocess.PIPE))
        for worker in self.workers:
            worker.until("ready")

    def tell(self, rank: int, what: str) -> None:
        """Tells a worker something."""
        worker = self.workers[rank]
        worker.lines.clear()
        assert worker.popen.stdin is not None
        worker.popen.stdin.write(what + "\n")
        worker.popen.stdin.flush()

    def hear(self, rank: int, start: str) -> list[str]:
        """What it says to that, behind the first word."""
        return self.workers[rank].until(start).split()[1:]

    def ask(self, rank: int, what: str, start: str | None = None) -> list[str]:
        """Tells a worker something, and hears what it says."""
        self.tell(rank, what)
        return self.hear(rank, start or what.split()[0])

    def run(self, count: int, ranks: Sequence[int]) -> None:
        """Iterations of these workers together."""
        named = ",".join(map(str, ranks))
        for rank in ranks:
            self.tell(rank, f"run {count} {named}")
        for rank in ranks:
            self.hear(rank, "ran")

    def settle(self, ranks: Sequence[int], borrowers: Sequence[int]) -> None:
        """Iterations until exactly these borrow: connections to parents come when they come."""
        end = time.monotonic() + PATIENCE
        while [rank for rank in ranks if self.ask(rank, "borrows")[0] == "True"] != list(borrowers):
            assert time.monotonic() < end, [worker.said() for worker in self.workers]
            self.run(1, ranks)

    def memory(self, rank: int) -> tuple[int, int]:
        """Resident KiB of mirrors: kept by it, and seen by it."""
        kept, seen = self.ask(rank, "memory")
        return int(kept), int(seen)


@contextlib.contextmanager
def sharing(folder: Path, **options: str) -> Iterator[Sharing]:
    """One that is ended with the test."""
    chosen = {"tree": "chain", "shards": "1", **options}
    made = Sharing(folder, {f"PENSTOCK_{name.upper()}": value for name, value in chosen.items()})
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize(
    ("shards", "tree", "servers"), [("1", "chain", [0]), ("2", "striped:2", [0]), ("2", "chain", [0, 3])]
)
def test_workers_of_a_host_keep_one_copy_and_only_one_is_sent_it(
    tmp_path: Path, make_testbed: MakeTestbed, shards: str, tree: str, servers: list[int]
) -> None:
    testbed = make_testbed(hosts=4, rate="1gbit")
    everyone = range(5)
    with sharing(tmp_path, shards=shards, tree=tree) as one, Traffic(testbed) as traffic:
        one.begin(testbed, servers, [1, 1, 2, 1, 2])
        one.settle(everyone, [1, 3, 4])
        one.run(1, everyone)
        for borrower in (1, 3, 4):
            kept, seen = one.memory(borrower)
            assert kept < KIB // 50, "none of its own"
            assert seen > KIB // 2, "it did look at it"
        for lender in (0, 2):
            assert one.memory(lender)[0] > KIB * 9 // 10
        came = [int(one.ask(rank, "traffic")[0]) for rank in everyone]
        before = traffic.read()
        one.run(5, everyone)
        now = traffic.read().since(before)
        more = [int(one.ask(rank, "traffic")[0]) - came[rank] for rank in everyone]
        for lender in (0, 2):
            assert 0.95 < more[lender] / (5 * BYTES) < 1.2
        for borrower in (1, 3, 4):
            assert more[borrower] < 0.05 * 5 * BYTES, "nothing that stands there is sent to it, by no way"
        for host in (1, 2):
            # What its workers push goes out; a value comes in once.
            assert 0.95 < now.received[host] / (5 * BYTES) < 1.3


@pytest.mark.parametrize("how", ["kill", "hang", "close"])
def test_whoever_lends_may_go_while_others_hold_views_and_none_of_them_loses_a_bit(
    tmp_path: Path, make_testbed: MakeTestbed, how: str
) -> None:
    testbed = make_testbed(hosts=2, rate="1gbit")
    with sharing(tmp_path, on_worker_loss="continue", lease="3") as one:
        one.begin(testbed, [0], [1, 1, 1])
        one.settle(range(3), [1, 2])
        one.run(2, range(3))
        for borrower in (1, 2):
            one.ask(borrower, "hold", "holds")
        lender = one.workers[0]
        if how == "close":
            one.ask(0, "close", "closed")
        else:
            lender.send(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        if how == "kill":
            lender.popen.wait()
        for borrower in (1, 2):
            assert one.ask(borrower, "held") == ["True"]
        one.run(4, [1, 2])
        one.settle([1, 2], [2])
        one.run(2, [1, 2])
        assert one.memory(2)[0] < KIB // 50


def test_a_view_stays_as_it_was_when_its_worker_has_left_and_others_go_on(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=2, rate="1gbit")
    with sharing(tmp_path) as one:
        one.begin(testbed, [0], [1, 1, 1])
        one.settle(range(3), [1, 2])
        one.ask(1, "hold", "holds")
        one.ask(1, "close", "closed")
        one.run(3, [0, 2])
        assert one.ask(1, "held") == ["True"]
        assert one.ask(2, "borrows") == ["True"], "another's leave does not move it"


def test_a_forked_child_sees_no_zeros_whatever_its_parent_borrows_or_gives_back(
    tmp_path: Path, make_testbed: MakeTestbed
) -> None:
    testbed = make_testbed(hosts=2, rate="1gbit")
    with sharing(tmp_path) as one:
        one.begin(testbed, [0], [1, 1])
        # Of memory of its own, before it borrows, and of its lender's.
        one.ask(1, "fork", "forked")
        one.settle(range(2), [1])
        one.ask(1, "fork", "forked")
        assert one.ask(1, "child") == ["y"]
        one.ask(0, "close", "closed")
        assert one.ask(1, "child") == ["y"]
        one.run(2, [1])
        assert one.ask(1, "borrows") == ["False"]
        # Its lender has gone, and wrote nothing since.
        assert one.ask(1, "child") == ["y"]


def test_out_of_step_no_version_falls_when_a_lender_goes(tmp_path: Path, make_testbed: MakeTestbed) -> None:
    testbed = make_testbed(hosts=2, rate="1gbit")
    with sharing(tmp_path, on_worker_loss="continue", lease="3") as one:
        one.begin(testbed, [0], [1, 1, 1], "ssp:2")
        one.settle(range(3), [1, 2])
        one.run(10, range(3))
        one.workers[0].send(signal.SIGKILL)
        one.run(10, [1, 2])
