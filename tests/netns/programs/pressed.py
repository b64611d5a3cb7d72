"""
A worker whose filters may follow the network, for so many steps.

    pressed.py FILTER ELEMENTS STEPS     FILTER: auto or none

Ends with "result", the largest shares of the way to `up` of pushes and of broadcasts, the bytes that it has
sent and received in a step, and the digest of the value that all end with.
"""

import hashlib
import sys

import numpy as np

import penstock as ps

kind, elements, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
job = ps.init()
w = job.tensor("w", shape=elements, optimizer=ps.SGD(0.5), filter="auto" if kind == "auto" else None)
draw = np.random.default_rng(job.rank)
before = job.stats()
for _ in range(steps):
    numbers = draw.integers(-8, 9, elements).astype(np.float32)
    w.push(numbers)
    job.clock()
    w.pull()
sent, received = ((job.stats()[key] - before[key]) / steps for key in ("sent_bytes", "received_bytes"))
pressure = w.pressure()
push = max((change.share for change in pressure.push), default=0.0)
values = max((change.share for shard in pressure.broadcast.values() for change in shard), default=0.0)
w.flush()
job.clock()
digest = hashlib.sha256(w.pull().tobytes()).hexdigest()
print("result", push, values, sent, received, digest, flush=True)
job.close()
