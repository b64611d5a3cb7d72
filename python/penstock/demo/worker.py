"""
A worker of the demo: `python -m penstock.demo.worker`, started by `penstock demo` like any script by
`penstock run`.

It tells the launcher how it is getting on by lines of JSON on the descriptor in PENSTOCK_REPORT_FD.
"""

from __future__ import annotations

import base64
import io
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from penstock.demo import model
from penstock.demo.data import Digits, epoch_batches
from penstock.demo.judging import Album, mean
from penstock.demo.learner import Learner, Shared
from penstock.demo.settings import Settings

REPORT_SECONDS = 0.1
"""Time between two reports of a worker: often enough to watch, too seldom to cost."""


def main() -> None:
    """Trains this worker's share."""
    directory = Path(os.environ["PENSTOCK_DIRECTORY"])
    settings = Settings.from_bytes((directory / "settings.json").read_bytes())
    digits = Digits.from_bytes((directory / "digits.npz").read_bytes())
    with ps.init() as job, os.fdopen(int(os.environ["PENSTOCK_REPORT_FD"]), "w") as pipe:
        learner = make(job, settings)
        job.barrier()
        train(job, learner, settings, digits, Reports(job, pipe))


def make(job: ps.Job, settings: Settings) -> Learner:
    """The model, its parameters on the server."""
    if settings.torch:
        from penstock.demo.torch_learner import TorchShared

        return TorchShared(job, settings)
    return Shared(job, settings)


class Reports:
    """What this worker has to say, at most every `REPORT_SECONDS` unless it is important."""

    def __init__(self, job: ps.Job, pipe: Any) -> None:
        self._job = job
        self._pipe = pipe
        self._next = 0.0
        self.samples = 0
        self.staleness: Counter[int] = Counter()

    def step(self, samples: int, staleness: int | None) -> None:
        """A step is done."""
        self.samples += samples
        if staleness is not None:
            self.staleness[staleness] += 1
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + REPORT_SECONDS
            self.send(now=staleness)

    def send(self, **more: Any) -> None:
        """Reports now."""
        stats = self._job.stats()
        report = {
            "clock": self._job.iteration,
            "samples": self.samples,
            "max_staleness": int(stats["max_staleness"]),
            "moved": int(stats["pushed_bytes"] + stats["pulled_bytes"]),
            **more,
        }
        self._pipe.write(json.dumps(report) + "\n")
        self._pipe.flush()


def train(job: ps.Job, learner: Learner, settings: Settings, digits: Digits, reports: Reports) -> None:
    """
    The training loop. Rank 0 tells after each epoch how its own batches went, and keeps parameters, which it
    sends when all is done: what is judged while others wait would be counted as training.
    """
    samples = len(digits.train_y)
    album = Album(settings.epochs)
    reports.send(begin=time.time())
    for epoch in range(1, settings.epochs + 1):
        steps = []
        for batch in epoch_batches(samples, settings.batch, settings.workers, settings.seed, epoch - 1):
            mine = batch[job.rank]
            steps.append(learner.step(digits.train_x[mine], digits.train_y[mine]))
            reports.step(len(mine), steps[-1].staleness)
        if job.rank == 0:
            accuracy, loss = mean(step.accuracy for step in steps), mean(step.loss for step in steps)
            reports.send(epoch=epoch, accuracy=accuracy, loss=loss)
            if epoch < settings.epochs and album.wants(epoch):
                album.pictures[epoch] = learner.now()
    end = time.time()
    job.barrier()
    reports.send(end=end, staleness=reports.staleness)
    if job.rank == 0:
        # Every worker has completed every iteration: from here on all see the same parameters, whatever
        # the consistency.
        album.pictures[settings.epochs] = learner.parameters()
        for epoch, parameters in album.pictures.items():
            reports.send(after=epoch, parameters=packed(parameters))
    job.barrier()


def packed(parameters: model.Parameters) -> str:
    """Parameters as text that fits into a line."""
    file = io.BytesIO()
    np.savez(file, **parameters)  # type: ignore[arg-type]
    return base64.b64encode(file.getvalue()).decode()


def unpacked(text: str) -> model.Parameters:
    """What `packed` wrote."""
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


if __name__ == "__main__":
    main()
