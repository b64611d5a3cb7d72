"""
A worker of two that pushes through each form of `ps.Quantize`, and compares every value with the
reference's, bit for bit.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import reference

import penstock as ps

SIZE, CHUNK, STEPS, WORKERS = 5000, 1024, 8, 2

FORMS: dict[str, tuple[ps.Quantize, reference.Rounds]] = {
    "f16": (ps.Quantize("f16"), reference.half(np.float16)),
    "bf16": (ps.Quantize("bf16"), reference.half(ml_dtypes.bfloat16)),
    "int8": (ps.Quantize("int8"), reference.multiples),
    "2bit": (ps.Quantize("2bit", threshold=1.5), reference.thirds(1.5)),
    "1bit": (ps.Quantize("1bit"), reference.signs),
}


def gradient(rank: int, step: int) -> reference.Array:
    """What a worker contributes."""
    return np.random.default_rng([rank, step]).standard_normal(SIZE).astype(np.float32)


def main() -> None:
    """Train, and compare."""
    with ps.init() as job:
        # The value is the sum alone: nothing is rounded but that.
        tensors = {
            name: job.tensor(
                name, shape=SIZE, optimizer=ps.Replace(), reduce="sum", filter=ps.Filters(push=given)
            )
            for name, (given, _) in FORMS.items()
        }
        workers = {
            name: [reference.Worker(SIZE, CHUNK, rounds=rounds) for _ in range(WORKERS)]
            for name, (_, rounds) in FORMS.items()
        }
        for step in range(STEPS):
            for name, tensor in tensors.items():
                tensor.push(gradient(job.rank, step))
                first, second = (
                    worker.push(gradient(rank, step), step) for rank, worker in enumerate(workers[name])
                )
                np.testing.assert_array_equal(tensor.pull(), first + second, f"{name}, step {step}")
                carry = workers[name][job.rank].carry
                assert tensor.held_back.elements == np.count_nonzero(carry), name
            job.clock()
        for name, tensor in tensors.items():
            assert tensor.flush() == STEPS
            first, second = (worker.flush() for worker in workers[name])
            np.testing.assert_array_equal(tensor.pull(), first + second, name)
            assert tensor.held_back == (0.0, 0)
        job.clock()
        job.barrier()


if __name__ == "__main__":
    main()
