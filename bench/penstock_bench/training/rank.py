"""
One rank: it trains on its own batch, as one of the systems.

In the time: `zero_grad`, forward and loss, backward, `step`; the parts are noted beside it. Blocked is what
the kernel says of this thread: neither running nor waiting for a core. So all systems' waits are measured in
the same way, and time without a core, where there are fewer cores than processes, is not called waiting.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.launch import ranks as launched
from penstock_bench import ranks
from penstock_bench.training.models import task_of
from penstock_bench.training.names import ALONE

LEARNING_RATE = 0.01
MOMENTUM = 0.9
TOLERANCE = 1e-5
"""Largest difference of a parameter from DistributedDataParallel's, after `ranks.CHECKED_STEPS` steps."""
PARTS = ("forward", "backward", "step")
COUNTED = {"computing": "backward", "waiting": "waiting", "copying": "copying"}
"""What backward consists of, and its name in `ps.torch.times`."""


class TrainingRank:
    """A rank that does what it is told."""

    def __init__(self, system: str, folder: str) -> None:
        torch.set_num_threads(1)
        self._system = system
        self._job: Any = None
        if system.startswith("penstock"):
            import penstock as ps

            self._job = ps.init()
            self.rank, self.size = self._job.rank, self._job.size
        else:
            self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if system.startswith("ddp") or system == "penstock-ddp":
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{folder}/gloo", rank=self.rank, world_size=self.size
            )

    def open(self, model: str, answer: str, known: bool) -> None:
        """
        Builds the model and takes the checked steps. Compares the parameters with those in the file `answer`;
        where they are not known yet, rank 0 writes them there.
        """
        task = task_of(model)
        torch.manual_seed(0)
        self._network = task.network()
        self._batch = task.batch(torch.Generator().manual_seed(1 + self.rank))
        self._loss = task.loss
        optimizer = torch.optim.SGD(self._network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self._called, self._optimizer = self._shared(optimizer)
        self._parts = [0, 0, 0]
        for _ in range(ranks.CHECKED_STEPS):
            self.step()
        if self._system == ALONE:
            return
        mine = np.concatenate([p.detach().reshape(-1).numpy() for p in self._network.parameters()])
        if known:
            _compare(mine, np.load(answer))
        elif self.rank == 0:
            np.save(answer, mine)

    def _shared(self, optimizer: torch.optim.Optimizer) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        network = self._network
        if self._system.startswith("ddp"):
            view = self._system == "ddp-view"
            return torch.nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=view), optimizer
        if self._system == "penstock-ddp":
            import penstock as ps

            wrapped = torch.nn.parallel.DistributedDataParallel(network)
            ps.torch.hooks.register(wrapped, self._job)
            return wrapped, optimizer
        if self._system.startswith("penstock"):
            import penstock as ps

            where = "servers" if self._system == "penstock-servers" else "gradients"
            return ps.torch.distribute(network, optimizer, where=where, job=self._job)
        return network, optimizer

    def step(self) -> None:
        """A training step."""
        now, parts = time.perf_counter_ns, self._parts
        start = now()
        self._optimizer.zero_grad()
        inputs, wanted = self._batch
        loss = self._loss(self._called(inputs), wanted)
        forward = now()
        loss.backward()
        backward = now()
        self._optimizer.step()
        parts[0] += forward - start
        parts[1] += backward - forward
        parts[2] += now() - backward

    def run(self, repeats: int) -> dict[str, Any]:
        """When steps ended, and of all steps: seconds of each part, blocked, and of processor."""
        self._parts = [0, 0, 0]
        waited, times = self._waited(), self._times()
        at_work, used = _at_work(), time.process_time()
        began = time.perf_counter()
        ends = ranks.ends(self, repeats)
        wall, steps = time.perf_counter() - began, ranks.steps(repeats)
        parts = {name: spent / 1e9 / steps for name, spent in zip(PARTS, self._parts, strict=True)}
        parts["blocked"] = max(0.0, wall - (_at_work() - at_work)) / steps
        if self._system == "penstock":
            after = self._times()
            parts |= {name: (after[of] - times[of]) / steps for name, of in COUNTED.items()}
        elif self._job is not None:
            parts["waiting"] = (self._waited() - waited) / steps
        return {"ends": ends, "processor": time.process_time() - used, "parts": parts}

    def _waited(self) -> float:
        """Seconds that the job's own counter has of waits so far."""
        return 0.0 if self._job is None else float(self._job.stats()["waited_seconds"])

    def _times(self) -> dict[str, float]:
        """What the program's own counters have so far."""
        if self._system != "penstock":
            return {}
        import penstock as ps

        return ps.torch.times(self._network)

    def serve(self) -> None:
        """Does what the runner says."""

        def opened(command: dict[str, Any]) -> dict[str, Any]:
            self.open(command["model"], command["answer"], command["known"])
            return {"process": os.getpid(), "parent": os.getppid()}

        launched.serve(self.rank, {"open": opened, "run": lambda command: self.run(command["repeats"])})


def _at_work() -> float:
    """Seconds that this thread has run, or has waited for a core: of the rest it was blocked."""
    ran, waited, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return (int(ran) + int(waited)) / 1e9


def _compare(mine: Any, theirs: Any) -> None:
    """
    Raises
    ------
    WrongAnswerError
        A parameter is not what DistributedDataParallel has; says by how much.
    """
    furthest = float(np.abs(mine - theirs).max())
    if not furthest <= TOLERANCE:
        raise ranks.WrongAnswerError(
            f"after {ranks.CHECKED_STEPS} steps a parameter is {furthest:.2g} away from "
            f"DistributedDataParallel's, expected at most {TOLERANCE:g}"
        )


if __name__ == "__main__":
    import sys

    TrainingRank(*sys.argv[1:]).serve()
