"""
Gathers: bytes of every worker go to every worker. `Job.mean`, `Job.sum` and `Job.all_gather` are gathers.

They go through tables of their own (Lapser's items: one producer a row, a clock of its own, exact bits), so
neither the job's clock nor a tensor's iteration moves. Gather t is version t of the rows:

| table | rows | a row |
|---|---|---|
| `penstock/gather` | two of each worker | what is gathered, in words, and its first bytes |
| `penstock/gather/rest` | two of each worker | the next `REST_BYTES` of what does not fit there |

A worker writes its two rows in turns: it can begin gather t + 2 only when it has everybody's row of t + 1,
and who has set that has read all rows of t. The second table exists only once something is too long for the
first.

The words are compared before anything is computed: a mean that meets a sum, or an array of another shape, is
an error on every worker. Sums are taken in the order of ranks, in a wide type, so all workers get the same
bits.

Cost: one set, and one get of a row of each worker; for long objects once more for each `REST_BYTES`.
"""

from __future__ import annotations

import pickle
import re
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

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
from .limit import Limit
from .table import Table, declare

if TYPE_CHECKING:
    from .job import Job

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
_HEAD = struct.Struct("<QQHH")
"""Of a first row: number of the gather, bytes of its data, bytes of words, bytes of data that follow here."""
_PIECE = struct.Struct("<QI")
"""Of a row of the rest: number of the round, bytes that follow."""
_PIECE_BYTES = REST_BYTES - _PIECE.size


class Gathering:
    """A worker's part in its job's gathers. One at a time: threads take turns."""

    def __init__(self, name: str = "penstock/gather", *, all_needed: bool = True) -> None:
        """With `all_needed`, a worker that has left the job is an error; else it is as one that was lost."""
        self._turn = threading.RLock()
        self._busy = False
        self._first = _Channel(name, FIRST_BYTES, all_needed)
        self._rest = _Channel(f"{name}/rest", REST_BYTES, all_needed)
        # A gather that others did not come to in time: it must end before another can begin.
        self._begun: _Gather | None = None

    def reduce(self, job: Job, how: str, x: Any, timeout: float | None) -> Any:
        """What `Job.mean` and `Job.sum` do."""
        limit = self._limit(job, timeout)
        given = _taken(x, how)
        gathered = self._gather(job, f"job.{how}", f"{how} of {given.words}", given.data, limit)
        return given.put_together(how, [data for data in gathered if data is not None])

    def all_gather(self, job: Job, obj: Any, timeout: float | None) -> list[Any]:
        """What `Job.all_gather` does."""
        limit = self._limit(job, timeout)
        gathered = self._gather(job, "job.all_gather", "all_gather", _pickled(obj), limit)
        return [None if data is None else _unpickled(data, rank) for rank, data in enumerate(gathered)]

    def bytes_of_all(
        self, job: Job, call: str, words: str, data: bytes, timeout: float | None
    ) -> list[bytes | None]:
        """
        Everybody's data, by rank; None of a worker that was lost. The words are the same on every worker.

        Raises as `Job.mean`.
        """
        return self._gather(job, call, words, data, self._limit(job, timeout))

    def _limit(self, job: Job, timeout: float | None) -> Limit[float]:
        core = job._core
        if core.closed:
            # It knows best why it takes no more calls.
            core.clocks()
            raise JobClosed("the job has ended")
        return Limit(core.deadline if timeout is None else timeout)

    def _gather(
        self, job: Job, call: str, words: str, data: bytes, limit: Limit[float]
    ) -> list[bytes | None]:
        """Everybody's data, by rank; None of a worker that was lost. Collective."""
        if job.size == 1:
            return [data]
        if not self._turn.acquire(timeout=min(limit.left(), threading.TIMEOUT_MAX)):
            raise GetTimeout(
                f"`{call}` waited {limit.waited():.3g} s for a gather of another thread of worker {job.rank}",
                "gather from one thread",
                waited=limit.waited(),
            )
        try:
            if self._busy:
                raise OptionError(
                    f"`{call}` was called by a signal handler during another gather of the same thread",
                    "gather outside of signal handlers",
                )
            self._busy = True
            try:
                return self._finish(job, call, words, data, limit)
            finally:
                self._busy = False
        finally:
            self._turn.release()

    def _finish(
        self, job: Job, call: str, words: str, data: bytes, limit: Limit[float]
    ) -> list[bytes | None]:
        gather = self._begun or _Gather(words, data)
        if (gather.words, gather.data) != (words, data):
            raise OptionError(
                f"worker {job.rank} has begun a gather, {gather.words}, to which not everybody came in time; "
                f"now it gives {words}{'' if words != gather.words else ', with another value'}",
                "repeat the call that timed out, with the same value, to continue waiting",
            )
        self._begun = gather
        try:
            result = self._run(job, gather, limit)
        except CircularWait:
            raise
        except DeadlineExceeded as error:
            missing = error.missing
            who = (
                f"worker{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                if missing
                else "the others"
            )
            raise GetTimeout(
                f"`{call}` of worker {job.rank} waited {limit.waited():.3g} s for {who}",
                f"every worker must call `{call}` as often as the others; repeat it to continue waiting",
                missing=missing,
                waited=limit.waited(),
            ) from error
        except Exception:
            # It is over: for the others, too.
            self._begun = None
            raise
        self._begun = None
        return result

    def _run(self, job: Job, gather: _Gather, limit: Limit[float]) -> list[bytes | None]:
        """From where it stopped, if it did."""
        if not gather.heads:
            rows = self._first.exchange(job, gather.first, limit)
            gather.heads = [None if row is None else _Head(row) for row in rows]
        heads = gather.heads
        _compare([None if head is None else head.words for head in heads])
        while any(head is not None and not head.whole for head in heads):
            rows = self._rest.exchange(job, gather.piece, limit)
            gather.sent += _PIECE_BYTES
            for rank, (head, row) in enumerate(zip(heads, rows, strict=True)):
                if head is not None and not head.whole:
                    # Lost with half of what it had to say: as if it had not come.
                    heads[rank] = None if row is None else head.extended(row)
        return [None if head is None else bytes(head.data) for head in heads]


@dataclass
class _Gather:
    """One gather of this worker: what it gives, and how far it has come."""

    words: str
    data: bytes
    sent: int = 0
    """Bytes of data that have gone to everybody through the table for the rest."""
    heads: list[_Head | None] = field(default_factory=list)
    """What came, by rank."""

    @property
    def _here(self) -> int:
        """Bytes of data that the first row holds."""
        return min(len(self.data), FIRST_BYTES - _HEAD.size - len(self.words.encode()))

    def first(self, number: int) -> bytes:
        """The first row."""
        words = self.words.encode()
        head = _HEAD.pack(number, len(self.data), len(words), self._here)
        return head + words + self.data[: self._here]

    def piece(self, number: int) -> bytes:
        """The next row of the rest; without data once all has gone."""
        start = self._here + self.sent
        data = self.data[start : start + _PIECE_BYTES]
        return _PIECE.pack(number, len(data)) + data


class _Head:
    """What has come of one worker."""

    def __init__(self, row: Array) -> None:
        raw = row.tobytes()
        _, self._length, words, here = _HEAD.unpack_from(raw)
        start = _HEAD.size + words
        self.words = raw[_HEAD.size : start].decode()
        self.data = bytearray(raw[start : start + here])

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return bool(len(self.data) >= self._length)

    def extended(self, row: Array) -> _Head:
        """With what the next row brought."""
        _, length = _PIECE.unpack_from(row[: _PIECE.size].tobytes())
        self.data += row[_PIECE.size : _PIECE.size + length].tobytes()
        return self


class _Channel:
    """A table through which every worker gives one row to everybody, again and again."""

    def __init__(self, name: str, row_bytes: int, all_needed: bool) -> None:
        self._name = name
        self._row_bytes = row_bytes
        self._all_needed = all_needed
        self._table: Table | None = None
        self._done = 0
        self._rows = np.empty((0, row_bytes), np.uint8)

    def exchange(self, job: Job, row: Callable[[int], bytes], limit: Limit[float]) -> list[Array | None]:
        """
        Everybody's row, by rank, until the next exchange; None of a worker that was lost.

        After a timeout it can be called again with the same row.
        """
        table = self._declared(job, limit)
        number = self._done + 1
        turn = number % 2 * job.size
        mine = np.zeros(self._row_bytes, np.uint8)
        packed = row(number)
        mine[: len(packed)] = np.frombuffer(packed, np.uint8)
        table.set(turn + job.rank, mine, clock=_BASE + number)
        theirs = slice(turn, turn + job.size)
        try:
            table.get(theirs, clock=_BASE + number, slack=0, out=self._rows, timeout=limit.left())
        except GetTimeout as error:
            # It names the first.
            behind = table.versions(theirs) < _BASE + number
            error.missing = [int(rank) for rank in np.flatnonzero(behind)] or error.missing
            raise
        self._done = number
        came = (self._rows[:, :8].copy().view(np.uint64) == number)[:, 0]
        if self._all_needed and not came.all():
            # Who has left, or was lost, is not waited for.
            versions = table.versions(theirs)
            for rank in np.flatnonzero(~came & (versions >= _LEFT)):
                raise _left(int(rank))
        return [one if here else None for one, here in zip(self._rows, came, strict=True)]

    def _declared(self, job: Job, limit: Limit[float]) -> Table:
        if self._table is None:
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
                # Only this says who it was.
                found = re.search(r"workers \[(\d+)", str(error))
                raise _left(int(found[1]) if found else -1) from error
            self._rows = np.empty((job.size, self._row_bytes), np.uint8)
        return self._table


def _left(rank: int) -> WorkerLost:
    who = f"worker {rank}" if rank >= 0 else "a worker"
    return WorkerLost(
        f"{who} left the job without taking part in the gather",
        "every worker must call `job.mean`, `job.sum` and `job.all_gather` as often as the others",
        rank=rank,
    )


def _compare(words: Sequence[str | None]) -> None:
    """Raises GatherConflict unless all workers gave the same kind of thing to the same call."""
    given = {rank: said for rank, said in enumerate(words) if said is not None}
    if len(set(given.values())) <= 1:
        return
    groups: dict[str, list[int]] = {}
    for rank, said in given.items():
        groups.setdefault(said, []).append(rank)
    parts = [f"worker{'s' * (len(ranks) > 1)} {_listed(ranks)} gave {said}" for said, ranks in groups.items()]
    raise GatherConflict(
        f"workers gave what cannot be put together: {'; '.join(parts)}",
        "make the same call on every worker, with the same kind of value, shape and element type",
        given=given,
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except PenstockError:
        raise
    except Exception as error:
        raise OptionError(
            f"expected an object that can be pickled, got {type(obj).__name__}: {error}",
            "send what it consists of: numbers, text, arrays, in lists and dicts",
        ) from error


def _unpickled(data: bytes, rank: int) -> Any:
    try:
        # A worker of this job has made it: docs/threat_model.md, "What a hostile worker can do".
        return pickle.loads(data)  # noqa: S301
    except Exception as error:
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

    def __init__(self, x: Any) -> None:
        if isinstance(x, bool | int | np.bool_ | np.integer):
            self.data = b"i%x" % int(x)
        elif isinstance(x, float | np.floating):
            self.data = b"f" + struct.pack("<d", float(x))
        elif isinstance(x, complex | np.complexfloating):
            self.data = b"c" + struct.pack("<dd", complex(x).real, complex(x).imag)
        else:
            raise DtypeError(f"expected a number, got {type(x).__name__}", "convert it with `float`")

    def put_together(self, how: str, gathered: Sequence[bytes]) -> Any:
        numbers = [self._read(data) for data in gathered]
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
    def _read(data: bytes) -> Any:
        if data[:1] == b"i":
            return int(data[1:], 16)
        parts = struct.unpack(f"<{len(data) // 8}d", data[1:])
        return parts[0] if data[:1] == b"f" else complex(*parts)


class _Array:
    """An array of any of the libraries."""

    def __init__(self, array: Array, kind: str, put: Callable[[Array], Any]) -> None:
        self._wide = _wide(array.dtype)
        self._whole = self._wide.kind in "iu"
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        self._dtype, self._shape, self._put = array.dtype, array.shape, put
        self.words = f"a {kind} of {array.dtype.name} with shape {array.shape}"
        self.data = array.tobytes()

    def put_together(self, how: str, gathered: Sequence[bytes]) -> Any:
        # A mean of whole numbers is no whole number anyway, and so large ones cannot overflow.
        wide = np.dtype(np.float64) if how == "mean" and self._whole else self._wide
        total = np.zeros(self._shape, wide)
        # Infinities, and what becomes of them, are the caller's affair.
        with np.errstate(all="ignore"):
            for number, data in enumerate(gathered):
                one = np.frombuffer(data, self._dtype).reshape(self._shape)
                # The first is not added to zeros: the sum of -0.0 alone is -0.0.
                if number == 0:
                    total[...] = one
                else:
                    total += one.astype(wide)
            if how == "mean":
                total = np.asarray(total / len(gathered))
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
