"""
Errors form one tree; each also is the built-in exception that a caller would expect.

Every message says who is concerned, what was expected and what came instead; `hint` says what to do about it,
and a traceback shows it on a line of its own. Unless an error's own text says otherwise, the state is as it
was before the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class PenstockError(Exception):
    """
    Base of all errors that Penstock raises on purpose.

    `str()` is the message alone; `hint` is one sentence on what to do, or None. A traceback prints it as a
    note.
    """

    hint: str | None = None

    def __init__(self, message: str = "", hint: str | None = None, **attributes: Any) -> None:
        super().__init__(message)
        self.hint = hint
        for name, value in attributes.items():
            setattr(self, name, value)
        if hint is not None:
            self.add_note(f"hint: {hint}")

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class OptionError(PenstockError, ValueError):
    """There is no option or argument of that name, or its value is out of range."""


def not_to_be_sent(what: str, hint: str) -> OptionError:
    """The error for pickling or deep-copying an object that belongs to one process."""
    return OptionError(f"{what} belongs to the process that made it, and cannot be copied or sent", hint)


class Sealed:
    """
    Objects that take no new attributes: a misspelled one, or one that has a method for setting it, would be
    accepted and do nothing.
    """

    __slots__ = ()
    _set_by: ClassVar[Mapping[str, str]] = {}
    """What to do instead, by attribute."""

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:
            error = AttributeError(f"a {type(self).__name__} has no attribute `{name}` that can be set")
            if name in self._set_by:
                error.add_note(f"hint: {self._set_by[name]}")
            raise error from None


class ShapeError(PenstockError, ValueError):
    """
    An array has another shape or layout than expected, or a tensor was declared with a dimension below 1.
    """


class UnknownElement(PenstockError, LookupError):
    """A sparse contribution or pull names an element that the tensor lacks; `.place` is its place there."""

    place: int = -1


class DtypeError(PenstockError, TypeError):
    """An array has another element type than expected. Nothing is ever cast silently."""


class TensorNameError(PenstockError, ValueError):
    """A tensor's name is empty, too long, or contains control characters."""


class DeclarationConflict(PenstockError, ValueError):
    """A tensor was declared differently before, here or by another worker."""


class NonFiniteError(PenstockError, ValueError):
    """
    A NaN or an infinity was contributed to a tensor that refuses them, or made by a filter of the program's
    own.
    """


class GatherConflict(PenstockError, ValueError):
    """Workers gave different things to one mean, sum or gather, or made different calls."""

    given: dict[int, str]
    """What each worker gave, in words, by rank."""

    def __init__(self, message: str = "", hint: str | None = None, **attributes: Any) -> None:
        self.given = {}
        super().__init__(message, hint, **attributes)


class SettingsError(PenstockError, ValueError):
    """An optimizer's setting is outside its range, no number, or not there, or may not change any more."""


class SettingsConflict(PenstockError):
    """Workers gave different optimizer settings for the same update."""


class AlreadyPushed(PenstockError, RuntimeError):
    """This worker has contributed to the tensor in this iteration already."""


class DeadlineExceeded(PenstockError, TimeoutError):
    """A wait took longer than its deadline."""

    missing: list[int]
    """Ranks that were waited for; empty where no server said in time, or where only a server was."""
    waited: float
    """Seconds waited."""

    def __init__(self, message: str = "", hint: str | None = None, **attributes: Any) -> None:
        self.missing = []
        self.waited = 0.0
        super().__init__(message, hint, **attributes)


class PullTimeout(DeadlineExceeded):
    """The value was not fresh enough in time."""


class LaneTimeout(DeadlineExceeded):
    """The lane was not free in time: this worker's previous contribution has not been folded."""


class BarrierTimeout(DeadlineExceeded):
    """Not every worker came to the barrier in time."""


class FirstFailed(PenstockError, RuntimeError):
    """
    Worker 0 could not do what it was to do for all workers, such as a load; the message has its error.
    Nothing was done, or only a part.
    """


class NotDelivered(DeadlineExceeded):
    """A server did not take everything that this worker had pushed in time."""

    server: int = -1
    taken: int = 0
    """Messages that it took: chunks, and others from this worker."""
    submitted: int = 0
    """How many there were."""


class GetTimeout(DeadlineExceeded):
    """A row was not fresh enough in time; `.missing` holds its producer's rank."""

    row: int = -1
    version: int = 0
    """Its version."""
    wanted: int = 0
    """The version that was asked for; 0 behind a barrier, where whatever was set before it is waited for."""


class UnknownRow(PenstockError, LookupError):
    """
    The table has no such row, or this worker neither produces nor consumes it. `.missing` holds the ranks of
    workers that left before they declared the table, if it is for want of them that nobody produces a row.
    """

    missing: list[int] = []  # noqa: RUF012


class NotProducer(PenstockError, ValueError):
    """A row was set or added to by a worker that does not produce it."""


class TwoProducers(PenstockError, ValueError):
    """Two workers want to produce the same row of a table without a sum."""

    row: int = -1
    ranks: list[int] = []  # noqa: RUF012


class RowTwice(PenstockError, ValueError):
    """A row occurs twice in one set, so it is unclear which of its values counts."""

    row: int = -1


class ClockBackwards(PenstockError, ValueError):
    """A row was given a smaller clock than it has: versions never fall."""


class NeverSet(PenstockError, RuntimeError):
    """A worker asks for a version of one of its own rows that only it could have set, and has not."""


class TableDropped(PenstockError, RuntimeError):
    """This worker has dropped the table."""


class RowsApart(PenstockError, RuntimeError):
    """
    Rows of a producer on another host that was lost were never current together: of a set, only some had come
    from it. Get them one at a time.
    """

    row: int = -1
    """One that is older than others of them."""
    producer: int = -1
    """The rank that was lost."""


class CircularWait(PullTimeout, LaneTimeout, BarrierTimeout, GetTimeout):
    """
    Workers wait for each other in a circle: this wait would have lasted until its deadline, and theirs too.

    It is also the timeout of the call that it ends; `.missing` holds the ranks that this call waited for.
    """


class TornView(PenstockError, RuntimeError):
    """A row was overwritten while it was read in place."""


class ConnectTimeout(DeadlineExceeded):
    """A server did not answer in time."""


class JobClosed(PenstockError, RuntimeError):
    """The job has ended for this worker: it was closed, or something it needs was lost."""


class WorkerLost(JobClosed):
    """A worker died or hung, and the job is set to stop in that case."""

    rank: int = -1


class ServerLost(JobClosed):
    """A server went away."""

    server: int = -1


class JobFailed(JobClosed):
    """An error of another worker or of a server stopped the job."""


class AuthenticationError(PenstockError, PermissionError):
    """The server refused this process: wrong secret, or another user."""


class JobFull(PenstockError, ValueError):
    """The rank is taken or outside the job's size, or there are more workers than allowed."""


class OutOfMemory(PenstockError, MemoryError):
    """A tensor, or what else the job needs, does not fit into the memory that a server may take for it."""

    needed: int = 0
    """Bytes needed."""
    available: int = 0
    """Bytes that may still be taken."""


class AddressInUse(PenstockError, OSError):
    """Another server is already listening on the socket."""


class ProtocolError(PenstockError):
    """Worker and server do not understand each other: their versions differ, or a message is not valid."""


class NotUnderLauncher(PenstockError):
    """The environment says that this process is one of several, but names no servers."""


class ManagerUnavailable(PenstockError, ConnectionError):
    """The manager cannot be reached, does not answer, or is overloaded."""


class JobExists(PenstockError, ValueError):
    """The manager has a job of that name already."""


class NoSuchJob(PenstockError, LookupError):
    """The manager has no job of that name. Only administrators are told so."""


class QuotaExceeded(PenstockError):
    """A job asks for more than the servers, or the manager, have left."""
