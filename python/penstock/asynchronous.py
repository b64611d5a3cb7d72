"""
One line of work: calls run one after the other, in the order in which they were submitted, on one daemon
thread.

It is a daemon, unlike the threads of `concurrent.futures`: a wait that never ends must not keep the
interpreter from ending.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, ParamSpec, TypeVar, cast

from .bells import Bells
from .exceptions import OptionError

P = ParamSpec("P")
T = TypeVar("T")

CANCELLED = "cancelled"


class Pending(Future[T]):
    """
    The future of a call of a `Line`, none of whose methods enter the Condition that is in every future: a
    signal handler that raises as its thread does so leaves that taken, and every other thread would stand
    there for good. Only `concurrent.futures.wait` and `as_completed` look into it, and are told there.
    """

    fate: object = None
    """`CANCELLED`, or who makes the call: whichever came first, as nobody else changes it then."""
    dropped = False
    """Whether `submit` raised: if the call has not begun, nobody makes it."""
    by: int | None = None
    """The thread that is about to submit it; None once it has, or has raised."""
    over = False
    """Whether it has ended, or was cancelled."""
    error: BaseException | None = None
    """What it raised."""
    told = False
    """Whether the caller has heard of that by `clock`."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self.found: T | None = None
        """What it returned."""
        self._bells = Bells()
        self._callbacks: list[Callable[[Future[T]], object]] = []

    def decide(self, fate: object) -> bool:
        """Whether this is, or now becomes, its fate."""
        # One call, of which no other thread sees a half: with or without a lock around the interpreter.
        return self.__dict__.setdefault("fate", fate) is fate

    def tell(self) -> None:
        """It is over, and the line has come to it: tells everybody."""
        self._bells.ring()
        self._tell_in_condition(blocking=False)
        self._call_back()

    def _call_back(self) -> None:
        # Each is taken out by one thread: that which tells everybody, or that which came too late with it.
        with contextlib.suppress(IndexError):
            while True:
                callback = self._callbacks.pop(0)
                try:
                    callback(self)
                except Exception:
                    # As any future does.
                    log = logging.getLogger("concurrent.futures")
                    log.exception("exception calling callback for %r", self)

    def _tell_in_condition(self, blocking: bool) -> None:
        is_free = self._condition.acquire(blocking)
        try:
            if not blocking and (not is_free or self._waiters):
                # Somebody looks, or waits by a Condition of his own; or did, and was interrupted there. Then
                # the new thread stands for good.
                with contextlib.suppress(RuntimeError):
                    _thread.start_new_thread(self._tell_in_condition, (True,))
                    return
            if self.fate is CANCELLED:
                super().cancel()
                super().set_running_or_notify_cancel()
            elif self.error is not None:
                super().set_exception(self.error)
            else:
                super().set_result(cast(T, self.found))
        finally:
            if is_free:
                self._condition.release()

    # -- as a future's

    def cancel(self) -> bool:
        """As a future's."""
        if not self.decide(CANCELLED):
            return False
        self.over = True
        self._bells.ring()
        self._call_back()
        return True

    def cancelled(self) -> bool:
        """As a future's."""
        return self.fate is CANCELLED

    def running(self) -> bool:
        """As a future's."""
        return self.fate is not None and self.fate is not CANCELLED and not self.over

    @property
    def waits_for_this_thread(self) -> bool:
        """Whether a signal handler asks that has interrupted `submit`: the call is made behind it."""
        return self.by == threading.get_ident()

    def done(self) -> bool:
        """As a future's."""
        if self.dropped and not self.over:
            self.cancel()
        return self.over

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it was over in that time; without one, when it is."""
        if self._line.is_elsewhere and not self.done():
            raise OptionError(
                "an asynchronous call that was submitted before this process was forked is its parent's",
                "wait for it there",
            )
        if self._line.is_here and not self.done():
            raise OptionError(
                "a callback waited for an asynchronous call that is made when the callback has returned",
                "wait for it, or call `clock` or `close`, on another thread",
            )
        return self._bells.wait(self.done, seconds)

    def result(self, timeout: float | None = None) -> T:
        """
        As a future's. Raises OptionError if called in the callback of an earlier call, which must return
        first.
        """
        error = self.exception(timeout)
        if error is None:
            return cast(T, self.found)
        try:
            raise error
        finally:
            # The error's traceback has this frame: what it holds would hold the error.
            del self, error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As a future's."""
        if not self.wait(timeout):
            raise TimeoutError
        if self.fate is CANCELLED:
            raise CancelledError
        return self.error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """As a future's."""
        self._callbacks.append(fn)
        if self.over:
            self._call_back()

    def _get_snapshot(self) -> tuple[bool, bool, T | None, BaseException | None]:
        # What asyncio asks for since Python 3.14.
        return self.over, self.cancelled(), self.found, self.error

    def __repr__(self) -> str:
        if self.fate is None or self.fate is CANCELLED:
            state = "pending" if self.fate is None else CANCELLED
        elif not self.over:
            state = "running"
        elif self.error is not None:
            state = f"finished raised {type(self.error).__name__}"
        else:
            state = f"finished returned {type(self.found).__name__}"
        return f"<{type(self).__name__} at {id(self):#x} state={state}>"


class Line:
    """Runs calls in order. The thread starts with the first call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._serving = threading.Lock()
        """Of the thread, for as long as it serves."""
        self._thread: int | None = None
        """Its number."""
        self._process: int | None = None
        """The process in which it was started."""
        self._ended = False

    def submit(
        self, noted: list[Pending[Any]] | None, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[T]:
        """
        Submits a call; the future holds what it returns or raises, and is put into `noted` first. If this
        raises, as a signal handler may, the call is not made, or is being made already.
        """
        future: Pending[T] = Pending(self)

        def run() -> None:
            # Of this one: where the line ends meanwhile, two threads may come to it.
            me = object()
            found, error = None, None
            try:
                if future.dropped:
                    future.cancel()
                if future.decide(me):
                    found = call(*args, **kwargs)
            except BaseException as raised:
                error = raised
            # Statements: on the submitting thread, a handler may raise in every call. Nor has one who was
            # interrupted as he cancelled it told anybody.
            if future.fate is me or future.fate is CANCELLED:
                future.found, future.error, future.over = found, error, True
                future.tell()

        try:
            if not self._ended:
                if self._thread is None:
                    self._process = os.getpid()
                    # A `threading.Thread` waits by an Event, in which a signal handler may raise too.
                    _thread.start_new_thread(self._serve, ())
                if noted is not None:
                    future.by = threading.get_ident()
                    noted.append(future)
                self._calls.put(run)
                future.by = None
            if self._ended:
                # The call itself knows best why it can no longer be made. If the line has ended just now, it
                # may not come to it.
                run()
        except BaseException:
            # A statement, behind which no handler can raise.
            future.dropped, future.by = True, None
            raise
        return future

    @property
    def ended(self) -> bool:
        """
        Whether it takes no more calls: those that are still submitted run at once, on the submitting thread.
        """
        return self._ended

    @property
    def is_here(self) -> bool:
        """Whether the calling thread is the one that runs the calls: it cannot wait for them."""
        return threading.get_ident() == self._thread

    @property
    def is_elsewhere(self) -> bool:
        """Whether the thread runs in the process that this one was forked from."""
        return self._process is not None and self._process != os.getpid()

    def end(self) -> None:
        """Takes no more calls; those that were submitted still run."""
        self._ended = True
        self._calls.put(None)

    def _serve(self) -> None:
        # Another may have been started, which is not known before it runs.
        if not self._serving.acquire(blocking=False):
            return
        self._thread = threading.get_ident()
        while (call := self._calls.get()) is not None:
            # What a user's callback may raise beside errors.
            with contextlib.suppress(BaseException):
                call()
            # What the call held, such as an array, must not stay alive until the next one.
            del call
