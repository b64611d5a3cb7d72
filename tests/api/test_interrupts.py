"""
A signal handler raises at each place of a call where one can, and the call is made again. Python runs such
handlers when something written in C has returned and when a function begins, so a profiler that raises then
stands for them.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from penstock.turn import Ticket, Turn

RAISES = """
        import os, signal, sys, threading

        class Raised(Exception):
            pass

        def handler(*_):
            # As one that is meant for one signal only does.
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            raise Raised

        class Handler:
            def __call__(self, *_):
                raise Raised

        handlers = [handler, Handler()]
        package = os.path.dirname(ps.__file__)

        def interrupted(call, place, behind=None, within=package):
            # Whether it was, at that place, counted from 0, and so many places behind that once more.
            left = place

            def profile(frame, event, _):
                nonlocal left
                if event in ("c_return", "call") and frame.f_code.co_filename.startswith(within):
                    left -= 1
                    if left < 0:
                        sys.setprofile(None)
                        if behind is not None:
                            sys.settrace(trace)
                        handlers[place // 2 % 2]()

            # A profiler that raises is profiler no more.
            def trace(frame, event, _):
                nonlocal behind
                if event == "call" and frame.f_code.co_filename.startswith(within):
                    behind -= 1
                    if behind < 0:
                        sys.settrace(None)
                        twice.append(place)
                        handlers[place // 2 % 2]()

            signal.signal(signal.SIGUSR1, handlers[place // 2 % 2])
            sys.setprofile(profile)
            try:
                call()
                return False
            except Raised:
                return True
            finally:
                sys.setprofile(None)
                sys.settrace(None)

        twice = []

        def interrupt(call, is_there):
            # Behind what is written in C and is there.
            def profile(frame, event, what):
                if event == "c_return" and is_there(frame, what):
                    sys.setprofile(None)
                    handler()

            sys.setprofile(profile)
            try:
                call()
                raise AssertionError("it was not interrupted")
            except Raised:
                pass

        def until_done(call):
            while True:
                try:
                    return call()
                except ps.exceptions.FirstFailed as error:
                    assert "Raised" in str(error)
"""
MODEL = """
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = ps.torch.distribute(model, optimizer, where="servers")
"""
CALLS = {
    "load": """
        w = job.tensor("w", shape=4)

        def call(number):
            # What the others give does not count.
            w.load(np.full(4, number + 1000 * job.rank, np.float32))

        def look():
            return float(w.pull()[0])
        """,
    "publish": MODEL
    + """
        def call(number):
            optimizer.publish()

        def prepare(number):
            torch.nn.init.constant_(model.weight, number + 1000 * job.rank)

        def look():
            return float(model.weight[0, 0])
        """,
    "flush": """
        filters = ps.Filters(push=ps.DVF(1e9), broadcast=ps.DVF(1e9))
        w = job.tensor("w", shape=4, optimizer=ps.Add(), reduce="sum", filter=filters)

        def prepare(number):
            w.push(np.ones(4, np.float32))
            job.clock()

        def call(number):
            w.flush()

        def look():
            job.clock()
            return float(w.pull(exact=True)[0]) / 2 - 1
        """,
    "state": MODEL
    + """
        optimizer.register_load_state_dict_post_hook(lambda _: sorted([2, 1]))
        state = optimizer.state_dict()

        def call(number):
            state["state"] = {
                index: {"momentum_buffer": torch.full(shape, float(number + 1000 * job.rank))}
                for index, shape in enumerate([(1, 2), (1,)])
            }
            optimizer.load_state_dict(state)

        def look():
            return float(optimizer.state_dict()["state"][0]["momentum_buffer"][0, 0])
        """,
    "mean": """
        found = None

        def call(number):
            global found
            found = job.mean(np.full(4, number))[0]

        def look():
            return found
        """,
    "gather": """
        found = None

        def call(number):
            global found
            # Of more than one piece.
            gathered = job.all_gather([number, job.rank, bytes(200_000)])
            assert [one[1] for one in gathered] == [0, 1] and gathered[0][0] == gathered[1][0]
            found = gathered[0][0]

        def look():
            return found
        """,
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("call", "twice"),
    # What starts PyTorch in two processes takes its time.
    [(call, twice) for call in CALLS for twice in (False, True) if twice or MODEL not in CALLS[call]],
)
def test_what_is_interrupted_anywhere_and_made_again_is_the_same_call(
    spawn_job: Any, call: str, twice: bool, rank: int
) -> None:
    """M-4. Taken for the next one, it gave the value of that, or waited for a call that nobody made."""
    # What takes its time, the two ranks share.
    first, step = 0, 1
    if MODEL in CALLS[call]:
        pytest.importorskip("torch")
        first, step = rank, 2
    saved = spawn_job(
        2,
        RAISES
        + """
        job = ps.init(deadline=20)
        prepare = lambda number: None
        """
        + CALLS[call]
        + f"""
        seen = []
        for number in range(1000):
            prepare(number)
            once_more = lambda: until_done(lambda: call(number))
            place = {first} + {step} * number
            # At the end of the first interruption comes the next, in each of its places in turn.
            more = job.rank == {rank} and interrupted(once_more, place, place % 3 if {twice} else None)
            if more or job.rank != {rank}:
                once_more()
            seen.append(look())
            if not any(job.all_gather(more)):
                break
        save(seen=seen, twice=twice)
        job.close()
        """,
    )
    assert (len(saved[rank]["twice"]) > 0) == twice
    for result in saved:
        assert 4 < len(result["seen"]) < 1000
        np.testing.assert_array_equal(result["seen"], np.arange(len(result["seen"])))


def test_who_was_interrupted_behind_a_call_and_gives_another_value_makes_the_next_one(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        RAISES
        + """
        with ps.init(deadline=20) as job:
            w = job.tensor("w", shape=2)
            values = [np.full(2, number, np.float32) for number in range(3)]
            w.load(values[0])
            if job.rank == 0:
                # It has told the others.
                told = lambda _, what: getattr(what, "__name__", "") == "end_by_first"
                interrupt(lambda: w.load(values[1]), told)
            else:
                w.load(values[1])
            before = w.pull().copy()
            job.barrier()
            w.load(values[2])
            behind = w.pull().copy()
            # All that comes behind the last row of a gather is in `put_together`.
            if job.rank == 0:
                came = lambda frame, _: frame.f_code.co_name == "put_together"
                interrupt(lambda: job.mean(values[1]), came)
            else:
                job.mean(values[1])
            save(before=before, behind=behind, mean=job.mean(values[2]))
        """,
    )
    for result in saved:
        assert [*result["before"], *result["behind"], *result["mean"]] == [1, 1, 2, 2, 2, 2]


def test_a_gather_that_is_over_is_kept_while_another_thread_has_its_turn_or_memory_lacks(
    spawn_job: Any,
) -> None:
    saved = spawn_job(
        2,
        RAISES
        + """
        from penstock import gather

        with ps.init(deadline=20) as job:
            found = []
            for error in (Raised, MemoryError):
                value = len(found) + 1.0
                if job.rank == 1:
                    def profile(frame, event, call):
                        if event == "c_return" and frame.f_code.co_name == "put_together":
                            sys.setprofile(None)
                            handler() if error is Raised else exec("raise MemoryError")
                    sys.setprofile(profile)
                    try:
                        job.mean(value)
                        raise AssertionError("it was not interrupted")
                    except error:
                        pass
                    turn = job._gathering._turn
                    turn.holder = gather.Ticket()
                    turn.holder.thread = None
                    try:
                        job.mean(value, timeout=0.1)
                        raise AssertionError("another thread has the turn")
                    except ps.exceptions.GetTimeout as error:
                        assert "another thread" in str(error), error
                    del turn.holder
                found.append(job.mean(value))
            save(found=found, last=job.mean(7))
        """,
    )
    for result in saved:
        assert [*result["found"], result["last"]] == [1, 2, 7]


def test_a_thread_waits_for_another_ones_load_no_longer_than_its_timeout(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import threading, time
        with ps.init(deadline=20) as job:
            w = job.tensor("w", shape=2)
            job.barrier()
            if job.rank == 1:
                first = threading.Thread(target=w.load, args=(np.ones(2, np.float32),))
                first.start()
                line = job._firsts._lines
                while not (line and next(iter(line.values())).turn.holder):
                    time.sleep(0.001)
                began = time.monotonic()
                try:
                    w.load(np.ones(2, np.float32), timeout=0.2)
                    raise AssertionError("the other thread has its turn")
                except ps.exceptions.BarrierTimeout as error:
                    assert "another thread of worker 1" in str(error), error
                waited = time.monotonic() - began
                job.all_gather(0)
                first.join()
            else:
                waited = 0.2
                job.all_gather(0)
                w.load(np.ones(2, np.float32))
            save(waited=waited)
        """,
    )
    assert 0.2 <= saved[1]["waited"] < 5


def test_a_wait_for_asynchronous_pushes_that_is_interrupted_anywhere_does_not_hold_them_up(
    spawn_job: Any,
) -> None:
    """A future's lock stayed taken, and the thread that pushes stood before it for good."""
    saved = spawn_job(
        1,
        RAISES
        + """
        import time
        with ps.init(deadline=20) as job:
            w = job.tensor("w", shape=4)
            places = []
            for wait in (job.clock, w.lane, lambda: w.flush(timeout=20)):
                for place in range(1000):
                    job._submit(time.sleep, 0.005)
                    sent = w.push_async(np.ones(4, np.float32))
                    more = interrupted(wait, place, within=(package, os.path.dirname(threading.__file__)))
                    wait()
                    assert sent.done()
                    job.clock()
                    if not more:
                        break
                places.append(place)
            save(places=places, pushed=w.pull()[0])
        """,
        timeout=60,
    )
    assert min(saved[0]["places"]) > 2
    assert saved[0]["pushed"] == sum(saved[0]["places"] + 1)


def test_a_turn_that_a_signal_handler_ends_as_it_begins_is_free() -> None:
    """The lock stayed taken for good, for every other thread."""

    class Raised(Exception):
        pass

    places = 0
    for place in range(100):
        turn, ticket, left = Turn(), Ticket(), place

        def profile(frame: Any, event: str, _: Any) -> None:
            nonlocal left
            if event in ("c_return", "call") and frame.f_code.co_filename.endswith(
                ("turn.py", "bells.py", "threading.py")
            ):
                left -= 1
                if left == -1:
                    sys.setprofile(None)
                    raise Raised

        sys.setprofile(profile)
        try:
            try:
                assert turn.take(ticket, 1)
            finally:
                if turn.holder is ticket:
                    del turn.holder
                    turn.wake()
        except Raised:
            places += 1
        finally:
            sys.setprofile(None)
        assert turn.holder is None
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(turn.take, Ticket(), 0).result(timeout=10), place
        if left >= 0:
            break
    assert places > 2
