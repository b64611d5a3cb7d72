"""The systems, seen from the runner: what is started for each, and what its ranks say of their steps."""

from __future__ import annotations

import statistics
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.launch.ranks import Ranks, rank_command
from penstock_bench import ranks
from penstock_bench.network.places import processor_of
from penstock_bench.systems.on_ranks import OnRanks
from penstock_bench.training.names import ALONE

_MODULE = "penstock_bench.training.rank"
_JAX_MODULE = "penstock_bench.training.jax_rank"
_COPIES = 6
"""Of the parameters in a worker: values, gradients, momentum, and what is under way."""


class Answer:
    """What DistributedDataParallel's parameters are after the checked steps, in a file, for one case."""

    def __init__(self, model: str, workers: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        self.path = Path(self._folder.name) / "answer.npy"
        self.model, self.workers = model, workers

    def ready(self) -> None:
        """Has it computed, where DistributedDataParallel has not been opened yet."""
        if not self.path.exists():
            peer = Training("ddp", self)
            try:
                peer.open(0, self.workers)
            finally:
                peer.end()

    def end(self) -> None:
        """Removes the file."""
        self._folder.cleanup()


class Trained(OnRanks, ABC):
    """Ranks that train, whichever framework they train with."""

    framework: str

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._processes: list[dict[str, Any]] = []
        self.processor: float | None = None
        self.parts: dict[str, list[float]] = {}
        """Seconds of a step: of each part the mean over the ranks, a turn each."""

    def missing(self) -> str | None:
        """Why this system cannot be measured here."""
        name = self.framework
        return None if find_spec(name) else f"{name} is not installed (pip install {name})"

    def memory(self, nbytes: int, workers: int) -> int:
        """Bytes that a case takes."""
        return _COPIES * nbytes * workers

    @abstractmethod
    def open(self, _: int, workers: int) -> None:
        """Starts the ranks, which check their answer."""

    def _start(self, rank: Sequence[str], workers: int, environment: Mapping[str, str]) -> None:
        """Starts a command on each rank: in a job, if it is one of our systems."""
        if self.name.startswith("penstock"):
            run = [sys.executable, "-m", "penstock.cli", "run", "--workers", str(workers), *rank[1:]]
            self._ranks = Ranks(self.name, workers, [run], [environment])
        else:
            environments = [{**environment, "RANK": str(rank)} for rank in range(workers)]
            self._ranks = Ranks(self.name, workers, [rank] * workers, environments)

    def run(self, repeats: int) -> list[float]:
        """Seconds of each step, by the method of `penstock_bench.ranks`; alone, the mean over the ranks."""
        before = self._beside()
        answers = self._ask(do="run", repeats=repeats)
        used = sum(answer["processor"] for answer in answers) + self._beside() - before
        self.processor = used / ranks.steps(repeats)
        for part in answers[0]["parts"]:
            mean = statistics.fmean(answer["parts"][part] for answer in answers)
            self.parts.setdefault(part, []).append(mean)
        ends = [answer["ends"] for answer in answers]
        if self.name == ALONE:
            # Nobody waits for anybody: who is ahead must not count as a step that took no time.
            each = [ranks.iteration_times([one]) for one in ends]
            return [statistics.fmean(column) for column in zip(*each, strict=True)]
        return ranks.iteration_times(ends)

    def _beside(self) -> float:
        """Processor seconds so far of what was started beside the ranks: the servers."""
        if not self.name.startswith("penstock"):
            return 0.0
        known = {answer["process"] for answer in self._processes}
        launcher = self._processes[0]["parent"]
        return sum(processor_of(child) for child in _children(launcher) if child not in known)

    def close(self) -> None:
        """Ends the job."""
        self.end()


class Training(Trained):
    """
    Ranks that train with PyTorch.

    Parameters
    ----------
    name
        One of `names.SYSTEMS`, `names.MORE_SYSTEMS`, or `names.ALONE`.
    answer
        The case, and what the parameters must be.
    """

    framework = "torch"

    def __init__(self, name: str, answer: Answer) -> None:
        super().__init__(name)
        self._answer = answer

    def open(self, _: int, workers: int) -> None:
        """Starts the ranks, which check their answer."""
        if self.name.startswith("penstock"):
            self._answer.ready()
        environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(workers)}
        self._start([*rank_command(_MODULE), self.name, "{folder}"], workers, environment)
        # Asked here, once: while a rank looks, another may be writing it.
        known = self._answer.path.exists()
        self._processes = self._ask(
            do="open", model=self._answer.model, answer=str(self._answer.path), known=known
        )


class JaxTraining(Trained):
    """
    Ranks that train with JAX, and know the answer themselves.

    Parameters
    ----------
    name
        penstock, or `names.ALONE`.
    model
        One of `names.JAX_MODELS`.
    """

    framework = "jax"

    def __init__(self, name: str, model: str) -> None:
        super().__init__(name)
        self._model = model

    def open(self, _: int, workers: int) -> None:
        """Starts the ranks, which check their answer."""
        environment = {
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        }
        self._start([*rank_command(_JAX_MODULE), self.name], workers, environment)
        self._processes = self._ask(do="open", model=self._model)


def _children(process: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        found += map(int, listed.read_text().split())
    return found
