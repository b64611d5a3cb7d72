"""
Errors: one tree, each leaf also the built-in exception that a caller would expect.

Every error says who, what was expected and what came; `hint` says what to do about it, and a traceback shows
it on a line of its own. Unless an error's own text says otherwise, the state is as it was before the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class PenstockError(Exception):
    """
    Base of everything that Penstock raises on purpose.

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
    """An option or argument has no such name, or a value outside its range."""


def not_to_be_sent(what: str, hint: str) -> OptionError:
    """The error of pickling or deep-copying what belongs to one process."""
    return OptionError(f"{what} belongs to the process that made it, and cannot be copied or sent", hint)


class Sealed:
    """
    Objects without attributes of the caller's own: one that is misspelled, or that a method sets, would be
    taken and do nothing.
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


class DtypeError(PenstockError, TypeError):
    """An array has another element type than expected. Nothing is ever cast in silence."""


class TensorNameError(PenstockError, ValueError):
    """A tensor's name is empty, too long, or holds control characters."""


class DeclarationConflict(PenstockError, ValueError):
    """A tensor was declared differently before, here or by another worker."""


class NonFiniteError(PenstockError, ValueError):
    """A NaN or an infinity was contributed to a tensor that refuses them."""


class SettingsError(PenstockError, ValueError):
    """An optimizer's setting is outside its range, or may not change any more."""


class SettingsConflict(PenstockError):
    """Workers asked for one and the same update with different optimizer settings."""


class AlreadyPushed(PenstockError, RuntimeError):
    """This worker has contributed to the tensor in this iteration already."""


class DeadlineExceeded(PenstockError, TimeoutError):
    """A wait took longer than its deadline."""

    missing: list[int]
    """Ranks that were waited for."""
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


class NotDelivered(DeadlineExceeded):
    """A server did not take everything that this worker had pushed in time."""

    server: int = -1
    taken: int = 0
    """Messages that it took: chunks, and what else the worker told it."""
    submitted: int = 0
    """Of how many."""


class GetTimeout(DeadlineExceeded):
    """A row was not fresh enough in time; `.missing` holds its producer's rank."""

    row: int = -1
    version: int = 0
    """Its version."""
    wanted: int = 0
    """The version that was asked for."""


class UnknownRow(PenstockError, LookupError):
    """A row that the table does not have, or that this worker neither produces nor consumes."""


class NotProducer(PenstockError, ValueError):
    """A row was set or added to by a worker that does not produce it."""


class TwoProducers(PenstockError, ValueError):
    """Two workers want to produce one row of a table without a sum."""

    row: int = -1
    ranks: list[int] = []  # noqa: RUF012


class RowTwice(PenstockError, ValueError):
    """A row comes twice in one set: nobody could say which of its values counts."""

    row: int = -1


class ClockBackwards(PenstockError, ValueError):
    """A row was given a smaller clock than it has: versions never fall."""


class NeverSet(PenstockError, RuntimeError):
    """A worker asks for a version of a row of its own that only itself could have set, and has not."""


class TableDropped(PenstockError, RuntimeError):
    """This worker has dropped the table."""


class CircularWait(PullTimeout, LaneTimeout, BarrierTimeout, GetTimeout):
    """
    Workers wait for each other in a circle: this wait would have lasted until its deadline, and theirs too.

    It is the timeout of whatever call it ends; `.missing` holds whom that call waited for.
    """


class TornView(PenstockError, RuntimeError):
    """A row was overwritten while it was looked at in place."""


class ConnectTimeout(DeadlineExceeded):
    """A server did not answer in time."""


class JobClosed(PenstockError, RuntimeError):
    """The job has ended for this worker: it was closed, or something it needs was lost."""


class WorkerLost(JobClosed):
    """A worker died or hung, and the job is configured to stop then."""

    rank: int = -1


class ServerLost(JobClosed):
    """A server went away."""

    server: int = -1


class JobFailed(JobClosed):
    """The job was stopped by an error of another worker or of a server."""


class AuthenticationError(PenstockError, PermissionError):
    """The server refused this process: wrong secret, or another user."""


class JobFull(PenstockError, ValueError):
    """The rank is taken, outside the job's size, or there are more workers than allowed."""


class OutOfMemory(PenstockError, MemoryError):
    """A tensor does not fit into the shared memory that a server may take."""

    needed: int = 0
    """Bytes needed."""
    available: int = 0
    """Bytes that may still be taken."""


class AddressInUse(PenstockError, OSError):
    """Another server listens on the socket already."""


class ProtocolError(PenstockError):
    """Worker and server do not understand each other: different versions, or a message that is none."""


class NotUnderLauncher(PenstockError):
    """The environment says that this process is one of several, but names no servers."""


class ManagerUnavailable(PenstockError, ConnectionError):
    """The manager cannot be reached, does not answer, or has too much to do."""


class JobExists(PenstockError, ValueError):
    """The manager has a job of that name already."""


class NoSuchJob(PenstockError, LookupError):
    """The manager has no job of that name. Said to administrators only."""


class QuotaExceeded(PenstockError):
    """A job asks for more than the servers, or the manager, have left."""
