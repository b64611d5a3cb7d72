"""
One line of work: calls run one after the other, in the order in which they were submitted, on one daemon
thread.

It is a daemon, unlike the threads of `concurrent.futures`: a wait that never ends must not keep the
interpreter from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Line:
    """Runs calls in order. The thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a call; the future holds what it returns or raises."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        if self._ended:
            # The call itself knows best why it can no longer be made.
            run()
            return future
        self._calls.put(run)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
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
        return threading.current_thread() is self._thread

    def end(self) -> None:
        """Takes no more calls; those that were submitted still run."""
        self._ended = True
        if self._thread is not None:
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            # What the call held, such as an array, must not stay alive until the next one.
            del call
