"""
Jobs: this process as one worker of a training job.

`init` reads what the launcher set. PENSTOCK_SERVERS names the servers of `penstock run`, and those that were
started by hand; with PENSTOCK_MANAGER, the manager names them; under torchrun, mpirun and srun the processes
find each other and start their servers (`penstock.rendezvous`). A process that was started alone embeds a
server, for a job of one worker.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import difflib
import operator
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, ParamSpec, TypeVar

from . import _core, filters, own
from .arrays import ArrayLike, DtypeLike, initial
from .asynchronous import Line, Pending
from .compress import Compress, check_compress
from .consistency import ASP, BSP, SSP, Consistency, check_propagation, spelled
from .exceptions import (
    DeclarationConflict,
    JobClosed,
    NotDelivered,
    OptionError,
    PenstockError,
    Sealed,
    TensorNameError,
    WorkerLost,
    not_to_be_sent,
)
from .filters import Filters, HeldBack
from .first import Firsts
from .flags import flag
from .gather import Gathering
from .limit import Limit
from .optim import Add, Optimizer, Replace
from .rendezvous.join import join
from .table import Rows, Table, declare
from .tensor import Tensor, _as_buffer
from .unsent import warn_of_lost, warn_of_parts

P = ParamSpec("P")
T = TypeVar("T")

_open_jobs: weakref.WeakSet[Job] = weakref.WeakSet()
before_leaving: dict[str, Callable[[Job | None], None]] = {}
"""
What an adapter does before a job is left in order, by its name: it waits for calls that are under way, reads
what the script would not be able to read any more, or warns. With None the process ends, and its script has.
"""
after_the_last: dict[str, Callable[[], None]] = {}
"""What an adapter undoes in this process when no job is open any more, by the adapter's name."""
# Held by this module where nothing else holds it: adapters that were given no job.
_implicit: list[Job] = []
# Holds something once the interpreter ends.
_ending: list[bool] = []
# Which jobs of servers that were named this process has joined.
_joined: set[tuple[str | None, ...]] = set()


class _Declared(NamedTuple):
    """A tensor of a job."""

    rule: Optimizer
    """With which it was declared: its own may have other numbers by now."""
    tensor: Tensor
    owner: tuple[str, str] | None
    """Of one that `distribute` has declared: a prefix, and what comes behind it."""


def init(**options: Any) -> Job:
    """
    Join the job that this process was started for; alone, start one with a server inside this process.

    Parameters
    ----------
    **options
        Any option in the table that `penstock run --help` prints, by name. An option that is not given here
        comes from its environment variable, and otherwise has its default. `tree` takes a `Tree` too.

    Returns
    -------
    Job
        This worker's handle to the job. It closes itself when the interpreter ends.

    Raises
    ------
    OptionError
        There is no such option, its value is out of range, or an environment variable cannot be read.
    NotUnderLauncher
        The environment says that there are several processes, but they have no way to find each other or
        their servers; the hint says what the launcher needs.
    DeadlineExceeded
        Not every process arrived in time; `.missing` holds the ranks of those missing.
    JobFailed
        Another process could not join; the message names it and says why.
    ConnectTimeout
        A server did not answer before the deadline.
    AuthenticationError
        The job has another secret.
    JobFull
        The rank is taken, or outside the job's size.
    ProtocolError
        The versions of worker and server do not understand each other.

    Examples
    --------
    >>> job = ps.init()
    >>> job.rank, job.size
    (0, 1)
    """
    job = Job(join(as_text(options)))
    if os.environ.get("PENSTOCK_SERVERS"):
        _joined.add(_named_by_environment())
    return job


def _named_by_environment() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, ("PENSTOCK_SERVERS", "PENSTOCK_JOB", "PENSTOCK_RANK")))


def current() -> Job:
    """
    The one job that is open in this process, or a new one if none is. Raises OptionError if several are;
    JobClosed if there is none but the one that this process has left: its servers end with it.

    One that has ended because another worker failed, and that the script has not left, is open: its calls say
    how it ended. A new one would wait for servers that have gone.
    """
    jobs = [job for job in _open_jobs if not job.closed] or list(_open_jobs)
    if len(jobs) > 1:
        raise OptionError(
            f"expected one open job in this process, found {len(jobs)}", "pass the one you mean as `job=`"
        )
    if not jobs and _named_by_environment() in _joined:
        raise JobClosed(
            "this process has left the job whose servers PENSTOCK_SERVERS names, and no other job is open",
            "call this before `job.close()`, or before the job's `with` block ends, and until then keep what "
            "`ps.init()` returned (`job = ps.init()`); `ps.init()` joins another job, whose servers the "
            "variable names by then",
        )
    if not jobs:
        jobs = [init()]
        _implicit[:] = jobs
    return jobs[0]


class Job(Sealed):
    """
    One worker's handle to a job. Made by `init`; as a context manager, it closes the job at the end.

    Examples
    --------
    >>> with ps.init() as job:
    ...     w = job.tensor("w", shape=(2, 3))
    """

    __slots__ = (
        "__weakref__",
        "_beside",
        "_core",
        "_firsts",
        "_gathering",
        "_has_own_filters",
        "_line",
        "_pushes",
        "_tables",
        "_tensors",
        "_told",
        "_told_of_loads",
        "_unsent",
    )
    _set_by: ClassVar[Mapping[str, str]] = {
        "deadline": "give ps.init(deadline=...), or a call its own timeout",
        "iteration": "job.clock() completes one",
    }

    def __init__(self, core: _core.Job) -> None:
        self._core = core
        self._tensors: dict[str, _Declared] = {}
        # Those with a contribution that waits for the last of its parts.
        self._unsent: set[str] = set()
        # Those of which it was told that an exact value lacks what a filter of pushes holds back.
        self._told: set[str] = set()
        # And that a load of the value leaves it.
        self._told_of_loads: set[str] = set()
        # Whether one has a filter that the program brings.
        self._has_own_filters = False
        # Those that the program holds.
        self._tables: weakref.WeakValueDictionary[str, Table] = weakref.WeakValueDictionary()
        self._gathering = Gathering()
        self._firsts = Firsts()
        self._line = Line()
        self._pushes: list[Pending[Any]] = []
        # What other modules keep for it, which may hold it in turn.
        self._beside: dict[str, Any] = {}
        _open_jobs.add(self)

    @property
    def rank(self) -> int:
        """This worker's number, 0 to `size` - 1."""
        return self._core.rank

    @property
    def size(self) -> int:
        """The number of workers that the job was made for."""
        return self._core.size

    @property
    def iteration(self) -> int:
        """Iterations that this worker has completed: its clock."""
        return self._core.iteration

    @property
    def deadline(self) -> float:
        """Seconds that a wait without a timeout of its own may take."""
        return self._core.deadline

    @property
    def closed(self) -> bool:
        """Whether the job has ended for this worker."""
        return self._core.closed

    def tensor(
        self,
        name: str,
        value: ArrayLike | None = None,
        *,
        shape: int | Sequence[int] | None = None,
        dtype: DtypeLike | None = None,
        optimizer: Optimizer | None = None,
        consistency: Consistency | str | None = None,
        propagation: str = "pull",
        sparse: bool = False,
        low_rank: int = 0,
        compress: Compress = "none",
        reduce: str = "mean",
        rescale: float = 1.0,
        clip: float | None = None,
        refuse_nonfinite: bool = False,
        filter: Filters | Literal["auto"] | None = None,  # noqa: A002 (what users call it)
        timeout: float | None = None,
    ) -> Tensor:
        """
        Declare a tensor. Every worker makes the same declaration; rank 0's value counts.

        Returns after this worker's own declaration; the first pull waits for rank 0's. Repeating the
        declaration gives the same tensor, with its value unchanged.

        Parameters
        ----------
        name
            Its key: 1 to 512 bytes of UTF-8 without control characters.
        value
            Its first value: NumPy, torch, JAX, anything with the buffer protocol or DLPack, or lists of
            numbers. It is copied. Default: zeros, of `shape`.
        shape
            Its shape, () for a scalar; each dimension at least 1. Default: the value's.
        dtype
            float32, float64, float16 or bfloat16, by name or as an object of NumPy, ml_dtypes, torch or JAX;
            the value is converted to it. Default: the value's; float32 for plain numbers, and if only a shape
            is given.
        optimizer
            The rule that the servers apply, with its settings; the tensor keeps a copy. Default `ps.Add()`:
            adds the contributions.
        consistency
            `ps.BSP()`, `ps.SSP(slack)` or `ps.ASP()`, or the same as text. Default: the job's, which is BSP
            unless set.
        propagation
            "pull": a pull fetches the value from servers on other hosts. "broadcast": they send what is new
            as soon as it is final, so that a pull finds it in memory; under SSP a pull sees versions only,
            and this worker's own updates once they are in one. "update": as "broadcast", but what is sent is
            the sum that the servers' optimizer was given, and each worker on another host applies that
            optimizer itself, to the same bits: for sparse pushes whose optimizer changes all of the value
            (momentum, Adam, weight decay), and for factors (`low_rank`), which come down as factors where
            all contributions did and they are half as long. Under BSP, for float32 and float64, without a
            filter of broadcasts. "auto": "broadcast" under BSP if the job has the option `tree`, and under
            SSP if a filter of broadcasts may hold something back; else "pull". The tensor's `propagation` is
            what was chosen, its `repr` says why. Default "pull".
        sparse
            Pushes are mostly `ps.Sparse`: between hosts, contributions and values travel as the elements that
            differ from zero and from what was sent before, where that is cheaper. Default False.
        low_rank
            Of a tensor of two dimensions: the largest rank with which `Tensor.push_factors` sends factors, in
            place of their product, to servers on other hosts; 1024 at most. Default 0: none.
        compress
            General-purpose compressors behind all that, between hosts, of pushes and of values: "lz4" or
            "zstd" for each chunk that becomes shorter; "auto": by measured cost, whichever pays on this host
            and link, or none. On one host nothing is compressed. Default "none".
        reduce
            "mean": contributions are summed and divided by the number of live workers. "sum": summed. Default
            "mean".
        rescale
            Factor on the reduced gradient. Default 1.
        clip
            Then each element is clipped to [-clip, clip]. Default: no clipping.
        refuse_nonfinite
            Refuse contributions that hold a NaN or an infinity. Default False.
        filter
            What of a push, and of the value, is sent now, and what later, such as
            `ps.Filters(push=ps.DVF(low=1e-3))`. "auto": all, unless the network holds training up; then what
            matters least waits, in both directions; not with `ps.Replace`. Default: all is sent.
        timeout
            Seconds to wait in total. Default: the job's `deadline` for each answer of a server.

        Returns
        -------
        Tensor

        Raises
        ------
        TensorNameError, ShapeError, DtypeError
            The name, the shape or the element type is not valid. Nothing was declared.
        OptionError
            `reduce`, `consistency`, `propagation`, `sparse`, `low_rank`, `compress`,
            `refuse_nonfinite` or `filter` is none that it may be, or `rescale` or `clip` no number. Nothing
            was declared.
        SettingsError
            The optimizer's settings, `rescale` or `clip` are not valid; or `ps.Replace` has a filter of
            broadcasts, or averages under SSP or ASP; or "update" is asked for where workers could not come to
            the servers' value. Nothing was declared.
        DeclarationConflict
            It was declared differently before, by this worker or another. The first declaration remains.
        OutOfMemory
            It does not fit into the shared memory that a server may take; the message says how much is
            needed.
        DeadlineExceeded
            The servers did not answer in time.
        JobClosed
            The job has ended.

        Notes
        -----
        Shared memory: the value and its optimizer's state once, and a lane the size of the value for each
        worker. A filter of pushes takes as much again in each worker's own memory, twice as much for half
        precision, which is carried in float32. A filter of broadcasts takes as much again on the servers, and
        once more for workers on other hosts. So does "broadcast" under SSP, on the servers, and `sparse` for
        workers on other hosts. "update" takes as much again on the servers, and the optimizer's state in each
        worker on another host. `low_rank` takes so many rows of the tensor for each worker on another host
        and each shard; with "update" two more, and the rows of the left factor.

        Examples
        --------
        >>> w = job.tensor("w", shape=(2, 3), optimizer=ps.SGD(0.1), consistency=ps.SSP(slack=4))
        >>> w.shape
        (2, 3)
        """
        return self._tensor(
            None,
            name,
            value,
            shape=shape,
            dtype=dtype,
            optimizer=optimizer,
            consistency=consistency,
            propagation=propagation,
            sparse=sparse,
            low_rank=low_rank,
            compress=compress,
            reduce=reduce,
            rescale=rescale,
            clip=clip,
            refuse_nonfinite=refuse_nonfinite,
            filter=filter,
            timeout=timeout,
        )

    def _tensor(
        self,
        owner: tuple[str, str] | None,
        name: str,
        value: ArrayLike | None = None,
        *,
        shape: int | Sequence[int] | None = None,
        dtype: DtypeLike | None = None,
        optimizer: Optimizer | None = None,
        consistency: Consistency | str | None = None,
        propagation: str = "pull",
        sparse: bool = False,
        low_rank: int = 0,
        compress: Compress = "none",
        reduce: str = "mean",
        rescale: float = 1.0,
        clip: float | None = None,
        refuse_nonfinite: bool = False,
        filter: Filters | Literal["auto"] | None = None,  # noqa: A002 (what users call it)
        timeout: float | None = None,
    ) -> Tensor:
        """
        As `tensor`, for what `distribute` was given: a prefix, and what comes behind it. Raises OptionError
        if there is one of that name which something else has declared: it has a value and a state.
        """

        def refuse_other(known: _Declared | None) -> None:
            if owner is not None and known is not None and known.owner != owner:
                raise OptionError(
                    f"tensor `{name}` was declared before in this job, and has a value and an optimizer "
                    "state",
                    "give one of the two another name, such as by the `prefix` or `name` of `distribute`",
                )

        if not isinstance(name, str):
            raise TensorNameError(f"expected a tensor's name as text, got {type(name).__name__}")
        if reduce not in ("mean", "sum"):
            raise OptionError(f'expected reduce "mean" or "sum", got {reduce!r}')
        check_propagation(propagation)
        check_compress(compress)
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise OptionError(
                f"expected an optimizer of penstock, got {optimizer!r}",
                "for a torch optimizer use ps.torch.distribute; give an instance, not a class",
            )
        refuse_other(self._tensors.get(name))
        chosen = filters.meant(filter, replaces=isinstance(optimizer, Replace))
        rule = (optimizer or Add()).copy()
        limit = Limit(timeout)
        array, dimensions, element = initial(value, name, shape, dtype)
        # Declared again, it gives the same tensor, or says what differs.
        with filters.explained(chosen):
            core = self._core.declare(
                name,
                dimensions,
                element,
                rule.rule(),
                rule.flags(),
                rule.settings(),
                spelled(consistency),
                propagation,
                flag("sparse", sparse),
                _rank(low_rank),
                compress,
                reduce == "mean",
                _number("rescale", rescale),
                None if clip is None else _number("clip", clip),
                flag("refuse_nonfinite", refuse_nonfinite),
                *filters.spelled(chosen),
                limit.left(),
            )
        if self.rank == 0 and name not in self._tensors:
            core.initialize(None if array is None else _as_buffer(array), limit.left())
        # Another thread may have declared it meanwhile: then there is one already.
        first = self._tensors.setdefault(
            name, _Declared(rule.copy(), Tensor(self, core, dimensions, element, rule, chosen), owner)
        )
        refuse_other(first)
        # The numbers travel with pushes, so the core does not compare them.
        if first.rule != rule:
            raise DeclarationConflict(
                f"`{name}` was declared before with optimizer {first.rule!r}, now with {rule!r}",
                "give the tensor another name, or make the same declaration",
            )
        return first.tensor

    def table(
        self,
        name: str,
        *,
        rows: int,
        width: int = 1,
        dtype: DtypeLike = "float32",
        produce: Rows = None,
        consume: Rows = None,
        fold: str | None = None,
        propagation: str = "eager",
        slack: int | SSP | ASP | BSP = 0,
        timeout: float | None = None,
    ) -> Table:
        """
        Declare a table of items. Every worker makes the same declaration, except for the rows that it
        produces and consumes; the call returns when all have made it. Repeating the declaration gives the
        same table; if it failed because another worker was late, repeat it.

        Parameters
        ----------
        name
            Its key: 1 to 512 bytes of UTF-8 without control characters.
        rows
            Number of rows: keys are 0 to `rows` - 1, at most 2**63. Rows that no worker produces cost
            nothing.
        width
            Elements of a row. A row has at most 16 MiB. Default 1.
        dtype
            Any element type of a fixed size; float32 or float64 for a sum. Default float32.
        produce
            Rows that this worker sets, or adds to: a slice, a range, an array of whole numbers, a mask,
            "all", or None for none (the default). Without a sum each row has one producer.
        consume
            Rows that this worker gets, besides its own, in the same forms. Each needs a producer.
        fold
            None (the default): rows are set. "sum": a row is the sum of what its producers added.
        propagation
            Between hosts: "eager" (the default) sends every set to its consumers at once; "lazy" fetches a
            row when a get finds it too old; "bounded" sends a row when the consumer's next get would find
            it too old. On one host nothing is sent.
        slack
            The slack of a get that does not name one: clocks that it may lag behind, `ps.SSP(...)`, or
            `ps.ASP()`. Default 0.
        timeout
            Seconds to wait for the others to declare it. Default: the job's `deadline`.

        Returns
        -------
        Table

        Raises
        ------
        TwoProducers
            Two workers produce the same row of a table without a sum. Raised on every worker.
        UnknownRow
            A row is outside the table, or is consumed but produced by no worker.
        DeclarationConflict
            Workers declare it differently, or this one did before; the error names what differs.
        TableDropped
            This worker has dropped a table of this name, and others have not yet.
        TensorNameError, ShapeError, DtypeError, OptionError
            An argument is out of range. Nothing was declared.
        OutOfMemory
            Its rows do not fit into the memory that a server may take.
        DeadlineExceeded
            Not every worker declared it in time; `.missing` holds the ranks of those missing.
        JobClosed
            The job has ended.

        Notes
        -----
        Memory: each row that a worker produces takes its size twice (a reader takes one value while the next
        is written) and 40 bytes. A row that it consumes takes the same on another host than the producer's,
        and nothing on the producer's own. In addition each row takes 8 to 24 bytes.

        Examples
        --------
        >>> U = job.table("U", rows=4, width=2, dtype="f8", produce="all", consume="all")
        >>> U.set(0, [1.0, 2.0])
        >>> job.clock()
        1
        >>> U.get(0)
        array([1., 2.])
        """
        table = declare(
            self._core,
            name,
            rows=rows,
            width=width,
            dtype=dtype,
            produce=produce,
            consume=consume,
            fold=fold,
            propagation=propagation,
            slack=slack,
            timeout=timeout,
        )
        known = self._tables.setdefault(name, table)
        if not known._core.is_same(table._core):
            # The one before was dropped.
            self._tables[name] = known = table
        return known

    def clock(self) -> int:
        """
        Complete an iteration.

        Waits first for the asynchronous pushes made before, so that they carry this iteration's stamp. Warns
        about contributions that were pushed with `more=True` and never sent: they are lost. Where warnings
        are errors it raises instead, and the iteration is not completed.

        Returns
        -------
        int
            The new clock: iterations that this worker has completed.

        Raises
        ------
        PenstockError
            The error of an asynchronous push of this iteration. The iteration is not completed; the next call
            tries again, and raises the error of the next push that failed, if any.
        OptionError
            It was called from the callback of an asynchronous call that it would have to wait for, or in the
            `send` of a filter (`ps.OwnFilter`). The job is as it was.
        DeadlineExceeded
            A push of another thread was in progress all the time. The iteration is not completed.
        JobClosed
            The job has ended, or this worker was removed from it.

        Examples
        --------
        >>> job.clock()
        1
        """
        if self._has_own_filters:
            own.refuse_inside(self, "job.clock()")
        if self._pushes:
            self._settle()
        # Before the clock: where warnings are errors, the next call would be a second one.
        unsent = set(self._unsent) if self._unsent else None
        if unsent:
            warn_of_parts(unsent, "the iteration ends")
        clock = self._core.clock()
        if unsent:
            self._unsent -= unsent
        return clock

    def barrier(self, timeout: float | None = None, *, what: str = "") -> None:
        """
        Wait until every live worker is here.

        Parameters
        ----------
        timeout
            Seconds to wait. Default: the job's `deadline`.
        what
            What it is for, in a word or two: errors call the barrier by this name. It need not be the same on
            all workers.

        Raises
        ------
        BarrierTimeout
            Not every worker came in time; `.missing` holds the ranks of those missing.
        CircularWait
            A worker that is missing waits for this one.
        NotDelivered
            A server did not take in time what this worker had pushed before; the barrier can be tried again.
        JobClosed
            The job has ended, or this worker was removed from it.

        Examples
        --------
        >>> job.barrier(timeout=10)
        """
        if isinstance(timeout, str):
            raise OptionError(
                f"expected a timeout in seconds, a number of 0 or more, got {timeout!r} (str)",
                f"a barrier's name: barrier(what={timeout!r})",
            )
        self._core.barrier(timeout, what)

    def mean(self, x: Any, *, name: str | None = None, timeout: float | None = None) -> Any:
        """
        The mean of what the workers give: for losses, accuracies and other metrics. Collective: every worker
        makes the same call.

        It takes no part in iterations: neither the job's clock nor a tensor moves.

        A worker's calls of `mean`, `sum` and `all_gather` meet those of the others by their order alone. Two
        of the same kind that come in another order on another worker (over a set, from two threads) give each
        the other's value, and no error, unless they have names.

        Parameters
        ----------
        x
            A number, or an array of NumPy, torch or JAX, anything that `Tensor.push` takes; of the same
            kind, shape and element type on every worker.
        name
            What is meant, such as "loss": a call that meets one of another name, or of none, is an error. At
            most 256 bytes. Default: none.
        timeout
            Seconds to wait in total. Default: the job's `deadline` for each wait of it.

        Returns
        -------
        float, numpy.ndarray, torch.Tensor or jax.Array
            The same bits on every worker. A number gives a Python number, to which a `np.longdouble` is
            rounded; an array one of the same library, shape, element type and device, but means of whole
            numbers and booleans are float64.

        Raises
        ------
        GatherConflict
            Workers gave other kinds, shapes, element types or names, or made other calls: `.given` says what
            each gave. Raised on every worker. Or a worker was lost during the gather before, and not all had
            its value (`on_worker_loss=continue`).
        DtypeError
            `x` holds no numbers. Nothing was sent.
        GetTimeout
            Not every worker came in time; `.missing` holds the ranks of those missing. Repeat the call with
            the same `x` to continue waiting: until that has ended, it is the only gather of this worker, in
            whatever iteration it is repeated, which warns in a later one.
        CircularWait
            A worker that is missing waits for this one.
        OptionError
            `name` or `timeout` is not valid, or another gather timed out and must be repeated first.
        WorkerLost
            A worker left the job without making the call.
        OutOfMemory
            The first time: there is no room for the rows on a server.
        JobClosed
            The job has ended.

        Notes
        -----
        Summed in the order of ranks, in float64 (complex numbers in complex128, Python's whole numbers
        exactly), divided by the number of workers, and rounded once. If the job goes on without a lost worker
        (`on_worker_loss=continue`), it is the mean over the others.

        If a signal handler raises during the call (Ctrl-C), it is as with a GetTimeout; if it raises behind
        the end of the gather, the same call has its result, in the same iteration. A whole number has at most
        4 Mibit.

        Bytes: `x`, from every worker to every other. For large arrays use a tensor.

        Examples
        --------
        >>> job.mean(3)
        3.0
        >>> job.mean(np.array([1, 2]))
        array([1., 2.])
        """
        return self._gathering.reduce(self, "mean", x, timeout, name)

    def sum(self, x: Any, *, name: str | None = None, timeout: float | None = None) -> Any:
        """
        The sum of what the workers give: for counts. Otherwise like `mean`.

        Parameters
        ----------
        x, name, timeout
            As for `mean`.

        Returns
        -------
        int, float, numpy.ndarray, torch.Tensor or jax.Array
            The same bits on every worker. A number gives a Python number, whole ones exactly; an array one of
            the same library, shape, element type and device, but sums of whole numbers and booleans are int64
            or uint64, in which they are summed, as NumPy's are. Those of torch tensors are int64, as torch's
            own, but of uint64.

        Raises
        ------
        GatherConflict, DtypeError, GetTimeout, CircularWait, OptionError, WorkerLost, OutOfMemory, JobClosed
            As for `mean`.

        Examples
        --------
        >>> job.sum(len([1, 2, 3]))
        3
        """
        return self._gathering.reduce(self, "sum", x, timeout, name)

    def all_gather(self, obj: Any, *, name: str | None = None, timeout: float | None = None) -> list[Any]:
        """
        What every worker gives, on every worker: any object that can be pickled. Collective: every worker
        makes the same call.

        It takes no part in iterations: neither the job's clock nor a tensor moves.

        Unpickling runs code: here a worker runs what another worker of the same job sends, as with
        `torch.distributed.all_gather_object`. Tensors, tables, `mean` and `sum` run nothing.

        Parameters
        ----------
        obj
            The object.
        name, timeout
            As for `mean`.

        Returns
        -------
        list
            The objects by rank: copies, this worker's own as well. If the job goes on without a lost worker
            (`on_worker_loss=continue`), None in its place.

        Raises
        ------
        OptionError
            `obj` cannot be pickled: nothing was sent. Or what came cannot be unpickled here; the message says
            from which worker. Or `name` or `timeout` is not valid, or another gather timed out and must be
            repeated first, as with `mean`.
        GatherConflict, GetTimeout, CircularWait, WorkerLost, OutOfMemory, JobClosed
            As for `mean`.

        Examples
        --------
        >>> job.all_gather({"rank": job.rank})
        [{'rank': 0}]
        """
        return self._gathering.all_gather(self, obj, timeout, name)

    def _barrier_with_first(self, timeout: float | None, what: str, otherwise: str) -> None:
        """
        A barrier for `what`, which only worker 0 does: it must be there too. Otherwise the error says
        `otherwise`.
        """
        if 0 not in self._core.barrier(timeout, what)[0]:
            raise WorkerLost(
                f"{otherwise}: worker 0, whose arguments count, has gone",
                "do it before worker 0 leaves, or restart the job",
                rank=0,
            )

    def _barrier_of_all(self, timeout: float | None, what: str) -> None:
        """A barrier at the end of `what`, which every worker must do: none may have left instead."""
        _, left = self._core.barrier(timeout, what)
        if left:
            raise WorkerLost(
                f"worker {left[0]} left the job without {what}",
                "every worker must do so, or this one has no part in the others' training",
                rank=left[0],
            )

    def stats(self) -> dict[str, float]:
        """
        This worker's counters since the start.

        Returns
        -------
        dict of str to float
            pushed_bytes, pulled_bytes (of contributions and values); sent_bytes, received_bytes (of the
            connections by TCP to servers, and between workers that pass values on, before encryption: what
            filters and encodings save is seen there); parents, children (connections of workers that feed
            this one now, and that it feeds, where there is a tree); of tensors that are compressed, sent to
            servers and received: compressed_chunks_sent, uncompressed_chunks_sent (those that went as they
            were), compress_before_sent, compress_after_sent (their bytes, before compression and as they
            went), and the same with _received; pushes, pulls, waited_seconds, max_staleness (iterations),
            copies_retried, slack (the largest in force, where it is adaptive), iteration.

        Raises
        ------
        Nothing.

        Examples
        --------
        >>> job.stats()["pushes"]
        0
        """
        return self._core.stats()

    def balance(self) -> list[list[int]]:
        """
        How evenly this worker's tensors are spread: the bytes that each shard is home to, by server.

        Returns
        -------
        list of list of int
            One list per server, one number of bytes per shard. Chunks are placed on servers, shards and
            network interfaces so that none has more than 4/3 of the best possible largest load (within a
            chunk for each tensor).

        Raises
        ------
        Nothing.

        Examples
        --------
        >>> w = job.tensor("balance", shape=(1 << 20,))
        >>> sum(map(sum, job.balance())) >= 4 << 20
        True
        """
        return self._core.balance()

    def layers(self, timeout: float | None = None) -> dict[str, dict[str, float]]:
        """
        Where time goes between a push and a pull: seconds since the start that threads have spent in each
        layer, of this worker (`"worker"`) and of each server (`"server0"` and so on, for all workers of the
        job). It is time by the clock on the wall: a thread that has lost its core meanwhile counts that too,
        and threads that work side by side count each for itself.

        Returns
        -------
        dict of str to dict of str to float
            filter (what is sent now is chosen: of pushes by the worker, of values by the server), encode
            (chunks are made into payloads), send (frames are encrypted and handed to the kernel), receive
            (they are taken from it, decrypted and checked), decode, fold (the optimizer's rule, by servers,
            and by workers where `propagation` is "update"); of the worker also wait (its pulls, for the
            others). Of values that go by shared memory there is nothing but filter and fold. A
            `ps.OwnFilter` is not counted.

        Parameters
        ----------
        timeout
            Seconds to wait for the servers. Default: the job's `deadline`.

        Raises
        ------
        JobClosed
            The job has ended.
        DeadlineExceeded
            A server does not answer in time.

        Examples
        --------
        >>> sorted(job.layers()["server0"])
        ['decode', 'encode', 'filter', 'fold', 'receive', 'send']
        """
        own, servers = self._core.spent(timeout)
        own["wait"] = self._core.stats()["waited_seconds"]
        return {"worker": own} | {f"server{index}": layers for index, layers in enumerate(servers)}

    def clocks(self) -> list[int]:
        """
        The clock of each worker, by rank, as the first server last saw it; -1 for a worker that has left, was
        lost, or will not come. The server may hear of a clock a tenth of a second late, but not of a worker
        that waits. This worker's own is what it is now.

        Raises
        ------
        JobClosed
            The job has ended.

        Examples
        --------
        >>> job.clocks()
        [0]
        """
        return self._core.clocks()

    def close(self, timeout: float | None = None) -> None:
        """
        Leave the job. The other workers carry on without this one. Closing twice does nothing; if another
        thread is closing the job, this call waits for it, and raises the same error if it fails.

        When this returns, the servers have taken everything that this worker pushed and set, asynchronously
        or not. Pushes with `more=True` and without a final push are lost, and so is what filters of pushes
        hold back and no `Tensor.flush` has sent, with a warning each. If it raises, as it does then where
        warnings are errors, this worker has left as one that failed, and the others are told.
        Views that pulls returned stay readable, but no longer change. A job that has failed is left at once.

        In a signal handler that interrupts a call of this package, the job is closed as soon as that call has
        ended, which then raises JobClosed. If that call is closing a job, it finishes first, and whatever
        else the handler closes comes after it. A handler that raises ends even that: this worker has failed.

        Parameters
        ----------
        timeout
            Seconds to wait in total. Default: its own timeout for each asynchronous push, the job's
            `deadline` for the servers. Compiled programs of JAX that call this package end before it begins
            to count: JAX waits for them without a limit.

        Raises
        ------
        OptionError
            `timeout` is not a valid number of seconds, or it was called from the callback of an asynchronous
            call that it would have to wait for. The job is as it was.
        NotDelivered
            A server had not taken everything in time, or an asynchronous push was still in progress, which
            ends with the job.
        DeadlineExceeded
            A server had taken everything but did not confirm it, or had not taken rows of a table; or a call
            of another thread was in progress all the time.
        JobClosed
            The job has failed, and no call of this worker has reported that before; or another thread of this
            worker failed it in the meantime.
        PenstockError
            The error of an asynchronous push since the last `clock`.

        Examples
        --------
        >>> job.close()
        >>> job.closed
        True
        """
        limit = Limit(timeout)
        if self._line.is_here:
            # In a callback: refused before anything is done.
            for push in list(self._pushes):
                push.wait(0)
        try:
            # In a signal handler these may wait for the very call that it interrupts.
            if before_leaving and not self.closed and not _core.is_interrupting():
                for finish in list(before_leaving.values()):
                    finish(None if _ending else self)
                limit = Limit(timeout)
            # One that failed was not delivered.
            if self._pushes and not _core.is_interrupting():
                self._settle(limit.left())
            # Before it leaves: where warnings are errors, it has left as one that failed.
            unsent, self._unsent = self._unsent, set()
            if unsent and not self.closed:
                warn_of_parts(unsent, "the job is closed")
            self._tell_of_lost()
            self._core.leave(limit.left())
        except BaseException as error:
            self._fail(error)
            raise
        self._line.end()
        _is_left(self)

    @property
    def _why_over(self) -> str | None:
        """Why nothing can be read any more; None while the job is open."""
        if not self.closed:
            return None
        # What may have taken the core's place.
        core: object = self._core
        return core.why if isinstance(core, _Gone) and core.is_parents else "the job has ended"

    def _tells_of_lacking(self, name: str) -> bool:
        """Whether a tensor is the script's own, and it was not told of what its filter holds back."""
        declared = self._tensors.get(name)
        return declared is not None and declared.owner is None and name not in self._told

    def _tell_of_lost(self) -> None:
        """Warns of what filters of pushes hold back, before the job is left. It may have failed by now."""
        if self.closed or _core.is_interrupting():
            return
        held = {}
        with contextlib.suppress(PenstockError):
            for name, (_, tensor, _) in self._tensors.items():
                one = HeldBack(*tensor._core.held_back())
                if one.elements:
                    held[name] = one
        if held:
            warn_of_lost(held)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or _ends_well(error):
            self.close()
        else:
            self._fail(error)

    def __reduce__(self) -> Any:
        hint = "call ps.init() in the process that needs it: each process is a worker of its own"
        raise not_to_be_sent("a job", hint)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"iteration {self.iteration}"
        return f"Job(worker {self.rank} of {self.size}, {state}, {len(self._tensors)} tensors)"

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._line.submit(None, call, *args, **kwargs)

    def _submit_push(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Like `_submit`, for calls that contribute: `clock` waits for them."""
        return self._line.submit(None if self._line.ended else self._pushes, call, *args, **kwargs)

    def _settle(self, timeout: float | None = None) -> None:
        """
        Waits for the asynchronous pushes. Raises the error of one that failed, and that of the next one at
        the next call. Without a timeout each is bounded by its own deadline.
        """
        pushes, limit = self._pushes_under_way(), Limit(timeout)
        late = sum(not push.wait(limit.left()) for push in pushes)
        failed = [push for push in pushes if push.error is not None and not push.told]
        # Forgotten only now: a signal handler that raised must not leave some that no call waits for.
        for push in pushes:
            if push not in failed:
                # Other threads submit, and wait, meanwhile.
                with contextlib.suppress(ValueError):
                    self._pushes.remove(push)
        if failed and (error := failed[0].error) is not None:
            # Statements, between which no handler can raise.
            failed[0].told = True
            raise error
        if late:
            raise self._undelivered(late, timeout)

    def _pushes_under_way(self) -> list[Pending[Any]]:
        return [push for push in list(self._pushes) if not push.waits_for_this_thread]

    def _undelivered(self, pushes: int, waited: float | None) -> NotDelivered:
        return NotDelivered(
            f"worker {self.rank} waited {waited:.3g} s for its asynchronous pushes: not done: {pushes}",
            "check what the other workers are doing, or raise `timeout`",
            waited=waited,
        )

    def _await_pushes(self, limit: Limit[float | None] | None = None) -> None:
        """Waits for the asynchronous pushes, whose errors `clock` raises."""
        if not self._pushes or self._line.is_here:
            return
        limit = limit or Limit(None)
        left = limit.left()
        pushes = self._pushes_under_way()
        if late := sum(not push.wait(limit.left()) for push in pushes):
            raise self._undelivered(late, left)

    def _has_settled(self) -> bool:
        """Waits for the asynchronous pushes; whether all went well. If not, the next wait raises it."""
        return all(push.wait() and (push.error is None or push.told) for push in self._pushes_under_way())

    def _orphan(self) -> None:
        """In a forked child: this worker is the parent's, and the child must neither use nor close it."""
        if isinstance(self._core, _core.Job):
            # Also ends a wait that was copied with the thread that forked, inside a signal handler.
            self._core.abandon()
        cores = [self._core, *(tensor._core for _, tensor, _ in self._tensors.values())]
        for core in cores:
            # Dropping the last reference would tell the servers that the worker left. It must
            # outlive the child.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(core))
        self._let_go(
            f"this process was forked from worker {self.rank} (process {os.getppid()}), whose job it is",
            "call ps.init() in the process that trains, or start processes with the method `spawn`",
            is_parents=True,
        )
        # Another thread may have been inside, and there is none here.
        self._gathering = Gathering()
        self._firsts = Firsts()
        self._line = Line()
        self._pushes = []

    def _fail(self, error: BaseException) -> None:
        """
        Leaves because of an error. A normal leave would let the others carry on as if this worker had
        finished.
        """
        text = _first_and_last(str(error)).strip()
        what = f"{type(error).__name__}: {text}" if text else type(error).__name__
        core = self._core
        self._let_go(f"worker {self.rank} has left because of its own {what}", None)
        core.fail(what)
        self._line.end()
        _is_left(self)

    def _let_go(self, why: str, hint: str | None, *, is_parents: bool = False) -> None:
        """
        Takes the core away without closing it; every later use is refused, with the reason. `is_parents`: the
        job goes on in the process that this one was forked from.
        """
        gone: Any = _Gone(self._core.rank, self._core.size, why, hint, is_parents)
        self._core = gone
        for _, tensor, _ in self._tensors.values():
            tensor._core = gone
            tensor._stable = False


def _is_left(job: Job) -> None:
    was_open = job in _open_jobs
    _open_jobs.discard(job)
    if was_open and not _open_jobs:
        for undo in list(after_the_last.values()):
            undo()


def _first_and_last(text: str) -> str:
    """
    Of a text that holds a traceback, such as JAX's for a failed callback: what remains when its end is cut
    off on the way to the others would not say why.
    """
    first, *rest = text.split("Traceback (most recent call last):", 1)
    return first + text.rstrip().rpartition("\n")[2] if rest else text


def _number(what: str, value: object) -> float:
    """`value` as a float; text is refused."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionError(f"expected {what} as a number, got {value!r}")


def _rank(value: Any) -> int:
    """`value` as the largest rank of factors; the core says what it may be."""
    try:
        if not isinstance(value, bool) and 0 <= (rank := operator.index(value)) < 2**32:
            return rank
    except TypeError:
        pass
    raise OptionError(f"expected low_rank as a whole number from 0 on, got {value!r}")


class _Gone:
    """Takes the place of the core."""

    closed = True
    why: str
    is_parents: bool

    def __init__(self, rank: int, size: int, why: str, hint: str | None, is_parents: bool) -> None:
        self.__dict__.update(rank=rank, size=size, why=why, hint=hint, is_parents=is_parents)

    def leave(self, timeout: float | None) -> None:
        """There is nothing to leave."""

    def fail(self, what: str) -> None:
        """There is nothing to leave."""

    def __getattr__(self, name: str) -> Any:
        raise JobClosed(self.__dict__["why"], self.__dict__["hint"])


def _after_fork_in_child() -> None:
    for job in list(_open_jobs):
        job._orphan()
    _open_jobs.clear()
    _joined.clear()
    before_leaving.clear()


def _ends_well(error: BaseException) -> bool:
    """
    Whether what left the block is not a failure: `sys.exit()`, and the end of a generator that is not
    read any further. Ctrl-C is a failure: the others would wait for the rest of this worker's iterations.
    """
    if isinstance(error, SystemExit):
        return error.code is None or error.code == 0
    return isinstance(error, GeneratorExit)


def leave_all(error: BaseException | None) -> None:
    """
    Leaves the jobs that are open: normally, or because of an error that ended the code that used them.

    Raises the first error of leaving, once all have been left.
    """
    failed: BaseException | None = None
    for job in list(_open_jobs):
        if error is not None and not _ends_well(error):
            job._fail(error)
            continue
        try:
            job.close()
        except BaseException as at_leaving:
            failed = failed or at_leaving
    if failed is not None:
        raise failed


def _at_exit() -> None:
    _ending.append(True)
    # What ended the script, if an error did; an interactive session goes on after its errors.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    try:
        if error is None and not all(job.closed for job in _open_jobs):
            for finish in list(before_leaving.values()):
                try:
                    finish(None)
                except BaseException as failed:
                    # The others hear of it now, and not by this process's end.
                    leave_all(failed)
                    raise
        # mpi4py ends MPI with the interpreter: that waits for the other ranks, and they for this worker.
        if error is None and "mpi4py.MPI" not in sys.modules:
            _leave_at_exit()
        leave_all(error)
    except BaseException as failed:
        # The interpreter would print it, forget it, and end as if all were well.
        sys.excepthook(type(failed), failed, failed.__traceback__)
        _core.exit_with(1)
    if "penstock.rendezvous.servers" in sys.modules:
        # Other workers may still train with the server that this process carries.
        from .rendezvous import servers

        servers.see_off()


def _leave_at_exit() -> None:
    """
    Leaves the open jobs when the process ends: only then is it known whether it ends well. `sys.exit(3)` and
    `sys.exit()` look the same until Python has run its last function.

    Jobs that have failed, or whose asynchronous pushes have, stay open: there is an error to raise.
    """
    jobs = [job for job in _open_jobs if not job.closed and job._has_settled()]
    if not jobs:
        return
    for job in jobs:
        job._tell_of_lost()
    carried = sys.modules.get("penstock.rendezvous.servers")
    children = [] if carried is None else carried.running()
    if _core.leave_at_exit([job._core for job in jobs], children):
        if carried is not None:
            carried.leave_running()
        for job in jobs:
            job._let_go("the interpreter has ended", None)
            job._line.end()
            _open_jobs.discard(job)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)


def as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """
    The options as the core reads them: those given, then those in the environment.

    Raises OptionError if there is no option of that name.
    """
    table = {str(option["name"]): option for option in _core.options()}
    for name in options:
        if name not in table:
            near = difflib.get_close_matches(name, table, n=3)
            raise OptionError(
                f"there is no option `{name}`",
                _PLACES.get(name)
                or (
                    f"did you mean {' or '.join(f'`{other}`' for other in near)}?"
                    if near
                    else f"there are {', '.join(table)}"
                ),
            )
    text = {name: _spell(value) for name, value in options.items() if value is not None}
    for name, option in table.items():
        value = os.environ.get(str(option["env"]))
        if name not in text and value:
            text[name] = value
    return text


_BY_THE_LAUNCHER = (
    "the launcher sets it: `penstock run --workers 2 train.py`, torchrun, mpirun, srun; a process that was "
    "started alone is a job of one worker"
)
_PLACES = dict.fromkeys(
    ["workers", "num_workers", "size", "world_size", "rank", "servers", "num_servers", "job", "secret"],
    _BY_THE_LAUNCHER,
)
"""Names that look like options: what they would set comes from whoever starts the processes."""


def _spell(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
