"""BSP gives the same bits in every run, however the work is cut and whoever does it (C-4)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trajectory as t

WORKERS = 3
SCRIPT = """
sys.argv.append(os.environ["TEST_OUT"])
sys.path.insert(0, sys.argv.pop(1))
import trajectory
trajectory.main()
"""

first: dict[str, str] = {}


def digests(spawn_job: Any, servers: int, options: dict[str, str]) -> dict[str, str]:
    saved = spawn_job(
        WORKERS,
        SCRIPT,
        servers=servers,
        options=options,
        arguments=(str(Path(t.__file__).parent), "bits", "mean", "bsp"),
    )
    names = [f"{name}/{dtype}/digest" for name, dtype in t.BITS.items()]
    found = [{name: str(result[name]) for name in names} for result in saved]
    assert all(other == found[0] for other in found), "two workers of one run saw different bits"
    return found[0]


@pytest.mark.parametrize(
    ("servers", "options"),
    [
        (1, {}),
        (1, {"shards": "0"}),  # the default: the same again, since arrival orders differ from run to run
        (1, {"chunk_bytes": "4096", "shards": "2"}),
        (1, {"chunk_bytes": "131072", "shards": "3"}),
        (2, {"chunk_bytes": "32768", "shards": "1"}),
        (2, {"chunk_bytes": "4096", "shards": "3"}),
    ],
)
def test_runs_agree_bit_for_bit_whatever_the_chunks_shards_and_servers(
    spawn_job: Any, servers: int, options: dict[str, str]
) -> None:
    """C-4."""
    found = digests(spawn_job, servers, options)
    first.update(first or found)
    assert found == first


ALONE = """
import hashlib
import sys
import numpy as np
import penstock as ps
if sys.argv[1] == "flush":
    import torch
    assert torch.set_flush_denormal(True), "the processor cannot"
    assert np.float32(1e-39) * np.float32(1.0) == 0, "nothing to guard against"
numbers = np.arange(1, 4097, dtype=np.uint32)
denormal = (numbers * np.uint32(977)).view(np.float32)
usual = (numbers * np.uint32(1009) + np.uint32(0x3A800000)).view(np.float32)
gradient = np.where(numbers % 2 == 0, denormal, usual)
digest = hashlib.sha256()
with ps.init() as job:
    w = job.tensor("w", value=gradient, optimizer=ps.Adam(lr=1e-3, weight_decay=0.01), consistency=ps.BSP())
    v = job.tensor("v", value=gradient, optimizer=ps.SGD(1.0), consistency=ps.BSP())
    # Every third element by itself: denormals among them, each named twice.
    x = job.tensor("x", value=gradient, optimizer=ps.Add(), consistency=ps.BSP())
    third = np.repeat(np.arange(0, 4096, 3), 2)
    rows = slice(0, 64)
    sums = job.table("sums", rows=64, width=64, fold="sum", produce=rows, consume=rows)
    for _ in range(5):
        for tensor in (w, v):
            tensor.push(gradient, more=True)
            tensor.push(gradient)
        x.push(ps.Sparse(third, gradient[third]))
        sums.add(rows, gradient.reshape(64, 64))
        job.clock()
    for array in (w.pull(), v.pull(), x.pull(), sums.get(rows)):
        digest.update(np.ascontiguousarray(array).tobytes())
print(digest.hexdigest())
"""


def test_flushed_denormals_in_the_process_that_starts_the_server_change_no_bit() -> None:
    pytest.importorskip("torch")

    def alone(mode: str) -> str:
        command = [sys.executable, "-c", ALONE, mode]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    assert alone("flush") == alone("leave")
