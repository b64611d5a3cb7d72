"""
Slack torture: all workers produce, all consume everything, each at its own pace, with random pauses. Every
value says who wrote it when, so every read is judged: never older than its slack, never torn, never falling,
and rows that were set together always together.

    torture.py ITERATIONS ROWS WIDTH PROPAGATION SLACK[,SLACK...] SEED
"""

import random
import sys
import time

import numpy as np

import penstock as ps

iterations, rows, width = (int(word) for word in sys.argv[1:4])
propagation, slacks, seed = sys.argv[4], [int(word) for word in sys.argv[5].split(",")], int(sys.argv[6])
job = ps.init()
chance = random.Random(seed * 1000 + job.rank)
mine = slice(job.rank * rows, (job.rank + 1) * rows)
table = job.table(
    "items",
    rows=rows * job.size,
    width=width,
    dtype="f8",
    produce=mine,
    consume="all",
    propagation=propagation,
)
out = np.empty((rows * job.size, width))
before = np.zeros(job.size)
stalest = 0.0
for clock in range(1, iterations + 1):
    table.set(mine, np.full((rows, width), clock, dtype=np.float64), clock=clock)
    if chance.random() < 0.3:
        # One of them by itself, with the same value: it stands elsewhere then, and no reader may notice.
        table.set(mine.start + chance.randrange(rows), np.full(width, clock, dtype=np.float64), clock=clock)
    slack = chance.choice(slacks)
    if chance.random() < 0.002:
        time.sleep(chance.random() * 0.004)  # a straggler, now and then
    if chance.random() < 0.5:
        table.get(slice(None), clock=clock, slack=slack, out=out)
        blocks = out.reshape(job.size, rows, width)
    else:
        # One producer's rows, one by one and together.
        producer = chance.randrange(job.size)
        part = table.get(slice(producer * rows, (producer + 1) * rows), clock=clock, slack=slack)
        one = table.get(producer * rows + chance.randrange(rows), clock=clock, slack=slack)
        assert (one == one[0]).all(), f"torn: {one}"
        assert one[0] >= max(clock - slack, before[producer]), (clock, slack, producer, one[0])
        blocks = np.repeat(before[:, None, None], rows, axis=1).repeat(width, axis=2)
        blocks[producer] = part
        fresh = part[0, 0]
        stalest = max(stalest, clock - fresh)
        assert fresh >= clock - slack, f"worker {producer}: {fresh} at clock {clock} with slack {slack}"
    seen = blocks[:, 0, 0]
    assert (blocks == seen[:, None, None]).all(), f"rows that were set together came apart: {blocks}"
    assert (seen >= before).all(), f"fell from {before} to {seen}"
    if blocks.base is out or blocks is out.reshape(job.size, rows, width):
        assert (seen >= clock - slack).all(), f"{seen} at clock {clock} with slack {slack}"
        stalest = max(stalest, clock - seen.min())
    before = seen.copy()
    job.clock()
stats = table.stats()
print("result", int(stalest), int(stats["retries"]), int(stats["bytes_received"]), flush=True)
job.barrier()
job.close()
