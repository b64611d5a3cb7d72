"""
One rank of `penstock bench factors`: `python -m penstock_bench.network.factors WAY ROWS COLUMNS RANK`.

An iteration: every rank pushes factors, completes the iteration, and pulls the matrix that Adam has made of
them. What differs is what comes down:

| way | |
|---|---|
| pull | the matrix |
| update-sums | the sum that the optimizer was given; pushes are dense too, since no factors are declared |
| update | the factors of all ranks |

All ways come to the same bits.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

from penstock_bench import ranks

WAYS = ("pull", "update-sums", "update")


class FactorsRank:
    """One matrix, whose gradients are products of two thin ones."""

    def __init__(self, way: str, rows: int, columns: int, rank: int) -> None:
        import penstock as ps

        self._way, self._shape, self._thin = way, (rows, columns), rank
        self._ps, self._job = ps, ps.init()
        self.rank, self.size = self._job.rank, self._job.size
        self._tensor: Any = None

    def open(self, _: int) -> None:
        """Declares, and takes some steps, of which `moved` says where they led."""
        self._tensor = self._job.tensor(
            "matrix",
            shape=self._shape,
            optimizer=self._ps.Adam(1e-3),
            reduce="sum",
            consistency="bsp",
            propagation="pull" if self._way == "pull" else "update",
            low_rank=0 if self._way == "update-sums" else self._thin,
        )
        self._tensor.pull()
        draw = np.random.default_rng(self.rank)
        rows, columns = self._shape
        self._u = draw.standard_normal((rows, self._thin), np.float32)
        self._v = draw.standard_normal((self._thin, columns), np.float32)
        for _step in range(ranks.CHECKED_STEPS):
            self.step()

    def step(self) -> None:
        """An iteration."""
        self._tensor.push_factors(self._u, self._v)
        self._job.clock()
        self._tensor.pull()

    def close(self) -> None:
        """The job ends with the process."""

    def moved(self, _: dict[str, Any]) -> dict[str, Any]:
        """Bytes so far, and what the matrix is by now."""
        stats = self._job.stats()
        digest = hashlib.sha256(self._tensor.pull().tobytes()).hexdigest()
        moved = {"sent": stats["sent_bytes"], "received": stats["received_bytes"]}
        return {"moved": moved, "digest": digest}


if __name__ == "__main__":
    body = FactorsRank(sys.argv[1], *map(int, sys.argv[2:5]))
    ranks.serve(body, {"moved": body.moved})
