"""
A worker that prints, as JSON, the bytes that its pushes took on TCP, by form and dtype, and what the kernel
says of all its connections.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from pathlib import Path

import ways

import penstock as ps

ELEMENTS, PUSHES = 1 << 18, 4
FORMS = ("f16", "bf16", "int8", "2bit", "1bit")


def sent() -> int:
    """
    Bytes that this process has sent on all connections of TCP that it has, those that were sent again counted
    once (`tcpi_bytes_sent`, `tcpi_bytes_retrans`).
    """
    total, seen = 0, set()
    for name in list(Path("/proc/self/fd").iterdir()):
        if not name.exists():
            # That of the list itself.
            continue
        at = name.stat()
        # Some have two descriptors.
        if not stat.S_ISSOCK(at.st_mode) or at.st_ino in seen:
            continue
        seen.add(at.st_ino)
        with socket.socket(fileno=os.dup(int(name.name))) as line:
            if line.family in (socket.AF_INET, socket.AF_INET6) and line.type == socket.SOCK_STREAM:
                known = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                first, again = struct.unpack_from("<QQ", known, 200)
                total += first - again
    return total


def main() -> None:
    """Push random numbers through each."""
    taken: dict[str, dict[str, int]] = {}
    with ps.init() as job:
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            taken[dtype] = {}
            for form in FORMS:
                if dtype.endswith("16") and form.endswith("16"):
                    continue
                w = job.tensor(
                    f"{form} {dtype}", shape=ELEMENTS, dtype=dtype, filter=ps.Filters(push=ps.Quantize(form))
                )
                taken[dtype][form] = ways.sent_by_pushes(job, w, PUSHES)
        told = {"sent": sent(), "told": job.stats()["sent_bytes"], "received": job.stats()["received_bytes"]}
    print(json.dumps({"elements": ELEMENTS * PUSHES, "taken": taken, **told}))


if __name__ == "__main__":
    main()
