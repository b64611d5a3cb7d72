"""
Gathers: bytes of every worker go to every worker. `Job.mean`, `Job.sum` and `Job.all_gather` are gathers.

They go through tables of their own (Lapser's items: one producer a row, a clock of its own, exact bits), so
neither the job's clock nor a tensor's iteration moves. Gather t is version t of the rows:

| table | rows | a row |
|---|---|---|
| `penstock/gather` | two of each worker | what is gathered, in words, and its first bytes |
| `penstock/gather/rest` | two of each worker | the next `REST_BYTES` of what does not fit there |

A worker writes its two rows in turns: it can begin gather t + 2 only when it has everybody's row of t + 1,
and who has set that has read all rows of t. (A caller may have every worker go on at a later number, where
none is in an earlier gather any more: `least`, for what fits into a row.) The second table exists only once
something is too long for the first; round r of gather t has a version there that follows from both.

The words are compared before anything is computed: a mean that meets a sum, an array of another shape, or a
call of another `name`, is an error on every worker. Sums are taken in the order of ranks, in a wide type, so
all workers get the same bits. A row also says who took part in the gather before: where a job goes on without
the lost, workers that saw other ones come hear of it.

A gather that was broken off, by its timeout or by a signal handler that raises, has a number already. The
same call goes on with it: what it does again, setting its row and reading the others', changes nothing. It
sends what it sent first, as others may have read a part of that, if an equal object has another pickle now.
What ends behind the last row of a gather, before the call returns, does so too: it gives what came then.

Cost: one set, and one get of a row of each worker; for long objects once more for each `REST_BYTES`.
"""

from __future__ import annotations

import pickle
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .alike import alike
from .arrays import Array, as_array, is_float
from .exceptions import (
    CircularWait,
    DeadlineExceeded,
    DtypeError,
    GatherConflict,
    GetTimeout,
    JobClosed,
    OptionError,
    PenstockError,
    UnknownRow,
    WorkerLost,
)
from .handlers import Handlers
from .limit import Limit
from .table import Table, declare
from .turn import Ticket, Turn

if TYPE_CHECKING:
    from .job import Job

Result = TypeVar("Result")
Said = TypeVar("Said")

FIRST_BYTES = 1024
"""A row of the first table: up to here the core reads the rows of all workers as one piece."""
REST_BYTES = 128 << 10
"""
A row of the second table, of which a worker has two, each in memory twice: longer ones cost memory, shorter
ones more rounds.
"""
_BASE = 1 << 61
"""
Versions are counted from here: rows are at their producer's clock at least, which counts the job's iterations
and never comes this far.
"""
_LEFT = (1 << 63) - 1
"""The version of all rows of a worker that has left."""
_HEAD = struct.Struct("<QQIHH")
"""
Of a first row: number of the gather, bytes of its data, who took part in the gather before, bytes of words,
bytes of data that follow here.
"""
_PIECE = struct.Struct("<QI")
"""Of a row of the rest: number of the round, bytes that follow."""
_PIECE_BYTES = REST_BYTES - _PIECE.size
_ROUND_BITS = 24
"""Of the number of a round: the lower ones count rounds of one gather, of which there are at most so many."""
MOST_LINES = 1 << 20
"""Lines of another worker's that are looked at."""

NAME_BYTES = 256
"""Of a call's name: the words fit into a first row."""
MOST_SHOWN = 2000
"""Characters of another worker's words in an error."""
_MOST_BITS = 4 << 20
"""Of a whole number: what a worker says of its length must not take the others' memory."""


class _Unheard(threading.local):
    """Of one thread."""

    gather: _Gather | None = None
    """The last that has ended, while its call has not returned."""


class Gathering:
    """A worker's part in its job's gathers. One at a time: threads take turns."""

    def __init__(self, name: str = "penstock/gather", *, all_needed: bool = True) -> None:
        """With `all_needed`, a worker that has left the job is an error; else it is as one that was lost."""
        self._turn = Turn()
        self._first = _Channel(name, FIRST_BYTES, all_needed)
        self._rest = _Channel(f"{name}/rest", REST_BYTES, all_needed)
        self._last = _Gather("", b"", 0, 0, over=True)
        """The last that has begun. It must end before another can begin."""
        self._unheard = _Unheard()

    def reduce(self, job: Job, how: str, x: Any, timeout: float | None, name: str | None = None) -> Any:
        """What `Job.mean` and `Job.sum` do."""
        limit, handlers = self._limit(job, timeout), Handlers()
        words = _named(how, name)
        given = _taken(x, how)

        def read(gathered: list[bytes | None]) -> Any:
            values = []
            for rank, data in enumerate(gathered):
                if data is not None:
                    try:
                        values.append(given.read(data))
                    except (ValueError, TypeError, struct.error) as error:
                        if handlers.raised(error):
                            raise
                        raise unreadable(rank) from error
            return given.put_together(how, values)

        call = _Call(f"job.{how}", f"{words} of {given.words}", given.data, given.most, limit, handlers)
        return self._heard(job, call, read)

    def all_gather(self, job: Job, obj: Any, timeout: float | None, name: str | None = None) -> list[Any]:
        """What `Job.all_gather` does."""
        limit, handlers = self._limit(job, timeout), Handlers()
        words = _named("all_gather", name)
        # Whoever may have code executed here may as well take memory.
        data = _pickled(obj, handlers)
        call = _Call("job.all_gather", words, data, None, limit, handlers, lambda data: _pickles(obj, data))

        def read(gathered: list[bytes | None]) -> list[Any]:
            return [
                None if data is None else _unpickled(data, rank, handlers)
                for rank, data in enumerate(gathered)
            ]

        return self._heard(job, call, read)

    def bytes_of_all(
        self,
        job: Job,
        name: str,
        words: str,
        data: bytes,
        most: int,
        timeout: float | None,
        least: int = 0,
    ) -> list[bytes | None]:
        """
        Everybody's data, `most` bytes of each, by rank; None of a worker that was lost. The words are the
        same on every worker.

        The gather's number is `least` or above. By a larger `least` than before, the same on every worker, it
        overtakes one that was broken off. All must have ended theirs by then, well or not: two numbers may
        share a row.

        Raises as `Job.mean`.
        """
        call = _Call(name, words, data, most, self._limit(job, timeout), Handlers(), least=least)
        return self._heard(job, call, lambda gathered: gathered)

    def _limit(self, job: Job, timeout: float | None) -> Limit[float | None]:
        core = job._core
        if core.closed:
            # It knows best why it takes no more calls.
            core.clocks()
            raise JobClosed("the job has ended")
        # None stays None: the core ends a circle of waits early only where the caller named no timeout.
        return Limit(timeout)

    def _heard(self, job: Job, call: _Call, read: Callable[[list[bytes | None]], Result]) -> Result:
        """
        What `read` makes of everybody's data. A signal handler may raise when the gather is over for the
        others: the same call is the same gather then, too.
        """
        gathered = self._gather(job, call)
        try:
            result = read(gathered)
        except PenstockError as error:
            # All workers find the same in it. What only this one lacks, such as memory, leaves it as it is.
            if not call.handlers.raised(error):
                self._unheard.gather = None
            raise
        # From here to the caller's next call there is nothing in which a signal handler could raise.
        self._unheard.gather = None
        return result

    def _gather(self, job: Job, call: _Call) -> list[bytes | None]:
        """Everybody's data, by rank; None of a worker that was lost. Collective."""
        if job.size == 1:
            return [call.data]
        left = call.limit.left()
        left = job._core.deadline if left is None else left
        if self._turn.is_mine():
            raise OptionError(
                f"`{call.name}` was called by a signal handler during another gather of the same thread",
                "gather outside of signal handlers",
            )
        ticket = Ticket()
        try:
            if not self._turn.take(ticket, left):
                raise GetTimeout(
                    f"`{call.name}` waited {call.limit.waited():.3g} s for a gather of another thread of "
                    f"worker {job.rank}",
                    "gather from one thread",
                    waited=call.limit.waited(),
                )
            return self._finish(job, call)
        finally:
            if self._turn.holder is ticket:
                del self._turn.holder
                self._turn.wake()

    def _finish(self, job: Job, call: _Call) -> list[bytes | None]:
        limit = call.limit
        unheard = self._unheard.gather
        if unheard is not None:
            # A script that has completed an iteration since then has gone on, and may give the same again. Of
            # numbers from `least` on each says itself which call it is of.
            is_same = unheard.iteration == job._core.iteration or call.least > 0
            if is_same and unheard.number >= call.least and call.differs(unheard, job.rank) is None:
                unheard.over = True
                return unheard.result()
            # It has ended, even if a handler raised before that was noted.
            unheard.over, self._unheard.gather = True, None
        gather = self._last
        if gather.refused and call.differs(gather, job.rank) is not None:
            # What lacks memory can be repeated. It has to be given up if it never gets it.
            gather.over = gather.failed = True
        if gather.over or gather.number < call.least:
            number = max(gather.next, call.least)
            took_part, iteration = gather.took_part(), job._core.iteration
            gather = self._last = _Gather(call.words, call.data, number, took_part, iteration)
        elif (another := call.differs(gather, job.rank)) is not None:
            raise another
        elif gather.iteration != job._core.iteration and not call.least:
            # Whoever gave it up, and gives the same again, is behind the others from here on. Another thread
            # may have completed the iteration while this one repeats its call, though: only the script knows.
            began, gather.iteration = gather.iteration, job._core.iteration
            # Once: a thread may repeat it again and again, and where warnings are errors it is to go on.
            told, gather.told = gather.told, True
            if not told:
                warnings.warn(
                    f"`{call.name}` of worker {job.rank} goes on with the gather that it began in iteration "
                    f"{began} and that had not ended: what it returns is of that one, not of iteration "
                    f"{gather.iteration}; repeat a gather that timed out before the iteration ends",
                    stacklevel=6,  # The script's line.
                )
        try:
            self._run(job, gather, call.most, limit)
        except CircularWait:
            raise
        except DeadlineExceeded as error:
            waited, missing = limit.waited(), error.missing
            if missing:
                what = f"for worker{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                hint = f"every worker must call `{call.name}` as often as the others; repeat it"
            else:
                # The others may have called it: a server did not answer, or this worker was in its own way.
                what = f"in vain: {error}"
                hint = f"{error.hint}; repeat the call" if error.hint else "repeat the call"
            raise GetTimeout(
                f"`{call.name}` of worker {job.rank} waited {waited:.3g} s {what}",
                f"{hint} to continue waiting",
                missing=missing,
                waited=waited,
            ) from error
        except PenstockError as error:
            # What every worker sees has ended it for all of them. What only this one lacks, such as memory,
            # leaves it as it is, like a signal handler that raises: the others are still in it.
            if isinstance(error, GatherConflict | WorkerLost) or not gather.set:
                gather.failed = True
                gather.over = True
            raise
        self._unheard.gather = gather
        gather.over = True
        return gather.result()

    def _run(self, job: Job, gather: _Gather, most: int | None, limit: Limit[float | None]) -> None:
        """From where it stopped, if it did: each step that an interrupt can end is taken again."""
        if not gather.heads:
            rows = self._first.exchange(job, gather.number, gather.first, limit, gather.offered)
            gather.heads = [None if row is None else _Head(rank, row) for rank, row in enumerate(rows)]
        heads = gather.heads
        _compare([None if head is None else head.words for head in heads])
        _compare_lost(heads)
        if most is not None:
            for rank, head in enumerate(heads):
                if head is not None and head.length > max(most, len(gather.data)):
                    raise unreadable(rank)
        while any(head is not None and not head.whole for head in heads):
            number = gather.number << _ROUND_BITS | gather.round
            try:
                self._rest.declared(job, limit)
            except PenstockError as error:
                gather.refused = not isinstance(error, DeadlineExceeded)
                raise
            rows = self._rest.exchange(job, number, gather.piece, limit)
            for rank, (head, row) in enumerate(zip(heads, rows, strict=True)):
                if head is not None and not head.whole_after(gather.round):
                    # Lost with half of what it had to say: as if it had not come.
                    heads[rank] = None if row is None else head.extended(gather.round, row)
            gather.round += 1


@dataclass
class _Call:
    """One call of this worker's script."""

    name: str
    words: str
    """What it gives. They are compared with the others'."""
    data: bytes
    most: int | None
    """Bytes that another's data may have, unless this worker's are more; None: any number."""
    limit: Limit[float | None]
    handlers: Handlers
    says: Callable[[bytes], bool] = lambda _: False
    """Whether other data than this call's say the same."""
    least: int = 0
    """The gather's number, or less: one before it has no need to end."""

    def differs(self, gather: _Gather, rank: int) -> OptionError | None:
        """What to tell this worker if that gather is not this call's."""
        if gather.words != self.words:
            return _another(rank, gather, self.words)
        if gather.data == self.data:
            return None
        try:
            same = self.says(gather.data)
        except Exception as error:
            if self.handlers.raised(error):
                raise
            why = f"which cannot be compared: {type(error).__name__}: {error}"
            found = _another(rank, gather, f"{self.words}, with another value, {why}")
            found.__cause__ = error
            return found
        return None if same else _another(rank, gather, f"{self.words}, with another value")


@dataclass
class _Gather:
    """One gather of this worker: what it gives, and how far it has come."""

    words: str
    data: bytes
    number: int
    before: int
    """Who took part in the gather before."""
    iteration: int = 0
    """Of the job, in which it was begun, or last gone on with."""
    told: bool = False
    """Whether it was said that it goes on in a later one."""
    round: int = 0
    """Of the table for the rest: the pieces of those before it have come."""
    heads: list[_Head | None] = field(default_factory=list)
    """What came, by rank."""
    set: bool = False
    """Whether others may have seen its first row."""
    refused: bool = False
    """Whether there was no room for what does not fit into the first row."""
    over: bool = False
    failed: bool = False

    def result(self) -> list[bytes | None]:
        """Everybody's data, when all have come."""
        return [None if head is None else bytes(head.data) for head in self.heads]

    @property
    def next(self) -> int:
        """The number of the gather behind it. One that nobody can have seen has not been."""
        return self.number + (self.set or not self.number)

    def offered(self, is_set: bool) -> None:
        """The first row is about to be set, or could not be."""
        self.set = is_set

    def took_part(self) -> int:
        """Who did; 0 where that is not known: this worker may have stopped before the others."""
        if self.failed or not self.heads:
            return 0
        return zlib.crc32(bytes(head is not None for head in self.heads)) or 1

    @property
    def _here(self) -> int:
        """Bytes of data that the first row holds."""
        return min(len(self.data), FIRST_BYTES - _HEAD.size - len(self.words.encode()))

    def first(self, number: int) -> bytes:
        """The first row."""
        words = self.words.encode()
        head = _HEAD.pack(number, len(self.data), self.before, len(words), self._here)
        return head + words + self.data[: self._here]

    def piece(self, number: int) -> bytes:
        """The next row of the rest; without data once all has gone."""
        start = self._here + self.round * _PIECE_BYTES
        data = self.data[start : start + _PIECE_BYTES]
        return _PIECE.pack(number, len(data)) + data


class _Head:
    """What has come of one worker. Raises GatherConflict for what no worker sends."""

    def __init__(self, rank: int, row: Array) -> None:
        raw = row.tobytes()
        _, self.length, self.before, words, self._here = _HEAD.unpack_from(raw)
        start = _HEAD.size + words
        if start + self._here > len(raw) or self._here > self.length:
            raise unreadable(rank)
        try:
            self.words = raw[_HEAD.size : start].decode()
        except UnicodeDecodeError as error:
            raise unreadable(rank) from error
        self.data = bytearray(raw[start : start + self._here])
        self._rank = rank

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return bool(len(self.data) == self.length)

    def whole_after(self, rounds: int) -> bool:
        """Whether so many rounds of the rest bring all of it."""
        return bool(self._here + rounds * _PIECE_BYTES >= self.length)

    def extended(self, rounds: int, row: Array) -> _Head:
        """With what the row behind so many rounds brought, the same however often it is taken."""
        start = self._here + rounds * _PIECE_BYTES
        _, length = _PIECE.unpack_from(row[: _PIECE.size].tobytes())
        if length != min(_PIECE_BYTES, self.length - start):
            raise unreadable(self._rank)
        self.data[start:] = row[_PIECE.size : _PIECE.size + length].tobytes()
        return self


class _Channel:
    """A table through which every worker gives one row to everybody, again and again."""

    def __init__(self, name: str, row_bytes: int, all_needed: bool) -> None:
        self._name = name
        self._row_bytes = row_bytes
        self._all_needed = all_needed
        self._table: Table | None = None
        self._rows = np.empty((0, row_bytes), np.uint8)

    def exchange(
        self,
        job: Job,
        number: int,
        row: Callable[[int], bytes],
        limit: Limit[float | None],
        offered: Callable[[bool], None] = lambda _: None,
    ) -> list[Array | None]:
        """
        Everybody's row of a number, by rank, until the next exchange; None of a worker that was lost.

        Can be called again with the same number and row, whatever ended it. `offered` hears whether others
        may have seen the row.
        """
        table = self.declared(job, limit)
        turn = number % 2 * job.size
        mine = np.zeros(self._row_bytes, np.uint8)
        packed = row(number)
        mine[: len(packed)] = np.frombuffer(packed, np.uint8)
        offered(True)
        try:
            table.set(turn + job.rank, mine, clock=_BASE + number)
        except PenstockError:
            offered(False)
            raise
        theirs = slice(turn, turn + job.size)
        try:
            table.get(theirs, clock=_BASE + number, slack=0, out=self._rows, timeout=limit.left())
        except GetTimeout as error:
            # It names the first.
            behind = table.versions(theirs) < _BASE + number
            error.missing = [int(rank) for rank in np.flatnonzero(behind)] or error.missing
            raise
        came = self._numbered(number)
        if not came.all():
            # Who has left, or was lost, is not waited for.
            versions = table.versions(theirs)
            if self._all_needed:
                for rank in np.flatnonzero(~came & (versions >= _LEFT)):
                    raise _left(int(rank))
            late = ~came & (versions >= _BASE + number) & (versions < _LEFT)
            if late.any():
                # It was lost, and its row came after all, or it sends what no worker sends.
                table.get(theirs, clock=_BASE + number, slack=0, out=self._rows, timeout=limit.left())
                came = self._numbered(number)
                for rank in np.flatnonzero(late & ~came):
                    raise unreadable(int(rank))
        return [one if here else None for one, here in zip(self._rows, came, strict=True)]

    def _numbered(self, number: int) -> Array:
        """Whose row has the number."""
        return np.asarray((self._rows[:, :8].copy().view(np.uint64) == number)[:, 0])

    def declared(self, job: Job, limit: Limit[float | None]) -> Table:
        if self._table is None:
            self._rows = np.empty((job.size, self._row_bytes), np.uint8)
            try:
                self._table = declare(
                    job._core,
                    self._name,
                    rows=2 * job.size,
                    width=self._row_bytes,
                    dtype="uint8",
                    produce=[job.rank, job.size + job.rank],
                    consume="all",
                    fold=None,
                    propagation="eager",
                    slack=0,
                    timeout=limit.left(),
                )
            except UnknownRow as error:
                raise _left(next(iter(error.missing), -1)) from error
        return self._table


def _left(rank: int) -> WorkerLost:
    who = f"worker {rank}" if rank >= 0 else "a worker"
    return WorkerLost(
        f"{who} left the job without taking part in the gather",
        "every worker must call `job.mean`, `job.sum` and `job.all_gather` as often as the others",
        rank=rank,
    )


def _another(rank: int, gather: _Gather, given: str) -> OptionError:
    return OptionError(
        f"worker {rank} has begun a gather, {gather.words}, that has not ended; now it gives {given}",
        "repeat the call that was broken off, with the same value, to continue waiting",
    )


def printable(said: str) -> str:
    """What another worker says, for people: it may have written anything, and of any length."""
    cut = said[:MOST_SHOWN] + "..." * (len(said) > MOST_SHOWN)
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in cut)


def lines_of(rank: int, data: bytes, most: int) -> list[str]:
    """
    The lines, joined by line ends and compressed, that another worker gave. Raises GatherConflict where there
    are none, or more than `most` bytes of them or MOST_LINES.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, most)
        # Each takes many times its letters.
        if unpacking.eof and text.count(b"\n") < MOST_LINES:
            return text.decode().split("\n")
    except (zlib.error, UnicodeDecodeError) as error:
        raise unreadable(rank) from error
    raise unreadable(rank)


def unreadable(rank: int) -> GatherConflict:
    """What a worker gave is none of what workers send."""
    return GatherConflict(
        f"what worker {rank} gave to a gather cannot be read",
        "all workers must run the same version of Penstock",
        given={rank: "bytes that cannot be read"},
    )


def _compare_lost(heads: Sequence[_Head | None]) -> None:
    """Raises GatherConflict unless the same workers took part everywhere in the gather before."""
    said = {rank: head.before for rank, head in enumerate(heads) if head is not None and head.before}
    groups = _by_value(said)
    if len(groups) > 1:
        who = " and ".join(f"worker{'s' * (len(ranks) > 1)} {_listed(ranks)}" for ranks in groups.values())
        raise GatherConflict(
            f"{who} have gathered from different workers in the gather before: one was lost meanwhile",
            "its results are not the same on all workers: start again from a checkpoint",
            given={rank: f"took part: {crc:08x}" for rank, crc in said.items()},
        )


def _compare(words: Sequence[str | None]) -> None:
    """Raises GatherConflict unless all workers gave the same kind of thing to the same call."""
    given = {rank: printable(said) for rank, said in enumerate(words) if said is not None}
    if len(set(given.values())) <= 1:
        return
    groups = _by_value(given).items()
    parts = [f"worker{'s' * (len(ranks) > 1)} {_listed(ranks)} gave {said}" for said, ranks in groups]
    raise GatherConflict(
        f"workers gave different things: {'; '.join(parts)}",
        "make the same calls on every worker, in the same order, with the same kind of value, shape, element "
        "type and name",
        given=given,
    )


def _named(call: str, name: str | None) -> str:
    """The call in words, with the name that the script gives it."""
    if name is None:
        return call
    # Others are shown as they are, and compared so: what is not printed could not be told apart.
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.encode()) <= NAME_BYTES:
        raise OptionError(f"expected a name of 1 to {NAME_BYTES} printable bytes, got {name!r}")
    return f'{call} "{name}"'


def _by_value(said: Mapping[int, Said]) -> dict[Said, list[int]]:
    """Who said it."""
    groups: dict[Said, list[int]] = {}
    for rank, one in said.items():
        groups.setdefault(one, []).append(rank)
    return groups


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _pickled(obj: Any, handlers: Handlers) -> bytes:
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except PenstockError:
        raise
    except Exception as error:
        if handlers.raised(error):
            raise
        why = f"{type(error).__name__}: {error}"
        raise OptionError(
            f"expected an object that can be pickled, got {type(obj).__name__}: {why}",
            "send what it consists of: numbers, text, arrays, in lists and dicts",
        ) from error


def _pickles(obj: Any, data: bytes) -> bool:
    """Whether the data are a pickle of such an object, if not the one that it would have now."""
    # This worker has made it, in the same gather.
    return alike(obj, pickle.loads(data))  # noqa: S301


def _unpickled(data: bytes, rank: int, handlers: Handlers) -> Any:
    try:
        # A worker of this job has made it: docs/threat_model.md, "What a hostile worker can do".
        return pickle.loads(data)  # noqa: S301
    except Exception as error:
        if handlers.raised(error):
            raise
        raise OptionError(
            f"what worker {rank} gave cannot be unpickled here: {type(error).__name__}: {error}",
            "its class must be in a module that every worker can import",
        ) from error


def _taken(x: Any, how: str) -> _Number | _Array:
    """What is given to a mean or a sum. Raises DtypeError."""
    if isinstance(x, bool | int | float | complex | np.bool_ | np.number):
        return _Number(x)
    put: Callable[[Array], Any] = np.asarray
    kind = "NumPy array"
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(x, torch.Tensor):
        kind, put = "torch tensor", _to_torch(x, torch)
    elif jax is not None and isinstance(x, jax.Array):
        if isinstance(x, jax.core.Tracer):
            raise DtypeError(
                f"expected numbers, got {type(x).__name__}: inside `jax.jit` there are none yet",
                f"call `job.{how}` outside of it",
            )
        kind, put = "JAX array", _to_jax(x, jax)
    elif isinstance(x, str | bytes | dict | set) or x is None:
        raise DtypeError(
            f"expected a number or an array, got {type(x).__name__}",
            "`job.all_gather` takes any object",
        )
    try:
        array = np.asarray(as_array(x))
    except (TypeError, ValueError) as error:
        if isinstance(error, PenstockError):
            raise
        raise DtypeError(f"expected an array of numbers, got {type(x).__name__}: {error}") from error
    return _Array(array, kind, put)


class _Number:
    """A Python number, or a NumPy scalar: whole ones exactly, however large."""

    words = "a number"
    most = 2 + _MOST_BITS // 4  # a sign, and a letter for its kind

    def __init__(self, x: Any) -> None:
        if isinstance(x, bool | int | np.bool_ | np.integer):
            if int(x).bit_length() > _MOST_BITS:
                raise DtypeError(
                    f"expected a whole number of at most {_MOST_BITS} bits, got {int(x).bit_length()}",
                    "`job.all_gather` takes any object",
                )
            self.data = b"i%x" % int(x)
        elif isinstance(x, float | np.floating):
            self.data = b"f" + struct.pack("<d", float(x))
        elif isinstance(x, complex | np.complexfloating):
            self.data = b"c" + struct.pack("<dd", complex(x).real, complex(x).imag)
        else:
            raise DtypeError(f"expected a number, got {type(x).__name__}", "convert it with `float`")

    def put_together(self, how: str, numbers: Sequence[Any]) -> Any:
        """Of one number at least."""
        try:
            total = numbers[0]
            for number in numbers[1:]:
                total = total + number
            return total / len(numbers) if how == "mean" else total
        except OverflowError as error:
            raise DtypeError(
                f"the {how} is too large for a float", "make whole numbers floats first"
            ) from error

    @staticmethod
    def read(data: bytes) -> Any:
        """What another worker gives. Raises ValueError and struct.error."""
        match data[:1]:
            case b"i":
                return int(data[1:], 16)
            case b"f":
                return struct.unpack("<d", data[1:])[0]
            case b"c":
                return complex(*struct.unpack("<dd", data[1:]))
            case kind:
                raise ValueError(kind)


class _Array:
    """An array of any of the libraries."""

    def __init__(self, array: Array, kind: str, put: Callable[[Array], Any]) -> None:
        self._wide = _wide(array.dtype)
        if kind == "torch tensor" and array.dtype.kind == "u" and array.itemsize < 8:
            # As torch's own sums: it can do next to nothing with its uint64.
            self._wide = np.dtype(np.int64)
        self._whole = self._wide.kind in "iu"
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        self._dtype, self._shape, self._put = array.dtype, array.shape, put
        self.words = f"a {kind} of {array.dtype.name} with shape {array.shape}"
        self.data = array.tobytes()
        self.most = len(self.data)

    def read(self, data: bytes) -> Array:
        """What another worker gives. Raises ValueError."""
        return np.frombuffer(data, self._dtype).reshape(self._shape)

    def put_together(self, how: str, arrays: Sequence[Array]) -> Any:
        """Of one array at least."""
        # A mean of whole numbers is no whole number anyway, and so large ones cannot overflow.
        wide = np.dtype(np.float64) if how == "mean" and self._whole else self._wide
        total = np.zeros(self._shape, wide)
        # Infinities, and what becomes of them, are the caller's affair.
        with np.errstate(all="ignore"):
            for number, one in enumerate(arrays):
                # The first is not added to zeros: the sum of -0.0 alone is -0.0.
                if number == 0:
                    total[...] = one
                else:
                    total += one.astype(wide)
            if how == "mean":
                total = np.asarray(total / len(arrays))
            return self._put(total if self._whole else total.astype(self._dtype))


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which elements are summed. Raises DtypeError if they are no numbers."""
    if dtype.kind in "bi":
        return np.dtype(np.int64)
    if dtype.kind == "u":
        return np.dtype(np.uint64)
    if dtype.kind in "fc":
        return np.result_type(dtype, np.float64)
    if is_float(dtype):
        return np.dtype(np.float64)
    raise DtypeError(f"expected an array of numbers, got dtype {dtype}", "`job.all_gather` takes any object")


def _to_torch(x: Any, torch: Any) -> Callable[[Array], Any]:
    def put(array: Array) -> Any:
        if array.dtype.kind != "V":
            return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape)).to(x.device)
        # NumPy has no bfloat16 of its own: the bits go over.
        bits = (
            np.ascontiguousarray(array)
            .reshape(array.shape)
            .view(np.uint8 if array.itemsize == 1 else np.int16)
        )
        return torch.from_numpy(bits).view(x.dtype).to(x.device)

    return put


def _to_jax(x: Any, jax: Any) -> Callable[[Array], Any]:
    def put(array: Array) -> Any:
        # As in all of JAX, 64 bits are 32 unless they are switched on.
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
        return jax.device_put(array, x.sharding)

    return put
