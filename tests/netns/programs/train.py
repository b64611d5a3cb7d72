"""
A worker whose every update depends on the value before it, so that one bit that differs anywhere differs in
the end. Prints each iteration that it has completed, and the digest of the value.

    train.py ITERATIONS ELEMENTS CONSISTENCY
"""

import hashlib
import sys

import numpy as np

import penstock as ps

iterations, elements, consistency = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
job = ps.init()
start = np.arange(elements, dtype=np.float32)
w = job.tensor("w", value=start, optimizer=ps.SGD(0.1, momentum=0.9), consistency=consistency)
for iteration in range(iterations):
    gradient = np.full(elements, (job.rank + 1) / (iteration + 2), np.float32)
    gradient += w.pull() % np.float32(3)
    w.push(gradient)
    job.clock()
    print(f"iteration {iteration}.", flush=True)
job.barrier()
print("result", hashlib.sha256(w.pull(slack=0).tobytes()).hexdigest(), flush=True)
job.close()
