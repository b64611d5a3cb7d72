"""Asynchronous calls and their futures, whatever a signal handler raises in between."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import asynchronous
from penstock.asynchronous import Line


class Raised(Exception):
    """By what stands for a signal handler."""


WITHIN = tuple(str(Path(module.__file__).parent) for module in (ps, threading, concurrent.futures))


def interrupted(call: Callable[[], object], place: int) -> bool:
    """Whether a handler could raise at that place, counted from 0."""
    left = place

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("c_return", "call") and frame.f_code.co_filename.startswith(WITHIN):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Raised

    sys.setprofile(profile)
    try:
        call()
        return False
    # The second is what becomes of it in a Condition's own `wait`.
    except (Raised, RuntimeError):
        return True
    finally:
        sys.setprofile(None)


ASKED: dict[str, Callable[[Any], object]] = {
    "repr": repr,
    "cancelled": lambda future: future.cancelled(),
    "running": lambda future: future.running(),
    "done": lambda future: future.done(),
    "cancel": lambda future: future.cancel(),
    "add_done_callback": lambda future: future.add_done_callback(id),
    "result": lambda future: future.result(),
    "exception": lambda future: future.exception(),
    "wait": lambda future: concurrent.futures.wait([future], 0.001),
}


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("what", ASKED)
def test_who_is_interrupted_as_he_asks_a_future_holds_nobody_up(what: str, is_over: bool) -> None:
    """Its Condition stayed taken: the line stood before it for good, and so did who asked for the result."""
    line = Line()
    for place in range(1000):
        go_on = threading.Event()
        line.submit(None, go_on.wait)
        future = line.submit(None, int)
        if is_over:
            go_on.set()
            line.submit(None, int).result(10)
        else:
            threading.Timer(0.002, go_on.set).start()
        more = interrupted(lambda future=future: ASKED[what](future), place)
        # Those who ask are other threads than that which was interrupted.
        asks: Line = Line()
        assert asks.submit(None, line.submit(None, int).result, 5).result(10) == 0
        assert asks.submit(None, future.wait, 5).result(10)
        if future.cancelled():
            assert (what, is_over) == ("cancel", False)
        else:
            assert asks.submit(None, future.result, 5).result(10) == 0
        asks.end()
        if not more:
            break
    assert 0 < place < 1000
    line.end()


def test_the_standard_ways_to_wait_for_a_future_are_told() -> None:
    line, go_on, found = Line(), threading.Event(), []

    def fails() -> None:
        raise ValueError

    async def awaited() -> int:
        return await asyncio.wrap_future(line.submit(None, lambda: 5))

    assert asyncio.run(awaited()) == 5
    line.submit(None, go_on.wait)
    good, bad, gone = line.submit(None, int), line.submit(None, fails), line.submit(None, int)
    for future in (good, bad, gone):
        future.add_done_callback(lambda _: 1 / 0)
        future.add_done_callback(found.append)
    assert gone.cancel()
    assert gone.cancel()
    assert found == [gone]
    assert "pending" in repr(good)
    assert "cancelled" in repr(gone)
    assert concurrent.futures.wait([good, bad, gone], 0.01).done == set()
    threading.Timer(0.01, go_on.set).start()
    assert concurrent.futures.wait([good, bad, gone], 10).not_done == set()
    assert set(concurrent.futures.as_completed([good, bad, gone], 10)) == {good, bad, gone}
    assert "returned int" in repr(good)
    assert "raised ValueError" in repr(bad)
    assert not good.cancel()
    assert not good.running()
    line.submit(None, int).result(10)
    good.add_done_callback(found.append)
    assert found == [gone, good, bad, good]
    line.end()


def test_a_wait_that_ends_before_the_call_leaves_nothing_behind() -> None:
    """Who polled piled up a lock a time."""
    line, go_on = Line(), threading.Event()
    future = line.submit(None, go_on.wait)
    for _ in range(3):
        assert not future.wait(0.001)
    assert future._bells._hung == []
    go_on.set()
    line.end()


def test_a_push_whose_caller_heard_an_exception_instead_is_not_made_in_a_later_iteration(job: ps.Job) -> None:
    """It stood in line, and `clock` did not know of it."""
    w = job.tensor("w", shape=2, reduce="sum")
    made = 0
    for place in range(1000):
        job._submit(time.sleep, 0.005)
        more = interrupted(lambda: w.push_async(np.ones(2, np.float32)), place)
        job.clock()
        value = w.pull()[0].copy()
        assert value - made in ((0, 1) if more else (1,))
        made = value
        job._submit(int).result(10)
        assert not job._pushes
        job.clock()
        assert w.pull()[0] == made
        if not more:
            break
    assert 3 < place < 1000


def test_a_call_for_which_there_was_no_thread_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was, with the next one."""
    line, ran, noted = Line(), [], []

    class Full:
        def start_new_thread(self, *_: Any) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(asynchronous, "_thread", Full())
        with pytest.raises(RuntimeError):
            line.submit(noted, ran.append, 1)
    line.submit(noted, ran.append, 2).result(10)
    assert (ran, len(noted)) == ([2], 1)
    line.end()


def test_a_call_that_is_submitted_as_the_line_ends_is_made() -> None:
    """It stood behind the end, and its future was never over."""
    line, ran, put = Line(), [], threading.Event()
    line.submit(None, int).result(10)
    calls = line._calls

    class Slow:
        get = calls.get

        def put(self, call: Any) -> None:
            if call is not None:
                put.wait(10)
            calls.put(call)

    line._calls = Slow()  # type: ignore[assignment]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(line.submit, None, ran.append, 1)
        time.sleep(0.05)
        line.end()
        put.set()
        submitted.result(10).result(10)
    assert ran == [1]


def test_the_error_of_a_push_is_told_though_its_clock_was_interrupted(job: ps.Job) -> None:
    """It was forgotten, and the next clock completed the iteration without that push."""
    w = job.tensor("w", shape=2)
    for place in range(1000):
        w.push_async(np.ones(3, np.float32)).exception(10)
        try:
            assert interrupted(job.clock, place)
        except ps.exceptions.ShapeError:
            break
        with pytest.raises(ps.exceptions.ShapeError):
            job.clock()
    assert 3 < place < 1000
    assert job.clock() == 1
    assert not job._pushes


def test_a_callback_that_waits_for_what_is_made_behind_it_is_told_so(job):
    w, v = (job.tensor(name, np.zeros(4, np.float32)) for name in "wv")
    queued, told = threading.Event(), []

    def waits(_):
        queued.wait(30)
        for wait in (job.clock, later.result, later.exception):
            with pytest.raises(ps.exceptions.OptionError, match="when the callback has returned"):
                wait()
            told.append(wait)

    w.push_async(np.ones(4, np.float32)).add_done_callback(waits)
    later = v.push_async(np.ones(4, np.float32))
    queued.set()
    later.result(30)
    job.clock()
    assert len(told) == 3
    np.testing.assert_array_equal(v.pull(), np.ones(4))


@pytest.mark.parametrize("asks", ["clock", "lane", "close"])
def test_a_handler_that_comes_between_what_submits_a_push_does_not_wait_for_that(asks):
    """Only the frame that it has interrupted could submit it: it stood for good."""
    job = ps.init()
    w = job.tensor("w", np.zeros(4, np.float32))
    called = []

    class Pushes(list):
        def append(self, push):
            super().append(push)
            # Here a signal handler runs.
            called.append(asks)
            {"clock": job.clock, "lane": w.lane, "close": job.close}[asks]()

    job._pushes = Pushes()
    push = w.push_async(np.ones(4, np.float32))
    assert called == [asks]
    if asks == "close":
        assert isinstance(push.exception(30), ps.exceptions.JobClosed)
        with pytest.raises(ps.exceptions.JobClosed):
            job.close()
    else:
        push.result(30)
        job.close()


def test_a_job_that_is_closed_in_a_callback_before_what_is_behind_it_goes_on(job):
    w, v = (job.tensor(name, np.zeros(4, np.float32)) for name in "wv")
    queued, told = threading.Event(), []

    def closes(_):
        queued.wait(30)
        with pytest.raises(ps.exceptions.OptionError, match="when the callback has returned"):
            job.close()
        told.append(True)

    w.push_async(np.ones(4, np.float32)).add_done_callback(closes)
    later = v.push_async(np.ones(4, np.float32))
    queued.set()
    later.result(30)
    assert told
    job.clock()
    np.testing.assert_array_equal(v.pull(), np.ones(4))
