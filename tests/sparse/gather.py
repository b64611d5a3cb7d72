"""
A worker of three that pulls some rows of tensors, beside others of the same value that it pulls whole. Two
workers come by TCP, one by shared memory, or all by one of them.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import penstock as ps

STEPS, ROWS, WIDTH = 14, 3000, 5
RULES = {
    "sums": lambda: ps.Add(),
    "sgd": lambda: ps.SGD(0.5),
    "momentum": lambda: ps.SGD(0.5, momentum=0.5),
}


def main(consistency: str, transport: str) -> None:
    """Train, and compare."""
    rank = int(os.environ["PENSTOCK_RANK"])
    if transport == "mixed":
        os.environ["PENSTOCK_TRANSPORT"] = "tcp" if rank else "auto"
    with ps.init() as job:
        if consistency == "bsp":
            in_step(job)
        else:
            out_of_step(job, consistency)
        job.barrier()


def in_step(job: ps.Job) -> None:
    """What is pulled is the version, bit for bit: the same that a pull of all of it brings."""
    draw = np.random.default_rng(100 + job.rank)
    first = np.random.default_rng(0).integers(1, 9, (ROWS, WIDTH)).astype(np.float32)
    pairs = []
    for name, rule in RULES.items():
        for filters in (None, ps.Filters(broadcast=ps.DVF(3.0))):
            for propagation in ("pull", "broadcast"):
                pairs.append(
                    [
                        job.tensor(
                            f"{name}.{filters}.{propagation}.{how}",
                            first,
                            optimizer=rule(),
                            sparse=len(pairs) % 2 == 0,
                            filter=filters,
                            propagation=propagation,
                        )
                        for how in ("whole", "some")
                    ]
                )

    def compare(whole: ps.Tensor, some: ps.Tensor, slack: int | None = None) -> None:
        value = whole.pull()
        rows = draw.integers(0, ROWS, int(draw.choice([0, 1, 9])))
        got = some.pull(rows=rows, slack=slack)
        assert got.shape == (len(rows), WIDTH)
        places = draw.integers(0, ROWS * WIDTH, 6)
        single = some.pull(indices=places, slack=slack)
        if not slack:
            np.testing.assert_array_equal(got, value[rows])
            np.testing.assert_array_equal(single, value.reshape(-1)[places])

    for step in range(STEPS):
        for whole, some in pairs:
            if step % 3 != 1:
                compare(whole, some)
            if step % 4 != 3:
                rows = draw.integers(0, ROWS, 20)
                values = draw.integers(-4, 5, (20, WIDTH)).astype(np.float32)
                dense = np.zeros((ROWS, WIDTH), np.float32)
                np.add.at(dense, rows, values)
                for tensor in (whole, some):
                    tensor.push(ps.Sparse(rows, values) if step % 2 else dense)
            if step % 3:
                compare(whole, some)
            compare(whole, some, 1)
        job.clock()
        if step == 8:
            # A value that changes without a new version: behind that nothing old is seen.
            for whole, some in pairs:
                for tensor in (whole, some):
                    tensor.load(first + 1)
                np.testing.assert_array_equal(some.pull(rows=[7, ROWS - 1]), first[[7, ROWS - 1]] + 1)
                np.testing.assert_array_equal(some.pull(rows=[1]), whole.pull()[[1]])
    for whole, some in pairs:
        value = whole.pull(exact=True)
        np.testing.assert_array_equal(some.pull(rows=[5, 5, 2], exact=True), value[[5, 5, 2]])
        # All of it, after nothing but some of it.
        np.testing.assert_array_equal(some.pull(), whole.pull())


def out_of_step(job: ps.Job, consistency: str) -> None:
    """Each worker counts in a column of its own: what is pulled holds what it has to, and nothing twice."""
    slack = 2 if consistency == "ssp:2" else None
    draw = np.random.default_rng(job.rank)
    counts = job.tensor("counts", shape=(4 * ROWS, job.size), reduce="sum", consistency=consistency)
    ones = np.zeros((4 * ROWS, job.size), np.float32)
    ones[:, job.rank] = 1
    seen = np.zeros((4 * ROWS, job.size), np.float32)

    def look(pushed: int) -> None:
        rows = draw.integers(0, 4 * ROWS, 5)
        got = counts.pull(rows=rows)
        assert np.all(got[:, job.rank] == pushed), (got, pushed)
        if slack is not None:
            assert np.all(got >= pushed - slack), (got, pushed)
        assert np.all(got >= seen[rows]), "it fell"
        assert np.all(got <= STEPS)
        seen[rows] = got

    for step in range(STEPS):
        look(step)
        counts.push(ones)
        look(step + 1)
        job.clock()
        if step == STEPS // 2:
            job.barrier()
            look(step + 1)
    job.barrier()
    assert np.all(counts.pull(rows=[0, 4 * ROWS - 1], slack=0) == STEPS)
    assert np.all(counts.pull(slack=0) == STEPS)


main(*sys.argv[1:])
