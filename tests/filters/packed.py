"""
A worker whose tensors are compressed in each way there is, with filters and without: all have the same bits,
which are printed, with what became of the chunks.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np

import penstock as ps

ELEMENTS, STEPS = 40_000, 6
FILTERS = {
    "all": None,
    "top": ps.Filters(push=ps.TopK(0.2), broadcast=ps.TopK(0.2)),
    "2bit": ps.Filters(push=ps.Quantize("2bit", threshold=4.0)),
}


def main() -> None:
    """Train each, and compare."""
    told: dict[str, dict[str, dict[str, float]]] = {}
    with ps.init() as job:
        for kind, kept in FILTERS.items():
            digests, told[kind] = set(), {}
            for compress in ("none", "lz4", "zstd", "auto"):
                name = f"{kind} {compress}"
                w = job.tensor(
                    name, shape=ELEMENTS, optimizer=ps.SGD(0.5), filter=kept, compress=compress, reduce="sum"
                )
                before = job.stats()
                draw = np.random.default_rng(job.rank)
                for step in range(STEPS):
                    # Mostly zeros, and the others whole numbers: sums are exact.
                    numbers = draw.integers(-8, 9, ELEMENTS) * (draw.random(ELEMENTS) < 0.3)
                    w.push(numbers.astype(np.float32))
                    digests.add((step, hashlib.sha256(w.pull().tobytes()).hexdigest()))
                    job.clock()
                told[kind][compress] = {
                    key: count - before[key]
                    for key, count in job.stats().items()
                    if "compress" in key or key.endswith("_bytes")
                }
            assert len(digests) == STEPS, f"{kind}: compression has changed what is read"
    if job.rank == 0:
        print("told", json.dumps(told))


if __name__ == "__main__":
    main()
