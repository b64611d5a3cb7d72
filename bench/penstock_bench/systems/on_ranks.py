"""Systems that consist of processes, seen from the runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock.launch.ranks import Ranks
from penstock_bench import ranks
from penstock_bench.systems import BenchError


class OnRanks:
    """What systems of processes have in common: ranks that are started when they are first needed."""

    name: str

    def __init__(self) -> None:
        self._ranks: Ranks | None = None

    def end(self) -> None:
        """Ends the processes."""
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None

    def _ask(self, **command: Any) -> list[dict[str, Any]]:
        if self._ranks is None:
            raise BenchError(f"{self.name}: not started")
        try:
            return self._ranks.ask(**command)
        except BaseException:
            # After a failure the ranks are out of step with each other: the next case starts new ones.
            self.end()
            raise


class SystemOnRanks(OnRanks, ABC):
    """A `System` whose ranks stay up while the number of workers stays the same."""

    processor: float | None = None
    """Processor seconds of all its processes an iteration, in the last run; None before the first."""

    @abstractmethod
    def commands(self, workers: int) -> list[list[str]]:
        """What to start for this many workers."""

    def environments(self, workers: int) -> list[dict[str, str]]:
        """What each command finds in its environment."""
        return [{} for _ in self.commands(workers)]

    def open(self, nbytes: int, workers: int) -> None:
        """Starts the ranks where they do not stand already, and checks the answer."""
        if self._ranks is None or self._ranks.size != workers:
            self.end()
            self._ranks = Ranks(self.name, workers, self.commands(workers), self.environments(workers))
        self._ask(do="open", bytes=nbytes)

    def run(self, repeats: int) -> list[float]:
        """Seconds of each iteration, by the method of `penstock_bench.ranks`."""
        before = self._beside()
        answers = self._ask(do="run", repeats=repeats)
        used = sum(answer["processor"] for answer in answers) + self._beside() - before
        self.processor = used / ranks.steps(repeats)
        return ranks.iteration_times([answer["ends"] for answer in answers])

    def _beside(self) -> float:
        """Processor seconds so far of processes that are not ranks."""
        return 0.0

    def close(self) -> None:
        """Gives back the case's memory."""
        if self._ranks is not None:
            self._ask(do="close")
