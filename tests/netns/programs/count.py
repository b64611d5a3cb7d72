"""
A worker that sees for itself how stale what it pulls is: row r of the tensor is how many updates of worker r
are in it, in every element. Prints each iteration, and the largest staleness.

    count.py ITERATIONS ELEMENTS CONSISTENCY
"""

import sys

import numpy as np

import penstock as ps

iterations, elements, consistency = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
job = ps.init()
start = np.zeros((job.size, elements), np.float32)
w = job.tensor("w", value=start, optimizer=ps.Add(), reduce="sum", consistency=consistency)
one = np.zeros((job.size, elements), np.float32)
one[job.rank] = 1
staleness = 0
for iteration in range(iterations):
    seen = w.pull().min(axis=1)
    assert seen[job.rank] == iteration, "a worker sees its own updates"
    staleness = max(staleness, iteration - int(seen.min()))
    w.push(one)
    job.clock()
    print(f"iteration {iteration}.", flush=True)
job.barrier()
assert (w.pull(slack=0) == iterations).all(), "every update counts, once"
print("result", staleness, int(job.stats()["max_staleness"]), flush=True)
job.close()
