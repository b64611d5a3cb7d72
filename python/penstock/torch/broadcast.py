"""
Once, at the start: what no optimizer owns (buffers, frozen parameters) goes from rank 0 to everyone, byte for
byte.

It goes through one small tensor that is filled again and again, so that shared memory holds a window of it,
not all; later broadcasts of the job use the same. Before, every worker compares the names, shapes and types
of its own with rank 0's: lists that differ would be read as each other's bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..arrays import Array
from ..exceptions import DeclarationConflict
from ..gather import lines_of, printable, unreadable
from ..job import Job
from ..optim import Add
from ..tensor import Tensor

WINDOW_BYTES = 16 << 20
"""
Bytes that go at a time. A larger window costs shared memory (twice this for each worker), a smaller one more
barriers.
"""
LIST_BYTES = 16 << 10
"""Room for rank 0's list, compressed; of a longer one only the digest is sent."""
MOST_LIST_BYTES = 32 << 20
"""Of rank 0's list: more than so much room can hold."""
_DIGEST_BYTES = 32
_END = "\n"


def broadcast(
    job: Job,
    name: str,
    named: Mapping[str, torch.Tensor],
    timeout: float | None = None,
    trained: Mapping[str, torch.Tensor] | None = None,
    settings: Sequence[str] = (),
) -> None:
    """
    Overwrites the tensors, which every worker names in the same way and order, with rank 0's. Collective.
    Those that are `trained` are compared too, and the lines of `settings`: every worker must train the same.

    Raises DeclarationConflict if the workers' lists differ, GatherConflict if rank 0's cannot be read,
    BarrierTimeout if a worker does not come.
    """
    if job.size == 1:
        return
    # Trained tensors are marked, so that lists which differ only in what is trained differ. Sorted: workers
    # may order the optimizer's groups differently.
    lines = [f"{line}, trained" for line in sorted(_described(trained or {}))] + _described(named)
    lines += settings
    _agree(job, f"{name}/list", lines, timeout)
    tensors = list(named.values())
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if total == 0:
        return
    # float32 is only a wrapper: values are set and read, never computed with, so every bit pattern survives.
    padded = -(-total // 4) * 4
    stream = np.zeros(padded, dtype=np.uint8)
    if job.rank == 0:
        _pack(tensors, stream)
    words = stream.view(np.float32)
    # A power of two: few lengths serve all models.
    window = min(1 << (len(words) - 1).bit_length(), WINDOW_BYTES // 4)
    page = np.zeros(window, dtype=np.float32)
    channel = _channel(job, f"window/{window}", window, timeout)
    for start in range(0, len(words), window):
        piece = words[start : start + window]
        page[: len(piece)] = piece
        channel.load(value=page, timeout=timeout)
        piece[:] = channel.pull(slack=0, timeout=timeout)[: len(piece)]
    # No worker may overwrite the window, in a later call, before all have read it.
    job._barrier_with_first(timeout, name, "nothing was broadcast")
    if job.rank != 0:
        _unpack(tensors, stream)


def broadcast_bytes(job: Job, name: str, data: bytes | None, timeout: float | None = None) -> bytes:
    """
    Rank 0's `data`, on every worker. Collective; the others pass None.

    Raises BarrierTimeout if a worker does not come.
    """
    if job.size == 1:
        return data or b""
    length = torch.tensor(len(data or b""), dtype=torch.int64, device="cpu")
    broadcast(job, f"{name}/length", {"length": length}, timeout)
    if int(length) < 0:
        raise unreadable(0)
    if not length:
        return b""
    held = torch.zeros(int(length), dtype=torch.uint8, device="cpu")
    if job.rank == 0:
        held.copy_(torch.frombuffer(bytearray(data or b""), dtype=torch.uint8))
    broadcast(job, f"{name}/bytes", {"bytes": held}, timeout)
    return held.numpy().tobytes()


def _channel(job: Job, name: str, length: int, timeout: float | None) -> Tensor:
    """
    The tensor that data goes through. Always by a load, in which all meet: who declares it again, as what it
    was declared for has failed, does not know whether the others have declared it.
    """
    return job.tensor(name, shape=length, optimizer=Add(), consistency="bsp", reduce="sum", timeout=timeout)


def _described(named: Mapping[str, torch.Tensor]) -> list[str]:
    return [
        f"{label}: {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}{_order(tensor)}"
        for label, tensor in named.items()
    ]


def _order(tensor: torch.Tensor) -> str:
    """In which order its elements lie, where that is not the usual one: gradients travel as they lie."""
    return "" if tensor.is_contiguous() else f" with strides {tensor.stride()}"


def _agree(job: Job, name: str, mine: list[str], timeout: float | None) -> None:
    """Refuses a list that differs from rank 0's, and names the first difference."""
    text = _END.join(mine).encode()
    digest = hashlib.sha256(text).digest()
    packed = zlib.compress(text)
    page = np.zeros(LIST_BYTES, dtype=np.uint8)
    page[:_DIGEST_BYTES] = np.frombuffer(digest, dtype=np.uint8)
    if len(packed) <= LIST_BYTES - _DIGEST_BYTES:
        page[_DIGEST_BYTES:][: len(packed)] = np.frombuffer(packed, dtype=np.uint8)
    channel = _channel(job, name, LIST_BYTES // 4, timeout)
    channel.load(value=page.view(np.float32), timeout=timeout)
    theirs = channel.pull(slack=0, timeout=timeout).view(np.uint8).tobytes()
    if theirs[:_DIGEST_BYTES] == digest:
        return
    told = lines_of(0, theirs[_DIGEST_BYTES:], MOST_LIST_BYTES) if theirs[_DIGEST_BYTES] else []
    raise DeclarationConflict(
        f"`{name}` differs: {_difference(job.rank, text.decode().split(_END) if text else [], told)}",
        "build the same model on every worker, with the same parameters frozen, the same buffers, and an "
        "optimizer of the same settings whose groups have the same parameters in the same order",
    )


def _difference(rank: int, mine: list[str], theirs: list[str]) -> str:
    """Where two lists begin to differ."""
    if not any(theirs):
        return f"worker {rank} has other tensors than worker 0: {len(mine)} of them, first {mine[:1]}"
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing more")
    here, there = next((map(printable, pair) for pair in pairs if pair[0] != pair[1]), (None, None))
    if here is None:
        raise unreadable(0)
    return f"worker {rank} has {here}, worker 0 has {there}"


def _pack(tensors: Sequence[torch.Tensor], stream: Array) -> None:
    offset = 0
    for tensor in tensors:
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy()
        stream[offset : offset + data.size] = data
        offset += data.size


@torch.no_grad()
def _unpack(tensors: Sequence[torch.Tensor], stream: Array) -> None:
    offset = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            # Torch takes no view of nothing as another dtype.
            continue
        data = torch.from_numpy(stream[offset : offset + size].copy())
        tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape))
        offset += size
