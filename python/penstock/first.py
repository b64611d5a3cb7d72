"""
What worker 0 does for all workers, such as a load, while the others wait for it: each of them makes the call.

A call that raises has not returned, and is to be made again: then it is the same call. But it may be over for
the others, as a signal handler can raise behind its end. So a worker notes a call before it begins, until it
has returned. If the next one finds it noted, and done by then, it does what is behind it; on worker 0 only if
it would do the same once more. If it would not, or if this worker has completed an iteration meanwhile, the
script has gone on, and that is the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _core
from .exceptions import BarrierTimeout, OptionError
from .handlers import Handlers
from .limit import Limit
from .turn import Ticket, Turn

MOST_SAID = 4000
"""Characters of an error that are passed on at most; the core shortens what the others hear further."""


class Deed(NamedTuple):
    """What worker 0 does."""

    what: str
    """Its name. Deeds of one name are done one after the other."""
    act: Callable[[], None]
    says: Callable[[], int]
    """
    A checksum of it, on worker 0. If it cannot be read, the others hear that worker 0 could not do it; an
    exception of a signal handler is told to nobody.
    """
    behind: Callable[[], None] = lambda: None
    """What every worker does when it is done. Doing it twice does no harm."""
    hooks: Callable[[], None] = lambda: None
    """What the script does about it behind that. If it fails, the call is over all the same."""


class _Begun(NamedTuple):
    """A call that has not returned."""

    before: int
    """How often this was done before it."""
    iteration: int
    """In which it was made."""
    says: int


class _Line:
    """Calls of this worker for one deed."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.begun: _Begun | None = None
        """The last, if it has not returned."""


class Firsts:
    """A worker's part in what worker 0 of its job does for all."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def do(self, core: _core.Job, deed: Deed, timeout: float | None, then: float | None = None) -> None:
        """
        Returns when worker 0 has done it, and this worker what is behind it. `timeout` is for the others to
        come, `then` (by default the deadline) for each wait after that.

        Raises
        ------
        FirstFailed
            Not on worker 0, whose own call has failed.
        BarrierTimeout
            As the core, or another thread of this worker is at it all the time.
        OptionError
            A signal handler made the call in the middle of the same.
        """
        limit = Limit(timeout)
        line = self._lines.setdefault(deed.what, _Line())
        if line.turn.is_mine():
            raise OptionError(
                f"a signal handler called for the {deed.what} in the middle of another one",
                "let the handler raise an exception, or set a flag",
            )
        handlers, ticket, begun, is_behind = Handlers(), Ticket(), None, False
        try:
            try:
                if not line.turn.take(ticket, core.deadline if timeout is None else timeout):
                    raise BarrierTimeout(
                        f"`{deed.what}` waited {limit.waited():.3g} s for another thread of worker "
                        f"{core.rank} that is in the same call",
                        "make it from one thread, or with a longer timeout",
                        waited=limit.waited(),
                    )
                self._do(core, line, deed, handlers, limit.left(), then)
                begun, line.begun = line.begun, None
            finally:
                if line.turn.holder is ticket:
                    del line.turn.holder
                    line.turn.wake()
            is_behind = True
            deed.hooks()
        except BaseException as error:
            # First, as a handler may raise in what follows. Behind the turn another thread may have begun
            # the next.
            if begun is not None and line.begun is None:
                line.begun = begun
            is_over = is_behind and isinstance(error, Exception) and not handlers.raised(error)
            if is_over and line.begun is begun:
                line.begun = None
            raise
        # From here to the caller's next call there is nothing in which a signal handler could raise.

    def forget(self, what: str) -> None:
        """
        The next call is another one: the last was done, though a signal handler may have raised before it
        returned, or what it did is gone.
        """
        line = self._lines.get(what)
        if line is not None:
            line.begun = None

    def _do(
        self,
        core: _core.Job,
        line: _Line,
        deed: Deed,
        handlers: Handlers,
        timeout: float | None,
        then: float | None,
    ) -> None:
        # What the others give does not count.
        says = 0
        if core.rank == 0:
            try:
                says = deed.says()
            except Exception as error:
                if not handlers.raised(error):
                    self._cannot(core, deed.what, _words(error), timeout, then)
                raise
        now = _Begun(core.done_by_first(deed.what), core.iteration, says)
        begun = line.begun
        if begun is None or begun.before == now.before or begun[1:] != now[1:]:
            line.begun = now
            try:
                if core.begin_by_first(deed.what, timeout, then):
                    deed.act()
                    core.end_by_first(deed.what, then)
            except BaseException as error:
                # This waits for nothing, so Ctrl-C ends the call at once. What is done by then stays done.
                core.fail_by_first(deed.what, _words(error))
                raise
        deed.behind()

    def _cannot(
        self, core: _core.Job, what: str, why: str, timeout: float | None, then: float | None
    ) -> None:
        """
        Worker 0 cannot even tell what it is to do: the others come, and hear why. What was begun before stays
        noted: it may be what is over for them.
        """
        try:
            core.begin_by_first(what, timeout, then)
        except BaseException as missed:
            missed.add_note(f"worker 0 could not have done it anyway: {why}")
            raise
        finally:
            core.fail_by_first(what, why)


def _words(error: BaseException) -> str:
    """For the others. A name of a file that is no UTF-8 is in Python's text as what cannot be sent."""
    try:
        text = str(error)
    except Exception as unsaid:
        text = f"which cannot be said: {type(unsaid).__name__}"
    said = f"{type(error).__name__}: {text[:MOST_SAID]}" if text.strip() else type(error).__name__
    return said.encode(errors="backslashreplace").decode()


def checksum(parts: Iterable[Any]) -> int:
    """Of numbers, texts and contiguous arrays, in their order."""
    found = 0
    for part in parts:
        of = repr(part).encode() if isinstance(part, int | str | None) else part
        found = _core.checksum(f"{found} {_core.checksum(of)}".encode())
    return found
