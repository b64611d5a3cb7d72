"""
The same training once more by `torch.distributed` with Gloo, as one would do it without a parameter server:
the gradients are averaged by an all-reduce and every worker takes the same step.

With the NumPy model all gradients travel in one buffer, in one all-reduce; with `--torch` by
DistributedDataParallel. Each is what Gloo is fastest at.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.demo import model
from penstock.demo.data import Array, Digits, epoch_batches
from penstock.demo.judging import judge, scorer
from penstock.demo.learner import Alone, Learner, Taken
from penstock.demo.settings import Settings
from penstock.launch.ranks import Ranks, rank_command, serve

if TYPE_CHECKING:
    from penstock.demo.torch_learner import TorchAlone


@dataclass(frozen=True)
class Peer:
    """What Gloo's training came to."""

    accuracy: float
    loss: float
    seconds: float


def is_there() -> bool:
    """Whether PyTorch is installed."""
    return find_spec("torch") is not None


def train(settings: Settings, digits: Digits, folder: Path) -> Peer:
    """
    Trains in as many processes as Penstock has workers; starting and judging are not in the time.

    Raises
    ------
    RanksError
        A process failed or has gone.
    """
    shared = {
        "WORLD_SIZE": str(settings.workers),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    environments = [{**shared, "RANK": str(rank)} for rank in range(settings.workers)]
    commands = [[*rank_command(__name__), "{folder}"] for _ in environments]
    (folder / "settings.json").write_bytes(settings.to_bytes())
    (folder / "digits.npz").write_bytes(digits.to_bytes())
    with Ranks("gloo", settings.workers, commands, environments) as ranks:
        answers = ranks.ask(do="train", folder=str(folder))
    seconds = max(answer["end"] for answer in answers) - min(answer["begin"] for answer in answers)
    return Peer(answers[0]["accuracy"], answers[0]["loss"], seconds)


class GlooRank:
    """One worker."""

    def __init__(self, folder: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/gloo", rank=self.rank, world_size=self.size
        )
        self._dist: Any = dist

    def train(self, command: dict[str, Any]) -> dict[str, Any]:
        """The training loop, as in the workers of Penstock."""
        folder = Path(command["folder"])
        settings = Settings.from_bytes((folder / "settings.json").read_bytes())
        digits = Digits.from_bytes((folder / "digits.npz").read_bytes())
        learner: Learner = _distributed(settings) if settings.torch else Averaged(settings, self._dist)
        self._dist.barrier()
        begin = time.time()
        for epoch in range(settings.epochs):
            for batch in epoch_batches(
                len(digits.train_y), settings.batch, settings.workers, settings.seed, epoch
            ):
                mine = batch[self.rank]
                learner.step(digits.train_x[mine], digits.train_y[mine])
        end = time.time()
        accuracy, loss = judge(scorer(settings), learner.parameters(), digits)
        return {"begin": begin, "end": end, "accuracy": accuracy, "loss": loss}


class Averaged(Alone):
    """The NumPy model, its gradients averaged over the workers before the step."""

    def __init__(self, settings: Settings, dist: Any) -> None:
        import torch

        super().__init__(settings)
        self._all_reduce = dist.all_reduce
        self._share = np.float32(1 / settings.workers)
        self._flat = np.empty(sum(value.size for value in self._parameters.values()), np.float32)
        self._tensor = torch.from_numpy(self._flat)

    def step(self, x: Array, y: Array) -> Taken:
        """Takes one step."""
        gradients, scores = model.gradients(self._parameters, x, y)
        np.concatenate([gradient.ravel() for gradient in gradients.values()], out=self._flat)
        self._all_reduce(self._tensor)
        self._flat *= self._share
        start = 0
        for name, gradient in gradients.items():
            averaged = self._flat[start : start + gradient.size].reshape(gradient.shape)
            self._steps[name](self._parameters[name], averaged)
            start += gradient.size
        return Taken(*model.judge(scores, y), staleness=0)


def _distributed(settings: Settings) -> TorchAlone:
    from torch.nn.parallel import DistributedDataParallel

    from penstock.demo.torch_learner import TorchAlone

    return TorchAlone(settings, wrap=DistributedDataParallel)


if __name__ == "__main__":
    rank = GlooRank(sys.argv[1])
    serve(rank.rank, {"train": rank.train})
