"""
Tensors: a named array that every worker of a job reads and contributes to.

What a call costs on one host: a push of an array copies it once, into this worker's lane; a push of the lane
itself moves no byte. A pull under BSP copies nothing: it waits and returns a view of the servers' own memory,
mapped read-only. A pull under SSP or ASP copies each chunk once, since its home may be folding at that
moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from . import own
from .arrays import DTYPES, Array, ArrayLike, contribution, target
from .consistency import Consistency, check_slack, parse
from .exceptions import AlreadyPushed, DtypeError, OptionError, Sealed, SettingsError, not_to_be_sent
from .factors import Factors
from .filters import Filters, HeldBack, OwnFilter, Pressed, Pressure
from .first import Deed, checksum
from .flags import flag
from .limit import Limit
from .optim import Optimizer
from .sparse import gathered, sparse_of
from .unsent import warn_of_kept, warn_of_lacking

if TYPE_CHECKING:
    from . import _core
    from .job import Job


class _TheLane:
    """Means "what is in the lane". Not None, which is what a gradient is that was never computed."""

    def __repr__(self) -> str:
        return "<the lane>"


_LANE = _TheLane()


class Tensor(Sealed):
    """
    A shared array. Made by `Job.tensor`.

    Examples
    --------
    >>> w = job.tensor("w", value=np.zeros(3, dtype=np.float32))
    >>> w.push(np.ones(3, dtype=np.float32))
    0
    >>> job.clock()
    1
    >>> w.pull()
    array([1., 1., 1.], dtype=float32)
    """

    __slots__ = (
        "__weakref__",
        "_core",
        "_direct",
        "_dtype",
        "_job",
        "_lane",
        "_lane_address",
        "_mirror",
        "_model",
        "_name",
        "_optimizer",
        "_own",
        "_plain",
        "_shape",
        "_stable",
    )
    _set_by: ClassVar[Mapping[str, str]] = {
        "lr": "tensor.set_lr(...) changes the learning rate, tensor.optimizer has the other settings",
        "optimizer": "its settings can be changed, such as tensor.optimizer.lr = 0.1",
        "value": "tensor.load(value=...) overwrites the value",
        "slack": "give pull(slack=...), or declare the tensor with another consistency",
        "consistency": "give pull(slack=...), or declare the tensor with another consistency",
    }

    def __init__(
        self,
        job: Job,
        core: _core.Tensor,
        shape: tuple[int, ...],
        dtype: str,
        optimizer: Optimizer,
        filters: Filters | None = None,
    ) -> None:
        self._job = job
        self._core = core
        self._name = core.name
        self._shape = shape
        self._dtype = DTYPES[dtype]
        # Whether the core reads its arrays as they are: see `_as_buffer`.
        self._plain = shape != () and dtype != "bfloat16"
        self._optimizer = optimizer
        # Asked once: whether a pull that names no slack may hand out the model itself.
        self._stable = core.stable(None)
        push = None if filters is None else filters.push
        self._own = push if isinstance(push, OwnFilter) else None
        if self._own is not None:
            job._has_own_filters = True
        # Whether a `pushpull` may be one call of the core.
        self._direct = self._stable and self._own is None
        self._model: Array | None = None
        self._mirror: Array | None = None
        self._lane: Array | None = None
        self._lane_address = 0

    @property
    def name(self) -> str:
        """The tensor's key."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; () for a scalar."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type; ml_dtypes' for bfloat16."""
        return self._dtype

    @property
    def size(self) -> int:
        """Elements."""
        return self._core.elements

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return self._core.nbytes

    @property
    def version(self) -> int:
        """The newest version that all chunks have, as far as they came here; -1 before the first value."""
        return self._core.version

    @property
    def staleness(self) -> int:
        """How many iterations behind this worker's clock the last pull was; 0 is fresh."""
        return self._core.staleness

    @property
    def borrowed(self) -> bool:
        """
        Whether all of the value is read in memory that other workers of this host lend, for now: then this
        worker keeps no mirror (docs/trees.md, "One copy a host"), but under SSP and ASP what `pull()` copied.
        """
        return self._core.borrowed

    @property
    def consistency(self) -> Consistency:
        """What a pull that names no slack must see."""
        return parse(self._core.consistency)

    @property
    def propagation(self) -> str:
        """
        Who moves the value between hosts: "pull", "broadcast" or "update". What "auto" has chosen, and why,
        is in the tensor's `repr`.
        """
        return self._core.propagation

    @property
    def slack(self) -> int | None:
        """
        The current slack of a pull that does not name one; it adapts under `ps.SSP("auto")`. None: no bound.
        """
        return None if self._core.slack < 0 else self._core.slack

    @property
    def optimizer(self) -> Optimizer:
        """
        This tensor's own optimizer. Its settings may be changed at any time, in the same way on every worker:
        they travel with the next push.
        """
        return self._optimizer

    def set_lr(self, lr: float) -> None:
        """
        Change the learning rate, from the next push on. Make the same call on every worker.

        Parameters
        ----------
        lr
            The new rate, 0 or above.

        Raises
        ------
        SettingsError
            `lr` is out of range, or the optimizer has none. It stays as it was.

        Examples
        --------
        >>> w.set_lr(0.01)
        """
        self._optimizer.lr = lr

    def lane(self) -> Array:
        """
        This worker's own registered gradient buffer: fill it, then `push()` moves no byte.

        Waits until the servers have taken what is in it, including asynchronous pushes. Call it each time
        before you fill it: what is written between a push and the next call may be folded instead of what was
        pushed, and `push()` refuses what was filled before a `load`. After a push with `more=True` the sum of
        the parts stands there: push arrays until it is sent. From now on servers on other hosts are sent a
        copy that the worker makes, of what `push(grad)` brings too. A filter of pushes leaves here what it
        sends: zeros, or rounded numbers, in place of what it holds back.

        Returns
        -------
        numpy.ndarray
            Writable, of the tensor's shape and dtype; the same array each time.

        Raises
        ------
        OptionError
            What was pushed with `more=True` waits in it: filled, it would be lost.
        LaneTimeout
            The servers had not taken the last push before the job's `deadline`.
        JobClosed
            The job has ended.

        Examples
        --------
        >>> gradient = w.lane()
        >>> gradient[:] = 0.5
        >>> w.push()
        0
        """
        self._job._await_pushes()
        memory = self._core.lane()
        if self._lane is None:
            self._lane = self._array_over(memory)
            self._lane_address = self._lane.__array_interface__["data"][0]
        return self._lane

    def push(self, grad: ArrayLike = _LANE, *, more: bool = False, timeout: float | None = None) -> int:
        """
        Contribute this worker's gradient for the iteration it is in.

        Returns as soon as the gradient is in the worker's lane; the servers fold it when the lanes they wait
        for are full. `grad` may be changed at once.

        Parameters
        ----------
        grad
            Array of the tensor's `shape` and `dtype`, or any object that supports the buffer protocol, DLPack
            or `__array__`; lists of numbers are converted. It is copied once, unless it is the array that
            `lane()` returned: then nothing is copied. Default: the lane. None is refused: without a gradient
            there is nothing to push. A `ps.Sparse`, or a sparse tensor of torch (layout COO) or array of
            JAX (BCOO) or SciPy, means zeros for all elements that it does not name. After a `load` or such a
            push, or where parts that were pushed with `more=True` were lost with their iteration, the lane
            holds no gradient: call `lane()` again, and fill it.
        more
            Keep the contribution in the lane: the pushes that follow in the same iteration are added to it,
            and the first without `more` sends the sum; `push()`, or a push of the lane, adds nothing and
            sends what stands there. What is not sent before `Job.clock` or `Job.close` is lost, with a
            warning. Default False.
        timeout
            Seconds to wait for the lane to be free. Default: the job's `deadline`.

        Returns
        -------
        int
            The clock that the update is stamped with: the iterations that this worker had completed, 0 in the
            first.

        Raises
        ------
        ShapeError, DtypeError
            `grad` has another shape or dtype than the tensor. The lane is as it was.
        UnknownElement
            A sparse `grad` names an element that the tensor does not have. The lane is as it was.
        NonFiniteError
            The tensor refuses NaN and infinity, and `grad` holds one. The lane is as it was.
        AlreadyPushed
            A push without `more` was made in this iteration.
        OptionError
            No `grad` was given, and the lane holds none; or `more` is no bool.
        LaneTimeout
            The lane was not free in time; `.missing` holds the ranks that the server waits for.
        SettingsError
            The optimizer's settings were changed to invalid values.
        JobClosed
            The job has ended, or this worker was removed from it.
        OptionError
            The tensor's own filter called it in its `send`, or something else that is refused there.
        ShapeError, DtypeError, NonFiniteError
            Likewise of what the `send` of the tensor's own filter (`ps.OwnFilter`) returned. What it raises
            comes through as it is. What is held back, and parts in the lane, are as they were.

        Notes
        -----
        No reply is awaited. Sums are taken in rank order, whatever the order in which the lanes arrive, so
        that equal inputs give equal bits. Stale synchronous parallel: Ho et al. 2013, section 2.

        Examples
        --------
        >>> w.push(np.ones(3, dtype=np.float32))
        0
        """
        return self._push(grad, self._optimizer._packed, more, timeout)

    def _push(self, grad: ArrayLike, settings: Any, more: bool, timeout: float | None) -> int:
        if more is not False:
            more = flag("more", more)
        if self._own is not None:
            own.refuse_inside(self, "push")
        factors = grad if isinstance(grad, Factors) else None
        sparse = None if factors is not None or self._is_dense(grad) else sparse_of(grad)
        if self._own is not None and not more:
            if sparse is not None:
                grad = sparse.dense(self._name, self._shape, self._dtype)
            elif factors is not None:
                grad = self._product(factors)
            is_array = sparse is None and factors is None
            given = self._contribution(grad)
            stamp = own.push(self, self._own, given, settings, timeout, is_array=is_array)
        elif factors is not None:
            u, v, rank = factors.fit(self._name, self._shape, self._dtype)
            stamp = self._core.push_factors(_as_buffer(u), _as_buffer(v), rank, settings, more, timeout)
        elif sparse is None:
            stamp = self._core.push(self._contribution(grad), settings, more, timeout)
        else:
            units, unit, values = sparse.fit(self._name, self._shape, self._dtype)
            stamp = self._core.push_sparse(units, unit, _as_buffer(values), settings, more, timeout)
        unsent = self._job._unsent
        if more:
            unsent.add(self._name)
        elif unsent:
            unsent.discard(self._name)
        return stamp

    def _product(self, factors: Factors) -> Array:
        u, v, rank = factors.fit(self._name, self._shape, self._dtype)
        out: Array = np.zeros(self._shape, self._dtype)
        self._core.product(_as_buffer(u), _as_buffer(v), rank, _as_buffer(out))
        return out

    def push_factors(
        self, u: ArrayLike, v: ArrayLike, *, more: bool = False, timeout: float | None = None
    ) -> int:
        """
        Contribute `u @ v` to a tensor of two dimensions, (m, n).

        The same as `push(u @ v)`, under every consistency and with every rule and filter; but to servers on
        other hosts it is u and v that are sent, some (m + s n) r numbers for m n to a server of s shards, if
        the tensor was declared with a `low_rank` of r or more, no filter of pushes holds anything back, and
        that is half as much at most. On this host the product is written into the lane.

        Parameters
        ----------
        u
            Array of shape (m, r) and of the tensor's dtype, or what `push` takes for one but for sparse ones.
            It may be changed at once, and v too.
        v
            Likewise, of shape (r, n). PowerSGD's P and Q, of shapes (m, r) and (n, r), are `u=P, v=Q.T`. With
            r = 0 the product is zeros.
        more, timeout
            As for `push`. A product of parts is added up in the lane, and sent whole.

        Returns
        -------
        int
            The clock that the update is stamped with.

        Raises
        ------
        ShapeError, DtypeError
            The tensor does not have two dimensions, or u and v are not its factors, or of another dtype. The
            lane is as it was.
        NonFiniteError, AlreadyPushed, OptionError, LaneTimeout, SettingsError, JobClosed
            As of `push`.

        Notes
        -----
        Each element is summed from 0 on in the order of r, without fused multiplications: in float64 for
        float64, in float32 for all else, and rounded once. So it has the same bits wherever it is computed,
        which are not those of `numpy.matmul`.

        Afterwards the lane holds no contribution: `push()` without an argument raises OptionError until
        `lane()` was filled again.

        Examples
        --------
        >>> m = job.tensor("m", shape=(300, 200), low_rank=4)
        >>> m.push_factors(np.ones((300, 4), np.float32), np.ones((4, 200), np.float32))
        0
        """
        return self._push(Factors(u, v), self._optimizer._packed, more, timeout)

    def push_factors_async(
        self, u: ArrayLike, v: ArrayLike, *, more: bool = False, timeout: float | None = None
    ) -> Future[int]:
        """
        `push_factors`, on the job's own thread, as `push_async`.

        Parameters
        ----------
        u, v, more, timeout
            As for `push_factors`. Do not change `u` and `v` until the future is done.

        Returns
        -------
        concurrent.futures.Future
            Holds what `push_factors` returns or raises; what `push_async` says of its future holds of it.

        Raises
        ------
        Nothing by itself.

        Examples
        --------
        >>> m = job.tensor("m.later", shape=(300, 200))
        >>> m.push_factors_async(np.ones((300, 1), np.float32), np.ones((1, 200), np.float32)).result()
        0
        """
        if self._own is not None:
            own.refuse_inside(self, "push_factors_async")
        return self._job._submit_push(self._push, Factors(u, v), self._optimizer._packed, more, timeout)

    def flush(self, *, timeout: float | None = None) -> int | None:
        """
        Send what the tensor's filters hold back, all of it.

        With a filter of pushes that is a push like any other, which brings nothing new: it is the iteration's
        only one, or the last after some with `more`; under BSP every worker makes the same call, and the
        servers apply their rule once more. What is held back of pushes is not in the value: flush before an
        evaluation or a checkpoint that should have it, and before `Job.close`, after which it is gone.

        With a filter of broadcasts, or for a value that is broadcast under SSP or ASP, it is collective, as
        `load` is: once every worker has called it, each of them reads the value itself, with all that has
        been folded. Under BSP all workers call it in the same iteration, and all of them have pushed in it by
        then, or none has.

        A call that raised can be made again. In one iteration each flush after the first pushes nothing more.

        Parameters
        ----------
        timeout
            Seconds to wait for the lane to be free, and for the other workers to call it. Default: the job's
            `deadline` for each.

        Returns
        -------
        int or None
            The clock that the push is stamped with. None, and nothing is pushed, if the tensor was declared
            without a filter of pushes, or with one that holds nothing back.

        Raises
        ------
        AlreadyPushed
            A push without `more` was made in this iteration, which was no flush.
        LaneTimeout
            The lane was not free in time; `.missing` holds the ranks that the server waits for.
        BarrierTimeout
            Where it is collective: not every worker called it in time. What was pushed, was.
        CircularWait
            Likewise: another worker stands elsewhere, such as at a barrier, and waits for this one there.
        FirstFailed, WorkerLost
            Likewise, not on worker 0: it could not do it, or left or was lost before.
        NotDelivered
            This worker's asynchronous pushes were not sent in time.
        OptionError
            `timeout` is not a valid number of seconds.
        JobClosed
            The job has ended, or this worker was removed from it.

        Examples
        --------
        >>> w.flush() is None
        True
        """
        limit = Limit(timeout)
        stamp = self._send_held_back(limit)
        # Last: interrupted behind it, a call that is made again would be another one.
        self._release(limit)
        return stamp

    def _send_held_back(self, limit: Limit[float | None]) -> int | None:
        """The part of a flush that is a push, if there is one."""
        if self._own is not None:
            own.refuse_inside(self, "flush")
        self._job._await_pushes(limit)
        try:
            stamp = self._core.flush(self._optimizer._packed, limit.left())
        except AlreadyPushed as error:
            raise AlreadyPushed(
                str(error),
                "a flush is a push, the iteration's only one: call job.clock(), then flush, on every worker",
            ) from None
        if stamp is not None:
            self._job._unsent.discard(self._name)
        return stamp

    def _release(self, limit: Limit[float | None]) -> None:
        """Collective: lets readers see all of the value, where they may lack something of it."""
        if self._core.lags:
            what = f"flush of `{self.name}` (every worker calls it)"
            # Made again in this iteration it is the same call: a signal handler may have raised at its end.
            says = lambda: checksum((self._job.iteration,))  # noqa: E731
            deed = Deed(what, lambda: self._core.release(None), says)
            self._job._firsts.do(self._job._core, deed, limit.left())

    @property
    def held_back(self) -> HeldBack:
        """
        What the tensor's filter of pushes holds back of this worker's: its norm, and how many elements. It is
        counted anew each time, in as long as a push takes, once the pushes before it have been made.
        """
        self._job._await_pushes()
        norm, elements = self._core.held_back()
        return HeldBack(norm, elements)

    def pressure(self, *, timeout: float | None = None) -> Pressure:
        """
        How the tensor's filters have followed the network, if they do, as `ps.DVF(low, up)` and "auto": when
        each changed its bound, and why. The servers are asked for theirs.

        Parameters
        ----------
        timeout
            Seconds to wait for the servers. Default: the job's `deadline`.

        Returns
        -------
        Pressure
            `push`: of this worker; `broadcast`: of each shard that is home to a part of the tensor.

        Raises
        ------
        DeadlineExceeded, NotDelivered
            A server did not answer, or this worker's pushes were not made in time.
        OptionError
            `timeout` is not a valid number of seconds.
        JobClosed
            The job has ended, or this worker was removed from it.

        Examples
        --------
        >>> w = job.tensor("follows", shape=3, filter=ps.Filters(push=ps.DVF(0.0, 0.5)))
        >>> w.pressure()
        Pressure(push=[], broadcast={})
        """
        limit = Limit(timeout)
        self._job._await_pushes(limit)
        pushes = self._core.pushes_followed(limit.left())
        values = self._core.values_followed(limit.left())
        return Pressure(
            [Pressed(*change) for change in pushes],
            {(server, shard): [Pressed(*change) for change in changes] for server, shard, changes in values},
        )

    @staticmethod
    def _is_dense(grad: ArrayLike) -> bool:
        """Whether a glance says so: most contributions are arrays of NumPy, or the lane."""
        return type(grad) is np.ndarray or grad is _LANE

    def _contribution(self, grad: ArrayLike) -> Any | None:
        # None for what is in the lane. There is no `_lane` before the first `lane()`: a `grad` of None must
        # not be taken for it.
        if grad is _LANE or (grad is self._lane and grad is not None):
            return None
        return self._outgoing(grad)

    def pull(
        self,
        out: ArrayLike | None = None,
        *,
        rows: ArrayLike | None = None,
        indices: ArrayLike | None = None,
        slack: int | None = None,
        exact: bool = False,
        timeout: float | None = None,
    ) -> Array:
        """
        Read the value, or some of it, as fresh as the tensor's consistency asks for.

        Parameters
        ----------
        out
            Writable C-contiguous array of the result's shape and the tensor's `dtype` to fill (NumPy, a torch
            tensor on the CPU, or anything with the buffer protocol). Default: a view is returned, nothing is
            copied under BSP.
        rows
            Read these places along the first dimension alone: n whole numbers from 0 on, in any order, also
            some twice. Only chunks that they touch are fetched and read; on other hosts, waited for.
        indices
            Likewise single elements: n whole numbers, counted over all dimensions as `ravel()` does, or an
            array of shape (dimensions, n).
        slack
            The slack of this one read: how many iterations it may lag behind. Default: the tensor's.
        exact
            Read the value itself, with this worker's pushes: a filter of broadcasts may hold back something
            of it, and what is broadcast under SSP or ASP comes later. It takes an array of the value's size,
            and all of the value comes from other hosts: for evaluations and checkpoints. Without these two
            every pull is exact, and this one copies. What filters of pushes hold back is in no value before
            a `flush`: if this worker holds back any, it warns, once. Default False.
        timeout
            Seconds to wait for the value to be fresh enough. Default: the job's `deadline`.

        Returns
        -------
        numpy.ndarray
            `out`, if it was given. With `rows` a new array of shape (n, ...), the tensor's other dimensions
            behind n; with `indices` one of shape (n,). With `exact`, a new array. Otherwise a read-only array
            of the tensor's shape and dtype: under BSP the model's own memory, which does not change until
            this worker's next push of the tensor, or clock without one, or until a flush of what a filter of
            broadcasts holds back; else this worker's mirror, which does not change until its next pull. Copy
            it to keep it longer, and before `torch.from_numpy`: torch ignores that the array is read-only,
            and writing to memory that is mapped read-only ends the process. Unless the option `lend` is off,
            other pages with the same values may be mapped at its addresses: do not pin it or register it
            with a device (`cudaHostRegister`, RDMA, io_uring), as these would keep the old pages; copy it.

        Raises
        ------
        ShapeError, DtypeError
            `out` has another shape, layout or dtype, cannot be written, or is not an array over its own
            memory; or `rows` or `indices` are not whole numbers, or of another shape.
        UnknownElement
            The tensor has no such row or element. `out` is as it was.
        OptionError
            `slack` is not a whole number of 0 or above, or `exact` is no bool; or both `rows` and `indices`
            are given.
        PullTimeout
            The value was not fresh enough in time; `.missing` holds the ranks that it waits for.
        DeadlineExceeded
            Another thread did not finish filling the mirror in time; or, with `exact`, a server, which the
            message names, did not send the value in time.
        JobClosed
            The job has ended, or this worker was removed from it.

        Notes
        -----
        At position t (the clock, plus one after a push in this iteration) with slack s, the version is at
        least t - s.

        Examples
        --------
        >>> w.pull()
        array([0., 0., 0.], dtype=float32)
        >>> w.pull(out=np.empty(3, dtype=np.float32), slack=0)
        array([0., 0., 0.], dtype=float32)
        >>> w.pull(rows=[2, 0])
        array([0., 0.], dtype=float32)
        """
        if exact is not False:
            exact = flag("exact", exact)
        if rows is not None or indices is not None:
            return self._pull_some(out, rows, indices, slack, exact, timeout)
        if slack is not None:
            slack = check_slack(slack)
        elif out is None and self._stable and not exact:
            self._core.pull(None, timeout)
            # As `_model_view`, here and in `pushpull`: calling it would take a quarter as long as all this.
            return self._model if self._model is not None else self._model_view()
        if exact:
            array = np.empty(self._shape, self._dtype) if out is None else self._incoming(out)
            self._core.pull_whole(array if self._plain else _as_buffer(array), slack, timeout)
            self._tell_of_lacking()
            return array
        if out is not None:
            array = self._incoming(out)
            self._core.pull_into(array if self._plain else _as_buffer(array), slack, timeout)
            return array
        if self._core.stable(slack):
            self._core.pull(slack, timeout)
            return self._model_view()
        self._core.pull_mirror(slack, timeout)
        return self._mirror_view()

    def _tell_of_lacking(self, level: int = 3) -> None:
        """Warns, once, that what was read as exact lacks what this worker's filter of pushes holds back."""
        if self._job._tells_of_lacking(self._name):
            held = HeldBack(*self._core.held_back())
            if held.elements:
                self._job._told.add(self._name)
                warn_of_lacking("what pull(exact=True) reads", {self._name: held}, level)

    def _pull_some(
        self,
        out: ArrayLike | None,
        rows: ArrayLike | None,
        indices: ArrayLike | None,
        slack: int | None,
        exact: bool,
        timeout: float | None,
    ) -> Array:
        if slack is not None:
            slack = check_slack(slack)
        units, unit, shape = gathered(self._name, self._shape, rows, indices)
        array = np.empty(shape, self._dtype) if out is None else target(out, self._name, shape, self._dtype)
        self._core.pull_sparse(units, unit, _as_buffer(array), slack, exact, timeout)
        if exact:
            self._tell_of_lacking(4)
        return array

    def pushpull(
        self,
        grad: ArrayLike = _LANE,
        out: ArrayLike | None = None,
        *,
        slack: int | None = None,
        timeout: float | None = None,
    ) -> Array:
        """
        Contribute, then read a value that includes the contribution (but for one that is broadcast under SSP
        or ASP) and, under BSP, everyone else's of this iteration.

        Parameters
        ----------
        grad, out, slack, timeout
            As for `push` and `pull`; `timeout` bounds both together.

        Returns
        -------
        numpy.ndarray
            As `pull`.

        Raises
        ------
        ShapeError, DtypeError, OptionError
            `grad`, `out` or `slack` does not fit, or there is no gradient. Nothing was contributed.
        NonFiniteError, AlreadyPushed, LaneTimeout, SettingsError
            As for `push`. Nothing was contributed.
        PullTimeout
            The value was not fresh enough in time. The contribution counts.
        JobClosed
            The job has ended, or this worker was removed from it.

        Examples
        --------
        >>> w.pushpull(np.ones(3, dtype=np.float32))
        array([1., 1., 1.], dtype=float32)
        """
        settings = self._optimizer._packed
        # The usual case is one call of the core. Where the job has tensors that were pushed with `more=True`
        # alone, `_push` must note that this one has been pushed as ever.
        is_dense = self._is_dense(grad) or sparse_of(grad) is None
        if out is None and slack is None and self._direct and is_dense and not self._job._unsent:
            self._core.pushpull(self._contribution(grad), settings, timeout)
            return self._model if self._model is not None else self._model_view()
        return self._pushpull(grad, settings, out, slack, timeout)

    def _pushpull(
        self,
        grad: ArrayLike,
        settings: Any,
        out: ArrayLike | None,
        slack: int | None,
        timeout: float | None,
    ) -> Array:
        # Checked before the push: a call that raises because of its arguments must not be
        # carried out in part.
        array = None if out is None else self._incoming(out)
        if slack is not None:
            slack = check_slack(slack)
        limit = None if timeout is None else Limit(timeout)
        self._push(grad, settings, False, timeout)
        return self.pull(array, slack=slack, timeout=None if limit is None else limit.left())

    def push_async(
        self, grad: ArrayLike = _LANE, *, more: bool = False, timeout: float | None = None
    ) -> Future[int]:
        """
        `push`, on the job's own thread, after the asynchronous calls made before it. The optimizer's settings
        are those of the moment of this call.

        Parameters
        ----------
        grad, more, timeout
            As for `push`. Do not change `grad` until the future is done. `lane()`, `load` and
            `optimizer_state` wait for it; a `pull` does not, and may not include it yet.

        Returns
        -------
        concurrent.futures.Future
            Holds what `push` returns or raises. `Job.clock` first waits for it, so it is stamped with the
            iteration that it was made in; if it failed, `Job.clock` raises the error as well.

        Raises
        ------
        Nothing by itself.

        Examples
        --------
        >>> w.push_async(np.ones(3, dtype=np.float32)).result()
        0
        """
        if self._own is not None:
            own.refuse_inside(self, "push_async")
        return self._job._submit_push(self._push, grad, self._optimizer._packed, more, timeout)

    def pull_async(
        self,
        out: ArrayLike | None = None,
        *,
        rows: ArrayLike | None = None,
        indices: ArrayLike | None = None,
        slack: int | None = None,
        timeout: float | None = None,
    ) -> Future[Array]:
        """
        `pull`, on the job's own thread, after the asynchronous calls made before it.

        Parameters
        ----------
        out, rows, indices, slack, timeout
            As for `pull`. Do not use `out`, nor change `rows` or `indices`, before the future is done.

        Returns
        -------
        concurrent.futures.Future
            Holds what `pull` returns or raises. Its position is that of the moment when it runs, not of this
            call.

        Raises
        ------
        Nothing by itself.

        Examples
        --------
        >>> w.pull_async().result()
        array([0., 0., 0.], dtype=float32)
        """
        return self._job._submit(self.pull, out, rows=rows, indices=indices, slack=slack, timeout=timeout)

    def pushpull_async(
        self,
        grad: ArrayLike = _LANE,
        out: ArrayLike | None = None,
        *,
        slack: int | None = None,
        timeout: float | None = None,
    ) -> Future[Array]:
        """
        `pushpull`, on the job's own thread, after the asynchronous calls made before it.

        Parameters
        ----------
        grad, out, slack, timeout
            As for `pushpull`. Leave `grad` and `out` alone until the future is done.

        Returns
        -------
        concurrent.futures.Future
            Holds what `pushpull` returns or raises. `Job.clock` first waits for it.

        Raises
        ------
        Nothing by itself.

        Examples
        --------
        >>> w.pushpull_async(np.ones(3, dtype=np.float32)).result()
        array([1., 1., 1.], dtype=float32)
        """
        if self._own is not None:
            own.refuse_inside(self, "pushpull_async")
        return self._job._submit_push(self._pushpull, grad, self._optimizer._packed, out, slack, timeout)

    def optimizer_state(self, *, timeout: float | None = None) -> dict[str, Array]:
        """
        The optimizer's state, after all of this worker's pushes are folded.

        Parameters
        ----------
        timeout
            Seconds to wait in total. Default: the job's `deadline` for each array.

        Returns
        -------
        dict of str to numpy.ndarray
            Copies by torch.optim's names, of the tensor's shape, float64 for a float64 tensor and float32
            otherwise; and "step", the number of steps taken, as a 0-d int64 array.

        Raises
        ------
        OptionError
            `timeout` is not a valid number of seconds.
        PullTimeout, LaneTimeout, NotDelivered
            This worker's pushes were not folded in time, or asynchronous ones were not sent.
        JobClosed
            The job has ended.

        Examples
        --------
        >>> sorted(job.tensor("v", shape=3, optimizer=ps.Adam()).optimizer_state())
        ['exp_avg', 'exp_avg_sq', 'step']
        """
        limit = Limit(timeout)
        self._job._await_pushes(limit)
        accumulator = self._accumulator()
        state: dict[str, Array] = {
            slot: np.frombuffer(self._core.state(index, limit.left()), dtype=accumulator)
            .reshape(self._shape)
            .copy()
            for index, slot in enumerate(self._core.slots)
        }
        state["step"] = np.asarray(self._core.steps(limit.left()), dtype=np.int64)
        return state

    def load(
        self,
        value: ArrayLike | None = None,
        state: Mapping[str, ArrayLike] | None = None,
        step: int | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """
        Overwrite the value, the optimizer's state or both. Collective: every worker calls it, and rank 0's
        arguments count. What a worker has written into its lane and not pushed is gone: `push()` refuses it.
        What a filter of pushes holds back stays, and the next push adds it to the new value: `flush` before.
        If this worker holds back any, it warns, once.

        Parameters
        ----------
        value
            The new value, of the tensor's shape and dtype. Default: it stays.
        state
            State arrays by name, as `optimizer_state` returns them; "step" in it counts unless `step` is
            given. Arrays that are not named stay.
        step
            Steps that the optimizer has taken. Default: it stays.
        timeout
            Seconds to wait for the other workers to call it. When they have, it is carried out whole, however
            little is left: each wait for the servers has the job's `deadline`. Default: `deadline` here too.

        Raises
        ------
        ShapeError, DtypeError
            An array does not fit. The tensor is as it was.
        SettingsError
            The optimizer keeps no state of that name, or `step` is not a whole number of 0 or above. The
            tensor is as it was.
        BarrierTimeout
            Not every worker called it in time: the tensor is as it was. Or, not on worker 0, worker 0 did not
            come to its end within `deadline`. Or the servers did not answer. The same call again is the same
            load.
        CircularWait
            Another worker stands elsewhere, such as at a barrier, and waits for this one there.
        NotDelivered
            This worker's asynchronous pushes were not sent in time. The tensor is as it was.
        OptionError
            `timeout` is not a valid number of seconds, or a push with `more=True` has not been followed by
            its last part. The tensor is as it was.
        PullTimeout, LaneTimeout
            The servers did not take it within `deadline`, and may have a part of it: load it again.
        FirstFailed
            Not on worker 0: it could not load it, and its own call has raised the error that the message has.
            The tensor is as it was, or has a part of it: load it again on every worker.
        JobClosed
            The job has ended.
        WorkerLost
            Worker 0 left or was lost before it loaded anything, or while it did.

        Examples
        --------
        >>> w.load(value=np.zeros(3, dtype=np.float32))
        """
        pieces, steps = self._pieces(value, state, step)
        if self._own is not None:
            own.refuse_inside(self, "load")
        limit = Limit(timeout)
        what = f"load of `{self.name}` (every worker calls it)"
        self._job._await_pushes(limit)
        if self._name in self._job._unsent:
            raise OptionError(
                f"`{self.name}` cannot be loaded: what was pushed with more=True has not been sent",
                "call push() first, which sends it, or load after the next clock, which drops it",
            )

        if -1 in pieces or (self._job.rank and not pieces):
            self._tell_of_kept()

        def says() -> int:
            return checksum(
                (steps, *(part for slot in sorted(pieces) for part in (slot, _as_buffer(pieces[slot]))))
            )

        deed = Deed(what, lambda: self._write(pieces, steps), says, self._core.loaded)
        self._job._firsts.do(self._job._core, deed, limit.left())

    def _tell_of_kept(self) -> None:
        """Warns, once, of what this worker's filter of pushes will add to the value that is loaded."""
        held = HeldBack(*self._core.held_back())
        if held.elements and self._name not in self._job._told_of_loads:
            self._job._told_of_loads.add(self._name)
            warn_of_kept({self._name: held}, 3)

    def _write(self, pieces: dict[int, Array], steps: int | None) -> None:
        # The caller's time does not count here: used up between two pieces it left the tensor with one of
        # them only.
        if not pieces and steps is None:
            return
        if steps is None:
            steps = self._core.steps(None)
        if not pieces:
            # Not by `pull`: that would tell the script of what it did not ask for.
            value = np.empty(self._shape, self._dtype)
            self._core.pull_whole(_as_buffer(value), None, None)
            pieces = {-1: value}
        for slot, data in pieces.items():
            self._core.load(slot, _as_buffer(data), steps, None)

    def _pieces(
        self, value: ArrayLike | None, state: Mapping[str, ArrayLike] | None, step: int | None
    ) -> tuple[dict[int, Array], int | None]:
        """What `load` writes, by slot (-1: the value), and the step count; all checked."""
        pieces: dict[int, Array] = {}
        step = None if step is None else self._steps(step)
        if value is not None:
            pieces[-1] = contribution(value, self.name, self._shape, self._dtype)
        slots = self._core.slots
        for name, array in (state or {}).items():
            if name == "step":
                step = self._steps(array) if step is None else step
            elif name in slots:
                where = f"{name} of {self.name}"
                pieces[slots.index(name)] = contribution(array, where, self._shape, self._accumulator())
            else:
                raise SettingsError(
                    f"the optimizer of `{self.name}` keeps {', '.join(slots) or 'no state'}, got `{name}`"
                )
        return pieces, step

    def _steps(self, given: Any) -> int:
        """`given`, a number in any form that an optimizer's state may have, as a step count."""
        try:
            steps = int(given)
            if steps == given and 0 <= steps < 2**63 and not isinstance(given, str | bytes):
                return steps
        except (TypeError, ValueError, OverflowError):
            pass
        raise SettingsError(
            f"expected for `{self.name}` a step count, a whole number of 0 or above, got {given!r}"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """A pulled copy. `copy=False` is refused: the value moves on."""
        if copy is False:
            raise OptionError(
                f"`{self.name}` cannot be seen without a copy",
                "use pull(), and mind how long its result is valid",
            )
        return np.array(self.pull(), dtype=dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """A pulled copy, as DLPack; NumPy cannot export bfloat16."""
        return self.pull().copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Memory of the host."""
        return (1, 0)

    def __reduce__(self) -> Any:
        raise not_to_be_sent(f"tensor `{self.name}`", "send a copy of its value: `tensor.pull().copy()`")

    def __repr__(self) -> str:
        return (
            f"Tensor({self.name!r}, shape={self._shape}, dtype={self._dtype.name}, "
            f"optimizer={self._optimizer!r}, consistency={self._core.consistency!r}, "
            f"propagation={described(self._core)}{', borrowed' if self._core.borrowed else ''})"
        )

    def _accumulator(self) -> np.dtype[Any]:
        return np.dtype(np.float64 if self._dtype == np.float64 else np.float32)

    def _array_over(self, memory: _core.Memory) -> Array:
        array: Array = np.frombuffer(memoryview(memory), dtype=self._dtype, count=self.size).reshape(
            self._shape
        )
        return array

    def _model_view(self) -> Array:
        if self._model is None:
            self._model = self._array_over(self._core.model())
        return self._model

    def _mirror_view(self) -> Array:
        if self._mirror is None:
            self._mirror = self._array_over(self._core.mirror())
        return self._mirror

    def _outgoing(self, grad: ArrayLike) -> Any:
        """`grad` as the core takes it; None if it is the lane's memory."""
        if grad is None:
            raise DtypeError(
                f"`{self.name}`: expected a gradient, got None",
                "do not push if there is no gradient (a torch parameter has none before `backward`); push() "
                "without an argument contributes what is in the lane",
            )
        array = contribution(grad, self._name, self._shape, self._dtype)
        if self._lane is not None and array.__array_interface__["data"][0] == self._lane_address:
            return None
        return array if self._plain else _as_buffer(array)

    def _incoming(self, out: ArrayLike) -> Array:
        """The array over `out`'s own memory; raises unless it can be filled."""
        return target(out, self._name, self._shape, self._dtype)


def described(core: _core.Tensor) -> str:
    """Who moves the value, and why, if "auto" has chosen that."""
    why = core.why_propagation
    return repr(core.propagation) + ("" if why is None else f' ("auto": {why})')


def _as_buffer(array: Array) -> Any:
    """
    What the core can read: the buffer protocol does not know bfloat16, only its bits; a 0-d buffer has no
    shape.
    """
    if array.ndim == 0:
        array = array.reshape(1)
    return array.view(np.uint16) if array.dtype == DTYPES["bfloat16"] else array
