"""
A worker with filters of its own. `train`: one of two, that does as `train.py` does, of whole tensors. `sent`:
one that prints, as JSON, the bytes that its pushes took on TCP with such a filter and without. `differs`: one
of two with another bound each, the second of which is told.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import reference
import train
import ways

import penstock as ps

ELEMENTS, PUSHES = 1 << 18, 4


class Chosen(ps.OwnFilter):
    """Sends what a function of `reference.py` chooses."""

    def __init__(self, name: str, choose: reference.Chooses) -> None:
        self.name = name
        self._choose = choose

    def send(self, due: reference.Array, clock: int) -> reference.Array:
        return np.where(self._choose(due, clock), due, 0)


class Beyond(ps.OwnFilter):
    """Sends what is beyond a bound."""

    def __init__(self, bound: float | np.floating[Any]) -> None:
        self.bound = bound

    def send(self, due: reference.Array, _: int) -> reference.Array:
        return np.where(np.abs(due) > self.bound, due, 0)


def sent() -> None:
    """Print what pushes take: of the same numbers, through a filter that sends one of 400, and whole."""
    taken = {}
    with ps.init() as job:
        for name, given in {"own": ps.Filters(push=Beyond(3.0)), "whole": None}.items():
            w = job.tensor(name, shape=ELEMENTS, filter=given)
            taken[name] = ways.sent_by_pushes(job, w, PUSHES)
    print(json.dumps({"taken": taken, "whole": 4 * ELEMENTS * PUSHES}))


def differs() -> None:
    """Declare a tensor with another filter than the other worker's."""
    with ps.init() as job:
        if job.rank == 1:
            job.barrier()
        told = ""
        try:
            job.tensor("w", shape=3, filter=ps.Filters(push=Beyond(1.0 + job.rank)))
        except ps.exceptions.DeclarationConflict as error:
            told = " ".join([str(error), *error.__notes__])
        if job.rank == 0:
            job.barrier()
        # As the same it is declared.
        w = job.tensor("same", shape=3, reduce="sum", filter=ps.Filters(push=Beyond(np.float32(0.5))))
        assert w.pushpull(np.array([0.25, 0.5, 0.75], np.float32)).tolist() == [0, 0, 1.5]
    if job.rank == 1:
        assert "filter of contributions" in told, told
        assert "Own with which" in told, told
        assert "Beyond(bound=2.0)" in told, told
    else:
        assert not told, told


if __name__ == "__main__":
    match sys.argv[1]:
        case "train":
            train.main(
                {name: (Chosen(name, choose), choose) for name, (_, choose) in train.FILTERS.items()},
                train.SIZE,
            )
        case "sent":
            sent()
        case "differs":
            differs()
