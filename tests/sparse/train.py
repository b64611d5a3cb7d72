"""
A worker of three that pushes sparse contributions, and beside each the same array whole: every value is the
same, bit for bit under BSP. Two workers come by TCP, one by shared memory.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import penstock as ps

STEPS, ROWS, WIDTH = 12, 3000, 5
RULES = {
    "sums": lambda: ps.Add(),
    "sgd": lambda: ps.SGD(0.5),
    "adagrad": lambda: ps.Adagrad(0.5, lr_decay=0.5),
    "momentum": lambda: ps.SGD(0.5, momentum=0.5),
    "adam": lambda: ps.Adam(0.1),
    "replaced": lambda: ps.Replace(),
}
"""Some of which make something of zeros."""


def main(consistency: str, transport: str) -> None:
    """Train, and compare."""
    rank = int(os.environ["PENSTOCK_RANK"])
    if transport == "mixed":
        os.environ["PENSTOCK_TRANSPORT"] = "tcp" if rank else "auto"
    draw = np.random.default_rng(100 + rank)
    with ps.init() as job:
        first = np.random.default_rng(0).integers(1, 9, (ROWS, WIDTH)).astype(np.float32)
        pairs = {}
        for name, rule in RULES.items():
            options = {"reduce": "sum", "consistency": consistency}
            pairs[name] = tuple(
                job.tensor(f"{name}.{how}", first, optimizer=rule(), sparse=how == "sparse", **options)
                for how in ("dense", "sparse", "touched")
            )
        filtered = [
            job.tensor(f"filtered.{how}", first, filter=ps.Filters(push=ps.TopK(0.3)), **options)
            for how in ("dense", "sparse")
        ]
        for step in range(STEPS):
            # Now and then none, one place at the very end, and some twice.
            count = [7, 1, 0, 300][step % 4]
            rows = draw.integers(0, ROWS, count)
            if count == 1:
                rows[:] = ROWS - 1
            values = draw.integers(-4, 5, (count, WIDTH)).astype(np.float32)
            whole = np.zeros((ROWS, WIDTH), np.float32)
            np.add.at(whole, rows, values)
            for dense, sparse, touched in pairs.values():
                dense.push(whole)
                sparse.push(ps.Sparse(rows, values))
                # Element by element.
                places = np.stack([np.repeat(rows, WIDTH), np.tile(np.arange(WIDTH), count)])
                touched.push(ps.Sparse(places, values.reshape(-1)))
            filtered[0].push(whole)
            filtered[1].push(ps.Sparse(rows, values))
            if consistency == "bsp":
                for name, tensors in {**pairs, "filtered": filtered}.items():
                    seen = [tensor.pull() for tensor in tensors]
                    for other in seen[1:]:
                        np.testing.assert_array_equal(other, seen[0], f"{name}, step {step}")
            job.clock()
            for tensors in pairs.values():
                for tensor in tensors:
                    tensor.pull()
        job.barrier()
        for name, tensors in pairs.items():
            seen = [tensor.pull(slack=0) for tensor in tensors]
            for other in seen[1:]:
                # Out of step, where sums are whole numbers the order does not matter.
                if consistency == "bsp" or name in ("sums", "sgd"):
                    np.testing.assert_array_equal(other, seen[0], name)
            states = [tensor.optimizer_state() for tensor in tensors]
            steps = STEPS * (1 if consistency == "bsp" else job.size)
            assert all(state["step"] == steps for state in states), (
                name,
                states[0]["step"],
                states[1]["step"],
            )
            if consistency == "bsp":
                for slot, state in states[0].items():
                    for other in states[1:]:
                        np.testing.assert_array_equal(other[slot], state, f"{name} {slot}")
        np.testing.assert_array_equal(filtered[1].flush(), STEPS)
        job.barrier()


main(*sys.argv[1:])
