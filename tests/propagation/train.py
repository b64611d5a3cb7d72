"""
A worker of four whose tensors are broadcast: two by shared memory, two by TCP. Each counts its own pushes in
an element of its own, so that a value tells which updates it holds.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import penstock as ps

STEPS = 40
SIZE = 5000
"""Of the long tensor: several chunks, on several shards."""


def main(folder: str) -> None:
    """Train, and save what was seen."""
    rank = int(os.environ["PENSTOCK_RANK"])
    os.environ["PENSTOCK_TRANSPORT"] = "tcp" if rank % 2 else "auto"
    draw = np.random.default_rng(rank)
    with ps.init() as job:
        slack = 2
        options = {"reduce": "sum", "propagation": "broadcast"}
        counts = job.tensor("counts", shape=job.size, consistency=ps.SSP(slack), **options)
        filtered = job.tensor(
            "filtered",
            shape=job.size,
            consistency=ps.SSP(slack),
            filter=ps.Filters(broadcast=ps.DVF(2.0, decay=None)),
            **options,
        )
        long = job.tensor("long", shape=SIZE, consistency=ps.SSP(slack), **options)
        together = job.tensor("together", shape=SIZE, consistency=ps.BSP(), **options)
        plain = job.tensor("plain", shape=SIZE, consistency=ps.BSP(), reduce="sum")
        alone = job.tensor("alone", shape=job.size, consistency=ps.ASP(), **options)
        own = np.zeros(job.size, np.float32)
        own[rank] = 1
        seen = []
        for step in range(STEPS):
            for tensor in (counts, filtered, alone):
                tensor.push(own)
                if draw.integers(3) == 0:
                    tensor.pull()
            gradient = draw.standard_normal(SIZE).astype(np.float32)
            for tensor in (together, plain):
                tensor.push(gradient)
            long.push(np.full(SIZE, 4.0**rank, np.float32))
            np.testing.assert_array_equal(together.pull(), plain.pull(), f"step {step}")
            job.clock()
            view, some = counts.pull().copy(), filtered.pull().copy()
            # A version holds every update that is stamped below it.
            assert view.min() >= step + 1 - slack, (step, view)
            assert np.abs(some - np.rint(some)).max() == 0
            seen.append((view, some))
            # All of it, own updates too, once every worker has come as far.
            if step % 8 == 7:
                assert counts.pull(slack=0).min() >= step + 1
                assert alone.pull(slack=0)[rank] == step + 1
        total = np.full(job.size, STEPS, np.float32)
        for tensor in (counts, alone):
            np.testing.assert_array_equal(tensor.pull(slack=0), total)
        # The filter holds back what is within its bound, of a value that no more is pushed to.
        assert np.abs(filtered.pull(slack=0) - total).max() <= 2
        np.testing.assert_array_equal(filtered.pull(exact=True, slack=0), total)
        filtered.flush()
        np.testing.assert_array_equal(filtered.pull(), total)
        everyone = sum(4.0**other for other in range(job.size))
        np.testing.assert_array_equal(long.pull(slack=0), np.full(SIZE, STEPS * everyone, np.float32))
        # A load is seen behind it, by whichever way, though it makes no version.
        long.load(np.arange(SIZE, dtype=np.float32))
        np.testing.assert_array_equal(long.pull(), np.arange(SIZE))
        job.barrier()
        np.savez(f"{folder}/{rank}.npz", *(np.stack(values) for values in zip(*seen, strict=True)))


main(sys.argv[1])
