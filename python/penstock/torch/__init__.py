"""
PyTorch: three lines make a script distributed, and its loop stays as it is.

    import penstock as ps

    model, optimizer = ps.torch.distribute(model, optimizer, consistency=ps.BSP())
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

| file | holds |
|---|---|
| rules.py | which rule of the servers a torch optimizer is |
| delivery.py | when a gradient leaves |
| transfer.py, cuda.py | how bytes move between a parameter and the servers |
| optimizer.py | torch's interface over all that |
| broadcast.py | what goes from rank 0 to everyone, once |
"""

from __future__ import annotations

import weakref
from typing import TypeVar

try:
    import torch
except ModuleNotFoundError as error:
    error.add_note("hint: pip install 'penstock-ps[torch]'")
    raise

from ..consistency import Consistency
from ..exceptions import OptionError
from ..job import Job, current
from .optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer", "distribute"]

M = TypeVar("M", bound=torch.nn.Module)

_models_of: weakref.WeakKeyDictionary[Job, int] = weakref.WeakKeyDictionary()


def _type_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def distribute(
    model: M,
    optimizer: torch.optim.Optimizer,
    *,
    consistency: Consistency | str | None = None,
    job: Job | None = None,
    reduce: str = "mean",
    overlap: bool | int | str = "auto",
    prefix: str | None = None,
    rescale: float = 1.0,
    clip: float | None = None,
    refuse_nonfinite: bool = False,
    timeout: float | None = None,
) -> tuple[M, DistributedOptimizer]:
    """
    Train `model` together with the job's other workers. Collective: every worker calls it, with the same
    model.

    Parameters
    ----------
    model
        Any module, on the device that it trains on. Its parameters and buffers become rank 0's.
    optimizer
        torch.optim.SGD, Adagrad, RMSprop, Adam or AdamW: the servers take its steps, starting from rank 0's
        state. Any other optimizer, under BSP: it steps in each worker, on gradients that the servers average.
    consistency
        `ps.BSP()`, `ps.SSP(slack)` or `ps.ASP()`, or the same as text. Default: the job's.
    job
        Default: the open job of this process, or a new `ps.init()`.
    reduce
        "mean": gradients are averaged over the workers, as DistributedDataParallel does. "sum": summed.
        Default "mean".
    overlap
        When gradients leave. "auto": after watching two steps, while backward is still running, if the script
        does not touch gradients and learning rates between backward and `step()`; otherwise in `step()`. A
        number: at that many backward passes per step, from the start. False: always in `step()`. Default
        "auto".
    prefix
        Start of the tensors' names, `{prefix}/{parameter}`. Default "model", then "model.1", and so on.
    rescale
        Factor on the reduced gradient. Default 1.
    clip
        Then each of its elements is clipped to [-clip, clip]. Default: no clipping.
    refuse_nonfinite
        Refuse gradients that hold a NaN or an infinity. Default False.
    timeout
        Seconds for each wait while setting up and loading. Default: the job's `deadline`.

    Returns
    -------
    (model, optimizer)
        The same model, and a torch.optim.Optimizer with the original's parameter groups. Step this one: the
        original's `step` raises OptionError while the job is open.

    Raises
    ------
    OptionError
        `overlap` is not valid; the optimizer is `differentiable` or `capturable`, or its step needs a closure
        (LBFGS); the servers cannot take its steps and the consistency is not BSP; parameters are neither on
        the CPU nor on a CUDA device.
    DtypeError
        A parameter is not float32, float64, float16 or bfloat16.
    DeclarationConflict
        The workers' models or optimizers differ.
    OutOfMemory
        The servers have too little shared memory for the model.
    BarrierTimeout
        Not every worker called it in time.

    Notes
    -----
    A parameter that several modules share is one tensor; a frozen one becomes a tensor when it is unfrozen;
    one that received no gradient is not contributed to, and torch's rule for `grad is None` applies. Buffers
    (batch statistics) stay local after the start. Convert and move the model before this call; a copy of it,
    or one that was saved as a whole, is an ordinary model. A script that changes `p.grad` before `step()`
    changes its own contribution, before the average.

    Examples
    --------
    >>> net = torch.nn.Linear(4, 2)
    >>> net, optimizer = ps.torch.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer):
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
    job = job or current()
    if prefix is None:
        number = _models_of.get(job, 0)
        _models_of[job] = number + 1
        prefix = f"model.{number}" if number else "model"
    distributed = DistributedOptimizer(
        model,
        optimizer,
        job,
        prefix=prefix,
        consistency=consistency,
        overlap=overlap,
        declaration={
            "reduce": reduce,
            "rescale": rescale,
            "clip": clip,
            "refuse_nonfinite": refuse_nonfinite,
        },
        timeout=timeout,
    )
    return model, distributed
