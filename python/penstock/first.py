"""
What worker 0 does for all workers, such as a load, while the others wait for it: each of them makes the call.

A call that raises has not returned, and is to be made again: then it is the same call. But it may be over for
the others, as a signal handler can raise behind its end. So a worker keeps what is done and has not returned,
and does the rest of it when the call is made again; on worker 0 only if it would do the same once more. If it
would not, the script has gone on, and that is the next call.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _core
from .exceptions import OptionError


class Deed(NamedTuple):
    """What worker 0 does."""

    what: str
    """Its name. Deeds of one name are done one after the other."""
    act: Callable[[], None]
    says: Callable[[], bytes]
    """A digest of it, on worker 0."""
    behind: Callable[[], None] = lambda: None
    """What every worker does when it is done. Doing it twice does no harm."""


class _Unheard(threading.local):
    """What a thread has called for that is done and has not returned: its digest, by its name."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {}


class _Turn:
    """Threads of a worker that come for the same."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_taken = False


class Firsts:
    """A worker's part in what worker 0 of its job does for all."""

    def __init__(self, core: _core.Job) -> None:
        self._core = core
        self._turns: dict[str, _Turn] = {}
        self._unheard = _Unheard()

    def do(self, deed: Deed, timeout: float | None, then: float | None = None) -> None:
        """
        Returns when worker 0 has done it, and this worker what is behind it. `timeout` is for the others to
        come, `then` (by default the deadline) for each wait after that.

        Raises
        ------
        FirstFailed
            Not on worker 0, whose own call has failed.
        OptionError
            A signal handler made the call in the middle of the same.
        """
        unheard = self._unheard.said
        turn = self._turns.setdefault(deed.what, _Turn())
        is_done = False
        try:
            with turn.lock:
                if turn.is_taken:
                    raise OptionError(
                        f"a signal handler called for the {deed.what} in the middle of another one",
                        "let the handler raise an exception, or set a flag",
                    )
                try:
                    turn.is_taken = True
                    self._do(deed, timeout, then)
                    is_done = True
                finally:
                    turn.is_taken = False
        except BaseException:
            if is_done:
                unheard[deed.what] = self._said(deed)
            raise
        # From here to the caller's next call there is nothing in which a signal handler could raise.
        if deed.what in unheard:
            del unheard[deed.what]

    def _do(self, deed: Deed, timeout: float | None, then: float | None) -> None:
        core, what, unheard = self._core, deed.what, self._unheard.said
        before = core.done_by_first(what)
        if what in unheard and unheard[what] != self._said(deed):
            del unheard[what]
        try:
            if what not in unheard and core.begin_by_first(what, timeout, then):
                deed.act()
                core.end_by_first(what, then)
            deed.behind()
        except BaseException as error:
            # This waits for nothing, so Ctrl-C ends the call at once. What is done by then stays done.
            core.fail_by_first(what, f"{type(error).__name__}: {error}")
            if core.done_by_first(what) > before:
                unheard[what] = self._said(deed)
            raise

    def _said(self, deed: Deed) -> bytes:
        # What the others give does not count.
        return deed.says() if self._core.rank == 0 else b""


def digest(parts: Iterable[Any]) -> bytes:
    """Of numbers, texts and contiguous arrays, in their order."""
    found = hashlib.blake2b()
    for part in parts:
        if isinstance(part, int | str | None):
            found.update(f"{part!r};".encode())
        else:
            found.update(part)
    return found.digest()
