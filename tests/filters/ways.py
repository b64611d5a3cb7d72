"""The ways in which a push can be made, and what pushes take on TCP."""

from __future__ import annotations

import numpy as np
import reference

import penstock as ps


def push(tensor: ps.Tensor, numbers: reference.Array, step: int) -> None:
    """Push them, in this step's way."""
    with np.errstate(invalid="ignore"):
        part = (numbers - tensor.dtype.type(1)).astype(tensor.dtype)
    match step % 6:
        case 0:
            tensor.push(numbers)
        case 1:
            tensor.lane()[:] = numbers
            tensor.push()
        case 2:
            tensor.push(part, more=True)
            tensor.push(np.ones_like(part))
        case 3:
            tensor.push_async(numbers).result()
        case 4:
            tensor.pushpull(numbers)
        case _:
            tensor.push(part, more=True)
            tensor.push(np.ones_like(part), more=True)
            tensor.push()


def sent_by_pushes(job: ps.Job, tensor: ps.Tensor, pushes: int) -> int:
    """Bytes that so many pushes of the same random numbers and pulls of the value have this worker send."""
    draw = np.random.default_rng(1)
    tensor.pull()
    before = job.stats()["sent_bytes"]
    for _ in range(pushes):
        tensor.push(draw.standard_normal(tensor.shape).astype(tensor.dtype))
        tensor.pull()
        job.clock()
    return int(job.stats()["sent_bytes"] - before)
