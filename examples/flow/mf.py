"""
Matrix factorisation with biases by minibatch SGD in NumPy: who would rate what how.

    penstock run --workers 2 examples/flow/mf.py --steps 500

prints, from worker 0, a held-out RMSE that falls to about a half, from 1.05.
"""

from __future__ import annotations

import argparse
import sys
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import (
    Array,
    BadInputError,
    Record,
    Split,
    add_rows,
    agreed,
    batches,
    malformed,
    number,
    numbered,
    options,
    parse,
    parser,
    power_law,
    run,
    summed,
    whole,
)

import penstock as ps

HEADER = "userId,movieId,rating"
"""What the first line of a `ratings.csv` begins with."""


@dataclass
class Ratings:
    """Rating i is `values[i]`, by user `users[i]` of item `items[i]`; both count from 0, in `shape`."""

    shape: tuple[int, int]
    users: Array
    items: Array
    values: Array

    def __len__(self) -> int:
        return len(self.values)

    def take(self, which: Array) -> Ratings:
        """Some of the ratings, in any order."""
        return Ratings(self.shape, self.users[which], self.items[which], self.values[which])


# -- the model: a row of factors for each user and item, and behind them its bias


def first_values(rows: int, factors: int, seed: int, side: int) -> Array:
    """Small factors, so that users and items differ; no bias."""
    chance = np.random.default_rng((seed, 3, side))
    values = chance.standard_normal((rows, factors + 1), dtype=np.float32) * np.float32(0.1)
    values[:, -1] = 0.0
    return values


def errors(ratings: Ratings, users: Array, items: Array, mean: float) -> Array:
    """By how much each rating is predicted too high."""
    u, v = users[ratings.users], items[ratings.items]
    predicted: Array = mean + (u[:, :-1] * v[:, :-1]).sum(axis=1) + u[:, -1] + v[:, -1]
    return predicted - ratings.values


def rmse(ratings: Ratings, users: Array, items: Array, mean: float) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(np.mean(errors(ratings, users, items, mean) ** 2)))


def fill_gradients(
    into: tuple[Array, Array], ratings: Ratings, users: Array, items: Array, mean: float, reg: float
) -> None:
    """
    The gradients of half the sum, over the ratings, of error ** 2 + reg * (|user's row| ** 2 + |item's
    row| ** 2), written over whatever is in `into`.
    """
    for gradient, (rows, each) in zip(into, gradient_rows(ratings, users, items, mean, reg), strict=True):
        gradient.fill(0.0)
        add_rows(gradient, rows, each)


def gradient_rows(
    ratings: Ratings, users: Array, items: Array, mean: float, reg: float
) -> Iterator[tuple[Array, Array]]:
    """What each rating adds to the gradients of its user's row, and then of its item's."""
    error = errors(ratings, users, items, mean).astype(np.float32)[:, None]
    u, v = users[ratings.users], items[ratings.items]
    for rows, own, other in ((ratings.users, u, v), (ratings.items, v, u)):
        each = error * other + np.float32(reg) * own
        # A bias is a factor whose partner is 1.
        each[:, -1] = error[:, 0] + np.float32(reg) * own[:, -1]
        yield rows, each


# -- files


def read(path: Path) -> Ratings:
    """MovieLens' ratings.csv, ratings.dat or u.data, which the first line tells apart. Ids may have gaps."""
    first = next(numbered(path), (0, ""))[1]
    if not first:
        raise BadInputError(f"{path}: expected ratings, the file is empty")
    skip = int(first.startswith(HEADER))
    separator = "::" if "::" in first else "," if "," in first else "\t"
    # With a separator of one character, every second column between two colons is empty.
    columns = (0, len(separator), 2 * len(separator))
    try:
        with warnings.catch_warnings():
            # That there are no data is an error here.
            warnings.simplefilter("ignore", UserWarning)
            table = np.loadtxt(
                path,
                delimiter=separator[0],
                skiprows=skip,
                usecols=columns,
                ndmin=2,
                comments=None,
                encoding="utf-8",
            )
        ids = table[:, :2]
        good = table.size > 0 and bool(np.isfinite(table).all() and (ids % 1 == 0).all() and (ids >= 0).all())
    except (ValueError, IndexError, OSError, EOFError, zlib.error):
        good = False
    if not good:
        raise _what_is_wrong(path, separator, skip)
    users, rows = np.unique(table[:, 0], return_inverse=True)
    items, places = np.unique(table[:, 1], return_inverse=True)
    return Ratings((len(users), len(items)), rows, places, table[:, 2].astype(np.float32))


def _what_is_wrong(path: Path, separator: str, skip: int) -> BadInputError:
    """Reads the file slowly, to say where."""
    for at, line in numbered(path):
        words = line.split(separator)
        try:
            good = all(word.strip().isdecimal() for word in words[:2]) and abs(float(words[2])) < np.inf
        except (ValueError, IndexError):
            good = False
        if at > skip and not good:
            raise malformed(path, at, f"user{separator}item{separator}rating".replace("\t", " TAB "), line)
    return BadInputError(f"{path}: expected ratings, there are none")


# -- generated ratings


def generated(given: argparse.Namespace) -> Ratings:
    """
    Ratings around 3.5 of a matrix of low rank, with biases and noise.

    The k-th most active user, and the k-th most popular item, comes up about in proportion to k ** -`power`;
    no user rates an item twice.
    """
    users, items, count = given.users, given.items, given.ratings
    if count * 4 > users * items:
        raise BadInputError(
            f"expected at most {users * items // 4} ratings, a quarter of all pairs, got {count}"
        )
    chance = np.random.default_rng((given.seed, 0))
    of_user, of_item = chance.permutation(users), chance.permutation(items)
    cells = np.empty(0, np.int64)
    while len(cells) < count:
        drawn = 2 * (count - len(cells)) + 100
        rows = of_user[power_law(chance.random(drawn), users, given.power)]
        columns = of_item[power_law(chance.random(drawn), items, given.power)]
        both = np.concatenate((cells, rows * items + columns))
        if len(cells):
            # The frequent pairs are there: by them alone, what is still missing would come ever more slowly.
            both = np.concatenate((both, chance.integers(users * items, size=drawn)))
        # Each pair once, in the order of drawing.
        cells = both[np.sort(np.unique(both, return_index=True)[1])]
    rows, columns = np.divmod(cells[:count], items)
    left, right = (chance.standard_normal((side, given.rank)) for side in (users, items))
    values = 3.5 + 0.3 * (chance.standard_normal(users)[rows] + chance.standard_normal(items)[columns])
    for factor in range(given.rank):
        values += 0.9 * left[rows, factor] * right[columns, factor] / given.rank**0.5
    values += given.noise * chance.standard_normal(count)
    return Ratings((users, items), rows, columns, values.astype(np.float32))


# -- the training


@dataclass
class Data:
    """What a worker needs of the ratings."""

    mine: Ratings
    kept: Ratings
    mean: float
    """Of all that are trained on, on any worker."""


def load(given: argparse.Namespace, split: Split) -> Data:
    """Every worker reads all ratings, since ids are numbered over all of them, and keeps its share."""
    every = generated(given) if given.data is None else read(given.data)
    owners = split.owners(np.arange(len(every)))
    mine, kept = every.take(owners == split.rank), every.take(split.kept(len(every)))
    split.check(len(mine), len(kept), "ratings")
    return Data(mine, kept, float(every.values[owners >= 0].mean(dtype=np.float64)))


def train(job: ps.Job, given: argparse.Namespace) -> None:
    """One worker's part."""
    split = Split(job.rank, job.size, given.held_out)
    data = agreed(job, lambda: load(given, split))
    mine, kept, mean = data.mine, data.kept, data.mean
    tensors = [
        job.tensor(
            name,
            first_values(rows, given.factors, given.seed, side),
            # Each rating moves its rows by the learning rate, however many ratings are in a step.
            optimizer=ps.SGD(given.lr, momentum=given.momentum),
            reduce="sum",
            sparse=given.sparse,
            **options(given),
        )
        for side, (name, rows) in enumerate(zip(("users", "items"), mine.shape, strict=True))
    ]
    left, right = tensors
    record = Record(job, given, "matrix factorisation", "held-out RMSE")

    def measure() -> dict[str, float]:
        return {"objective": rmse(kept, users, items, mean)}

    chosen = batches(len(mine), given.batch, given.seed, job.rank)
    for step in range(given.steps):
        users, items = left.pull(), right.pull()
        if record.is_due(step):
            record.note(step, measure)
        if given.sparse:
            with record.computing():
                batch = mine.take(next(chosen))
                touched = [summed(*each) for each in gradient_rows(batch, users, items, mean, given.reg)]
            for tensor, (rows, values) in zip(tensors, touched, strict=True):
                tensor.push(ps.Sparse(rows, values))
        else:
            gradients = left.lane(), right.lane()
            with record.computing():
                fill_gradients(gradients, mine.take(next(chosen)), users, items, mean, given.reg)
            for tensor in tensors:
                tensor.push()
        job.clock()
    users, items = left.pull(slack=0), right.pull(slack=0)
    record.note(given.steps, measure)
    record.finish(shape=mine.shape, trained_on=len(mine), kept=len(kept))
    if given.save is not None:
        left.flush()
        right.flush()
        users, items = left.pull(slack=0), right.pull(slack=0)
        if job.rank == 0:
            with given.save.open("wb") as file:
                np.savez(file, users=users, items=items, mean=mean)


def arguments() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, steps=500, batch=2000, lr=0.02, momentum=0.0)
    add = made.add_argument_group("data").add_argument
    add("--data", type=Path, metavar="FILE", help="ratings of MovieLens (default: generated ratings)")
    add("--users", type=whole(1), default=3000, help="users to generate (default 3000)")
    add("--items", type=whole(1), default=2000, help="items to generate (default 2000)")
    add("--ratings", type=whole(1), default=200_000, help="ratings to generate (default 200000)")
    add("--rank", type=whole(1), default=8, help="rank of what is generated (default 8)")
    add("--power", type=number, default=0.6, help="of the popularity's power law (default 0.6)")
    add("--noise", type=number, default=0.3, help="deviation of the generated noise (default 0.3)")
    add = made.add_argument_group("model").add_argument
    add("--factors", type=whole(1), default=16, help="factors of each user and item (default 16)")
    add("--reg", type=number, default=0.02, help="regularisation (default 0.02)")
    add("--sparse", action="store_true", help="push only the rows of the batch")
    return parse(made)


if __name__ == "__main__":
    settings = arguments()
    sys.exit(run(lambda job: train(job, settings)))
