"""
A worker of two that reads through every filter of broadcasts, and through filters of both directions at
once, and compares every value with the reference's. Whole numbers, so that no order of sums changes a bit.
"""

from __future__ import annotations

import numpy as np
import reference
from train import FILTERS, SIZE, gradient

import penstock as ps

CHUNK, STEPS, RESTS, WORKERS = 1024, 10, 32, 2


def main() -> None:
    """Train, and compare."""
    with ps.init() as job:
        first = np.arange(SIZE, dtype=np.float32) % 3
        homes, carries, tensors = {}, {}, {}
        for name, (given, choose) in FILTERS.items():
            for both in (False, True):
                key = f"{name} both ways" if both else name
                filters = ps.Filters(push=given if both else None, broadcast=given)
                tensors[key] = job.tensor(key, value=first, reduce="sum", filter=filters)
                homes[key] = reference.Home(first, CHUNK, choose, shrinks=name == "bounded")
                if both:
                    carries[key] = [reference.Worker(SIZE, CHUNK, choose) for _ in range(WORKERS)]
        values = {name: first.copy() for name in tensors}
        for step in range(STEPS):
            for name, tensor in tensors.items():
                tensor.push(gradient(job.rank, step))
                for rank in range(WORKERS):
                    sent = gradient(rank, step)
                    if name in carries:
                        sent = carries[name][rank].push(sent, step)
                    values[name] += sent
            for name, tensor in tensors.items():
                seen = homes[name].publish(values[name], step + 1)
                assert 0 < np.count_nonzero(seen != values[name]) < SIZE, (name, step)
                np.testing.assert_array_equal(tensor.pull(), seen, f"{name}, step {step}")
                if step % 3 == 0:
                    # Without any effect on what is read afterwards.
                    np.testing.assert_array_equal(tensor.pull(exact=True), values[name], name)
            job.clock()
        # Nothing is pushed: what is held back waits for a push, for a bound that shrinks, or for a flush.
        for version in range(STEPS + 1, STEPS + RESTS + 1):
            job.clock()
            for name, tensor in tensors.items():
                seen = homes[name].rest(values[name], version)
                np.testing.assert_array_equal(tensor.pull(), seen, f"{name}, version {version}")
                # At four times the last version that bound is less than 1.
                passed = homes[name].shrinks and version >= 4 * STEPS
                assert np.array_equal(seen, values[name]) == passed, (name, version)
        total = first + sum(gradient(rank, step) for rank in range(WORKERS) for step in range(STEPS))
        for name, tensor in tensors.items():
            assert tensor.flush() == (STEPS + RESTS if name in carries else None)
            # Nothing was lost, and nothing counted twice.
            np.testing.assert_array_equal(tensor.pull(), total, name)
            np.testing.assert_array_equal(tensor.pull(exact=True), total, name)
        job.clock()
        # And it goes on from there.
        for name, tensor in tensors.items():
            home = reference.Home(total, CHUNK, FILTERS[name.removesuffix(" both ways")][1])
            if name not in carries:
                tensor.push(gradient(job.rank, STEPS))
                value = total + sum(gradient(rank, STEPS) for rank in range(WORKERS))
                np.testing.assert_array_equal(tensor.pull(), home.publish(value, STEPS + RESTS + 2), name)
        job.clock()
        job.barrier()


main()
