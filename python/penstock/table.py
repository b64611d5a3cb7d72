"""
Tables of items: rows with a clock, set by their producers and read by their consumers, each at its own pace.

A producer writes its rows into memory of its own. Consumers on the same host read them there, and wait only
if a row is older than the version that they ask for. Between hosts rows are sent as the table's *propagation*
says. The idea is Lapser's (Pestana de Andrade 2021, chapter 3): one-sided reads, each with a slack of its
own. Here rows also come in sets that are seen together or not at all, and may be sums of several producers.

Versions: a row's *version* is the clock that its newest value was given, or the iterations that its producer
has completed (`Job.clock`), whichever is larger. Rows start as zeros at version 0. A get at clock t with
slack s returns a version >= t - s: slack 0 is BSP, more is SSP, and `ps.ASP()` never waits.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from . import _core
from .arrays import DTYPES, Array, ArrayLike, contribution, refuse_mask, target
from .consistency import ASP, BSP, SSP, check_slack
from .exceptions import (
    DtypeError,
    OptionError,
    Sealed,
    ShapeError,
    TensorNameError,
    TornView,
    UnknownRow,
    not_to_be_sent,
)
from .limit import Limit

Rows: TypeAlias = Any
"""
Rows of a table: a whole number, a slice, a range, an array or list of whole numbers, or a mask with one
boolean for each row of the table. For declarations also "all", or None for no row.
"""

_UNBOUNDED = -1
_MAX_CLOCK = 2**62
_MOST_CHOSEN = 2**31
"""Rows that a slice or range may mean: each takes 8 bytes, and of nearly 2^63 NumPy gives none, silently."""


class Table(Sealed, _core.TableCalls):
    """
    A table of a job. Made by `Job.table`.

    Examples
    --------
    >>> U = job.table("U", rows=4, width=2, dtype="f8", produce="all", consume="all")
    >>> U.set([0, 1], [[1.0, 2.0], [3.0, 4.0]], clock=1)
    >>> U.get(1, clock=1)
    array([3., 4.])
    """

    __slots__ = ("__weakref__", "_core", "_dtype", "_fold", "_propagation", "_rows", "_width")
    _set_by: ClassVar[Mapping[str, str]] = {
        "slack": "give get(slack=...), or declare the table with another slack"
    }

    def __init__(
        self,
        core: _core.Table,
        rows: int,
        width: int,
        dtype: np.dtype[Any],
        fold: str | None,
        propagation: str,
    ) -> None:
        self._core = core
        self._rows = rows
        self._width = width
        self._dtype = dtype
        self._fold = fold
        self._propagation = propagation

    def __reduce__(self) -> Any:
        raise not_to_be_sent(f"table `{self.name}`", "send copies of its rows: `table.get(rows)`")

    @property
    def name(self) -> str:
        """The table's key."""
        return self._core.name

    @property
    def rows(self) -> int:
        """Number of rows: keys are 0 to `rows` - 1."""
        return self._rows

    @property
    def width(self) -> int:
        """Elements of a row."""
        return self._width

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self._width * self._dtype.itemsize

    @property
    def fold(self) -> str | None:
        """None: rows are set. "sum": rows are sums of what their producers added."""
        return self._fold

    @property
    def propagation(self) -> str:
        """When rows move between hosts: "eager", "lazy" or "bounded"."""
        return self._propagation

    @property
    def slack(self) -> int | None:
        """The current slack of a get that does not name one. None: no bound."""
        return None if self._core.slack < 0 else self._core.slack

    @property
    def produced(self) -> Array:
        """Rows that this worker produces, ascending: uint64."""
        return _spread(self._core.produced())

    @property
    def consumed(self) -> Array:
        """Rows that this worker consumes, ascending: uint64."""
        return _spread(self._core.consumed())

    # `set`, `add` and `get` are the core's (`_core.TableCalls`). Arguments that it cannot take as
    # they are come here.

    def _write(self, rows: Rows, values: ArrayLike, clock: int | None, add: bool) -> None:
        clock = None if clock is None else _clock(clock)
        chosen, shape = self._chosen(rows)
        array = contribution(values, self.name, shape, self._dtype)
        self._core.write(chosen, _bytes(array), clock, add)

    def _read(
        self,
        rows: Rows,
        clock: int | None,
        slack: int | SSP | ASP | BSP | None,
        out: Array | None,
        timeout: float | None,
    ) -> Array:
        bound = None if slack is None else slack_of(slack)
        clock = None if clock is None else _clock(clock)
        chosen, shape = self._chosen(rows)
        array = np.empty(shape, self._dtype) if out is None else target(out, self.name, shape, self._dtype)
        self._core.get(chosen, _bytes(array), clock, bound, timeout)
        return array

    def prefetch(
        self, rows: Rows, clock: int | None = None, slack: int | SSP | ASP | BSP | None = None
    ) -> None:
        """
        Start fetching what a later `get` with the same arguments would have to wait for. Returns at once; on
        the producer's host there is nothing to fetch.

        Parameters
        ----------
        rows, clock, slack
            As for `get`.

        Raises
        ------
        UnknownRow, OptionError
            As for `get`.
        TableDropped, JobClosed
            The table was dropped; the job has ended.

        Examples
        --------
        >>> U.prefetch([1, 2], clock=6)
        """
        bound = None if slack is None else slack_of(slack)
        self._core.prefetch(self._chosen(rows)[0], None if clock is None else _clock(clock), bound)

    def versions(self, rows: Rows) -> Array:
        """
        The newest versions that are here, without waiting. For a sum: that of the producer that is furthest
        behind.

        Parameters
        ----------
        rows
            Which, as for `get`.

        Returns
        -------
        numpy.ndarray
            uint64, one for each row.

        Raises
        ------
        UnknownRow, OptionError
            As for `get`.
        TableDropped, JobClosed
            The table was dropped; the job has ended.

        Examples
        --------
        >>> U.versions([0, 1])
        array([1, 1], dtype=uint64)
        """
        chosen, _ = self._chosen(rows)
        versions = np.empty(len(chosen), np.uint64)
        self._core.versions(chosen, versions)
        return versions

    def view(
        self,
        rows: Rows,
        clock: int | None = None,
        slack: int | SSP | ASP | BSP | None = None,
        timeout: float | None = None,
    ) -> View:
        """
        Read rows in place, without a copy: a context manager.

        A producer writes beside the newest value, so a view stays valid until the row has been set twice.
        This is checked when the block is left, and whenever `View.valid` is called; rows are checked one by
        one, not as a set.

        Parameters
        ----------
        rows, clock, slack, timeout
            As for `get`.

        Returns
        -------
        View
            Its `rows` are read-only arrays of shape (width,), in the order that was asked for.

        Raises
        ------
        UnknownRow, NeverSet, GetTimeout, OptionError
            As for `get`.
        TornView
            When the block is left: a row was set twice in the meantime.
        TableDropped, JobClosed
            The table was dropped; the job has ended.

        Examples
        --------
        >>> with U.view([0, 1], clock=1) as v:
        ...     total = v.rows[0] + v.rows[1]
        """
        bound = None if slack is None else slack_of(slack)
        chosen = self._chosen(rows)[0].tolist()
        clock = None if clock is None else _clock(clock)
        limit = Limit(timeout)
        views = [self._core.view(row, clock, bound, limit.left()) for row in chosen]
        return View(self.name, views, self._dtype)

    def drop(self, timeout: float | None = None) -> None:
        """
        Drop the table. Every worker drops it, as every worker declared it; the call returns when all have.

        Then its name is free, and its part of the option `memory`; the memory itself is freed when nothing
        refers to the table any more in the workers that map it. Until the others drop it too, they read what
        this worker has set so far, and do not wait for anything newer from it.

        Parameters
        ----------
        timeout
            Seconds to wait for the others. Default: the job's `deadline`.

        Raises
        ------
        DeadlineExceeded
            Not every worker dropped it in time; `.missing` holds the ranks of those missing. Repeat the call
            to continue waiting.
        JobClosed
            The job has ended.

        Examples
        --------
        >>> old = job.table("old", rows=2, produce="all")
        >>> old.drop()
        """
        self._core.drop(timeout)

    def stats(self) -> dict[str, float]:
        """
        This worker's counters since it declared the table.

        Returns
        -------
        dict
            `sets`, `gets` (calls), `rows_set`, `rows_got`, `waited` (seconds, in gets), `retries` (copies
            that the producer overtook), `bytes_sent`, `bytes_received` (to and from other hosts),
            `max_staleness` (clocks).

        Raises
        ------
        Nothing.

        Examples
        --------
        >>> U.stats()["sets"]
        1
        """
        return self._core.stats()

    def __repr__(self) -> str:
        return f"<penstock.Table {self.name!r} {self._rows} x {self._width} {self._dtype.name}>"

    def _chosen(self, rows: Rows) -> tuple[Array, tuple[int, ...]]:
        """The chosen rows, and the shape of their values."""
        row = _number(rows)
        if row is not None:
            return _one(row, self._rows), (self._width,)
        chosen = chosen_rows(rows, self._rows)
        return chosen, (len(chosen), self._width)


class View:
    """Rows in place, read-only. Made by `Table.view`; use it in a `with` block."""

    def __init__(self, name: str, views: Sequence[_core.View], dtype: np.dtype[Any]) -> None:
        self._name = name
        self._views = views
        self.rows: list[Array] = [np.frombuffer(memoryview(view.memory()), dtype) for view in views]
        """Each of shape (width,)."""

    def valid(self) -> bool:
        """Whether everything that was read so far is still valid: nothing of it has been overwritten."""
        return all(view.valid() for view in self._views)

    @property
    def versions(self) -> list[int]:
        """The rows' versions."""
        return [view.version for view in self._views]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Array]:
        return iter(self.rows)

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.valid():
            raise TornView(
                f"`{self._name}`: a row was set twice while it was read in place",
                "discard what was computed from it; read for a shorter time, or copy with `get`",
            )


def slack_of(slack: int | SSP | ASP | BSP) -> int:
    """In the core's form: clocks, or -1 for any number. Raises OptionError."""
    if isinstance(slack, ASP):
        return _UNBOUNDED
    if isinstance(slack, BSP):
        return 0
    if isinstance(slack, SSP):
        if slack.bounds is not None:
            raise OptionError(
                "expected a slack in clocks for a single get, got an automatic one",
                'declare the table with slack=ps.SSP("auto"), and give no slack to the get',
            )
        return check_slack(slack.slack)
    return check_slack(slack)


def _clock(clock: object) -> int:
    try:
        number = operator.index(clock)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < _MAX_CLOCK:
        raise OptionError(f"expected a clock of 0 or more, got {clock!r}", "clocks count iterations")
    return number


def _number(rows: Rows) -> int | None:
    """The row, if it is given as a number: a Python one, NumPy's, or an array without dimensions."""
    if isinstance(rows, bool | np.bool_) or getattr(rows, "shape", ()) != ():
        return None
    refuse_mask(rows)
    try:
        return operator.index(rows)
    except TypeError:
        return None


def _one(row: int, rows: int) -> Array:
    if 0 <= row < rows:
        return np.array([row], np.uint64)
    raise UnknownRow(f"expected a row from 0 to {rows - 1}, got {row}")


def _bytes(array: Array) -> Any:
    # Element types that the buffer protocol does not know, such as bfloat16, travel as their bytes.
    return array if array.dtype.kind in "biufc" else array.view(np.uint8)


def chosen_rows(rows: Rows, count: int) -> Array:
    """
    The chosen rows, as a contiguous uint64 array.

    Raises
    ------
    UnknownRow
        One is outside 0 to `count` - 1.
    OptionError
        They are not valid rows.
    """
    if isinstance(rows, slice):
        return _spaced(range(*rows.indices(count)), count)
    if isinstance(rows, range):
        return _spaced(rows, count)
    refuse_mask(rows)
    array = np.asarray(rows)
    if array.dtype == np.uint64 and array.ndim == 1 and array.flags.c_contiguous:
        return array  # the core checks the rest
    if array.dtype == bool:
        if array.shape != (count,):
            raise OptionError(f"expected a mask of {count} booleans, got shape {array.shape}")
        return np.flatnonzero(array).astype(np.uint64)
    if array.ndim == 0:
        array = array.reshape(1)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise OptionError(
            f"expected rows as whole numbers, got {array.dtype} of shape {array.shape}",
            "give an int, a slice, a range, an array of integers or a mask",
        )
    if array.size and (array.min() < 0 or array.max() >= count):
        wrong = array[(array < 0) | (array >= count)][0]
        raise UnknownRow(f"expected rows from 0 to {count - 1}, got {wrong}")
    return np.ascontiguousarray(array, dtype=np.uint64)


def _spaced(rows: range, count: int) -> Array:
    """Rows of a range. NumPy's own ranges count in floats, and have other rows where numbers are large."""
    start, step = rows.start, rows.step
    # `len` ends at 2^63.
    chosen = max(0, -((start - rows.stop) // step))
    if chosen > _MOST_CHOSEN:
        raise OptionError(
            f"expected at most {_MOST_CHOSEN} rows at a time, got {chosen}: {rows} of {count} rows",
            "name fewer at a time",
        )
    if not chosen:
        return np.empty(0, np.uint64)
    if not 0 <= start < count:
        raise UnknownRow(f"expected rows from 0 to {count - 1}, got {start}")
    inside = (count - 1 - start) // step if step > 0 else start // -step
    if chosen - 1 > inside:
        raise UnknownRow(f"expected rows from 0 to {count - 1}, got {start + (inside + 1) * step}")
    # A single one's step may be any number.
    return np.arange(chosen, dtype=np.uint64) * np.uint64((step if chosen > 1 else 0) % 2**64) + np.uint64(
        start
    )


def declared_ranges(rows: Rows, count: int, what: str) -> list[tuple[int, int]]:
    """Rows of a declaration as ascending ranges. Raises UnknownRow and OptionError."""
    if rows is None or (isinstance(rows, tuple) and not rows):
        return []
    if isinstance(rows, str):
        if rows != "all":
            raise OptionError(f'expected {what} as rows or "all", got {rows!r}')
        return [(0, count)]
    if isinstance(rows, slice) and rows.step in (None, 1):
        start, stop, _ = rows.indices(count)
        return [(start, stop)] if start < stop else []
    if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= count:
        return [(rows.start, rows.stop)] if rows else []
    chosen = np.sort(chosen_rows(rows, count))
    if not chosen.size:
        return []
    if chosen[-1] >= count:
        raise UnknownRow(f"expected rows from 0 to {count - 1} as {what}, got {chosen[-1]}")
    # A row may be named more than once.
    breaks = np.flatnonzero(np.diff(chosen) > 1)
    starts = chosen[np.concatenate(([0], breaks + 1))]
    ends = chosen[np.concatenate((breaks, [chosen.size - 1]))] + np.uint64(1)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def _spread(ranges: list[tuple[int, int]]) -> Array:
    if not ranges:
        return np.empty(0, np.uint64)
    return np.concatenate([np.arange(start, end, dtype=np.uint64) for start, end in ranges])


def element_type(dtype: Any, fold: str | None) -> np.dtype[Any]:
    """
    The element type of a table.

    Raises
    ------
    DtypeError
        It has no fixed size, or the table is a sum and it cannot be summed.
    """
    try:
        name = {"bf16": "bfloat16"}.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if type(dtype).__module__.partition(".")[0] == "torch":
            name = str(dtype).removeprefix("torch.")
        found = DTYPES["bfloat16"] if name == "bfloat16" else np.dtype(name)
    except TypeError:
        raise DtypeError(f"expected an element type such as float32, got {dtype!r}") from None
    if found.hasobject or found.itemsize == 0:
        raise DtypeError(f"expected an element type of a fixed size, got {found}")
    if not found.isnative:
        raise DtypeError(
            f"expected an element type of this machine's byte order, got {dtype!r}",
            f"declare the table with {found.newbyteorder('=').str!r}, and convert with `x.astype`",
        )
    if fold == "sum" and found not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise DtypeError(
            f"expected float32 or float64 for a sum, got {found.name}", "declare the table with such a dtype"
        )
    return found


def _words(element: np.dtype[Any], width: int) -> str:
    """
    A description of what a row holds, for comparison with other workers' declarations: at most 256 bytes.
    """
    words = f"{width} x {element.name if element.names is None else element.descr}"
    if len(words.encode()) <= 256 and words.isprintable():
        return words
    return f"{width} x a structure ({hashlib.sha256(words.encode()).hexdigest()[:16]})"


def declare(
    core: _core.Job,
    name: str,
    *,
    rows: int,
    width: int,
    dtype: Any,
    produce: Rows,
    consume: Rows,
    fold: str | None,
    propagation: str,
    slack: int | SSP | ASP | BSP,
    timeout: float | None,
) -> Table:
    """What `Job.table` does."""
    if not isinstance(name, str):
        raise TensorNameError(f"expected a table's name as text, got {type(name).__name__}")
    if fold not in (None, "sum"):
        raise OptionError(f'expected fold None or "sum", got {fold!r}')
    if propagation not in ("eager", "lazy", "bounded"):
        raise OptionError(f'expected propagation "eager", "lazy" or "bounded", got {propagation!r}')
    for what, number, most in (("rows", rows, 2**63), ("width", width, 2**24)):
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or not 1 <= number <= most:
            raise ShapeError(f"`{name}`: expected {what} from 1 to {most}, got {number!r}")
    rows, width = int(rows), int(width)
    element = element_type(dtype, fold)
    bounds = slack.bounds if isinstance(slack, SSP) else None
    table = core.table(
        name,
        rows,
        width * element.itemsize,
        element.name,
        _words(element, width),
        fold == "sum",
        declared_ranges(produce, rows, "produce"),
        declared_ranges(consume, rows, "consume"),
        propagation,
        0 if bounds else slack_of(slack),
        bounds,
        timeout,
    )
    return Table(table, rows, width, element, fold, propagation)
