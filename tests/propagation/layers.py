"""A worker that pushes and pulls through filters, and says where the time went."""

import json

import numpy as np

import penstock as ps

with ps.init() as job:
    few = ps.Filters(push=ps.TopK(0.01), broadcast=ps.TopK(0.05))
    w = job.tensor("w", shape=(1 << 16,), optimizer=ps.SGD(lr=0.1), filter=few)
    before = job.layers()
    for seed in range(8):
        w.push(np.random.default_rng(seed).standard_normal(w.shape).astype(np.float32))
        w.pull()
        job.clock()
    print(json.dumps([before, job.layers()]))
