"""One of a job's workers; mixed.c is the same in C. Prints the bits of what it pulls last."""

import numpy as np

import penstock as ps

ELEMENTS, ITERATIONS = 5, 7

with ps.init() as job:
    w = job.tensor("w", shape=ELEMENTS, optimizer=ps.SGD(0.1))
    for _ in range(ITERATIONS):
        steps = (1 + job.rank + np.arange(ELEMENTS)).astype(np.float32)
        w.push(np.float32(0.5) * w.pull() + steps / np.float32(7))
        job.clock()
    bits = " ".join(f"{word:08x}" for word in w.pull().view(np.uint32))
    print(f"{job.rank} of {job.size}: {bits}")
