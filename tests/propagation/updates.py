"""
A worker of four, two by shared memory and two by TCP, with two tensors for each optimizer: one is fetched,
and of the other updates are sent. Both have the same bits in every iteration, whatever is pushed and loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import penstock as ps

sys.path.insert(0, str(Path(__file__).parent.parent / "trajectories"))
from trajectory import CASES

STEPS = 14
ROWS, COLUMNS = 120, 40
"""Of several chunks of 4 KiB."""


def main(folder: str) -> None:
    """Train, and save what was seen last."""
    rank = int(os.environ["PENSTOCK_RANK"])
    os.environ["PENSTOCK_TRANSPORT"] = "tcp" if rank % 2 else "auto"
    draw = np.random.default_rng(rank)
    with ps.init() as job:
        pairs = []
        for at, (name, (kind, arguments)) in enumerate(CASES.items()):
            options = {
                "value": np.random.default_rng(99).standard_normal((ROWS, COLUMNS)),
                "dtype": "float64" if at % 3 == 2 else "float32",
                "clip": 0.5 if at % 4 == 1 else None,
                "sparse": at % 2 == 0,
                "low_rank": 2 if at % 5 == 3 else 0,
                "filter": ps.Filters(push=ps.TopK(0.3)) if at % 7 == 6 else None,
            }
            optimizers = [getattr(ps, kind)(**arguments) for _ in range(2)]
            pairs.append(
                [
                    job.tensor(f"{name} {how}", optimizer=own, propagation=how, **options)
                    for how, own in zip(("pull", "update"), optimizers, strict=True)
                ]
            )
        for step in range(STEPS):
            for at, (fetched, updated) in enumerate(pairs):
                rests = (step + at + rank) % 6 == 0 or step == 9
                dtype = fetched.dtype
                rows, some = draw.integers(0, ROWS, 3), draw.standard_normal((3, COLUMNS)).astype(dtype)
                dense = draw.standard_normal((ROWS, COLUMNS)).astype(dtype)
                for tensor in (fetched, updated):
                    if rests:
                        continue
                    if (step + at) % 3 == 0:
                        tensor.push(dense)
                    elif (step + at) % 3 == 1 or at % 5 != 3:
                        tensor.push(ps.Sparse(rows, some))
                    else:
                        tensor.push_factors(dense[:, :2].copy(), dense[:2].copy())
            job.clock()
            for at, (fetched, updated) in enumerate(pairs):
                if at % 4 != 3 or step % 5 == 4:
                    same(fetched, updated, f"step {step}")
            if step == 4:
                for pair in pairs:
                    for tensor in pair:
                        tensor.set_lr(0.02)
            if step == 6:
                for fetched, updated in pairs:
                    for tensor in (fetched, updated):
                        state = tensor.optimizer_state()
                        value = np.full((ROWS, COLUMNS), 0.25, fetched.dtype)
                        tensor.load(value=value, state=state, step=2)
                    same(fetched, updated, "loaded")
            if step == 8:
                for pair in pairs:
                    for tensor in pair:
                        tensor.flush()
        states = []
        for fetched, updated in pairs:
            same(fetched, updated, "at the end")
            one, other = fetched.optimizer_state(), updated.optimizer_state()
            assert one.keys() == other.keys()
            for name, array in one.items():
                assert array.tobytes() == other[name].tobytes(), (fetched.name, name)
            assert updated.pull(exact=True).tobytes() == updated.pull().tobytes()
            states.append(updated.pull().ravel().astype(np.float64))
        np.save(f"{folder}/{rank}.npy", np.stack(states))
        job.barrier()


def same(fetched: ps.Tensor, updated: ps.Tensor, when: str) -> None:
    """Both have the same bits."""
    one, other = fetched.pull(slack=0), updated.pull(slack=0)
    assert one.tobytes() == other.tobytes(), f"{updated.name}, {when}: {np.abs(one - other).max()}"


main(sys.argv[1])
