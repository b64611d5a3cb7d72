"""Parameters that live on the servers, which take the steps: `ps.jax.distribute`."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..arrays import Array
from ..compress import check_compress
from ..consistency import Consistency, check_propagation, parse, spelled
from ..exceptions import DeclarationConflict, OptionError
from ..filters import HeldBack, Pressure
from ..flags import flag
from ..job import Job
from ..limit import Limit
from ..optim import Optimizer, Replace, divisors, updates_in
from ..parameters import filters_of, propagation_of
from ..tensor import Tensor
from ..unsent import warn_of_lacking
from .calls import effects_barrier, is_traced, on_host, packed
from .leaves import Group, Tensors, Tree, layout_of
from .registry import known_calls
from .together import together

_names: weakref.WeakKeyDictionary[Job, dict[str, list[str] | None]] = weakref.WeakKeyDictionary()


def names_of(job: Job) -> dict[str, list[str] | None]:
    """
    Names of earlier calls, with what one that has not returned was for; None of one that has: to declare its
    tensors for other parameters would keep its values.
    """
    return _names.setdefault(job, {})


class Served:
    """
    A pytree of parameters on the servers. Made by `ps.jax.distribute`.

    Examples
    --------
    >>> served = ps.jax.distribute({"w": jnp.zeros(2)}, ps.SGD(0.5))
    >>> served.push_pull({"w": jnp.ones(2)})
    {'w': Array([-0.5, -0.5], dtype=float32)}
    """

    def __init__(
        self,
        tree: Tree,
        places: list[int],
        job: Job,
        name: str,
        declaration: dict[str, Any],
        rate_divisor: float,
        again: bool,
    ) -> None:
        self._tree = tree
        self._job = job
        self._timeout: float | None = declaration["timeout"]
        self._rate_divisor = rate_divisor
        self._filtered = declaration["filter"] is not None
        self._flushed: tuple[int, int, list[int]] | None = None
        self._told = False
        self._begun = -1
        """The iteration in which gradients were contributed last."""
        self._lines = tree.lines()
        self._places = places
        values = [tree.values[place] for place in places]
        self._layout = layout_of(tuple(tree.leaves[place] for place in places))
        flats = iter(self._layout.pack_on_host(values))
        # Only the devices count from here on, and a small leaf tells them.
        self._like = sorted(values, key=lambda value: int(value.size))[:1]
        for place in places:
            tree.values[place] = None

        def declare(group: Group) -> Tensor:
            flat = next(flats)
            tensor = job._tensor((name, group.name), f"{name}/{group.name}", flat, **declaration)
            if again:
                # What a call that failed has declared keeps its value.
                state = {slot: np.zeros(tensor.shape, tensor._accumulator()) for slot in tensor._core.slots}
                tensor.load(flat, state, 0, timeout=self._timeout)
            return tensor

        self._tensors = Tensors(self._layout, declare)
        self._propagation = propagation_of(self._tensors.all, declaration["propagation"])
        self._mode = declaration["consistency"]

    def push_pull(self, grads: Any, *, lr: Any = None) -> Any:
        """
        Contribute gradients, complete an iteration, and read the parameters as fresh as the consistency asks
        for. Inside `jax.jit` too, where the order of such calls is kept.

        Parameters
        ----------
        grads
            This worker's gradients: a pytree like the parameters.
        lr
            A learning rate for this step and those after it, alike on every worker: a number, or a scalar
            that `jit` computes, as from an optax schedule. Default: it stays.

        Returns
        -------
        pytree
            The parameters: those of the next iteration.

        Raises
        ------
        DeclarationConflict
            `grads` is not like the parameters. Nothing was contributed.
        OptionError
            As for `average`. Nothing was contributed.
        SettingsError
            `lr` is out of range, or the optimizer has none.
        NonFiniteError
            The parameters were distributed with `refuse_nonfinite`, and there is one.
        LaneTimeout, PullTimeout
            Other workers or the servers were too late.
        JobClosed
            The job has ended.
        JaxRuntimeError
            Inside `jit`: any of these, as text.

        Examples
        --------
        >>> served = ps.jax.distribute(jnp.zeros(2), ps.SGD(0.5))
        >>> jax.jit(served.push_pull)(jnp.ones(2))
        Array([-0.5, -0.5], dtype=float32)
        """
        given = Tree(grads)
        lines = given.lines()
        if lines != self._lines:
            differing = [pair for pair in zip(lines, self._lines, strict=False) if pair[0] != pair[1]]
            got, expected = differing[0] if differing else (f"{len(lines)} leaves", f"{len(self._lines)}")
            raise DeclarationConflict(
                f"gradients are not like the parameters: expected {expected}, got {got}",
                "give gradients of the same structure, shapes and element types, as jax.grad does",
            )
        arguments = [given.values[place] for place in self._places]
        rate = [] if lr is None else [jax.numpy.asarray(lr, jax.numpy.float32)]

        def host(job: Job, arrays: list[Array], values: list[Array]) -> None:
            flats = arrays[: len(self._tensors.all)]

            def step() -> None:
                if rate:
                    for tensor in self._tensors.all:
                        tensor.set_lr(float(arrays[-1]) / self._rate_divisor)
                self._begun = job.iteration
                self._tensors.push(flats, self._timeout)
                job.clock()
                self._tensors.pull(values, None, self._timeout)

            # The clock is the job's: one call at a time, whichever parameters it is for.
            together(job).in_turn("push_pull", step)

        return self._rebuilt(packed(self._job, host, self._layout, arguments, rate))

    @property
    def propagation(self) -> str:
        """
        Who moves the parameters between hosts, such as "pull". What "auto" has chosen, and why, is in
        the `repr`.
        """
        return self._propagation[0]

    def __repr__(self) -> str:
        return f"Served({len(self._places)} leaves, {self._mode}, propagation={self._propagation[1]})"

    def flush(self) -> None:
        """
        Send all that the filters hold back, and complete the iteration. Collective: each leaf's tensor of
        which some worker holds something back takes a step. Outside of `jax.jit`. Without a filter nothing
        happens.

        With a filter of broadcasts, or parameters that are broadcast under SSP and ASP, every worker then
        reads all that was folded. Else what others flush is read as late as all that they push.

        Raises
        ------
        OptionError
            It was called inside `jit`, or behind a `push_pull` of this iteration that has failed, or another
            thread is in a call of this module.
        LaneTimeout, PullTimeout, BarrierTimeout, GetTimeout
            Other workers or the servers were too late. The call can be made again.
        CircularWait
            Another worker waits for this one elsewhere.
        FirstFailed, WorkerLost
            Worker 0 could not do it, or left or was lost before.
        JobClosed
            The job has ended.

        Examples
        --------
        >>> half = ps.Filters(push=ps.TopK(0.5))
        >>> served = ps.jax.distribute(jnp.zeros(2), ps.SGD(1.0), filter=half)
        >>> served.push_pull(jnp.array([1.0, 2.0]))
        Array([ 0., -2.], dtype=float32)
        >>> served.flush()
        >>> served.pull()
        Array([-1., -2.], dtype=float32)
        """
        if is_traced([jax.numpy.zeros(())]):
            raise OptionError(
                "expected a flush outside of `jax.jit`, got one inside",
                "flush between steps: before an evaluation, a checkpoint or the end",
            )
        # A compiled program may still be making a call.
        effects_barrier()
        known_calls.check()
        lags = any(tensor._core.lags for tensor in self._tensors.all)
        if not lags and not self._filtered:
            return
        if self._begun == self._job.iteration:
            raise OptionError(
                "expected a flush before or behind a whole push_pull, got one behind one that has failed",
                "job.clock() ends the iteration with what was contributed: then flush, or push_pull",
            )
        together(self._job).in_turn("flush", self._flush)

    def _flush(self) -> None:
        now = self._job.iteration
        if self._flushed is None or self._flushed[0] != now:
            held = np.array([tensor.held_back.elements for tensor in self._tensors.all], np.int64)
            # All take the step of a tensor, or none does.
            totals = self._job.sum(held, timeout=self._timeout) if self._filtered else held
            self._flushed = now, 0, list(totals)
        # Made again, it goes on where it was: what is collective was done by all, and would be another call.
        _, start, totals = self._flushed
        for place in range(start, len(self._tensors.all)):
            tensor = self._tensors.all[place]
            if totals[place]:
                tensor.flush(timeout=self._timeout)
            else:
                tensor._release(Limit(self._timeout))
            self._flushed = now, place + 1, totals
        self._job.clock()

    def pressure(self) -> dict[str, Pressure]:
        """How the filters have followed the network: by tensor, as `Tensor.pressure`."""
        effects_barrier()
        return {tensor.name: tensor.pressure(timeout=self._timeout) for tensor in self._tensors.all}

    @property
    def held_back(self) -> HeldBack:
        """
        What the filter of pushes holds back of this worker's gradients: its norm, of all parameters together,
        and how many elements; of a complex one, of real and imaginary part. 0 without a filter.
        """
        effects_barrier()
        each = [tensor.held_back for tensor in self._tensors.all]
        return HeldBack(math.hypot(*(one.norm for one in each)), sum(one.elements for one in each))

    def pull(self, *, slack: int | None = None, exact: bool = False) -> Any:
        """
        Read the parameters.

        Parameters
        ----------
        slack
            How many iterations they may lag behind. Default: the consistency's. At the end of training, 0:
            with everybody's contributions.
        exact
            The parameters themselves: a filter of broadcasts may hold back something of them, and what is
            broadcast under SSP or ASP comes later. Default False.

        Returns
        -------
        pytree
            The parameters.

        Raises
        ------
        OptionError
            `slack` is not a whole number of 0 or above, or `exact` is no bool; or it was called inside
            `shard_map` or `pmap` over several devices.
        PullTimeout
            They were not fresh enough in time.
        JobClosed
            The job has ended.

        Examples
        --------
        >>> ps.jax.distribute(jnp.zeros(2), ps.SGD(0.5)).pull(slack=0)
        Array([0., 0.], dtype=float32)
        """
        exact = flag("exact", exact)
        found = on_host(
            self._job,
            lambda _job, _none, values: self._tensors.pull(values, slack, self._timeout, exact),
            [],
            self._layout.shapes(),
            self._like * len(self._tensors.all),
        )
        if exact:
            self._tell_of_lacking()
        return self._rebuilt(self._layout.unpack(found))

    def _tell_of_lacking(self) -> None:
        """Warns, once, that what was read as exact lacks what this worker's filter of pushes holds back."""
        if self._told:
            return
        each = {tensor.name: tensor.held_back for tensor in self._tensors.all}
        held = {name: one for name, one in each.items() if one.elements}
        if held:
            self._told = True
            warn_of_lacking("what pull(exact=True) reads", held, 3)

    def _rebuilt(self, values: Sequence[Any]) -> Any:
        return self._tree.rebuilt(dict(zip(self._places, values, strict=True)))


def serve(
    params: Any,
    optimizer: Optimizer,
    job: Job,
    name: str | None,
    declaration: dict[str, Any],
    consistency: Consistency | str | None,
    lr_scale: str | None,
    timeout: float | None,
) -> Served:
    """What `ps.jax.distribute` does."""
    if not isinstance(optimizer, Optimizer):
        raise OptionError(
            f"expected an optimizer of penstock, such as ps.Adam(1e-3), got {type(optimizer).__name__}",
            "the servers cannot run optax: with it use ps.jax.average(grads), under BSP",
        )
    declaration["filter"] = filters_of(declaration["filter"], replaces=isinstance(optimizer, Replace))
    check_propagation(declaration["propagation"])
    check_compress(declaration["compress"])
    tree = Tree(params)
    places = tree.shared("the parameter ")
    if any(isinstance(tree.values[place], jax.core.Tracer) for place in places):
        raise OptionError(
            "expected parameters, got values inside `jax.jit`",
            "distribute before; `push_pull` works inside",
        )
    mode = parse(spelled(consistency) or job._core.default_consistency)
    divided = divisors(optimizer._row.name, updates_in(lr_scale, mode, job.size))
    optimizer = optimizer.copy()
    for setting, divisor in divided.items():
        setattr(optimizer, setting, getattr(optimizer, setting) / divisor)
    lines = [*tree.lines(), f"{optimizer!r}, {mode}, {declaration}"]
    names = names_of(job)
    if name is None:
        name = next(one for one in map(_chosen, itertools.count()) if names.get(one, lines) == lines)
    elif name in names and names[name] is None:
        raise OptionError(
            f"name `{name}` was used before in this job: its tensors have the values and the optimizer state "
            "of those parameters",
            "pass another name, or none: then each call has its own",
        )
    shared = together(job)

    def agree() -> bool:
        words = f"distribute of `{name}`"
        again = shared.agree(job, "ps.jax.distribute", words, lines, timeout, name in names)
        names[name] = lines
        return again

    # A compiled program may still be making a call.
    effects_barrier()
    again = shared.in_turn("ps.jax.distribute", agree)
    settings = {**declaration, "optimizer": optimizer, "consistency": mode, "timeout": timeout}
    served = Served(tree, places, job, name, settings, divided.get("lr", 1.0), again)
    names[name] = None
    return served


def _chosen(number: int) -> str:
    """The name of parameters without one."""
    return f"params.{number}" if number else "params"
