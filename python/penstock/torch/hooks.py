"""
For scripts that keep their own wrapper: torch's DistributedDataParallel or FSDP2 shares gradients through the
job, and stays what it is otherwise.

    model = DistributedDataParallel(model)
    ps.torch.hooks.register(model)

    fully_shard(model, mesh=mesh)              # mesh: the processes of this host
    ps.torch.hooks.replicate(model, mesh)      # the average over the hosts

With DistributedDataParallel each bucket is a tensor of the job and leaves when it is full; at the last one
the job's clock moves on, and the averages are there. With FSDP2 each group of parameters is averaged when its
gradients have been scattered: an exchange a group, which backward waits for.
"""

# Annotations are objects here, not text: torch looks at those of a hook.

import itertools
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from ..exceptions import OptionError
from ..job import Job, current
from ..optim import Replace
from ..tensor import Tensor
from .gradients.memory import CudaMemory, HostMemory, Memory
from .gradients.patience import PATIENCE

_numbers: "weakref.WeakKeyDictionary[Job, itertools.count[int]]" = weakref.WeakKeyDictionary()
"""How many states and groups of a job have a name."""


class State:
    """
    What `average` keeps of one DistributedDataParallel from bucket to bucket. Every worker makes its states
    in the same order.

    Parameters
    ----------
    job
        Default: the open job of this process, or a new `ps.init()`. Its workers must be the processes of the
        default process group, and all of them those of the model's: `register` sees to that.

    Raises
    ------
    OptionError
        There is a process group, and it is not of the job's size.

    Examples
    --------
    >>> state = ps.torch.hooks.State()
    """

    def __init__(self, job: Job | None = None) -> None:
        self.job = job or current()
        if dist.is_initialized():
            _same_size(None, self.job, "start both with one launcher, such as torchrun")
        self._name = _name(self.job, "ddp")
        self._made = 0
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Memory]] = {}
        self._left: list[tuple[Memory, torch.Tensor, torch.futures.Future[torch.Tensor]]] = []

    def leave(self, gradient: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Sends a bucket."""
        memory = self._memory(gradient)
        memory.await_lane()
        memory.send([memory.lane], [gradient])
        devices: list[int | str | torch.device] | None = (
            None if gradient.device.type == "cpu" else [gradient.device]
        )
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        self._left.append((memory, gradient, future))
        return future

    def _memory(self, gradient: torch.Tensor) -> Memory:
        """
        What this bucket goes through: of the same size in every pass. Buckets are made anew after the first
        pass; those that have another size then get tensors of their own.
        """
        kind = (gradient.numel(), gradient.dtype, gradient.device)
        free = self._free.setdefault(kind, [])
        if free:
            return free.pop(0)
        self._made += 1
        tensor = _tensor(self.job, f"{self._name}/{self._made}", gradient, 1.0)
        return _memory(tensor, gradient)

    def arrive(self) -> None:
        """The pass's averages, for all of its buckets."""
        left, self._left = self._left, []
        self.job.clock()
        for memory, gradient, future in left:
            memory.take([memory.value], [gradient])
            future.set_result(gradient)
            self._free[(gradient.numel(), gradient.dtype, gradient.device)].append(memory)


def average(state: State, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """
    A communication hook: the average over the job's workers.

    Parameters
    ----------
    state
        The model's.
    bucket
        DistributedDataParallel's.

    Returns
    -------
    torch.futures.Future
        Of the bucket's averages.

    Raises
    ------
    DeclarationConflict
        The workers' buckets differ.
    PenstockError
        What Tensor.push and Job.clock raise.

    Examples
    --------
    >>> model.register_comm_hook(ps.torch.hooks.State(), ps.torch.hooks.average)  # doctest: +SKIP
    """
    future = state.leave(bucket.buffer())
    if bucket.is_last():
        state.arrive()
    return future


def register(model: DistributedDataParallel, job: Job | None = None) -> None:
    """
    Have a DistributedDataParallel average its gradients through the job: registers `average`, with a state of
    its own. Every worker does so for its models in the same order.

    Parameters
    ----------
    model
        Wrapped, with no hook yet, and before its first backward pass.
    job
        Default: the open job of this process, or a new `ps.init()`.

    Raises
    ------
    OptionError
        As `State`; or the model is in no DistributedDataParallel, has a hook already, or shares gradients
        with a part of the job's workers alone: in a process group of its own.

    Examples
    --------
    >>> ps.torch.hooks.register(DistributedDataParallel(model))  # doctest: +SKIP
    """
    if not isinstance(model, DistributedDataParallel):
        raise OptionError(
            f"expected a DistributedDataParallel, got {type(model).__name__}",
            "a plain model needs none: ps.torch.distribute(model)",
        )
    if getattr(model, "_comm_hooks", None):
        raise OptionError(
            "the DistributedDataParallel has a communication hook already, which averages its gradients",
            "register one of both: torch takes no second",
        )
    job = job or current()
    _same_size(
        model.process_group,
        job,
        "the job averages over all of its workers: where they hold different models, as under tensor or "
        "pipeline parallelism, it cannot",
    )
    model.register_comm_hook(State(job), average)


def _same_size(group: dist.ProcessGroup | None, job: Job, hint: str) -> None:
    """Raises OptionError if the process group has not as many processes as the job has workers."""
    size = dist.get_world_size(group)
    if size != job.size:
        whose = "the process group" if group is None else "the model's process group"
        raise OptionError(f"{whose} has {size} processes, the job has {job.size} workers", hint)


def replicate(model: torch.nn.Module, mesh: DeviceMesh, job: Job | None = None) -> None:
    """
    Average a sharded model's gradients over the job: each shard with the same shard of the other replicas. As
    FSDP2's own hybrid sharding does, with the job in the place of the mesh's second dimension. Collective.

    Parameters
    ----------
    model
        After `fully_shard`, over the processes of one replica. Parameters of the replicas must be the same.
    mesh
        The one-dimensional mesh of this replica. Every replica has as many processes; process i of each holds
        shard i.
    job
        Default: the open job of this process, or a new `ps.init()`. Its workers are the processes of all
        replicas.

    Raises
    ------
    OptionError
        The model is not sharded; the job's workers are no whole number of replicas.

    Examples
    --------
    >>> ps.torch.hooks.replicate(fully_shard(model, mesh=mesh), mesh)  # doctest: +SKIP
    """
    from torch.distributed.fsdp import FSDPModule

    job = job or current()
    shards = mesh.size()
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise OptionError(
            "expected a model that torch's fully_shard has sharded, found no such module in it",
            "fully_shard(model, mesh=mesh) first; for a DistributedDataParallel use register_comm_hook",
        )
    if mesh.ndim != 1 or job.size % shards:
        raise OptionError(
            f"expected a mesh of one dimension that divides the job's {job.size} workers, got {mesh}",
            "the mesh of one replica: the job takes the place of the dimension that replicates",
        )
    for module in sharded:
        module.set_all_reduce_hook(_Group(job, _name(job, "fsdp"), shards, mesh.get_local_rank()))


class _Group:
    """Averages the shards of one group of parameters, in place."""

    def __init__(self, job: Job, name: str, shards: int, shard: int) -> None:
        self._job, self._name, self._shards, self._shard = job, name, shards, shard
        self._memories: dict[tuple[int, torch.dtype, torch.device], Memory] = {}

    def __call__(self, gradient: torch.Tensor) -> None:
        memory = self._memory(gradient)
        memory.await_lane()
        memory.send([memory.lane], [gradient])
        self._job.clock()
        memory.take([memory.value], [gradient])

    def _memory(self, gradient: torch.Tensor) -> Memory:
        """What it goes through: of another size once parameters of the group were frozen or unfrozen."""
        kind = (gradient.numel(), gradient.dtype, gradient.device)
        if kind not in self._memories:
            # By their order, not by size: replicas that train different parameters are told so.
            name = f"{self._name}/{len(self._memories)}"
            # Every worker declares every shard's: rank 0's declaration counts.
            tensors = [
                # The mean over all workers, of whom only the replicas of this shard contribute.
                _tensor(self._job, f"{name}/{shard}", gradient, float(self._shards))
                for shard in range(self._shards)
            ]
            self._memories[kind] = _memory(tensors[self._shard], gradient)
        return self._memories[kind]


def _name(job: Job, kind: str) -> str:
    return f"{kind}/{next(_numbers.setdefault(job, itertools.count()))}"


def _tensor(job: Job, name: str, gradient: torch.Tensor, rescale: float) -> Tensor:
    return job.tensor(
        name,
        shape=gradient.numel(),
        dtype=gradient.dtype,
        optimizer=Replace(),
        consistency="bsp",
        rescale=rescale,
    )


def _memory(tensor: Tensor, gradient: torch.Tensor) -> Memory:
    make: type[HostMemory] | type[CudaMemory] = HostMemory if gradient.device.type == "cpu" else CudaMemory
    return make(tensor, gradient.dtype, gradient.device, PATIENCE)
