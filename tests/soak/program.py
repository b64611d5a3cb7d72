"""
A worker of the kill campaign: trains, says at every step how far it is, and writes down how it ended.

Arguments: folder, iterations, seed. Every message is one datagram to SOAK_SOCKET: `number pid mark seconds`,
the seconds by the host's monotonic clock. How and when it ended stands in `outcome.NUMBER.json` in the
folder, and when it asked to join: it can hear nothing before. Its number is its rank, or SOAK_NUMBER where a
manager gives the ranks.

Worker r pushes 1024 ** r into every element, so that the digits of an element to the base 1024 count whose
pushes are in it, and how many.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from pathlib import Path

ELEMENTS = 40_000
"""Ten chunks of 32 KiB: several a shard and a server."""
BASE = 1024


def main() -> None:
    folder, iterations, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    number = int(os.environ.get("PENSTOCK_RANK") or os.environ["SOAK_NUMBER"])
    chance = random.Random(f"{seed} {number}")
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.connect(os.environ["SOAK_SOCKET"])

    def mark(name: str) -> None:
        line.send(f"{number} {os.getpid()} {name} {time.monotonic()}".encode())
        time.sleep(chance.choice((0, 0, 0, chance.random() * 0.01)))

    def write(**outcome: object) -> None:
        path = folder / f"outcome.{number}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"when": time.monotonic(), "asked": asked, **outcome}))
        part.rename(path)

    mark("start")
    import numpy as np

    import penstock as ps

    asked = time.monotonic()
    try:
        job = ps.init()
        mark("joined")
        rank = job.rank
        tensor = job.tensor("w", shape=ELEMENTS, dtype="f8", reduce="sum")
        mine = slice(rank, rank + 1)
        table = job.table("t", rows=job.size, width=4, dtype="f8", produce=mine, consume="all")
        mark("declared")
        for iteration in range(iterations):
            tensor.pull()
            mark("pulled")
            tensor.push(np.full(ELEMENTS, float(BASE**rank)))
            mark("pushed")
            table.set(mine, np.full((1, 4), iteration + 1.0))
            job.clock()
            mark("clocked")
        job.barrier()
        mark("barrier")
        value = np.array(tensor.pull())
        rows = table.get(slice(None), slack=job.size + iterations)[:, 0].tolist()
        job.barrier()
        mark("leaving")
        job.close()
        mark("left")
    except ps.PenstockError as error:
        write(
            error=type(error).__name__,
            text=str(error),
            rank=getattr(error, "rank", None),
            server=getattr(error, "server", None),
        )
        raise SystemExit(1) from error
    counts = value.astype(np.int64)[:, None] // BASE ** np.arange(job.size) % BASE
    write(least=counts.min(axis=0).tolist(), most=counts.max(axis=0).tolist(), rows=rows)


if __name__ == "__main__":
    main()
