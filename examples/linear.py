"""
Least squares by two or more workers, each with its own share of the rows.

    penstock run --workers 2 examples/linear.py

prints, from worker 0, weights within 0.01 of [ 2. -1.  0.5  3. ].
"""

import numpy as np

import penstock as ps

TRUTH = np.array([2.0, -1.0, 0.5, 3.0], dtype=np.float32)


def main() -> None:
    with ps.init() as job:
        rng = np.random.default_rng(job.rank)
        w = job.tensor("w", value=np.zeros(4, np.float32), optimizer=ps.SGD(0.1, momentum=0.5))
        for _ in range(200):
            x = rng.standard_normal((32, 4), dtype=np.float32)
            error = x @ w.pull() - x @ TRUTH
            w.push(x.T @ error / len(x))
            job.clock()
        if job.rank == 0:
            print("weights", np.round(w.pull(slack=0), 2))


if __name__ == "__main__":
    main()
