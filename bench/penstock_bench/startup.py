"""
How long it takes from `penstock run` to the end of the first step.

From before the launcher is started to the moment when the last worker has seen the parameters of its first
step: processes, imports, connecting, declaring a tensor, one `pushpull` and the clock. As a program, this
module is one worker.
"""

from __future__ import annotations

import sys
import time

from penstock.launch.ranks import Ranks, serve


def seconds(workers: int, servers: int) -> float:
    """
    Starts a job and ends it again.

    Returns
    -------
    float
        Seconds to the end of the first step of the slowest worker.
    """
    run = [sys.executable, "-m", "penstock.cli", "run", "--workers", str(workers), "--servers", str(servers)]
    start = time.monotonic_ns()
    with Ranks("penstock run", workers, [[*run, "-m", __name__]], [{}]) as ranks:
        return float(max(answer["at"] for answer in ranks.ask(do="at")) - start) / 1e9


class FirstStep:
    """A worker that takes one step as it comes up."""

    def __init__(self) -> None:
        import numpy as np

        import penstock as ps

        job = ps.init()
        self.rank, self.size = job.rank, job.size
        tensor = job.tensor("w", value=np.zeros(1024, np.float32), optimizer=ps.SGD(0.1))
        tensor.pushpull(np.ones(1024, np.float32))
        job.clock()
        self.at = time.monotonic_ns()


def main() -> None:
    """One worker."""
    worker = FirstStep()
    serve(worker.rank, {"at": lambda _: {"at": worker.at}})


if __name__ == "__main__":
    main()
