"""
One rank of Penstock: the rows are an item table, and each consumer tells by a row of its own what it read.

- An iteration. Rank 0: `get` of the consumers' rows, two iterations back; `set` of each batch; `job.clock()`.
  Others: `get` of each batch with slack 0 into an array; `set` of the own row; `job.clock()`.
- A round trip. Rank 0: `set` of row 0, `get` of row 1, `job.clock()`. Rank 1: `get` of row 0, `set` of row 1,
  `job.clock()`.

A consumer asks for what is set in the iteration that it is in itself, and its clock moves when it has read: a
clock says that all own rows are as new as it.

Rows and memory of each batch are chosen before the time starts, as a buffer and a datatype are in MPI.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import penstock as ps
from penstock_bench.items.ranks import Rank, Way
from penstock_bench.items.work import Rows, Work, fill


class TableWay(Way):
    """One propagation."""

    ahead = 1
    """The producer may have set the next iteration's value already: newer is allowed."""

    def __init__(self, job: ps.Job, work: Work, propagation: str, number: int) -> None:
        self._job = job
        producer = job.rank == 0
        name = f"{number}-{propagation}"
        everything, nothing = "all", None

        def table(what: str, rows: int, width: int, produce: Any, consume: Any) -> ps.Table:
            return job.table(
                f"{what}-{name}",
                rows=rows,
                width=width,
                dtype="f8",
                produce=produce,
                consume=consume,
                propagation=propagation,
            )

        own = None if producer else job.rank - 1
        pings = job.rank if job.rank < 2 else None
        self._table = table(
            "rows", work.rows, work.width, *((everything, nothing) if producer else (nothing, everything))
        )
        self._read = table(
            "read",
            work.consumers,
            1,
            nothing if own is None else [own],
            everything if producer else nothing,
        )
        self._pings = table(
            "pings",
            2,
            work.width,
            nothing if pings is None else [pings],
            nothing if pings is None else [1 - pings],
        )
        self._values: Rows = np.empty((work.rows, work.width))
        fill(self._values)
        self._parts = self._batches(work)
        self._readers = np.arange(work.consumers, dtype=np.uint64)
        self._heard = np.empty((work.consumers, 1))
        self._own, self._token = own, np.zeros(1)
        self._row, self._answer = np.zeros(work.width), np.zeros(work.width)
        self._clocks: deque[int] = deque(maxlen=2)

    def _batches(self, work: Work) -> list[tuple[Any, Rows]]:
        """Rows and memory of each call; one row is named by its number."""
        if work.batch == 1:
            return [(row, self._values[row]) for row in range(work.rows)]
        return [
            (slice(at, at + work.batch), self._values[at : at + work.batch])
            for at in range(0, work.rows, work.batch)
        ]

    def values(self) -> Rows:
        """Anywhere: `set` copies."""
        return self._values

    def ready(self, _iteration: int) -> None:
        """Waits for the consumers' rows of the iteration before the last."""
        if len(self._clocks) == 2:
            self._read.get(self._readers, clock=self._clocks[0], out=self._heard)

    def produce(self, _iteration: int) -> None:
        """Sets each batch, then the clock."""
        clock = self._job.iteration + 1
        put = self._table.set
        for rows, values in self._parts:
            put(rows, values, clock)
        self._clocks.append(self._job.clock())

    def consume(self, _iteration: int) -> Rows:
        """Gets each batch."""
        clock = self._job.iteration + 1
        get = self._table.get
        for rows, out in self._parts:
            get(rows, clock, None, out)
        return self._values

    def done(self, _iteration: int) -> None:
        """Sets the own row, then the clock."""
        assert self._own is not None
        self._read.set(self._own, self._token, self._job.iteration + 1)
        self._job.clock()

    def ping(self, _number: int) -> None:
        """A row there, a row back."""
        clock = self._job.iteration + 1
        self._pings.set(0, self._row, clock)
        self._pings.get(1, clock, None, self._answer)
        self._job.clock()

    def pong(self, _number: int) -> None:
        """The answer."""
        clock = self._job.iteration + 1
        self._pings.get(0, clock, None, self._answer)
        self._pings.set(1, self._row, clock)
        self._job.clock()

    def idle(self) -> None:
        """All clocks go together."""
        self._job.clock()

    def settle(self) -> None:
        """Nobody begins the next measurement before all have ended this one."""
        self._clocks.clear()
        self._job.barrier()

    def fresh(self) -> Callable[[], object]:
        """Row 0 of the round trips, at the clock of the last one."""
        get, clock, out = self._pings.get, self._job.iteration, self._answer
        return lambda: get(0, clock, None, out)


class TableRank(Rank):
    """A job for all cases of one number of consumers; tables for each."""

    def __init__(self) -> None:
        self._job = ps.init()
        self._made = 0
        super().__init__(self._job.rank, self._job.size)

    def way(self, name: str, work: Work) -> Way:
        """Declares the tables."""
        self._made += 1
        return TableWay(self._job, work, name, self._made)


if __name__ == "__main__":
    TableRank().serve()
