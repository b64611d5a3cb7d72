"""
Threads, signals, forks and ends that get in each other's way: one program for each, named as the argument.

Two workers and their server share this process, so that one thread decides when the other worker goes on.
Where closing has to wait, the server has a process of its own, which is stopped for a while.
What hangs is ended by faulthandler's watchdog, which needs no interpreter, and says where every thread is.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

import penstock as ps
from penstock import _core

PATIENCE = 30.0
"""Seconds until a program that hangs is ended. Nothing is judged by time."""
BUSY = 0.3
"""Seconds that a wait is disturbed for: some of its looks at signals fall into it."""

ONES = np.ones(4, np.float32)


class Handled(Exception):
    """What signal handlers here raise."""


class Pair(NamedTuple):
    """Both workers, and their ends of one tensor."""

    first: ps.Job
    second: ps.Job
    one: ps.Tensor
    two: ps.Tensor


def keep(server: Any) -> None:
    """Open jobs are left when the process ends: the server must outlive the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


def rendezvous() -> tuple[str, str]:
    """A socket's path, and a secret."""
    return f"{tempfile.mkdtemp(prefix='ps-')}/0", secrets.token_hex(32)


def pair(consistency: str = "bsp", deadline: str = "20") -> Pair:
    """A server and two workers in this process."""
    path, secret = rendezvous()
    # It lives as long as the process.
    globals()["server"] = _core.Server(path, "job", secret, 0, 1, 2, {})
    keep(globals()["server"])
    return joined(path, secret, {"deadline": deadline, "consistency": consistency})


class Apart:
    """A server in a process of its own, and two workers in this one."""

    def __init__(self, deadline: str = "20") -> None:
        path, secret = rendezvous()
        command = [sys.executable, "-m", "penstock.launch.server", path, "0", "1", "2"]
        self.server = subprocess.Popen(
            command, env={**os.environ, "PENSTOCK_SECRET": secret}, stderr=subprocess.PIPE, text=True
        )
        self.pair = joined(path, secret, {"deadline": deadline})

    def stop(self) -> None:
        """Behind this it answers nobody."""
        self.server.send_signal(signal.SIGSTOP)
        # Told when the last of its threads has stopped.
        os.waitpid(self.server.pid, os.WUNTRACED)

    def stop_for(self, seconds: float) -> None:
        """The same, for a while."""
        self.stop()
        threading.Timer(seconds, self.server.send_signal, (signal.SIGCONT,)).start()

    def kill(self) -> None:
        """Its workers hear of it."""
        self.server.kill()
        self.server.communicate()
        for job in self.pair[:2]:
            with contextlib.suppress(ps.PenstockError):
                job.close()

    def ends(self) -> str:
        """What it has to say when all workers have left: nothing, if all left well."""
        _, said = self.server.communicate()
        return said


def joined(path: str, secret: str, options: dict[str, str]) -> Pair:
    """Two workers that join."""
    first, second = (ps.Job(_core.Job.connect([path], "job", secret, rank, 2, options)) for rank in (0, 1))
    one = first.tensor("w", shape=4, reduce="sum")
    two = second.tensor("w", shape=4, reduce="sum")
    return Pair(first, second, one, two)


def stuck_push(pair: Pair) -> Future[int]:
    """A push on the job's own thread that waits for its lane until the other worker pushes."""
    pair.one.push(ONES)
    pair.first.clock()
    return pair.one.push_async(ONES)


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Calls in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def error_of(call: Callable[[], Any]) -> BaseException | None:
    """What a call raises."""
    try:
        call()
    except BaseException as error:
        return error
    return None


def for_a_while(call: Callable[[], Any]) -> int:
    """Calls again and again, in steps that let others run."""
    end, times = time.monotonic() + BUSY, 0
    while time.monotonic() < end:
        call()
        times += 1
        time.sleep(0.001)
    return times


def looks(pair: Pair) -> None:
    """Everything that looks at a job, a tensor or a table and should not wait."""
    pair.one.pull(slack=1)
    _ = (pair.one.version, pair.one.slack, pair.one.staleness, pair.one.consistency, repr(pair.one))
    _ = (pair.first.iteration, pair.first.closed, repr(pair.first), pair.first.stats(), pair.first.balance())
    _ = (pair.first._core.servers, pair.first._core.shards, pair.first._core.chunk_bytes)


def looking_beside_a_push_that_waits() -> None:
    """`pull(slack=...)` asks what its slack means, in the thread that holds the interpreter."""
    both = pair()
    push = stuck_push(both)
    for_a_while(lambda: looks(both))
    assert not push.done(), push.exception() or push.result()
    both.two.push(ONES)
    both.second.clock()
    assert push.result() == 1


def closing_beside_waits_and_looks() -> None:
    """Closing waits for those who use the connections; those who look must not wait for closing."""
    for _ in range(5):
        both = pair()
        push = stuck_push(both)
        state = in_thread(lambda both=both: [both.one.optimizer_state() for _ in range(1000)])
        stop = threading.Event()

        def look(both: Pair = both, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                with contextlib.suppress(ps.PenstockError):
                    looks(both)

        looker = in_thread(look)
        both.first._fail(RuntimeError("closed in the middle"))
        stop.set()
        looker.result()
        assert isinstance(push.exception(), ps.exceptions.JobClosed)
        assert isinstance(state.exception(), ps.exceptions.JobClosed)
        with contextlib.suppress(ps.PenstockError):
            both.second.close()


def a_handler_raises_out_of_every_wait() -> None:
    """A handler's exception ends the wait; the job goes on as if the call had not been made."""
    both = pair()
    both.one.push(ONES)
    both.first.clock()

    def raises(_number: int, _frame: object) -> None:
        raise Handled

    signal.signal(signal.SIGALRM, raises)
    waits = [
        lambda: both.one.push(ONES),
        lambda: both.one.pull(slack=0),
        lambda: both.first.barrier(),
        lambda: both.one.optimizer_state(),
        lambda: both.first.table("t", rows=2),
    ]
    for wait in waits:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            wait()
        except Handled:
            continue
        raise AssertionError("the wait went on")


def standing_in_line_for_the_lane() -> None:
    """A push behind one that waits has a deadline of its own, and hears signals."""
    both = pair()
    push = stuck_push(both)
    for_a_while(lambda: None)

    def raises(_number: int, _frame: object) -> None:
        raise Handled

    signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with contextlib.suppress(Handled):
        both.one.push(ONES)
        raise AssertionError("it pushed twice")
    with contextlib.suppress(ps.exceptions.LaneTimeout):
        both.one.push(ONES, timeout=0.1)
        raise AssertionError("it pushed twice")
    assert not push.done(), push.exception() or push.result()
    both.two.push(ONES)
    assert push.result() == 1


def a_handler_closes_the_job() -> None:
    """What a SIGTERM handler does: the call that waits holds everything that closing needs."""
    both = pair()
    both.one.push(ONES)
    both.first.clock()
    signal.signal(signal.SIGTERM, lambda *_: both.first.close())
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        both.one.push(ONES)
    except ps.exceptions.JobClosed:
        assert both.first.closed
        # It left politely: the other one goes on alone.
        both.two.push(ONES)
        both.second.clock()
        both.second.close()
        return
    raise AssertionError("the push went on")


def a_handler_closes_what_closes() -> None:
    """SIGTERM comes again and again while the job is closed: it was left as failed, and the others ended."""
    apart = Apart()
    both = apart.pair
    both.one.push(ONES)
    closed: list[bool] = []

    def closes(_number: int, _frame: object) -> None:
        both.first.close()
        closed.append(both.first.closed)

    signal.signal(signal.SIGALRM, closes)
    apart.stop_for(2 * BUSY)
    signal.setitimer(signal.ITIMER_REAL, BUSY / 3, BUSY / 3)
    both.first.close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(closed) > 1, closed
    assert all(closed), closed
    both.two.push(ONES)
    both.second.clock()
    both.second.close()
    assert not apart.ends()


def a_handler_closes_several_jobs_again_and_again() -> None:
    """The first to be closed was interrupted by those that stood behind it, and each by the next signal."""
    stuck, apart, beside = pair(), Apart(), Apart()
    stuck.one.push(ONES)
    stuck.first.clock()
    closes = [apart.pair.first, apart.pair.second, beside.pair.first, beside.pair.second]
    times = []

    def handler(_number: int, _frame: object) -> None:
        times.append(1)
        for job in closes:
            job.close()

    signal.signal(signal.SIGALRM, handler)
    apart.stop_for(3 * BUSY)
    beside.stop_for(4 * BUSY)
    signal.setitimer(signal.ITIMER_REAL, BUSY / 3, BUSY / 3)
    error = error_of(lambda: stuck.one.push(ONES))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert isinstance(error, ps.exceptions.JobClosed), error
    assert error.__context__ is None, error.__context__
    assert len(times) > 1, times
    assert not apart.ends()
    assert not beside.ends()


def a_handler_closes_another_job_than_the_one_that_closes() -> None:
    """That one is left in peace; then the other one is closed."""
    apart, other = Apart(), pair()
    apart.stop_for(2 * BUSY)
    signal.signal(signal.SIGALRM, lambda *_: other.first.close())
    signal.setitimer(signal.ITIMER_REAL, BUSY)
    apart.pair.first.close()
    assert other.first.closed
    apart.pair.second.close()
    assert not apart.ends()
    other.second.close()


def a_handler_closes_a_job_and_raises() -> None:
    """Where closing fails too, the call says both; what the handler raised came out of some later call."""
    apart, other = Apart(deadline="2"), pair()

    def closes_and_raises(_number: int, _frame: object) -> None:
        apart.pair.first.close()
        raise Handled

    signal.signal(signal.SIGALRM, closes_and_raises)
    apart.stop()
    signal.setitimer(signal.ITIMER_REAL, BUSY)
    error = error_of(other.first.barrier)
    assert isinstance(error, ps.exceptions.NotDelivered), error
    assert isinstance(error.__context__, Handled), error.__context__
    looks(other)
    apart.kill()


def a_handler_raises_twice() -> None:
    """Once out of the wait, once out of the closing that it asked for: both are heard."""
    apart, other = Apart(), pair()
    raised: list[Handled] = []

    def handler(_number: int, _frame: object) -> None:
        apart.pair.first.close()
        raised.append(Handled(len(raised)))
        if len(raised) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
        raise raised[-1]

    signal.signal(signal.SIGALRM, handler)
    apart.stop()
    signal.setitimer(signal.ITIMER_REAL, BUSY, BUSY)
    error = error_of(other.first.barrier)
    assert error is raised[1], error
    assert error.__context__ is raised[0], error.__context__
    looks(other)
    apart.kill()


def a_handler_calls_what_waits() -> None:
    """A handler runs under the locks of the call that it interrupts: it is told so, and does not hang."""
    both = pair()
    both.one.push(ONES)
    both.first.clock()
    told = []

    def nested(_number: int, _frame: object) -> None:
        for call in (both.one.push, both.one.pull, both.first.clock, both.first.barrier):
            try:
                call()
            except ps.PenstockError as error:
                told.append(error)
        threading.Thread(target=both.two.push, args=(ONES,)).start()

    signal.signal(signal.SIGALRM, nested)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    both.one.push(ONES)
    assert len(told) == 4, told
    assert all("signal handler" in str(error) for error in told), told


def forking_beside_a_push_that_waits() -> None:
    """The child has neither the thread nor the job; the parent goes on."""
    both = pair()
    push = stuck_push(both)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE / 2))
            try:
                both.one.push(ONES)
            except ps.exceptions.JobClosed:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    both.two.push(ONES)
    both.second.clock()
    assert push.result() == 1


def forking_in_a_handler() -> None:
    """The child comes back from the handler into the parent's wait, which is not its own."""
    both = pair()
    both.one.push(ONES)
    both.first.clock()
    children: list[int] = []
    parent = os.getpid()
    signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    let_go = threading.Event()

    def other() -> None:
        let_go.wait()
        both.two.push(ONES)

    other_push = in_thread(other)
    threading.Timer(0.5, let_go.set).start()
    try:
        both.one.push(ONES * 10)
    except ps.exceptions.JobClosed:
        os._exit(0 if os.getpid() != parent else 1)
    if os.getpid() != parent:
        os._exit(2)
    other_push.result()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0]


def ending_beside_waits() -> None:
    """The interpreter ends while threads wait, some of which only Python's end can end."""
    both = pair(deadline="3")
    stuck_push(both)
    in_thread(lambda: both.second.barrier())
    in_thread(lambda: both.two.pull(slack=0))
    time.sleep(0.1)


def dropping_beside_a_wait() -> None:
    """The last reference to a job goes while a thread waits on its tensor: dropping joins threads."""
    folder = tempfile.mkdtemp(prefix="ps-")
    secret, path = secrets.token_hex(32), f"{folder}/0"
    globals()["server"] = _core.Server(path, "job", secret, 0, 1, 2, {})
    keep(globals()["server"])
    for _ in range(5):
        job = _core.Job.connect([path], "job", secret, 0, 2, {"deadline": "20"})
        tensor = job.declare(
            "w",
            (4,),
            "float32",
            "add",
            [],
            (0.0,) * 5,
            "bsp",
            "pull",
            False,
            0,
            "none",
            False,
            1.0,
            None,
            False,
            ("everything", ()),
            ("everything", ()),
            None,
        )
        wait = in_thread(lambda tensor=tensor: tensor.pull(None, None))
        time.sleep(0.07)
        del job, tensor
        gc.collect()
        assert isinstance(wait.exception(), ps.PenstockError)
        del wait
        # One that left badly ended the job.
        globals()["server"].stop()
        secret, path = secrets.token_hex(32), f"{path}0"
        globals()["server"] = _core.Server(path, "job", secret, 0, 1, 2, {})
        keep(globals()["server"])


def everything_at_once() -> None:
    """Threads, handlers and looks in an order that a seed decides; then all is closed from another thread."""
    seed = int(os.environ.get("TANGLE_SEED", random.randrange(1 << 30)))
    sys.stderr.write(f"TANGLE_SEED={seed}\n")
    choose = random.Random(seed)
    both = pair()
    end = time.monotonic() + float(os.environ.get("TANGLE_SECONDS", "2"))
    signal.signal(signal.SIGALRM, lambda *_: (both.first.iteration, both.one.name))
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)

    def work(job: ps.Job, tensor: ps.Tensor, draw: random.Random) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(ps.exceptions.AlreadyPushed):
                draw.choice((tensor.push, tensor.pushpull))(ONES)
            futures = [tensor.pull_async(slack=draw.choice((0, 2, None))) for _ in range(draw.randrange(3))]
            tensor.pull(slack=draw.choice((None, 2, 5)))
            job.clock()
            for future in futures:
                future.result()

    def main_loop() -> None:
        while time.monotonic() < end:
            looks(both)
            gc.collect()
            if choose.random() < 0.2 and os.fork() == 0:
                os._exit(0)
            elif choose.random() < 0.2:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-1, 0)

    workers = [
        in_thread(lambda: work(both.first, both.one, random.Random(seed + 1))),
        in_thread(lambda: work(both.second, both.two, random.Random(seed + 2))),
    ]
    main_loop()
    signal.setitimer(signal.ITIMER_REAL, 0)
    closing = [in_thread(job.close) for job in (both.first, both.second)]
    for future in (*closing, *workers):
        error = future.exception()
        assert error is None or isinstance(error, (ps.exceptions.JobClosed, ps.exceptions.AlreadyPushed)), (
            repr(error)
        )


PROGRAMS = {
    call.__name__: call
    for call in (
        looking_beside_a_push_that_waits,
        closing_beside_waits_and_looks,
        a_handler_raises_out_of_every_wait,
        standing_in_line_for_the_lane,
        a_handler_closes_the_job,
        a_handler_closes_what_closes,
        a_handler_closes_several_jobs_again_and_again,
        a_handler_closes_another_job_than_the_one_that_closes,
        a_handler_closes_a_job_and_raises,
        a_handler_raises_twice,
        a_handler_calls_what_waits,
        forking_beside_a_push_that_waits,
        forking_in_a_handler,
        ending_beside_waits,
        dropping_beside_a_wait,
        everything_at_once,
    )
}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    PROGRAMS[sys.argv[1]]()
    sys.stdout.write("through\n")
