"""
A worker that pushes and pulls under BSP, for so many steps, with a compressor behind the encodings or none.

    squeezed.py COMPRESS DATA ELEMENTS STEPS     DATA: zeros (nine in ten), or dense

Ends with "result", the chunks that it has sent compressed and as they were, the bytes that it has sent and
received in a step, the seconds of a step, and the digest of the value that all end with.
"""

import hashlib
import sys
import time

import numpy as np

import penstock as ps

compress, data, elements, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
job = ps.init()
w = job.tensor("w", shape=elements, optimizer=ps.SGD(0.5), compress=compress)
draw = np.random.default_rng(job.rank)
numbers = draw.standard_normal(elements).astype(np.float32)
if data == "zeros":
    numbers[draw.random(elements) < 0.9] = 0
w.pull()
job.barrier()
before, begun = job.stats(), time.monotonic()
for _ in range(steps):
    w.push(numbers)
    job.clock()
    w.pull()
took, after = (time.monotonic() - begun) / steps, job.stats()
sent, received = ((after[key] - before[key]) / steps for key in ("sent_bytes", "received_bytes"))
chunks = [int(after[f"{what}_chunks_sent"]) for what in ("compressed", "uncompressed")]
digest = hashlib.sha256(w.pull().tobytes()).hexdigest()
print("result", *chunks, sent, received, took, digest, flush=True)
job.close()
