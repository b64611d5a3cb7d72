"""
PyTorch: three lines make a script distributed, and its loop stays as it is.

    import penstock as ps

    model, optimizer = ps.torch.distribute(model, optimizer)
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

| folder or file | holds |
|---|---|
| gradients/ | `where="gradients"`: backward ends with averaged gradients, the script's optimizer steps |
| servers/ | `where="servers"`: the servers step, and keep the optimizer's state |
| counters.py | where a step's time goes |
| hooks.py | for those who keep DistributedDataParallel or FSDP2 |
| accelerate.py, lightning.py | for those who have one of these frameworks |
| data.py | each worker its part of a dataset |
| arrivals.py | parameters that come after `distribute` |
| known.py | parameters and modules, without keeping them |
| prefixes.py | the names of a job's models, and what calls that have not returned were for |
| copies.py | copies of a model, and saved ones, are ordinary models |
| broadcast.py | what goes from rank 0 to everyone, once |
| pinned.py | shared memory that a GPU reads and writes itself |
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

try:
    import torch
    import torch.utils.weak
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
except ModuleNotFoundError as error:
    error.add_note("hint: pip install 'penstock-ps[torch]'")
    raise

from .. import _core
from ..compress import Compress, check_compress
from ..consistency import BSP, Consistency, check_propagation, parse, spelled
from ..exceptions import OptionError
from ..filters import Filters, meant
from ..filters import spelled as spelled_filters
from ..flags import flag
from ..gather import Gathering
from ..job import Job, after_the_last, before_leaving, current
from ..parameters import filters_of
from .arrivals import look_away
from .arrivals import owners_of_parameters as _owned
from .broadcast import _described, broadcast
from .counters import Times, stop_counting
from .data import loader, sampler
from .gradients import Averaging
from .gradients.averaging import BUCKET_BYTES, CHECK_EVERY, check_shapes
from .gradients.averaging import check as check_parameters
from .gradients.buffers import KINDS
from .gradients.patience import PATIENCE
from .gradients.script import described, look_after, start_alike
from .prefixes import FIRST, prefixes_of
from .servers.optimizer import DistributedOptimizer
from .servers.rows import tables_asked

__all__ = ["DistributedOptimizer", "distribute", "loader", "no_sync", "sampler", "times", "unwrap"]

M = TypeVar("M", bound=torch.nn.Module)

_MOST_DROPPED = 1000
"""Names of dropped models that are told at a time."""
_DEFAULTS = {
    "check": True,
    "lr_scale": "per-update",
    "check_every": CHECK_EVERY,
    "bucket_bytes": BUCKET_BYTES,
    "patience": PATIENCE,
    "propagation": "pull",
    "sparse_pull": False,
}
"""Of the options that only one mode has."""

_freed: weakref.WeakKeyDictionary[Job, dict[str, list[str]]] = weakref.WeakKeyDictionary()
"""The prefixes of a job's unwrapped models, whose tensors the next model of the kind takes over."""
_dropped: weakref.WeakKeyDictionary[Job, dict[str, list[str]]] = weakref.WeakKeyDictionary()
"""And of those that this worker has dropped: the others may have them still."""
_gatherings: weakref.WeakKeyDictionary[Job, Gathering] = weakref.WeakKeyDictionary()
"""By which workers tell each other what they have dropped."""
_kinds: weakref.WeakKeyDictionary[Averaging, str] = weakref.WeakKeyDictionary()
"""Of models with a prefix that we chose."""
_distributed: Any = torch.utils.weak.WeakIdKeyDictionary()
"""What each model belongs to."""
_looked_after: list[Any] = []
"""The hooks on all optimizers of the process, once there are servers that step."""


def _look_away() -> None:
    """No job is open any more: nothing that torch calls for all optimizers and modules is of use."""
    while _looked_after:
        _looked_after.pop().remove()
    look_away()
    stop_counting()
    for owner in _owners():
        owner.drop_hooks()


after_the_last["torch"] = _look_away


def _look_back(job: Job | None) -> None:
    """A job is about to be left; None: all that are open, as the script has ended."""
    for owner in _owners():
        if job is None or owner.job is job:
            owner.warn_of_no_step()
        if owner.job is job:
            owner.read_the_rest()


def _owners() -> list[DistributedOptimizer]:
    """Those that are there still."""
    found = [one() for one in _distributed.values() if isinstance(one, weakref.ref)]
    return [owner for owner in found if owner is not None]


def __getattr__(name: str) -> Any:
    """What stands on torch.distributed or on a framework is imported when it is asked for."""
    if name in ("accelerate", "hooks", "lightning"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


class Options(TypedDict, total=False):
    """The keywords of `distribute`."""

    where: str | None
    consistency: Consistency | str | None
    job: Job | None
    reduce: str
    buffers: str | None
    overlap: bool | int | str
    check: bool
    lr_scale: str | None
    prefix: str | None
    rescale: float
    clip: float | None
    clip_norm: float | None
    refuse_nonfinite: bool
    filter: Filters | Literal["auto"] | None
    propagation: str
    sparse_pull: bool | str | Iterable[str]
    compress: Compress
    check_every: int
    bucket_bytes: int
    patience: float
    timeout: float | None


@overload
def distribute(model: M, optimizer: None = None, **options: Unpack[Options]) -> M: ...


@overload
def distribute(
    model: M, optimizer: torch.optim.Optimizer, **options: Unpack[Options]
) -> tuple[M, torch.optim.Optimizer]: ...


def distribute(
    model: M,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    where: str | None = None,
    consistency: Consistency | str | None = None,
    job: Job | None = None,
    reduce: str = "mean",
    buffers: str | None = None,
    overlap: bool | int | str = "auto",
    check: bool = True,
    lr_scale: str | None = "per-update",
    prefix: str | None = None,
    rescale: float = 1.0,
    clip: float | None = None,
    clip_norm: float | None = None,
    refuse_nonfinite: bool = False,
    filter: Filters | Literal["auto"] | None = None,  # noqa: A002 (as for tensors)
    propagation: str = "pull",
    sparse_pull: bool | str | Iterable[str] = False,
    compress: Compress = "none",
    check_every: int = CHECK_EVERY,
    bucket_bytes: int = BUCKET_BYTES,
    patience: float = PATIENCE,
    timeout: float | None = None,
) -> M | tuple[M, torch.optim.Optimizer]:
    """
    Train `model` together with the job's other workers. Collective: every worker calls it, with the same
    model.

    Parameters
    ----------
    model
        Any module, on the device that it trains on. Its parameters and buffers become rank 0's. Several that
        one optimizer trains, or a loss that has parameters: an `nn.ModuleList([model, loss])` that you keep.
    optimizer
        With "gradients": any optimizer, or none; its state becomes rank 0's. With "servers":
        torch.optim.SGD, Adagrad, RMSprop, Adam or AdamW, starting from rank 0's state.
    where
        "gradients": when backward ends, `p.grad` holds the average over the workers, as under
        DistributedDataParallel, and the script's own optimizer steps. "servers": the servers take the steps,
        and the optimizer's state exists once in the job, not in each worker. Default: "gradients" under BSP,
        "servers" otherwise.
    consistency
        `ps.BSP()`, `ps.SSP(slack)` or `ps.ASP()`, or the same as text. Default: the job's. "gradients" needs
        BSP.
    job
        Default: the open job of this process, or a new `ps.init()`.
    reduce
        "mean": gradients are averaged over the workers, as DistributedDataParallel does. "sum": summed.
        Default "mean".
    buffers
        With "gradients": what happens to buffers, such as batch statistics, when backward ends. "rank0": all
        workers continue with rank 0's, as under DistributedDataParallel. "mean": with the average. "local":
        with their own, which "servers" always means. Default "rank0".
    overlap
        When gradients leave. With "gradients", "auto" and True: while backward is still running; False: when
        it has ended. With "servers", "auto": while backward is still running, after watching two steps in
        which the script does not touch gradients and learning rates between backward and `step()`; a number:
        at that many backward passes per step, from the start; False: in `step()`, as each worker has left
        them: clipped, say, one by one and then averaged. Default "auto".
    check
        With "servers": compare gradients with what has left, and parameters with what was read, bit for bit
        at each `step()`, which raises OptionError if the script has changed them. It reads both once, and
        costs a copy of the parameters in each worker, unless gradients leave in `step()` under BSP.
        Default True.
    lr_scale
        With "servers" under SSP and ASP, where each worker's gradient is a step of its own. "per-update": the
        learning rates, decays and so on of the groups are those of an iteration, and each of its steps takes
        its part of them. None: each step takes them as they are. Default "per-update".
    prefix
        Start of the tensors' names; with "servers", one that no other model of the job had. Default "model",
        then "model.1", and so on.
    rescale
        Factor on the reduced gradient. Default 1.
    clip
        Then each of its elements is clipped to [-clip, clip]. Default: no clipping.
    clip_norm
        With "servers" under BSP: then the norm of the reduced gradients of all the optimizer's parameters
        together is clipped to this, as by torch's `clip_grad_norm_` in one process on the joined batch;
        `optimizer.total_norm` is what it was. The servers hold a mean as large as the model for it, which
        moves once more, and a step waits twice more. Infinity only measures. Default: no clipping.
    refuse_nonfinite
        Refuse gradients that hold a NaN or an infinity. Default False; a loss scaler needs that.
    filter
        With "servers": what of each parameter's gradient, and of its value, is sent now, and what later, such
        as `ps.Filters(push=ps.DVF(low=1e-3), broadcast=ps.DVF(low=1e-4))`; the same on every worker; no
        `ps.OwnFilter`. "auto": all, unless the network holds training up, in both directions. With a filter
        of pushes, `optimizer.held_back` tells how much waits, `optimizer.flush()` sends it, and each worker
        holds a carry as large as the parameters (twice as large for half precision), and with `check`, but
        for parameters on a GPU, a copy of the gradients. With one of broadcasts parameters are what it has
        let pass: `model.state_dict()` reads the values themselves, and parameters hold them inside
        `with optimizer.exact():`, behind a flush and when the job is closed. Default: all is sent.
    propagation
        With "servers": "pull", "broadcast", "update" or "auto", as for `Job.tensor`; `optimizer.propagation`
        is what was chosen. Under SSP and ASP parameters that are broadcast lack some steps, this worker's
        last ones too, and what is said of a filter of broadcasts holds. With "update", under BSP, parameters
        are float32 or float64, and each worker on another host takes the servers' step itself: it keeps the
        optimizer's state too. Default "pull".
    sparse_pull
        With "servers": of which layers (`nn.Embedding`, `nn.EmbeddingBag`, with `sparse=True`) only the rows
        are pulled that the next forward pass of the layer reads, just before it; their names in the model, or
        True: all that there are, but those with a `forward` of their own. `model.state_dict()` reads the
        whole table, and parameters hold it inside `with optimizer.exact():` and when the job is closed; read
        otherwise, as by `layer.weight`, rows are of different steps. With `check`, only rows are compared
        that were read since the last step. The servers keep such a table once more. Default False: every
        step pulls the whole.
    compress
        As for `Job.tensor`: "none", "lz4", "zstd" or "auto", of gradients and of what comes back, between
        hosts; the same on every worker. Default "none".
    check_every
        With "gradients": backward passes from one comparison of the workers' parameters to the next; 0: they
        are not compared. A comparison reads the parameters once. Default 100.
    bucket_bytes
        With "gradients": smaller gradients travel together up to so many bytes. Default 1 MiB.
    patience
        With "gradients": seconds that a backward pass waits for the other workers while they are alive, with
        a warning each time the job's `deadline` has passed. Default 1800, as torch.distributed has it.
    timeout
        Seconds for each wait while setting up and loading. Default: the job's `deadline`.

    Returns
    -------
    model or (model, optimizer)
        The same model; the optimizer, if one was given. With "gradients" it is the same object. With
        "servers" it is a DistributedOptimizer with the original's parameter groups: step this one; the
        original's `step`, and any other optimizer's of these parameters, raises OptionError while the job is
        open.

    Raises
    ------
    OptionError
        An argument is not valid; the model is distributed already; it has a layer that averages over a
        torch.distributed process group (SyncBatchNorm) and there is none; parameters are neither on the CPU
        nor on a CUDA device; the optimizer has Parameters that the model lacks; DistributedDataParallel is to
        ignore a part of the model. With "gradients": the consistency is not BSP, or there is a filter. With
        "servers": the servers cannot take the optimizer's steps, or another model of the job had the prefix;
        or `sparse_pull` names what is no layer with sparse gradients, or one with a `forward` of its own, or
        a layer of which rows would be pulled has a `max_norm`, or its table another module too.
    DtypeError
        A parameter is not float32, float64, float16 or bfloat16.
    DeclarationConflict
        The workers' models, the settings of their optimizers, or their filters, differ.
    GatherConflict
        What worker 0 sent cannot be read.
    OutOfMemory
        The servers have too little shared memory for the model.
    BarrierTimeout
        Not every worker called it in time.
    SettingsError, ShapeError
        With "servers", on worker 0: the optimizer has a state that is not of its kind, or not of the
        parameters' shapes.
    FirstFailed
        Not on worker 0, whose own call has failed; the message has its error.
    JobClosed
        The job has ended; without `job`, this process has left its job.

    Notes
    -----
    A parameter that several modules share is averaged once; a frozen one when it is unfrozen. A parameter
    without a gradient on some workers counts as zeros there; one without a gradient on all keeps
    `grad is None`. Convert and move the model before this call; a copy of it, or one that was saved as a
    whole, is an ordinary model. A backward pass raises DeclarationConflict if the workers' passes do not
    match or their parameters have come apart, and OptionError if it cannot average what a hook of the script
    has done.

    Examples
    --------
    >>> net = torch.nn.Linear(4, 2)
    >>> net, optimizer = ps.torch.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
    """
    _check_types(model, optimizer, buffers)
    job = job or current()
    where = _where(where, consistency, job)
    if where == "servers":
        _refuse_others(where, check_every=check_every, bucket_bytes=bucket_bytes, patience=patience)
    else:
        _refuse_others(
            where, check=check, lr_scale=lr_scale, propagation=propagation, sparse_pull=sparse_pull
        )
    check_propagation(propagation)
    tables = tables_asked(sparse_pull)
    filtering = _filters_of(filter, where)
    parameters = _trained_by(model, optimizer)
    _refuse_twice(model, parameters)
    check_shapes(parameters)
    refuse_nonfinite = flag("refuse_nonfinite", refuse_nonfinite)
    check_compress(compress)
    declaration = {
        "reduce": reduce,
        "rescale": rescale,
        "clip": clip,
        "refuse_nonfinite": refuse_nonfinite,
        "compress": compress,
    }
    prefixes = prefixes_of(job)
    if where == "servers":
        if optimizer is None:
            raise OptionError(
                'where="servers" needs the optimizer whose steps the servers take, got None',
                "ps.torch.distribute(model, optimizer, ...)",
            )
        if buffers not in (None, "local"):
            raise OptionError(f'expected buffers "local" with where="servers", got {buffers!r}')
        asked = parse(spelled(consistency) or job._core.default_consistency)
        kind = _kind_of(
            where,
            parameters,
            {**declaration, "consistency": asked, "lr_scale": lr_scale, "clip_norm": clip_norm},
            [
                *_settings(
                    optimizer,
                    parameters,
                    {"filter": filtering, "propagation": propagation, "sparse_pull": tables},
                ),
                f"prefix {prefix}",
            ],
        )
        prefix = prefixes.choose(model, kind) if prefix is None else prefix
        distributed = DistributedOptimizer(
            model,
            optimizer,
            job,
            prefix=prefix,
            kind=kind,
            consistency=consistency,
            overlap=overlap,
            check=check,
            lr_scale=lr_scale,
            clip_norm=clip_norm,
            filters=filtering,
            propagation=propagation,
            sparse_pull=tables,
            declaration=declaration,
            timeout=timeout,
        )
        try:
            with prefixes.waiting():
                distributed.begin()
            _note(model, parameters, distributed)
            prefixes.end(prefix)
            return model, distributed
        except BaseException:
            _undo_note(model, distributed)
            distributed.let_go()
            raise
    if clip_norm is not None:
        raise OptionError(
            f'expected clip_norm=None with where="gradients", got {clip_norm!r}',
            "torch.nn.utils.clip_grad_norm_(model.parameters(), ...) before step(), as in one process: "
            "p.grad holds the average",
        )
    if overlap != "auto" and not isinstance(overlap, bool):
        raise OptionError(f'expected overlap "auto", True or False with where="gradients", got {overlap!r}')
    if buffers not in (None, *KINDS):
        raise OptionError(f"expected buffers {', '.join(map(repr, KINDS))}, got {buffers!r}")
    # A worker that says so and one that does not mean the same.
    buffers = buffers or KINDS[0]
    if job.size > 1 and isinstance(optimizer, torch.optim.SparseAdam):
        raise OptionError(
            "SparseAdam steps the rows that a gradient names and leaves the others alone, and the average of "
            "several workers' gradients is dense",
            'take SGD or Adagrad, which where="servers" has step touched rows only; or Adam, which steps all',
        )
    _check_count("check_every", check_every, 0)
    _check_count("bucket_bytes", bucket_bytes, 1)
    patience = _core.seconds(patience)
    check_parameters(parameters)
    named = {**parameters, **dict(model.named_buffers())}
    options = {**declaration, "buffers": buffers, "bucket_bytes": bucket_bytes, "check_every": check_every}
    kind, freed, chosen = _kind_of(where, named, options), list[str](), prefix is None
    with prefixes.waiting():
        if prefix is None:
            prefix = prefixes.choose(model, kind)
            # Before all have agreed nothing is declared by it that could differ: a call that one worker
            # corrects still meets the others'.
            prefixes.begin(prefix, model, None)
            freed = _freed.setdefault(job, {}).setdefault(kind, [])
            if prefix != FIRST:
                freed += _dropped_by_all(job, kind, timeout)
        # One that unwraps a model which another keeps would name other tensors.
        options["memory"] = memory = freed[-1] if freed else prefix
        broadcast(
            job,
            f"{prefix}/start",
            named,
            timeout,
            {name: one for name, one in parameters.items() if one.requires_grad},
            _settings(optimizer, parameters, options),
        )
    if chosen:
        prefixes.begin(prefix, model, kind)
    averaging = Averaging(
        model,
        parameters,
        job,
        prefix=memory,
        declaration=declaration,
        overlap=bool(overlap),
        buffers=buffers,
        check_every=check_every,
        bucket_bytes=bucket_bytes,
        timeout=timeout,
        patience=patience,
    )
    # Nothing hears of it as yet.
    try:
        averaging.hook(model, parameters)
        if optimizer is not None:
            names = {id(parameter): name for name, parameter in parameters.items()}
            same_order = start_alike(optimizer, names, job, f"{prefix}/optimizer", timeout)
            look_after(optimizer, averaging, same_order)
        if job.size > 1:
            job._barrier_of_all(timeout, "distributing its model")
        _note(model, parameters, averaging)
        if chosen:
            _kinds[averaging] = kind
            averaging.when_dropped = _dropped.setdefault(job, {}).setdefault(kind, []).append
            prefixes.end(prefix)
        if freed:
            freed.pop()
        return model if optimizer is None else (model, optimizer)
    except BaseException:
        _undo_note(model, averaging)
        averaging.let_go()
        raise


@contextlib.contextmanager
def no_sync(*models: torch.nn.Module) -> Iterator[None]:
    """
    Inside, backward passes only accumulate gradients in this worker, as under DistributedDataParallel's
    `no_sync`; the first pass outside averages the sums. For several batches with one exchange.

    Parameters
    ----------
    *models
        Models that were given to `distribute` with `where="gradients"`.

    Raises
    ------
    OptionError
        A model is not distributed so. An optimizer's `step()` raises it too, if the last pass before it was
        inside.

    Examples
    --------
    >>> net = ps.torch.distribute(torch.nn.Linear(4, 2))
    >>> with ps.torch.no_sync(net):
    ...     net(torch.ones(1, 4)).sum().backward()
    >>> net(torch.ones(1, 4)).sum().backward()
    """
    with contextlib.ExitStack() as stack:
        for model in models:
            averaging = _distributed.get(model)
            if not isinstance(averaging, Averaging):
                raise OptionError(
                    f'expected models distributed with where="gradients", got {_type_of(model)}',
                    'without sharing, no_sync is not needed; with where="servers" pass overlap=False or the '
                    "number of backward passes per step",
                )
            stack.enter_context(averaging.no_sync())
        yield


def times(model: torch.nn.Module) -> dict[str, float]:
    """
    Where the time of this worker's training steps goes.

    The first call for a model begins to count, and finds zeros; before it, nothing is counted.

    Parameters
    ----------
    model
        A model that was given to `distribute` with `where="gradients"`.

    Returns
    -------
    dict of str to float
        Seconds since the first call. forward: in the model. backward: computing gradients. waiting: for other
        workers and the servers. copying: the rest of the exchange, into shared memory and back. stepping: in
        optimizers of its parameters. And two counts: passes, backward passes that reached the model; steps.
        On a GPU the seconds are those of the host, which runs ahead of it.

    Raises
    ------
    OptionError
        The model is not distributed so.

    Examples
    --------
    >>> net = ps.torch.distribute(torch.nn.Linear(4, 2))
    >>> ps.torch.times(net)["passes"]
    0
    >>> net(torch.ones(1, 4)).sum().backward()
    >>> ps.torch.times(net)["passes"]
    1
    """
    averaging = _distributed.get(model)
    if not isinstance(averaging, Averaging):
        raise OptionError(
            f'expected a model distributed with where="gradients", got {_type_of(model)}',
            "ps.torch.distribute(model) first, and pass the same object here",
        )
    if averaging.times is None:
        averaging.times = Times(model, averaging.known, averaging.job)
    return averaging.times.read()


def unwrap(model: M) -> M:
    """
    Make a distributed model an ordinary one again: its gradients stay this worker's own. Nothing happens to
    its values. On every worker: the next model of the same shapes and options uses its shared memory again.

    Parameters
    ----------
    model
        A model that was given to `distribute` with `where="gradients"`; any other is returned as it is.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    OptionError
        The model is distributed with `where="servers"`: close the job instead.

    Examples
    --------
    >>> net = ps.torch.unwrap(ps.torch.distribute(torch.nn.Linear(4, 2)))
    """
    found = _owner_of(model)
    if isinstance(found, DistributedOptimizer):
        raise OptionError(
            'the model is distributed with where="servers": its steps are taken there',
            "job.close() ends that; the model keeps its values",
        )
    if found is not None:
        found.forget()
        # Not that of a pass which did not end: gradients of it may be there.
        if found in _kinds and found.is_at_rest:
            _freed[found.job][_kinds[found]].append(found.prefix)
        del _distributed[model]
        for parameter in found.known:
            _owned.pop(parameter, None)
    return model


def _type_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _sharded(part: torch.Tensor | torch.nn.Module) -> str | None:
    """What torch calls what a process may have only a part of, by FSDP or tensor parallelism."""
    if isinstance(part, torch.Tensor):
        if getattr(part, "_is_flat_param", None) is True:
            return "FlatParameter"
        # With `use_orig_params`, as the module has it that was wrapped.
        if getattr(part, "_fsdp_flattened", None) is True:
            return "part of a FlatParameter"
    kinds = [kind for kind in type(part).__mro__ if kind.__module__.startswith("torch.distributed")]
    names = {kind.__name__ for kind in kinds} & {"DTensor", "FullyShardedDataParallel"}
    return next(iter(names), None)


def _check_types(model: object, optimizer: object, buffers: str | None) -> None:
    if optimizer is not None and (
        not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer)
    ):
        raise OptionError(
            f"expected a plain torch.optim.Optimizer, got {_type_of(optimizer)}",
            "make one over the model's parameters, such as torch.optim.SGD(model.parameters(), lr=0.1), and "
            "distribute it once",
        )
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise OptionError(
            f"expected a torch.nn.Module, got {_type_of(model)}",
            "put several modules into one torch.nn.ModuleList; a model that torch.jit.script has made cannot "
            "be distributed",
        )
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise OptionError(
            "the model is in a DistributedDataParallel, which averages its gradients already",
            "give `distribute` what is in it, `model.module`",
        )
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if kind := _sharded(part):
            raise OptionError(
                f"`{name or 'the model'}` is a {kind}, of which a process may have only a part",
                "distribute whole models; for replicas of an FSDP2 model see `ps.torch.hooks.replicate`",
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm) and not torch.distributed.is_initialized():
            raise OptionError(
                f"layer `{name}` is a SyncBatchNorm, which averages over a torch.distributed process group, "
                "and there is none",
                "call torch.distributed.init_process_group() first, or keep ordinary batch norms: with "
                'buffers="mean" their running statistics are averaged',
            )
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        # A module may have an answer for every name.
        names = isinstance(ignored, Iterable) and not isinstance(
            ignored, str | torch.nn.Module | torch.Tensor
        )
        ignored = [one for one in ignored if isinstance(one, str)] if names else []
        if buffers == "local":
            # Those stay each worker's own.
            own = {one for one, _ in module.named_buffers()}
            ignored = [one for one in ignored if one not in own]
        if ignored:
            told = ", ".join(f"`{one}`" for one in ignored[:4]) + (", ..." if len(ignored) > 4 else "")
            raise OptionError(
                f"DistributedDataParallel is to ignore {told} of "
                + (f"layer `{name}`" if name else "the model")
                + ", which `distribute` cannot",
                "keep what is each worker's own out of the model and its optimizer, buffers by "
                'buffers="local"; then empty its list `_ddp_params_and_buffers_to_ignore`',
            )


def _where(where: str | None, consistency: Consistency | str | None, job: Job) -> str:
    asked = parse(spelled(consistency) or job._core.default_consistency)
    if where is None:
        return "gradients" if asked == BSP() else "servers"
    if where not in ("gradients", "servers"):
        raise OptionError(f"expected where='gradients' or 'servers', got {where!r}")
    if where == "gradients" and asked != BSP():
        raise OptionError(
            f'where="gradients" averages the gradients of one iteration: it needs ps.BSP(), got `{asked}`',
            'pass where="servers": the servers then take the steps, as stale as you allow',
        )
    return where


def _trained_by(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, torch.Tensor]:
    """
    The model's parameters, and tensors that only the optimizer has; each once. Raises OptionError for a
    Parameter that only the optimizer has: it is another module's, whose buffers we would not see.
    """
    found: dict[str, torch.Tensor] = dict(model.named_parameters())
    known = {id(parameter) for parameter in found.values()}
    for number, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        index = 0
        for parameter in group["params"]:
            if id(parameter) not in known:
                if isinstance(parameter, torch.nn.Parameter):
                    raise _of_another_module(parameter)
                known.add(id(parameter))
                # Among those without a name: where the others stand is no part of it.
                found[f"group{number}.{index}"] = parameter
                index += 1
    return found


def _of_another_module(parameter: torch.nn.Parameter) -> OptionError:
    lazy = isinstance(parameter, torch.nn.UninitializedParameter)
    shape = "without a shape" if lazy else f"of shape {tuple(parameter.shape)}"
    return OptionError(
        f"the optimizer has a parameter {shape} that the model lacks",
        "give all that the optimizer trains as one module, and keep it: "
        "`whole = nn.ModuleList([model, other])`, with `nn.ParameterList([it])` for a parameter alone, then "
        "`ps.torch.distribute(whole, optimizer)`; or make the optimizer anew, if the model was given other "
        "parameters since",
    )


def _refuse_twice(model: torch.nn.Module, parameters: dict[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        owner = _owned[parameter]() if parameter in _owned else None
        if owner is not None and owner.job.closed and isinstance(owner, Averaging):
            # The job that it was averaged by has ended.
            owner.forget()
        elif owner is not None and not owner.job.closed:
            raise OptionError(
                f"parameter `{name}` is distributed already"
                + (": this model was given to `distribute` before" if model in _distributed else ""),
                "distribute each model once; several that one optimizer trains together, in one "
                "torch.nn.ModuleList; `ps.torch.unwrap(model)` ends it",
            )


def _settings(
    optimizer: torch.optim.Optimizer | None, parameters: dict[str, torch.Tensor], options: dict[str, Any]
) -> list[str]:
    """What must be the same on all workers beside the model."""
    told = ", ".join(f"{name}={value}" for name, value in options.items())
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [*(described(optimizer, names) if optimizer is not None else ()), f"options {told}"]


def _kind_of(
    where: str, named: dict[str, torch.Tensor], options: dict[str, Any], settings: Sequence[str] = ()
) -> str:
    """The same for two models whose tensors of the job are alike."""
    lines = [where, *_described(named)]
    # Workers compare it, and each may have a GPU of its own: which of several, and not their numbers.
    devices: dict[torch.device, int] = {}
    for one in named.values():
        place = devices.setdefault(one.device, len(devices))
        lines.append(f"{one.requires_grad} {one.device.type} {place}")
    lines += [str(options), *settings]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _dropped_by_all(job: Job, kind: str, timeout: float | None) -> list[str]:
    """The prefixes of models of the kind that no worker has any more. Collective."""
    mine = _dropped.setdefault(job, {}).setdefault(kind, [])
    # First: who waits at it, or finds it in a circle, reads what it is for.
    job._barrier_of_all(timeout, "distributing its model")
    told = "\n".join([kind, *mine[:_MOST_DROPPED]]).encode()
    gathering = _gatherings.setdefault(job, Gathering("penstock/torch"))
    gathered = gathering.bytes_of_all(
        job, "ps.torch.distribute", "names of dropped models", told, 1 << 20, timeout
    )
    # Of another kind elsewhere: the models differ, which is told with its reason when they are compared.
    lists = [set(data.decode(errors="replace").split("\n")) for data in gathered if data is not None]
    common = sorted(set.intersection(*lists) - {kind}) if all(kind in one for one in lists) else []
    for prefix in common:
        mine.remove(prefix)
    return common


def _note(model: torch.nn.Module, parameters: dict[str, torch.Tensor], owner: Any) -> None:
    # The model goes on in another job: nobody finds that of the last one any more, whose hooks hold it.
    last = _owner_of(model)
    if isinstance(last, DistributedOptimizer) and last is not owner and last.job.closed:
        last.drop_hooks(goes_on=True)
    # An optimizer holds its model: held here, the model would never go.
    _distributed[model] = weakref.ref(owner) if isinstance(owner, DistributedOptimizer) else owner
    for parameter in parameters.values():
        _owned[parameter] = weakref.ref(owner)
    if isinstance(owner, DistributedOptimizer):
        before_leaving["torch"] = _look_back
    if isinstance(owner, DistributedOptimizer) and not _looked_after:
        _looked_after.append(register_optimizer_step_pre_hook(_refuse_stranger))
        _looked_after.append(register_optimizer_step_post_hook(_look_after_wrapper))


def _undo_note(model: torch.nn.Module, owner: Any) -> None:
    if _owner_of(model) is owner:
        del _distributed[model]
    for parameter, held in list(_owned.items()):
        if held() is owner:
            del _owned[parameter]


def _refuse_stranger(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """
    Before each step of an optimizer: raises OptionError if the servers step its parameters, unless it is a
    wrapper of the one that has them do so.
    """
    if isinstance(optimizer, DistributedOptimizer):
        return
    for owner in _steppers_of(optimizer):
        if not _holds(optimizer, owner):
            owner.refuse_step_of(optimizer)
        owner.step_of_wrapper_begins()


def _look_after_wrapper(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """After each step of an optimizer: raises OptionError if a wrapper has stepped by itself."""
    if not isinstance(optimizer, DistributedOptimizer):
        for owner in _steppers_of(optimizer):
            owner.step_of_wrapper_ends()


def _steppers_of(optimizer: torch.optim.Optimizer) -> list[DistributedOptimizer]:
    """Those that have the servers step its parameters."""
    found: dict[int, DistributedOptimizer] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter in _owned:
                owner = _owned[parameter]()
                if isinstance(owner, DistributedOptimizer) and not owner.job.closed:
                    found[id(owner)] = owner
    return list(found.values())


def _holds(wrapper: torch.optim.Optimizer, inner: DistributedOptimizer) -> bool:
    """Whether the other is among its attributes, or among those of an optimizer that it wraps."""
    seen: set[int] = set()
    to_see = [wrapper]
    while to_see:
        one = to_see.pop()
        if one is inner:
            return True
        if id(one) in seen or isinstance(one, DistributedOptimizer):
            continue
        seen.add(id(one))
        for value in vars(one).values():
            if isinstance(value, dict | list | tuple):
                held = list(value.values() if isinstance(value, dict) else value)
            else:
                held = [value]
            to_see += [other for other in held if isinstance(other, torch.optim.Optimizer)]
    return False


def _owner_of(model: object) -> Any:
    """What averages the model's gradients, or takes its steps; None if it is not distributed."""
    found = _distributed.get(model)
    return found() if isinstance(found, weakref.ref) else found


def _refuse_others(where: str, **given: object) -> None:
    """Options of the other mode do nothing here: whoever gives one expects something."""
    for name, value in given.items():
        if value != _DEFAULTS[name]:
            other = "servers" if where == "gradients" else "gradients"
            raise OptionError(
                f'expected no {name} with where="{where}", got {value!r}',
                f'pass where="{other}", or leave out {name}',
            )


def _filters_of(asked: Filters | Literal["auto"] | None, where: str) -> Filters:
    """What `filter` means; raises OptionError if it is no filter, or one in a mode that has none."""
    # What is one at all comes first.
    spelled_filters(meant(asked))
    if where == "gradients" and meant(asked) not in (None, Filters()):
        raise OptionError(
            f'expected no filter with where="gradients", got {asked!r}: there p.grad is the average, which '
            "the script clips, unscales and skips as such; with a filter it would lack what is held back, "
            "and have what was held back of earlier ones, in whatever scale those were",
            'pass where="servers": the servers take the steps, and each worker\'s pushes are filtered',
        )
    return filters_of(asked) or Filters()


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OptionError(f"expected {name} as a whole number of {least} or above, got {value!r}")
