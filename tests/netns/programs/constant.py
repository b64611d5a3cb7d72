"""
A worker that pushes one number, in every element, once.

    constant.py NUMBER ELEMENTS
"""

import sys

import numpy as np

import penstock as ps

job = ps.init()
w = job.tensor("w", shape=int(sys.argv[2]))
w.push(np.full(w.shape, float(sys.argv[1]), np.float32))
job.clock()
print("result", float(w.pull()[0]), flush=True)
job.close()
