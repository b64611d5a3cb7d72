"""
Bayesian probabilistic matrix factorisation over item tables: Lapser's case study (see README.md).

    penstock run --workers 2 examples/bpmf/train.py --data u.data --iterations 100 --slack 4
"""

from __future__ import annotations

import os

# A worker a core: BLAS threads would only be in each other's way. Before NumPy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ratings import BadRatingsError, Ratings, load
from sampler import BLOCKS, Side, block_sums, bounds, hyper

import penstock as ps

USERS, MOVIES = 0, 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    add = parser.add_argument
    add(
        "--data",
        required=True,
        help="u.data, ratings.csv, matrix.mtx, or synthetic:USERSxMOVIESxRATINGS[:RANK]",
    )
    add("--test", help="ratings kept for the test, in a file of their own")
    add("--split", type=float, default=0.2, help="else this part of the ratings (default 0.2)")
    add("--latent", type=int, default=32, help="latent features (default 32)")
    add("--iterations", type=int, default=100, help="iterations (default 100)")
    add("--burn-in", type=int, default=5, help="iterations before predictions are averaged (default 5)")
    add("--slack", default="0", help="clocks that rows of U and V may lack, or auto[:MAX] (default 0)")
    add(
        "--hyper-slack",
        type=int,
        default=0,
        help="clocks that sums for the hyper-parameters may lack (default 0)",
    )
    add(
        "--propagation",
        choices=("eager", "lazy", "bounded"),
        default="eager",
        help="between hosts (default eager)",
    )
    add("--seed", type=int, default=0, help="of all random numbers (default 0)")
    add(
        "--straggler",
        help="RANK:SECONDS, that worker sleeps so long on average in each iteration; any:SECONDS, one worker "
        "does, another one each time",
    )
    add("--clamp", metavar="LOW:HIGH", help="cut predictions to the rating scale; auto: that of the data")
    add("--json", type=Path, help="write what happened to this file")
    add("--quiet", action="store_true", help="no line an iteration")
    given = parser.parse_args()
    if given.latent < 1 or given.iterations < 1 or given.hyper_slack < 0 or given.seed < 0:
        parser.error("expected --latent and --iterations of 1 or more, --hyper-slack and --seed of 0 or more")
    automatic, _, most = given.slack.partition(":")
    if not given.slack.isdigit() and (automatic != "auto" or (most and not most.isdigit())):
        parser.error(f"argument --slack: expected a whole number or auto[:MAX], got {given.slack!r}")
    if given.clamp not in (None, "auto"):
        try:
            low, high = map(float, given.clamp.split(":"))
        except ValueError:
            low, high = 1.0, 0.0
        if not low < high:
            parser.error(f"argument --clamp: expected LOW:HIGH, such as 1:5, or auto, got {given.clamp!r}")
    if given.straggler is not None:
        rank, _, mean = given.straggler.partition(":")
        if not (rank.isdigit() or rank == "any") or not mean.replace(".", "", 1).isdigit():
            parser.error(
                f"argument --straggler: expected RANK:SECONDS or any:SECONDS, got {given.straggler!r}"
            )
    return given


@dataclass
class History:
    """What rank 0 saw, by iteration."""

    sample: list[float] = field(default_factory=list)
    average: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    communication: list[float] = field(default_factory=list)


class Factorization:
    """One worker's part."""

    def __init__(self, job: ps.Job, given: argparse.Namespace, train: Ratings, test: Ratings) -> None:
        self.job, self.given = job, given
        self.mean = float(train.values.mean())
        self.scale = scale(given.clamp, train)
        values, k = train.values - self.mean, given.latent
        indices = (train.users, train.movies)
        self.count = train.shape
        self.sides, self.cuts, self.rows, self.sums, self.blocks = [], [], [], [], []
        self.communicated = 0.0
        automatic, _, most = given.slack.partition(":")
        slack = ps.SSP("auto", max=int(most or 16)) if automatic == "auto" else int(given.slack)
        ranges, mine, edges = [], [], []
        for side in (USERS, MOVIES):
            counts = np.bincount(indices[side], minlength=self.count[side])
            edge = bounds(counts, BLOCKS)
            # Workers take whole blocks, so that sums over blocks do not depend on which worker takes which.
            first, last = (job.rank * BLOCKS // job.size, (job.rank + 1) * BLOCKS // job.size)
            mine.append(range(first, last))
            ranges.append(range(int(edge[first]), int(edge[last])))
            edges.append(edge)
        self.test = test.take((test.users >= ranges[USERS].start) & (test.users < ranges[USERS].stop))
        order = np.argsort(self.test.users, kind="stable")
        self.test = self.test.take(order)
        self.predicted = np.zeros(len(self.test))
        for side, other in ((USERS, MOVIES), (MOVIES, USERS)):
            own = Side(ranges[side], indices[side], indices[other], values, k)
            self.sides.append(own)
            self.cuts.append(edges[side][mine[side].start : mine[side].stop + 1] - ranges[side].start)
            self.blocks.append(mine[side])
            name = "UV"[side]
            # Rows of this side that this worker's ratings of the other side touch.
            seen = (indices[other] >= ranges[other].start) & (indices[other] < ranges[other].stop)
            touched = indices[side][seen]
            if side == MOVIES:
                touched = np.concatenate((touched, self.test.movies))
            wanted = np.unique(touched)
            self.rows.append(
                job.table(
                    name,
                    rows=self.count[side],
                    width=k,
                    dtype="f8",
                    produce=ranges[side],
                    consume=wanted,
                    propagation=given.propagation,
                    slack=slack,
                )
            )
            self.sums.append(
                job.table(
                    f"sums of {name}",
                    rows=BLOCKS,
                    width=k + k * k,
                    dtype="f8",
                    produce=mine[side],
                    consume="all",
                    propagation=given.propagation,
                    slack=given.hyper_slack,
                )
            )
        self.error = job.table(
            "errors",
            rows=BLOCKS,
            width=3,
            dtype="f8",
            produce=mine[USERS],
            consume="all" if job.rank == 0 else None,
            propagation=given.propagation,
            slack=slack,
        )
        self.test_block = np.searchsorted(edges[USERS], self.test.users, side="right") - 1
        self.wanted = [table.consumed for table in self.rows]
        self.values = [np.zeros((count, k)) for count in self.count]
        self.totals = [np.zeros((BLOCKS, k + k * k)) for _ in self.count]

    def sample(self, side: int, iteration: int) -> None:
        """Samples this worker's rows of a side, for clock iteration + 1, and brings the others' here."""
        given, own, k = self.given, self.sides[side], self.given.latent
        mean, precision = hyper(given.seed, iteration, side, self.totals[side], self.count[side], k)
        rows = own.sample(given.seed, iteration, side, self.values[1 - side], mean, precision)
        sums = block_sums(rows, self.cuts[side])
        start = time.perf_counter()
        if len(own.rows):
            self.rows[side].set(own.rows, rows, clock=iteration + 1)
        if len(self.blocks[side]):
            self.sums[side].set(self.blocks[side], sums, clock=iteration + 1)
        self.values[side][own.rows.start : own.rows.stop] = rows
        if len(self.wanted[side]):
            self.values[side][self.wanted[side]] = self.rows[side].get(self.wanted[side], clock=iteration + 1)
        # Now, and not when they are needed: a get returns what is new enough, and without slack no worker can
        # have gone further yet, since each needs everyone's sums of the other side before that.
        self.totals[side] = self.sums[side].get(slice(None), clock=iteration + 1)
        self.communicated += time.perf_counter() - start

    def judge(self, iteration: int) -> None:
        """Squared errors of this worker's test ratings: of this sample, and of the average so far."""
        test = self.test
        predicted = (self.values[USERS][test.users] * self.values[MOVIES][test.movies]).sum(
            axis=1
        ) + self.mean
        averaged = max(iteration - self.given.burn_in, 0)
        self.predicted += (predicted - self.predicted) / (averaged + 1)
        # What is cut comes no further from any rating on the scale.
        shown = [
            one if self.scale is None else np.clip(one, *self.scale) for one in (predicted, self.predicted)
        ]
        columns = (*((one - test.values) ** 2 for one in shown), np.ones(len(test)))
        errors = np.stack([np.bincount(self.test_block, column, BLOCKS) for column in columns], axis=1)
        errors = errors.astype(np.float64)  # whole numbers where there is no test rating
        blocks = self.blocks[USERS]
        if len(blocks):
            self.error.set(blocks, errors[blocks.start : blocks.stop], clock=iteration + 1)

    def rmse(self, clock: int, slack: int | None = None) -> tuple[float, float]:
        """Over the whole test set: squared errors and counts of all workers, added up block by block."""
        total = np.zeros(3)
        for block in self.error.get(slice(None), clock=clock, slack=slack):
            total += block
        if total[2] == 0:
            return float("nan"), float("nan")
        return float(np.sqrt(total[0] / total[2])), float(np.sqrt(total[1] / total[2]))


def scale(clamp: str | None, train: Ratings) -> tuple[float, float] | None:
    """The least and the greatest rating that there can be; None if predictions stay as they are."""
    if clamp is None:
        return None
    if clamp == "auto":
        return float(train.values.min()), float(train.values.max())
    low, high = map(float, clamp.split(":"))
    return low, high


def sleeps(given: argparse.Namespace, size: int) -> Iterator[tuple[int, float]]:
    """Which worker sleeps in an iteration, and how long: all workers know of the same."""
    rank, _, mean = (given.straggler or "none:0").partition(":")
    chance = np.random.default_rng(given.seed)
    while True:
        drawn, seconds = int(chance.integers(size)), float(chance.exponential(float(mean)))
        who = {"any": drawn, "none": -1}
        yield who[rank] if rank in who else int(rank), seconds


def main() -> int:
    """Samples, iteration by iteration."""
    given = arguments()
    job = ps.init()
    try:
        train, test = load(given.data, given.test, given.split, given.seed)
    except BadRatingsError as error:
        print(f"error: {error}\n\nhint: `--help` says what is read", file=sys.stderr)
        return 2
    work = Factorization(job, given, train, test)
    pauses = sleeps(given, job.size)
    history = History()
    job.barrier()
    start = time.perf_counter()
    for iteration in range(given.iterations):
        began, before = time.perf_counter(), work.communicated
        who, how_long = next(pauses)
        if who == job.rank:
            time.sleep(how_long)
        work.sample(USERS, iteration)
        work.sample(MOVIES, iteration)
        work.judge(iteration)
        job.clock()
        if job.rank == 0:
            sample, average = work.rmse(iteration + 1)
            now = time.perf_counter()
            history.sample.append(sample)
            history.average.append(average)
            history.seconds.append(now - start)
            history.communication.append(work.communicated - before)
            if not given.quiet:
                share = (work.communicated - before) / (now - began)
                print(
                    f"iteration {iteration + 1:4}  RMSE {sample:.6f}  average {average:.6f}  "
                    f"{now - began:.3f} s  communication {share:4.0%}",
                    flush=True,
                )
    job.barrier()
    seconds = time.perf_counter() - start
    if job.rank == 0:
        _, final = work.rmse(given.iterations, slack=0)
        print(
            f"final RMSE {final!r} after {given.iterations} iterations in {seconds:.2f} s, {job.size} workers"
        )
        if given.json is not None:
            stats = [table.stats() for table in work.rows]
            report = {
                "arguments": {name: str(value) for name, value in vars(given).items()},
                "workers": job.size,
                "ratings": [len(train), len(test)],
                "final": final,
                "seconds": seconds,
                "waited": sum(stat["waited"] for stat in stats),
                "received": sum(stat["bytes_received"] for stat in stats),
                **{f"by_iteration_{name}": values for name, values in vars(history).items()},
            }
            given.json.write_text(json.dumps(report, indent=1))
    job.barrier()
    job.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
