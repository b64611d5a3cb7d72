"""One of a job's workers; filtered.c is the same in C. Prints what it read."""

import sys

import numpy as np

import penstock as ps

ROWS, WIDTH, RANK, ITERATIONS = 70, 11, 2, 7
FILTERS = {
    "dvf": ps.Filters(push=ps.DVF(0.5)),
    "follows": ps.Filters(push=ps.DVF(0.25, 0.5, sufficient=1)),
    "relative": ps.Filters(push=ps.DVF(1, relative=True, decay=None)),
    "top": ps.Filters(push=ps.TopK(0.1)),
    "random": ps.Filters(push=ps.RandomK(0.25, 7)),
    **{form: ps.Filters(push=ps.Quantize(form)) for form in ("f16", "bf16", "int8")},
    "2bit": ps.Filters(push=ps.Quantize("2bit", threshold=0.25)),
    "1bit": ps.Filters(push=ps.Quantize("1bit")),
    "b.dvf": ps.Filters(broadcast=ps.DVF(0.5, decay=None)),
    "b.random": ps.Filters(broadcast=ps.RandomK(0.25, 3)),
    "b.int8": ps.Filters(broadcast=ps.Quantize("int8")),
    "b.streamed": ps.Filters(push=ps.TopK(0.5), broadcast=ps.TopK(0.5)),
    "auto": "auto",
    "b.f16": ps.Filters(broadcast=ps.Quantize("f16")),
    "b.2bit": ps.Filters(broadcast=ps.Quantize("2bit", threshold=0.75)),
}
seen = 2166136261


def numbers(rank: int, iteration: int, *shape: int) -> np.ndarray:
    at = np.arange(np.prod(shape)).reshape(shape)
    return ((rank * 7 + iteration * 13 + at * 29) % 41 - 20).astype(np.float32) / np.float32(8)


def note(value: np.ndarray) -> None:
    global seen
    for byte in value.tobytes():
        seen = (seen ^ byte) * 16777619 & 0xFFFFFFFF


def conflict(job: ps.Job) -> None:
    declare = lambda low: job.tensor("same", shape=(), filter=ps.Filters(push=ps.DVF(low)))  # noqa: E731
    if job.rank == 0:
        declare(0.5)
    job.barrier()
    if job.rank == 1:
        try:
            declare(0.25)
        except ps.exceptions.DeclarationConflict:
            pass
        else:
            raise AssertionError("it was declared differently before")
    job.barrier()


with ps.init() as job:
    if sys.argv[1:] == ["conflict"]:
        conflict(job)
        sys.exit()
    options = {"shape": (ROWS, WIDTH), "optimizer": ps.SGD(0.5)}
    tensors = [
        job.tensor(
            name,
            filter=filters,
            propagation="broadcast" if name == "b.streamed" else "pull",
            **options,
        )
        for name, filters in FILTERS.items()
    ]
    some = job.tensor("some", sparse=True, **options)
    product = job.tensor("product", low_rank=RANK, **options)
    for iteration in range(ITERATIONS):
        for tensor in tensors:
            tensor.push(numbers(job.rank, iteration, ROWS, WIDTH))
        for tensor in tensors:
            note(tensor.pull())
        row = (job.rank + iteration) % ROWS
        places = np.array([ROWS * WIDTH - 1, iteration * 3])
        values = numbers(job.rank, iteration, 3, WIDTH)
        some.push(ps.Sparse([row, ROWS - 1, row], values), more=True)
        some.push(ps.Sparse(np.stack(np.unravel_index(places, (ROWS, WIDTH))), values.ravel()[:2]))
        u, v = numbers(job.rank, iteration, ROWS, RANK), numbers(job.rank, iteration + 1, RANK, WIDTH)
        product.push_factors(u, v)
        note(some.pull(rows=[ROWS - 1, iteration]))
        note(some.pull(indices=places))
        note(product.pull())
        job.clock()
    for tensor in tensors:
        tensor.flush()
        assert tensor.held_back == (0.0, 0)
        note(tensor.pull())
        assert tensor.pull().tobytes() == tensor.pull(exact=True).tobytes()
    job.clock()
    print(f"{job.rank} of {job.size}: {seen:08x}")
