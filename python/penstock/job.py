"""
Jobs: this process as one worker of a training job.

`init` reads what the launcher set. `penstock run` and whoever starts servers by hand name them in
PENSTOCK_SERVERS; a manager names them itself, by PENSTOCK_MANAGER; under torchrun, mpirun and srun the
processes find each other and start their servers (`penstock.rendezvous`). A process that was started alone
embeds a server, for a job of one worker.
"""

from __future__ import annotations

import atexit
import ctypes
import difflib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, ClassVar, ParamSpec, TypeVar

from . import _core
from .arrays import ArrayLike, DtypeLike, initial
from .asynchronous import Line
from .consistency import ASP, BSP, SSP, Consistency, spelled
from .exceptions import (
    DeclarationConflict,
    JobClosed,
    NotDelivered,
    OptionError,
    Sealed,
    TensorNameError,
    WorkerLost,
    not_to_be_sent,
)
from .limit import Limit
from .optim import Add, Optimizer
from .rendezvous.join import join
from .table import Rows, Table, declare
from .tensor import Tensor, _as_buffer

P = ParamSpec("P")
T = TypeVar("T")

_open_jobs: weakref.WeakSet[Job] = weakref.WeakSet()
# Held by this module where nobody else holds it: adapters that were given no job.
_implicit: list[Job] = []


def init(**options: Any) -> Job:
    """
    Join the job that this process was started for; alone, start one with a server inside this process.

    Parameters
    ----------
    **options
        Any option in the table that `penstock run --help` prints, by name. An option's environment variable
        counts where it is not given here, its default where neither is.

    Returns
    -------
    Job
        This worker's end of the job. It closes itself when the interpreter ends.

    Raises
    ------
    OptionError
        There is no such option, its value is out of range, or an environment variable cannot be read.
    NotUnderLauncher
        The environment says that there are several processes, but they have no way to find each other or
        their servers; the hint says what the launcher needs.
    DeadlineExceeded
        Not every process came in time; `.missing` holds their ranks.
    JobFailed
        Another process could not join; the text names it and says why.
    ConnectTimeout
        A server did not answer before the deadline.
    AuthenticationError
        The secret is not the job's.
    JobFull
        The rank is taken or outside the job's size.
    ProtocolError
        Worker and server are of versions that do not understand each other.

    Examples
    --------
    >>> job = ps.init()
    >>> job.rank, job.size
    (0, 1)
    """
    return Job(join(as_text(options)))


def current() -> Job:
    """
    The one job that is open in this process; a new one where none is. Raises OptionError where several are.
    """
    jobs = [job for job in _open_jobs if not job.closed]
    if len(jobs) > 1:
        raise OptionError(
            f"expected one open job in this process, found {len(jobs)}", "pass the one you mean as `job=`"
        )
    if not jobs:
        jobs = [init()]
        _implicit[:] = jobs
    return jobs[0]


class Job(Sealed):
    """
    One worker's end of a job. Made by `init`; a context manager that closes it.

    Examples
    --------
    >>> with ps.init() as job:
    ...     w = job.tensor("w", shape=(2, 3))
    """

    __slots__ = ("__weakref__", "_core", "_line", "_pushes", "_tables", "_tensors", "_unsent")
    _set_by: ClassVar[Mapping[str, str]] = {
        "deadline": "give ps.init(deadline=...), or a call its own timeout",
        "iteration": "job.clock() completes one",
    }

    def __init__(self, core: _core.Job) -> None:
        self._core = core
        # With the optimizer that each was declared with: its own may have other numbers by now.
        self._tensors: dict[str, tuple[Optimizer, Tensor]] = {}
        # Those with a contribution that waits for the last of its parts.
        self._unsent: set[str] = set()
        # Those that somebody holds.
        self._tables: weakref.WeakValueDictionary[str, Table] = weakref.WeakValueDictionary()
        self._line = Line("penstock")
        self._pushes: list[Future[Any]] = []
        _open_jobs.add(self)

    @property
    def rank(self) -> int:
        """This worker's number, 0 to `size` - 1."""
        return self._core.rank

    @property
    def size(self) -> int:
        """Workers that the job was made for."""
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
        reduce: str = "mean",
        rescale: float = 1.0,
        clip: float | None = None,
        refuse_nonfinite: bool = False,
        timeout: float | None = None,
    ) -> Tensor:
        """
        Declare a tensor. Every worker declares it, alike; rank 0's value counts.

        Returns after this worker's own declaration; the first pull waits for rank 0's. The same name with the
        same declaration gives the same tensor, whose value stays as it is.

        Parameters
        ----------
        name
            Its key: 1 to 512 bytes of UTF-8 without control characters.
        value
            What it starts from: NumPy, torch, JAX, anything with the buffer protocol or DLPack, or lists of
            numbers. Copied. Default: zeros, of `shape`.
        shape
            Its shape, () for a scalar; each dimension at least 1. Default: the value's.
        dtype
            float32, float64, float16 or bfloat16, by name or as NumPy's, ml_dtypes', torch's or JAX's object;
            converts the value. Default: the value's; float32 for plain numbers and for a shape alone.
        optimizer
            What a fold does, with its numbers; the tensor keeps a copy. Default `ps.Add()`: adds the
            contributions.
        consistency
            `ps.BSP()`, `ps.SSP(slack)`, `ps.ASP()`, or their text. Default: the job's, which is BSP unless
            set.
        reduce
            "mean": contributions are summed and divided by the number of live workers. "sum": summed. Default
            "mean".
        rescale
            Factor on the reduced gradient. Default 1.
        clip
            Then clips each element to [-clip, clip]. Default: not.
        refuse_nonfinite
            Refuse contributions that hold a NaN or an infinity. Default False.
        timeout
            Seconds to wait in all. Default: for each answer of a server the job's `deadline`.

        Returns
        -------
        Tensor

        Raises
        ------
        TensorNameError, ShapeError, DtypeError
            The name, the shape or the element type is none. Nothing was declared.
        OptionError
            `reduce`, `consistency`, `rescale` or `clip` is out of range. Nothing was declared.
        DeclarationConflict
            It was declared differently before, by this worker or another. The first declaration stands.
        OutOfMemory
            It does not fit into the shared memory that a server may take; says how much is needed.
        DeadlineExceeded
            The servers did not answer in time.
        JobClosed
            The job has ended.

        Notes
        -----
        Shared memory: the value and its optimizer's state once, and a lane the size of the value for each
        worker.

        Examples
        --------
        >>> w = job.tensor("w", shape=(2, 3), optimizer=ps.SGD(0.1), consistency=ps.SSP(slack=4))
        >>> w.shape
        (2, 3)
        """
        if not isinstance(name, str):
            raise TensorNameError(f"expected a tensor's name as text, got {type(name).__name__}")
        if reduce not in ("mean", "sum"):
            raise OptionError(f'expected reduce "mean" or "sum", got {reduce!r}')
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise OptionError(
                f"expected an optimizer of penstock, got {optimizer!r}",
                "for a torch optimizer use ps.torch.distribute; give an instance, not a class",
            )
        rule = (optimizer or Add()).copy()
        limit = Limit(timeout)
        array, dimensions, element = initial(value, name, shape, dtype)
        # Declared again, it gives the same tensor, or says what differs.
        core = self._core.declare(
            name,
            dimensions,
            element,
            rule.rule(),
            rule.flags(),
            rule.settings(),
            spelled(consistency),
            reduce == "mean",
            _number("rescale", rescale),
            None if clip is None else _number("clip", clip),
            bool(refuse_nonfinite),
            limit.left(),
        )
        if self.rank == 0 and name not in self._tensors:
            core.initialize(None if array is None else _as_buffer(array), limit.left())
        # Another thread may have declared it meanwhile: then there is one already.
        first, tensor = self._tensors.setdefault(
            name, (rule.copy(), Tensor(self, core, dimensions, element, rule))
        )
        # The numbers travel with pushes, so the core does not compare them.
        if first != rule:
            raise DeclarationConflict(
                f"`{name}` was declared before with optimizer {first!r}, now with {rule!r}",
                "give the tensor another name, or declare it alike",
            )
        return tensor

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
        Declare a table of items. Every worker declares it, alike but for the rows that it produces and
        consumes; returns when all have. The same declaration again is the same table; one that failed
        because another worker was late is made by declaring it again.

        Parameters
        ----------
        name
            Its key: 1 to 512 bytes of UTF-8 without control characters.
        rows
            Rows: keys are 0 to `rows` - 1, at most 2**63. Those that nobody produces cost nothing.
        width
            Elements of a row. A row has at most 16 MiB. Default 1.
        dtype
            Any element type of a fixed size; float32 or float64 for a sum. Default float32.
        produce
            Rows that this worker sets, or adds to: a slice, a range, an array of whole numbers, a mask,
            "all", or None for none (the default). Without a sum each row has one producer.
        consume
            Rows that this worker gets, beside its own. Likewise; each needs a producer.
        fold
            None (the default): rows are set. "sum": a row is the sum of what its producers added.
        propagation
            Between hosts: "eager" (the default) sends every set to its consumers at once; "lazy" fetches a
            row when a get finds it too old; "bounded" sends a row when the consumer's next get would find
            it too old. On one host nothing is sent.
        slack
            Clocks that a get may lack where it does not say, `ps.SSP(...)`, or `ps.ASP()`. Default 0.
        timeout
            Seconds to wait for the others to declare it. Default: the job's `deadline`.

        Returns
        -------
        Table

        Raises
        ------
        TwoProducers
            Two workers produce one row of a table without a sum. Raised on every worker.
        UnknownRow
            A row is outside the table, or is consumed but produced by nobody.
        DeclarationConflict
            Workers declare it differently, or this one did before; the error names what differs.
        TableDropped
            This worker has dropped a table of this name, and others have not yet.
        TensorNameError, ShapeError, DtypeError, OptionError
            An argument is out of range. Nothing was declared.
        OutOfMemory
            Its rows do not fit into the memory that a server may take.
        DeadlineExceeded
            Not every worker declared it in time; `.missing` holds their ranks.
        JobClosed
            The job has ended.

        Notes
        -----
        Memory: a worker has the rows that it produces, twice (a reader takes one value while the next is
        written), and 40 bytes each; of the rows that it consumes nothing on the producer's host, the same on
        another. Beside that 8 to 24 bytes a row.

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

        First waits for the asynchronous pushes made before, so that they carry this iteration's stamp. Warns
        of what was pushed with `more=True` and not sent: it is lost.

        Returns
        -------
        int
            The new clock: iterations that this worker has completed.

        Raises
        ------
        PenstockError
            What an asynchronous push of this iteration raised. The iteration is not completed; the next call
            tries again, and raises what the next one that failed did.
        DeadlineExceeded
            A push of another thread was under way all the time. The iteration is not completed.
        JobClosed
            The job has ended, or this worker was removed from it.

        Examples
        --------
        >>> job.clock()
        1
        """
        if self._pushes:
            self._settle()
        clock = self._core.clock()
        if self._unsent:
            self._warn_of_unsent("the iteration has ended")
        return clock

    def barrier(self, timeout: float | None = None, *, what: str = "") -> None:
        """
        Wait until every live worker is here.

        Parameters
        ----------
        timeout
            Seconds to wait. Default: the job's `deadline`.
        what
            What it is for, in a word or two: errors call the barrier by it. It need not be the same on all
            workers.

        Raises
        ------
        BarrierTimeout
            Not every worker came in time; `.missing` holds their ranks.
        CircularWait
            A worker that is missing waits for this one.
        NotDelivered
            A server had not taken in time what this worker pushed before; the barrier can be tried again.
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

    def _barrier_with_first(self, timeout: float | None, what: str, otherwise: str) -> None:
        """A barrier for `what`, which worker 0 alone does: it must stand there too. Else: `otherwise`."""
        if 0 not in self._core.barrier(timeout, what)[0]:
            raise WorkerLost(
                f"{otherwise}: worker 0, whose arguments count, has gone",
                "do it before worker 0 leaves, or start the job anew",
                rank=0,
            )

    def _barrier_of_all(self, timeout: float | None, what: str) -> None:
        """A barrier at the end of `what` every worker must do: none may have left instead."""
        _, left = self._core.barrier(timeout, what)
        if left:
            raise WorkerLost(
                f"worker {left[0]} left the job without {what}",
                "every worker must do so, or what this one does has no part in the others' training",
                rank=left[0],
            )

    def stats(self) -> dict[str, float]:
        """
        This worker's counters since the start.

        Returns
        -------
        dict of str to float
            pushed_bytes, pulled_bytes, pushes, pulls, waited_seconds, max_staleness (iterations),
            copies_retried, slack (the most in force where it is chosen by waiting), iteration.

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
        How evenly this worker's tensors lie: bytes that each shard is home of, by server.

        Returns
        -------
        list of list of int
            One list a server, one number of bytes a shard. Chunks go to servers, shards and network
            interfaces so that no one has more than 4/3 of the best possible largest load (within a chunk for
            each tensor).

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

    def clocks(self) -> list[int]:
        """
        The clock of each worker, by rank, as the first server last saw it; -1 for one that never came or was
        lost. In a job without tensors it hears of clocks ten times a second, and at barriers.

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
        Leave the job. The other workers go on without this one. Closing twice does nothing; while
        another thread closes it, this one waits for that, and raises what it raises.

        When this returns, the servers have taken everything that this worker pushed and set, asynchronously
        or not. Pushes with `more=True` that no last one followed are lost: it warns of them. If it raises,
        this worker has left as one that failed, and the others hear of it. Views that pulls returned stay
        readable, but no longer move. A job that has failed is left at once. In a signal handler that
        interrupts a call of this package, the job is closed as soon as that call has ended, which then raises
        JobClosed; where that call closes a job, it first does so to the end, and what the handler closes
        beside it comes after. A handler that raises ends even that: this worker has failed.

        Parameters
        ----------
        timeout
            Seconds to wait in all. Default: for each asynchronous push its own, for the servers the job's
            `deadline`.

        Raises
        ------
        OptionError
            `timeout` is no number of seconds. The job is as it was.
        NotDelivered
            A server had not taken everything in time, or an asynchronous push was still under way, which ends
            with the job.
        DeadlineExceeded
            A server had, but did not say so, or had not taken rows of a table; or a call of another thread
            was under way all the time.
        JobClosed
            The job has failed, and no call of this worker has said so before; or another thread of this
            worker failed it meanwhile.
        PenstockError
            Whatever an asynchronous push failed with since the last `clock`.

        Examples
        --------
        >>> job.close()
        >>> job.closed
        True
        """
        limit = Limit(timeout)
        try:
            # One that failed was not delivered. In a signal handler they may wait for the very call that it
            # interrupts.
            if self._pushes and not _core.is_interrupting():
                self._settle(limit.left())
            self._core.leave(limit.left())
        except BaseException as error:
            self._fail(error)
            raise
        self._line.end()
        _open_jobs.discard(self)
        self._warn_of_unsent("the job was closed")

    def _warn_of_unsent(self, since: str) -> None:
        """Says what was pushed in part, if anything, now that its last part cannot come any more."""
        if not self._unsent:
            return
        names = ", ".join(f"`{name}`" for name in sorted(self._unsent))
        self._unsent = set()
        warnings.warn(
            f"{names}: {since}, and what was pushed with more=True is lost; the last push of an iteration "
            f"leaves out `more`, and push() without an argument sends what stands in the lane",
            stacklevel=3,
        )

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
        hint = "call ps.init() in the process that is to work on it: each is a worker of its own"
        raise not_to_be_sent("a job", hint)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"iteration {self.iteration}"
        return f"Job(worker {self.rank} of {self.size}, {state}, {len(self._tensors)} tensors)"

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._line.submit(call, *args, **kwargs)

    def _submit_push(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `_submit`, for calls that contribute: `clock` waits for them."""
        future = self._line.submit(call, *args, **kwargs)
        if not self._line.ended:
            self._pushes.append(future)
        return future

    def _settle(self, timeout: float | None = None) -> None:
        """
        Waits for the asynchronous pushes; raises what one that failed raised, the next time what the next
        did. Without a timeout each is bounded by its own deadline.
        """
        pushes = list(self._pushes)
        if timeout is not None:
            # Not by the futures' own timeouts: a signal handler may raise the same error.
            wait([one for one in pushes if not one.cancelled()], min(timeout, threading.TIMEOUT_MAX))
        over = pushes if timeout is None else [future for future in pushes if future.done()]
        failed = [future for future in over if not future.cancelled() and future.exception() is not None]
        # Forgotten only now: a signal handler that raised must not leave some that nobody waits for.
        settled = set(map(id, pushes)) - set(map(id, failed[1:]))
        self._pushes = [future for future in self._pushes if id(future) not in settled]
        if failed:
            failed[0].result()
        if late := len(pushes) - len(over):
            raise self._undelivered(late, timeout)

    def _undelivered(self, pushes: int, waited: float | None) -> NotDelivered:
        return NotDelivered(
            f"worker {self.rank} waited {waited:.3g} s for its asynchronous pushes: not done: {pushes}",
            "look at what the other workers do, or raise `timeout`",
            waited=waited,
        )

    def _await_pushes(self, limit: Limit | None = None) -> None:
        """Waits for the asynchronous pushes, whose errors `clock` raises."""
        if not self._pushes or self._line.is_here:
            return
        left = None if limit is None else limit.left()
        if left is None:
            self._has_settled()
            return
        pushes = [future for future in self._pushes if not future.cancelled()]
        if late := wait(pushes, min(left, threading.TIMEOUT_MAX)).not_done:
            raise self._undelivered(len(late), left)

    def _has_settled(self) -> bool:
        """Waits for the asynchronous pushes; whether all went well. If not, the next wait raises it."""
        return all(future.cancelled() or future.exception() is None for future in list(self._pushes))

    def _orphan(self) -> None:
        """In a forked child: this is the parent's worker, and the child must neither use nor close it."""
        if isinstance(self._core, _core.Job):
            # Also ends a wait that was copied with the thread that forked, inside a signal handler.
            self._core.abandon()
        cores = [self._core, *(tensor._core for _, tensor in self._tensors.values())]
        for core in cores:
            # Dropping the last reference would tell the servers that the worker left. It must outlive the
            # child.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(core))
        self._let_go(
            f"this process was forked from worker {self.rank} (process {os.getppid()}), whose job it is",
            "call ps.init() in the process that trains, or start processes with the method `spawn`",
        )
        self._line = Line("penstock")
        self._pushes = []

    def _fail(self, error: BaseException) -> None:
        """
        Leaves because of an error. Leaving politely would let the others go on as if this worker had
        finished.
        """
        what = f"{type(error).__name__}: {error}"
        core = self._core
        self._let_go(f"worker {self.rank} has left because of its own {what}", None)
        core.fail(what)
        self._line.end()
        _open_jobs.discard(self)

    def _let_go(self, why: str, hint: str | None) -> None:
        """Takes the core away without closing it; every later use is refused, with the reason."""
        gone: Any = _Gone(self._core.rank, self._core.size, why, hint)
        self._core = gone
        for _, tensor in self._tensors.values():
            tensor._core = gone
            tensor._stable = False


def _number(what: str, value: object) -> float:
    """`value` as a float; text is none."""
    try:
        if not isinstance(value, str | bytes):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionError(f"expected {what} as a number, got {value!r}")


class _Gone:
    """Stands where the core stood."""

    closed = True

    def __init__(self, rank: int, size: int, why: str, hint: str | None) -> None:
        self.__dict__.update(rank=rank, size=size, why=why, hint=hint)

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


def _ends_well(error: BaseException) -> bool:
    """
    Whether what left the block is no failure: `sys.exit()`, and the end of a generator that nobody reads on.
    Ctrl-C is one: the others would wait for the rest of this worker's iterations.
    """
    if isinstance(error, SystemExit):
        return error.code is None or error.code == 0
    return isinstance(error, GeneratorExit)


def leave_all(error: BaseException | None) -> None:
    """
    Leaves the jobs that are open: politely, or because of an error that ended what used them.

    Raises the first error of leaving, once all are left.
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
    # What ended the script, if an error did; an interactive session goes on after its errors.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    try:
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
    `sys.exit()` look alike until the last function of Python's has run.

    Jobs that have failed, or whose asynchronous pushes have, stay open: there is an error to raise.
    """
    jobs = [job for job in _open_jobs if not job.closed and job._has_settled()]
    if not jobs:
        return
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

    Raises OptionError where there is no option of a name.
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
    "whoever starts the processes says it: `penstock run --workers 2 train.py`, torchrun, mpirun, srun; "
    "a process that was started alone is a job of one worker"
)
_PLACES = dict.fromkeys(
    ["workers", "num_workers", "size", "world_size", "rank", "servers", "num_servers", "job", "secret"],
    _BY_THE_LAUNCHER,
)
"""Names that look like options: what they would set is said by who starts the processes."""


def _spell(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
