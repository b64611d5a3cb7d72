"""
A worker of three that pushes factors, and beside each their product whole: every value is the same, bit for
bit under BSP. Two workers come by TCP, one by shared memory.
"""

from __future__ import annotations

import os
import sys

import numpy as np

import penstock as ps

STEPS = 8
SHAPES = {"wide": (37, 3000), "tall": (3000, 37), "square": (300, 400), "small": (60, 70), "row": (1, 5000)}
RULES = {
    "sums": lambda: ps.Add(),
    "momentum": lambda: ps.SGD(0.5, momentum=0.5),
    "adam": lambda: ps.Adam(0.1),
}
DTYPES = ("float32", "float64", "float16", "bfloat16")


def product(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Each element summed in the order of the ranks, in the accumulator, and rounded once."""
    wide = np.float64 if u.dtype == np.float64 else np.float32
    total = np.zeros((u.shape[0], v.shape[1]), wide)
    for rank in range(u.shape[1]):
        total += u[:, rank : rank + 1].astype(wide) * v[rank : rank + 1].astype(wide)
    return total.astype(u.dtype)


def numbers(draw: np.random.Generator, consistency: str, size: tuple[int, int]) -> np.ndarray:
    """Out of step whole ones, so that the order of sums does not matter."""
    return draw.normal(size=size) if consistency == "bsp" else draw.integers(-2, 3, size)


def main(consistency: str, transport: str) -> None:
    """Train, and compare."""
    own = int(os.environ["PENSTOCK_RANK"])
    if transport == "mixed":
        os.environ["PENSTOCK_TRANSPORT"] = "tcp" if own else "auto"
    draw = np.random.default_rng(100 + own)
    with ps.init() as job:
        pairs = {}
        for at, (shape, rule) in enumerate((shape, rule) for shape in SHAPES for rule in RULES):
            options = {"reduce": "sum", "consistency": consistency, "optimizer": RULES[rule]()}
            options |= {"shape": SHAPES[shape], "dtype": DTYPES[at % len(DTYPES)]}
            name = f"{shape}.{rule}"
            pairs[name] = tuple(
                job.tensor(f"{name}.{how}", low_rank=8 if how == "factors" else 0, **options)
                for how in ("dense", "factors", "undeclared")
            )
        options = {"shape": (300, 400), "consistency": consistency, "filter": ps.Filters(push=ps.TopK(0.3))}
        pairs["filtered"] = tuple(
            job.tensor(f"filtered.{how}", low_rank=8 if how == "factors" else 0, **options)
            for how in ("dense", "factors")
        )
        for step in range(STEPS):
            # Some ranks are none that travels.
            rank = [1, 4, 8, 9, 0, 40][step % 6]
            for name, tensors in pairs.items():
                rows, columns = tensors[0].shape
                u, v = (
                    numbers(draw, consistency, size).astype(tensors[0].dtype)
                    for size in ((rows, rank), (rank, columns))
                )
                whole = product(u, v)
                tensors[0].push(whole)
                for tensor in tensors[1:]:
                    if step == 5:
                        # Parts are added up in the lane.
                        tensor.push(np.zeros_like(whole), more=True)
                    tensor.push_factors(u, v)
                if consistency == "bsp":
                    seen = [tensor.pull().copy() for tensor in tensors]
                    for other in seen[1:]:
                        assert other.tobytes() == seen[0].tobytes(), (name, step)
            job.clock()
        job.barrier()
        for name, tensors in pairs.items():
            seen = [tensor.pull(slack=0) for tensor in tensors]
            for other in seen[1:]:
                if consistency == "bsp" or name.endswith(".sums"):
                    np.testing.assert_array_equal(other, seen[0], name)
        job.barrier()


main(*sys.argv[1:])
