"""
A worker of two that pushes through every filter, in each of the ways in which a push can be made, and
compares every value with the reference's. Whole numbers, so that no order of sums changes a bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import reference
import ways

import penstock as ps

SIZE, CHUNK, STEPS, WORKERS = 3000, 1024, 10, 2

FILTERS: dict[str, tuple[ps.filters.Filter, reference.Chooses]] = {
    "bounded": (ps.DVF(6.0), reference.bounded(6.0, "sqrt", False)),
    "constant": (ps.DVF(3.0, decay=None), reference.bounded(3.0, None, False)),
    "relative": (ps.DVF(1.0, decay=None, relative=True), reference.bounded(1.0, None, True)),
    "top": (ps.TopK(0.1), reference.top(0.1)),
}


def gradient(rank: int, step: int) -> reference.Array:
    """What a worker contributes: small numbers mostly, some of them large, the same ones for a while."""
    numbers = np.random.default_rng([rank, step]).standard_normal(SIZE)
    return np.rint(numbers * 4).astype(np.float32)


def main(
    filters: Mapping[str, tuple[ps.filters.PushFilter, reference.Chooses]] = FILTERS, chunk: int = CHUNK
) -> None:
    """Train through each, and compare with what is chosen of so many elements at once."""
    with ps.init() as job:
        tensors = {
            name: job.tensor(name, shape=SIZE, reduce="sum", filter=ps.Filters(push=given))
            for name, (given, _) in filters.items()
        }
        plain = job.tensor("plain", shape=SIZE, reduce="sum")
        workers = {
            name: [reference.Worker(SIZE, chunk, choose) for _ in range(WORKERS)]
            for name, (_, choose) in filters.items()
        }
        values = {name: np.zeros(SIZE, np.float32) for name in filters}
        for step in range(STEPS):
            plain.push(gradient(job.rank, step))
            for name, tensor in tensors.items():
                ways.push(tensor, gradient(job.rank, step), step)
                for rank, worker in enumerate(workers[name]):
                    values[name] += worker.push(gradient(rank, step), step)
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(tensor.pull(), values[name], f"{name}, step {step}")
                carry = workers[name][job.rank].carry
                held = tensor.held_back
                assert held.elements == np.count_nonzero(carry), (name, held)
                np.testing.assert_allclose(held.norm, np.linalg.norm(carry.astype(np.float64)))
                assert 0 < held.elements < SIZE, (name, held)
            job.clock()
        for tensor in tensors.values():
            assert tensor.flush() == STEPS
        for name, tensor in tensors.items():
            # Nothing was lost, and nothing counted twice.
            np.testing.assert_array_equal(tensor.pull(), plain.pull(), name)
            assert tensor.held_back == (0.0, 0)
        job.clock()
        job.barrier()


if __name__ == "__main__":
    main()
