"""
Once, at the start: what no optimizer owns (buffers, frozen parameters) goes from rank 0 to everyone, byte for
byte.

It goes through one small tensor that is filled again and again, so that shared memory holds a window of it,
not all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..arrays import Array
from ..job import Job
from ..optim import Add

WINDOW_BYTES = 16 << 20
"""
Bytes that go at a time. More would cost shared memory (twice this for each worker), less a pair of barriers
each.
"""


def broadcast(job: Job, name: str, tensors: Sequence[torch.Tensor], timeout: float | None = None) -> None:
    """
    Overwrites `tensors`, which every worker lists alike, with rank 0's. Collective.

    Raises DeclarationConflict where the workers' lists differ in bytes, BarrierTimeout where a worker does
    not come.
    """
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if job.size == 1 or total == 0:
        return
    # float32 is only the coat: values are set and read, never computed with, so every bit pattern survives.
    padded = -(-total // 4) * 4
    stream = np.zeros(padded, dtype=np.uint8)
    if job.rank == 0:
        _pack(tensors, stream)
    words = stream.view(np.float32)
    window = min(len(words), WINDOW_BYTES // 4)
    # The list's length is part of the name's declaration: the first window's shape shows most differences.
    channel = job.tensor(
        name, words[:window], optimizer=Add(), consistency="bsp", reduce="sum", timeout=timeout
    )
    for start in range(0, len(words), window):
        piece = words[start : start + window]
        if start > 0:
            full = np.zeros(window, dtype=np.float32)
            full[: len(piece)] = piece
            channel.load(value=full, timeout=timeout)
        piece[:] = channel.pull(slack=0, timeout=timeout)[: len(piece)]
    # Nobody may overwrite the window, in a later call, before everyone has read it.
    job._barrier_with_first(timeout, "nothing was broadcast")
    if job.rank != 0:
        _unpack(tensors, stream)


def _pack(tensors: Sequence[torch.Tensor], stream: Array) -> None:
    offset = 0
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        stream[offset : offset + data.size] = data
        offset += data.size


@torch.no_grad()
def _unpack(tensors: Sequence[torch.Tensor], stream: Array) -> None:
    offset = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        data = torch.from_numpy(stream[offset : offset + size].copy())
        tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape))
        offset += size
