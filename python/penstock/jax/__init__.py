"""
JAX: pytrees in, pytrees out, outside of `jax.jit` and inside it.

    import penstock as ps

    params = ps.jax.broadcast(params)                      # once: all workers start from rank 0's

    @jax.jit
    def step(params, state, batch):
        grads = ps.jax.average(jax.grad(loss)(params, batch))
        updates, state = optimizer.update(grads, state)    # any optax optimizer
        return optax.apply_updates(params, updates), state

| file | holds |
|---|---|
| leaves.py | pytrees, and the tensors of the job that their leaves are in |
| calls.py | calls on the host, at once or from a compiled program |
| compiled.py | how a compiled program calls |
| registry.py | those calls by number, and arrays over the memory that XLA hands over |
| together.py | averages and broadcasts |
| served.py | parameters on the servers, which take the steps: for SSP and ASP |
"""

from __future__ import annotations

from typing import Any, Literal

try:
    import jax
except ModuleNotFoundError as error:
    error.add_note("hint: pip install 'penstock-ps[jax]'")
    raise

from ..arrays import Array
from ..compress import Compress
from ..consistency import Consistency
from ..filters import Filters
from ..job import Job, current
from ..optim import Optimizer
from .calls import on_host, packed
from .leaves import Tree, layout_of
from .served import Served, serve
from .together import together

__all__ = ["Served", "average", "broadcast", "distribute"]

_struct: Any = jax.ShapeDtypeStruct


def average(grads: Any, *, job: Job | None = None, timeout: float | None = None) -> Any:
    """
    The mean of a pytree over the job's workers: gradients, before any optimizer takes its step. Collective,
    outside of `jax.jit` and inside it.

    Parameters
    ----------
    grads
        A pytree of the same structure, shapes and element types on every worker: float32, float64, float16,
        bfloat16, or complex. Gradients of whole numbers (`float0`) and empty leaves stay as they are.
    job
        Default: the open job of this process, or a new `ps.init()`.
    timeout
        Seconds for each wait. Default: the job's `deadline`.

    Returns
    -------
    pytree
        JAX arrays, on their leaves' devices: the same bits on every worker.

    Raises
    ------
    DtypeError
        A leaf holds whole numbers, booleans or no numbers: `job.mean` takes those. Nothing was sent.
    OptionError
        It was called inside `shard_map` or `pmap` over several devices, or while another thread of this
        worker is in such a call. Nothing was sent.
    DeclarationConflict
        The workers' trees differ; the error names the first leaf. Raised on every worker, at once.
    GatherConflict
        Another worker makes another call, or is in another iteration. Raised on every worker, at once.
    GetTimeout, PullTimeout, LaneTimeout
        Not every worker came in time. Repeat the call to continue waiting: what this worker gave first
        counts.
    WorkerLost
        A worker left the job before the first of these calls. Later, the mean is over those that remain.
    OutOfMemory
        The first time: there is no room for the tensors on the servers.
    JobClosed
        The job has ended.
    JaxRuntimeError
        Inside `jit`: any of these, as text, where the result is awaited; but DtypeError, and OptionError for
        several devices, come while the program is traced.

    Notes
    -----
    Each call completes an iteration of the job (`job.clock`), under BSP. A tree that is given the first time
    declares tensors: one for all its leaves under 1 MiB of an element type, and one for each larger leaf.
    Half types are summed in float32. Inside `jit` it has its place in the order of `io_callback`s: it cannot
    be mapped by `vmap`, differentiated, or run on several devices at once.

    Examples
    --------
    >>> ps.jax.average({"w": jnp.ones(2)})
    {'w': Array([1., 1.], dtype=float32)}
    >>> jax.jit(ps.jax.average)(2.0)
    Array(2., dtype=float32)
    """
    tree = Tree(grads)
    places = tree.shared("the gradient ")
    layout, lines = layout_of(tuple(tree.leaves[place] for place in places)), tree.lines()

    def host(job: Job, flats: list[Array], means: list[Array]) -> None:
        shared = together(job)
        shared.in_turn("ps.jax.average", lambda: shared.average(job, layout, lines, flats, means, timeout))

    means = packed(job, host, layout, [tree.values[place] for place in places])
    return tree.rebuilt(dict(zip(places, means, strict=True)))


def broadcast(tree: Any, *, job: Job | None = None, timeout: float | None = None) -> Any:
    """
    Rank 0's values of a pytree, on every worker, bit by bit: parameters, an optimizer's state, random keys.
    Collective, outside of `jax.jit` and inside it.

    Parameters
    ----------
    tree
        A pytree of the same structure, shapes and element types on every worker.
    job
        Default: the open job of this process, or a new `ps.init()`.
    timeout
        Seconds for each wait. Default: the job's `deadline`.

    Returns
    -------
    pytree
        JAX arrays, on their leaves' devices.

    Raises
    ------
    DtypeError
        A leaf is no array. Nothing was sent.
    OptionError
        As for `average`.
    DeclarationConflict, GatherConflict
        The workers' trees or calls differ. Raised on every worker, at once.
    GetTimeout, BarrierTimeout, PullTimeout
        Not every worker came in time.
    WorkerLost
        Worker 0 has left the job; or another has, before the first of these calls.
    OutOfMemory
        There is no room for a window of 16 MiB on the servers.
    FirstFailed
        Not on worker 0, whose own call has failed; the message has its error.
    JobClosed
        The job has ended.
    JaxRuntimeError
        Inside `jit`: any of these as text, as for `average`.

    Examples
    --------
    >>> ps.jax.broadcast({"step": 3, "w": jnp.ones(2)})["step"]
    Array(3, dtype=int32)
    """
    given = Tree(tree)
    lines = given.lines()
    is_key = [bool(jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)) for leaf in given.leaves]
    places = [
        place for place, leaf in enumerate(given.leaves) if leaf.size and leaf.dtype != jax.dtypes.float0
    ]
    values = [
        jax.random.key_data(given.values[place]) if is_key[place] else given.values[place] for place in places
    ]

    def host(job: Job, arrays: list[Array], results: list[Array]) -> None:
        shared = together(job)
        shared.in_turn("ps.jax.broadcast", lambda: shared.broadcast(job, lines, arrays, results, timeout))

    shapes = [_struct(value.shape, value.dtype) for value in values]
    results = dict(zip(places, on_host(job, host, values, shapes, values), strict=True))
    for place in places:
        if is_key[place]:
            kind = jax.random.key_impl(given.values[place])
            results[place] = jax.random.wrap_key_data(results[place], impl=kind)
    return given.rebuilt(results)


def distribute(
    params: Any,
    optimizer: Optimizer,
    *,
    consistency: Consistency | str | None = None,
    job: Job | None = None,
    name: str | None = None,
    reduce: str = "mean",
    rescale: float = 1.0,
    clip: float | None = None,
    refuse_nonfinite: bool = False,
    lr_scale: str | None = "per-update",
    filter: Filters | Literal["auto"] | None = None,  # noqa: A002 (as for tensors)
    propagation: str = "pull",
    compress: Compress = "none",
    timeout: float | None = None,
) -> Served:
    """
    Let the servers hold the parameters and take the steps: for training with bounded staleness (SSP, ASP),
    and for optimizer state that exists once in the job. Collective.

    Parameters
    ----------
    params
        A pytree of float32, float64, float16, bfloat16 or complex arrays. Rank 0's values count.
    optimizer
        One of penstock's, such as `ps.SGD(0.1)` or `ps.Adam(1e-3)`. The servers cannot run optax: with it,
        use `average`.
    consistency
        `ps.BSP()`, `ps.SSP(slack)` or `ps.ASP()`, or the same as text. Default: the job's.
    job
        Default: the open job of this process, or a new `ps.init()`.
    name
        Start of the tensors' names, with which no other call of the job has returned. Default "params", then
        "params.1", and so on; the same again where a call for the same parameters has failed.
    reduce, rescale, clip, refuse_nonfinite
        As for `Job.tensor`.
    lr_scale
        Under SSP and ASP, where each worker's gradient is a step of its own. "per-update": the optimizer's
        learning rate, decays and so on, and the rates that `push_pull` is given, are those of an iteration,
        and each of its steps takes its part of them. None: each step takes them as they are. Default
        "per-update".
    filter
        What of the gradients and of the parameters is sent now, and what later, such as
        `ps.Filters(push=ps.TopK(0.01))`, or "auto", as for `Job.tensor`; no `ps.OwnFilter`. Small leaves are
        filtered together. `served.flush()` sends what is held back, `served.held_back` tells how much.
        Default: all is sent.
    propagation
        "pull", "broadcast", "update" or "auto", as for `Job.tensor`; `served.propagation` is what was chosen.
        Default "pull".
    compress
        "none", "lz4", "zstd" or "auto", as for `Job.tensor`. Default "none".
    timeout
        Seconds for each wait. Default: the job's `deadline`.

    Returns
    -------
    Served
        Its `push_pull(grads)` contributes gradients and returns parameters.

    Raises
    ------
    OptionError
        The optimizer is not penstock's, or an argument is out of range; other parameters of the job have the
        name; or another thread is in a call of this module.
    DtypeError
        A leaf holds no floating point numbers.
    DeclarationConflict, GatherConflict
        The workers' trees, optimizers or calls differ. Raised on every worker, at once.
    GetTimeout
        Not every worker came in time.
    WorkerLost
        A worker left the job before the first of these calls.
    OutOfMemory
        There is no room for the parameters on the servers.
    BarrierTimeout, FirstFailed
        A call that had failed was made again, and another worker did not come, or worker 0's own call has
        failed once more.
    JobClosed
        The job has ended.

    Notes
    -----
    Under SSP and ASP every worker's contribution is a step of its own, with its gradient divided by the
    number of workers n if `reduce` is "mean". So in an iteration Adam counts n steps, and with
    `lr_scale=None` weight decay works n times.

    Examples
    --------
    >>> served = ps.jax.distribute({"w": jnp.zeros(2)}, ps.SGD(0.5), consistency=ps.SSP(2))
    >>> served.push_pull({"w": jnp.ones(2)})["w"]
    Array([-0.5, -0.5], dtype=float32)
    """
    job = job or current()
    declaration = {
        "reduce": reduce,
        "rescale": rescale,
        "clip": clip,
        "refuse_nonfinite": refuse_nonfinite,
        "filter": filter,
        "propagation": propagation,
        "compress": compress,
    }
    return serve(params, optimizer, job, name, declaration, consistency, lr_scale, timeout)
