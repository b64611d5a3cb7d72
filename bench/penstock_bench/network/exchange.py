"""
One rank of a network benchmark: `python -m penstock_bench.network.exchange SYSTEM`.

An exchange: every layer's gradient stands ready; afterwards every rank sees w -= lr * (g0 + g1 + ...) of
each layer.

Layers are taken from the last to the first, as backward makes them. PENSTOCK_BENCH_LAYERS lists their bytes;
without it there is one, of the size that the runner says.

| system | an exchange |
|---|---|
| penstock | push of each layer (a tensor each), then pull of each, then the clock |
| gloo, mpi | all-reduce of buckets of 25 MiB, as DDP makes them, then SGD in place |
| gloo-layer, mpi-layer | all-reduce of each layer by itself, then SGD in place |
| mpi-ring | as mpi, by Open MPI's ring instead of what it chooses |
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from penstock_bench import ranks

LAYERS = "PENSTOCK_BENCH_LAYERS"
BUCKET = 25 << 20
"""Bytes of a bucket: PyTorch's DistributedDataParallel's default."""


def layers_of(nbytes: int) -> list[int]:
    """Bytes of each layer, in forward order."""
    named = os.environ.get(LAYERS)
    return [nbytes] if named is None else [int(size) for size in json.loads(named)]


def buckets(layers: list[int]) -> list[int]:
    """Bytes of each bucket, filled from the last layer to the first."""
    result: list[int] = []
    for size in reversed(layers):
        if result and result[-1] + size <= BUCKET:
            result[-1] += size
        else:
            result.append(size)
    return result


class PenstockRank:
    """A tensor a layer."""

    def __init__(self) -> None:
        import penstock as ps

        self._ps = ps
        self._job = ps.init()
        self.rank, self.size = self._job.rank, self._job.size
        self._tensors: list[ps.Tensor] = []

    def open(self, nbytes: int) -> None:
        """Declares and checks."""
        ps = self._ps
        self._tensors = [
            self._job.tensor(
                f"layer-{index}-{size}",
                shape=(size // 4,),
                dtype=np.float32,
                optimizer=ps.SGD(ranks.LEARNING_RATE),
                consistency=ps.BSP(),
                reduce="sum",
            )
            for index, size in enumerate(layers_of(nbytes))
        ]
        for tensor in self._tensors:
            ranks.fill(tensor.lane(), self.rank)
        for step in range(1, ranks.CHECKED_STEPS + 1):
            self._exchange()
            for tensor in self._tensors:
                ranks.check(tensor.pull(), step, self.size)
            self._job.clock()
        for tensor in self._tensors:
            tensor.lane().fill(0.0)

    def _exchange(self) -> None:
        for tensor in reversed(self._tensors):
            tensor.push()
        for tensor in reversed(self._tensors):
            tensor.pull()

    def step(self) -> None:
        """An exchange."""
        self._exchange()
        self._job.clock()

    def close(self) -> None:
        """The job ends with the process."""


class AllReduceRank(ABC):
    """Gradients in contiguous buffers, reduced in place."""

    def __init__(self, *, layerwise: bool) -> None:
        self._layerwise = layerwise
        self.rank = self.size = 0
        self._gradients: list[Any] = []
        self._parameters: list[Any] = []

    def open(self, nbytes: int) -> None:
        """Allocates and checks."""
        layers = layers_of(nbytes)
        sizes = list(reversed(layers)) if self._layerwise else buckets(layers)
        self._gradients = [np.empty(size // 4, np.float32) for size in sizes]
        self._parameters = [np.zeros(size // 4, np.float32) for size in sizes]
        self._prepare()
        for _ in range(ranks.CHECKED_STEPS):
            for gradient in self._gradients:
                ranks.fill(gradient, self.rank)
            self.step()
        for parameters in self._parameters:
            ranks.check(parameters, ranks.CHECKED_STEPS, self.size)
        for gradient in self._gradients:
            gradient.fill(0.0)

    @abstractmethod
    def _prepare(self) -> None:
        """What the library needs beside the arrays."""

    @abstractmethod
    def _all_reduce(self) -> None:
        """Sums the gradients over all ranks, in place."""

    def step(self) -> None:
        """An exchange."""
        self._all_reduce()
        for parameters, gradient in zip(self._parameters, self._gradients, strict=True):
            gradient *= np.float32(ranks.LEARNING_RATE)
            parameters -= gradient

    def close(self) -> None:
        """Forgets the arrays."""
        self._gradients, self._parameters = [], []


class GlooRank(AllReduceRank):
    """`torch.distributed`, all reductions under way at once, as DDP has them."""

    def __init__(self, folder: str, *, layerwise: bool) -> None:
        import torch
        import torch.distributed as dist

        super().__init__(layerwise=layerwise)
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/gloo", rank=self.rank, world_size=self.size
        )
        self._torch, self._reduce = torch, dist.all_reduce
        self._views: list[Any] = []

    def _prepare(self) -> None:
        self._views = [self._torch.from_numpy(gradient) for gradient in self._gradients]

    def _all_reduce(self) -> None:
        for work in [self._reduce(view, async_op=True) for view in self._views]:
            work.wait()


class MpiRank(AllReduceRank):
    """mpi4py. Blocking: Open MPI's non-blocking reductions advance only inside its calls."""

    def __init__(self, *, layerwise: bool) -> None:
        from mpi4py import MPI

        super().__init__(layerwise=layerwise)
        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()

    def _prepare(self) -> None:
        """Nothing: MPI takes the arrays as they are."""

    def _all_reduce(self) -> None:
        for gradient in self._gradients:
            self._comm.Allreduce(self._mpi.IN_PLACE, gradient, op=self._mpi.SUM)


def main() -> None:
    """One rank."""
    system = sys.argv[1]
    layerwise = system.endswith("-layer")
    if system == "penstock":
        ranks.serve(PenstockRank())
    elif system.startswith("gloo"):
        ranks.serve(GlooRank(sys.argv[2], layerwise=layerwise))
    else:
        ranks.serve(MpiRank(layerwise=layerwise))


if __name__ == "__main__":
    main()
