"""
One line of work: calls run one after the other, in the order in which they were submitted, on one daemon
thread.

It is a daemon, unlike the threads of `concurrent.futures`: a wait that never ends must not keep the
interpreter from ending.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from .turn import LOOK_AGAIN_S

P = ParamSpec("P")
T = TypeVar("T")


class Pending(Future[T]):
    """
    The future of a call, with a way to wait for it that a signal handler may interrupt anywhere: one that
    raises while its thread enters a Condition, as there is in every future, leaves that taken. The line's
    thread, which enters it to end the call, would stand there for good.
    """

    def __init__(self) -> None:
        super().__init__()
        # Called first, when the Condition has been left: the callbacks of users may ask for the result.
        self.add_done_callback(_ring)
        self.over = False
        """Whether it has ended, or was cancelled."""
        self.error: BaseException | None = None
        """What it raised."""
        self._bells: list[threading.Lock] = []

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it was over in that time; without one, when it is."""
        until = None if seconds is None else time.monotonic() + seconds
        bell = None
        while not self.over:
            left = LOOK_AGAIN_S if until is None else min(until - time.monotonic(), LOOK_AGAIN_S)
            if left <= 0:
                return False
            if bell is None:
                bell = threading.Lock()
                bell.acquire()
                self._bells.append(bell)
            else:
                bell.acquire(timeout=left)
        return True

    def done(self) -> bool:
        """As a future's."""
        return self.over

    def result(self, timeout: float | None = None) -> T:
        """As a future's, whose Condition is entered only when the line's thread has left it."""
        if not self.wait(timeout):
            raise TimeoutError
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Likewise."""
        if not self.wait(timeout):
            raise TimeoutError
        return super().exception()

    def set_exception(self, exception: BaseException | None) -> None:
        """As a future's."""
        self.error = exception
        super().set_exception(exception)


def _ring(pending: Any) -> None:
    pending.over = True
    with contextlib.suppress(IndexError):
        while True:
            pending._bells.pop().release()


class Line:
    """Runs calls in order. The thread starts with the first call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._serving = threading.Lock()
        """Of the thread, for as long as it serves."""
        self._thread: int | None = None
        """Its number."""
        self._ended = False

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        """Submits a call; the future holds what it returns or raises."""
        future: Pending[T] = Pending()

        def run() -> None:
            try:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    result = call(*args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                    return
                future.set_result(result)
            finally:
                # Whoever cancelled it may have been interrupted before anybody was told.
                _ring(future)

        if self._ended:
            # The call itself knows best why it can no longer be made.
            run()
            return future
        self._calls.put(run)
        if self._thread is None:
            # A `threading.Thread` waits by an Event, in which a signal handler may raise too.
            _thread.start_new_thread(self._serve, ())
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
