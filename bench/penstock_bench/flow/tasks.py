"""
What is trained: the workloads of examples/flow, at sizes at which two cores compute for four workers and a
link of 1 Gbit/s is what plain push and pull waits for (of the network: half and half).

Thresholds are absolute, in units of a gradient (pushes) and of the value (broadcasts). `low` and `up` are the
paper's pair, up twice low, and fall with the root of the clock, as there; `dynamic` goes between them.
`tuned` are those with the fewest bytes that we found to reach plain's objective with some room in both
figures, on the data that are measured here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Filters:
    """Of both directions, in the words of the scripts' options."""

    push: str
    broadcast: str
    """Either may be `-`: all is sent."""

    @property
    def arguments(self) -> list[str]:
        """For the script."""
        given = {"--push": self.push, "--broadcast": self.broadcast}
        return [word for option, named in given.items() if named != "-" for word in (option, named)]


@dataclass(frozen=True)
class Task:
    """A workload as it is measured."""

    name: str
    script: str
    arguments: str
    steps: int
    every: int
    """Steps between measurements: the steps to an objective are known to within so many."""
    low: Filters
    up: Filters
    tuned: Filters
    chunk: str
    """Bytes of a chunk where values are filtered: a chunk that has anything to send costs a frame."""
    wanted: float
    """How many times fewer bytes than plain push and pull its filters are to send."""
    sparse: bool = True
    """Whether the script has sparse pushes."""
    wanted_of_sparse: float | None = None
    """How many times fewer than with sparse pushes."""

    @property
    def dynamic(self) -> Filters:
        """DVF with both bounds, of which the network chooses."""
        push, broadcast = self.up.push.removeprefix("dvf:"), self.up.broadcast.removeprefix("dvf:")
        return Filters(f"{self.low.push}..{push}", f"{self.low.broadcast}..{broadcast}")

    def options(self, *, longer: bool) -> list[str]:
        """For the script; `longer`: with the steps that a system may take to reach plain's objective."""
        steps = self.steps * MOST_STEPS if longer else self.steps
        return [*self.arguments.split(), "--steps", str(round(steps)), "--every", str(self.every)]


MOST_STEPS = 1.2
"""Other systems train for so many times plain's steps: above the 1.15 that are allowed to them."""

TASKS = {
    task.name: task
    for task in (
        Task(
            name="lr",
            script="lr.py",
            arguments="--features 262144 --batch 500 --lr 2 --l2 0 --held-out 50",
            steps=200,
            every=4,
            low=Filters("dvf:0.005", "dvf:0.02"),
            up=Filters("dvf:0.01", "dvf:0.04"),
            tuned=Filters("dvf:0.003,constant", "dvf:0.01,constant"),
            chunk="1MiB",
            wanted=10,
            wanted_of_sparse=8,
        ),
        Task(
            name="mf",
            script="mf.py",
            arguments="--batch 2000 --lr 0.01 --held-out 50",
            steps=500,
            every=10,
            low=Filters("dvf:2", "dvf:0.1"),
            up=Filters("dvf:4", "dvf:0.2"),
            tuned=Filters("dvf:3", "dvf:0.15"),
            chunk="32KiB",
            wanted=4,
        ),
        Task(
            name="cnn",
            script="cnn.py",
            arguments="--flat --batch 32 --lr 0.003 --held-out 5",
            steps=120,
            every=2,
            low=Filters("dvf:0.02", "dvf:0.001"),
            up=Filters("dvf:0.04", "dvf:0.002"),
            tuned=Filters("topk:0.14", "topk:0.14"),
            chunk="32KiB",
            wanted=5,
            sparse=False,
        ),
    )
}
"""By name."""
