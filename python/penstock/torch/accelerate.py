"""
Accelerate, and the Trainer of transformers, which is built on it: what they prepare shares gradients through
the job. All else stays theirs: who is rank 0, how data are sharded, metrics gathered and checkpoints saved.

    accelerator = ps.torch.accelerate.share(Accelerator())        # before `prepare`
    ps.torch.accelerate.share(trainer.accelerator)                # before `trainer.train()`
"""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

from torch.nn.parallel import DistributedDataParallel

from ..exceptions import OptionError
from ..job import Job, current
from . import hooks

A = TypeVar("A")

_shared: weakref.WeakSet[Any] = weakref.WeakSet()
"""Accelerators that share already."""


def share(accelerator: A, job: Job | None = None) -> A:
    """
    Have the models that an Accelerator prepares from now on average their gradients through the job, by the
    communication hook of DistributedDataParallel.

    Parameters
    ----------
    accelerator
        An `accelerate.Accelerator` of several processes, or a Trainer's `trainer.accelerator`.
    job
        Default: the open job of this process, or a new `ps.init()`.

    Returns
    -------
    accelerate.Accelerator
        The same.

    Raises
    ------
    OptionError
        It is none; it is shared, or has prepared a model, already; its processes are not those of the job, or
        share models in another way than DistributedDataParallel's, such as FSDP or DeepSpeed. From `prepare`,
        if the Accelerator was given a communication hook of its own.

    Examples
    --------
    >>> accelerator = ps.torch.accelerate.share(Accelerator(cpu=True))  # doctest: +SKIP
    """
    owner: Any = accelerator
    if not callable(getattr(owner, "prepare_model", None)):
        raise OptionError(
            f"expected an accelerate.Accelerator, got {type(owner).__module__}.{type(owner).__qualname__}",
            "of a Trainer, pass trainer.accelerator",
        )
    if owner in _shared:
        raise OptionError(
            "this Accelerator shares gradients through the job already",
            "share it once; to train without the job again, make another",
        )
    if owner._models:
        raise OptionError(
            "this Accelerator has prepared a model already, which shares gradients by itself",
            "share it before `prepare`",
        )
    kind = str(getattr(owner.distributed_type, "value", owner.distributed_type))
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise OptionError(
            f"expected an Accelerator that uses DistributedDataParallel, got one for {kind}",
            "for FSDP2 see ps.torch.hooks.replicate",
        )
    _same_processes(owner.num_processes, job)
    prepare = owner.prepare_model
    shared: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()

    def prepare_model(*args: Any, **kwargs: Any) -> Any:
        model = prepare(*args, **kwargs)
        if isinstance(model, DistributedDataParallel) and model not in shared:
            shared.add(model)
            hooks.register(model, job)
        return model

    owner.prepare_model = prepare_model
    _shared.add(owner)
    return accelerator


def _same_processes(processes: int, job: Job | None) -> None:
    size = (job or current()).size
    if processes != size:
        raise OptionError(
            f"the Accelerator has {processes} processes, the job has {size} workers",
            "start the script with torchrun or `accelerate launch`: both find their processes there",
        )
