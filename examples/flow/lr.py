"""
Sparse logistic regression with a million features and more, by minibatch SGD in NumPy.

    penstock run --workers 2 examples/flow/lr.py --steps 200

prints, from worker 0, a held-out loss that falls below 0.6, from the 0.693 of a guess.
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
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

COUNTS, CATEGORIES = 13, 26
"""Columns of Criteo's files, behind the label."""
HASHED_FROM = 1 + 2 * COUNTS
"""The first feature of the categories, behind the constant, the counts, and which counts are missing."""
MOST_FEATURES = 1 << 32
"""What is above it in a file is an error in the file, and not a model of more than 16 GiB."""
CHUNK = 4096
"""Examples that are generated at a time, from random numbers of their own, the same on every worker."""


@dataclass
class Rows:
    """
    Sparse examples (CSR): for each j from starts[i] up to, not including, starts[i + 1], row i has
    `values[j]` in column `columns[j]`.
    """

    starts: Array
    columns: Array
    values: Array
    labels: Array

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, which: Array) -> Rows:
        """Some of the rows, in any order."""
        lengths = self.starts[which + 1] - self.starts[which]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(starts[-1]) + np.repeat(self.starts[which] - starts[:-1], lengths)
        return Rows(starts, self.columns[places], self.values[places], self.labels[which])

    def scores(self, weights: Array) -> Array:
        """The product of each row with the weights."""
        # Not add.reduceat, which has no sum for a row without entries.
        products = self.values * weights[self.columns]
        return np.bincount(self.row_of_each(), products, minlength=len(self))

    def row_of_each(self) -> Array:
        """The row of each entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def joined(parts: list[Rows]) -> Rows:
    """Rows, one part behind the other."""
    lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(part.starts) for part in parts)])
    return Rows(
        np.concatenate(([0], np.cumsum(lengths))),
        np.concatenate([np.empty(0, np.int64), *(part.columns for part in parts)]),
        np.concatenate([np.empty(0, np.float32), *(part.values for part in parts)]),
        np.concatenate([np.empty(0, np.float32), *(part.labels for part in parts)]),
    )


# -- the model


def loss(rows: Rows, weights: Array, l2: float) -> float:
    """The mean logistic loss, and half of `l2` times the squared norm of the weights."""
    scores = rows.scores(weights)
    mean = np.mean(np.logaddexp(0.0, scores) - rows.labels * scores)
    return float(mean + 0.5 * l2 * np.dot(weights, weights))


def fill_gradient(gradient: Array, rows: Rows, weights: Array, l2: float) -> None:
    """The gradient of `loss`, written over whatever is in `gradient`."""
    np.multiply(weights, np.float32(l2), out=gradient)
    add_rows(gradient, rows.columns, gradient_of_each(rows, weights))


def sparse_gradient(rows: Rows, weights: Array, l2: float) -> ps.Sparse:
    """The same of the features that the rows have; the penalty leaves the others alone, as is usual."""
    columns, values = summed(rows.columns, gradient_of_each(rows, weights))
    return ps.Sparse(columns, values + np.float32(l2) * weights[columns])


def gradient_of_each(rows: Rows, weights: Array) -> Array:
    """What each entry adds to its column's gradient, without the penalty."""
    # 1 / (1 + exp(-score)), which would overflow for scores far below 0.
    errors = 0.5 * (1.0 + np.tanh(0.5 * rows.scores(weights))) - rows.labels
    each = rows.values * errors[rows.row_of_each()] / len(rows)
    return each.astype(np.float32)


# -- files


def load(given: argparse.Namespace, split: Split) -> tuple[Rows, Rows, int]:
    """This worker's examples, those that are kept for the objective, and one more than the last feature."""
    if given.data is None:
        mine, kept = generated(given, split)
        features = given.features
    else:
        mine, kept, features = read(given.data, given.format, given.features, split)
    split.check(len(mine), len(kept), "examples")
    return mine, kept, features


def read(path: Path, kind: str, features: int, split: Split) -> tuple[Rows, Rows, int]:
    """Reads a file of either kind, line by line; only this worker's lines are parsed."""
    if kind == "auto":
        first = next(numbered(path), (0, ""))[1]
        kind = "criteo" if first.count("\t") >= COUNTS else "libsvm"
    if kind == "criteo" and features <= HASHED_FROM:
        raise BadInputError(f"expected --features above {HASHED_FROM} for Criteo's columns, got {features}")
    mine, kept = _Builder(), _Builder()
    last = 0
    for example, (at, line) in enumerate(numbered(path)):
        owner = split.owner(example)
        into = mine if owner == split.rank else kept if owner == -1 and split.rank == 0 else None
        if into is None:
            continue
        try:
            label, columns, values = libsvm(line) if kind == "libsvm" else criteo(line, features)
        except ValueError as error:
            raise malformed(path, at, str(error), line) from None
        last = max(last, *columns)
        into.add(label, columns, values)
    if kind == "libsvm":
        features = last + 1
    return mine.rows(), kept.rows(), features


def libsvm(line: str) -> tuple[float, list[int], list[float]]:
    """
    A line `label index:value index:value ...`, with a comment behind # or without. Feature 0 is the constant
    1, for the bias; index i is feature i + 1, so that files which count from 0 and from 1 are read alike.
    """
    label, *entries = line.partition("#")[0].split() or [""]
    try:
        sign = float(label)
    except ValueError:
        sign = math.nan
    if sign not in (-1.0, 0.0, 1.0):
        raise ValueError("a label of -1 or 1, or of 0 or 1")
    columns, values = [0], [1.0]
    for entry in entries:
        index, colon, value = entry.partition(":")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if not colon or not index.isdecimal() or not math.isfinite(weight):
            raise ValueError("`index:value` behind the label")
        if int(index) >= MOST_FEATURES:
            raise ValueError(f"indices below {MOST_FEATURES}")
        columns.append(int(index) + 1)
        values.append(weight)
    return float(sign > 0), columns, values


def criteo(line: str, features: int) -> tuple[float, list[int], list[float]]:
    """
    A line of Criteo's click logs: label, 13 counts and 26 categories, tab by tab; each but the label may be
    missing. A count x becomes sign(x) log(1 + |x|). A category is hashed together with its column, and
    "missing" is a category of its own; which counts are missing are features too.
    """
    label, *fields = line.split("\t")
    if label not in ("0", "1") or len(fields) != COUNTS + CATEGORIES:
        raise ValueError(f"a label of 0 or 1 and {COUNTS + CATEGORIES} columns behind it")
    columns, values = [0], [1.0]
    for place, field in enumerate(fields[:COUNTS]):
        if not field:
            columns.append(1 + COUNTS + place)
            values.append(1.0)
            continue
        try:
            count = int(field)
        except ValueError:
            raise ValueError(f"a whole number, or nothing, in column {place + 2}") from None
        columns.append(1 + place)
        values.append(math.copysign(math.log1p(abs(count)), count))
    for place, field in enumerate(fields[COUNTS:]):
        hashed = zlib.crc32(f"{place}:{field}".encode())
        columns.append(HASHED_FROM + hashed % (features - HASHED_FROM))
        values.append(1.0)
    return float(label), columns, values


class _Builder:
    """Collects rows, in arrays that take no more memory than they must."""

    def __init__(self) -> None:
        self._starts, self._columns = array("q", [0]), array("q")
        self._values, self._labels = array("f"), array("f")

    def add(self, label: float, columns: list[int], values: list[float]) -> None:
        self._columns.extend(columns)
        self._values.extend(values)
        self._starts.append(len(self._columns))
        self._labels.append(label)

    def rows(self) -> Rows:
        return Rows(*map(np.asarray, (self._starts, self._columns, self._values, self._labels)))


# -- generated examples


def generated(given: argparse.Namespace, split: Split) -> tuple[Rows, Rows]:
    """This worker's share of the generated examples, and those that are kept for the objective."""
    mine, kept = [], []
    for first, rows in chunks(given):
        owners = split.owners(np.arange(first, first + len(rows)))
        mine.append(rows.take(np.flatnonzero(owners == split.rank)))
        if split.rank == 0:
            kept.append(rows.take(np.flatnonzero(owners == -1)))
    return joined(mine), joined(kept)


def chunks(given: argparse.Namespace) -> Iterator[tuple[int, Rows]]:
    """
    All examples, a chunk at a time, each chunk with the number of its first.

    Each example has `nonzeros` entries of equal size and the constant. The k-th most frequent feature comes
    up in proportion to k ** -`power`; frequent features stand anywhere among the others. A tenth of the true
    weights is not zero; a part `noise` of the labels is turned round.
    """
    features, nonzeros = given.features, given.nonzeros
    if features < 2:
        raise BadInputError(f"expected at least 2 features, the constant and another, got {features}")
    chance = np.random.default_rng((given.seed, 0))
    truth = np.where(chance.random(features) < 0.1, chance.standard_normal(features), 0.0)
    place = scattered(features - 1, chance)
    sample = power_law(chance.random((CHUNK, nonzeros)), features - 1, given.power)
    # As many labels of one kind as of the other, and most of them sure.
    scores = truth[1 + place(sample)].sum(axis=1)
    centre, scale = scores.mean(), 4.0 / max(scores.std(), 1e-9)
    for first in range(0, given.examples, CHUNK):
        count = min(CHUNK, given.examples - first)
        chance = np.random.default_rng((given.seed, 2, first))
        columns = 1 + place(power_law(chance.random((count, nonzeros)), features - 1, given.power))
        scores = scale * (truth[columns].sum(axis=1) - centre)
        labels = chance.random(count) < 0.5 * (1.0 + np.tanh(0.5 * scores))
        labels ^= chance.random(count) < given.noise
        columns = np.concatenate((np.zeros((count, 1), np.int64), columns), axis=1)
        values = np.full(columns.shape, nonzeros**-0.5, np.float32)
        values[:, 0] = 1.0
        starts = np.arange(count + 1) * (nonzeros + 1)
        yield first, Rows(starts, columns.ravel(), values.ravel(), labels.astype(np.float32))


def scattered(count: int, chance: np.random.Generator) -> Callable[[Array], Array]:
    """A permutation of 0 to `count` - 1 that needs no memory."""
    factor, shift = int(chance.integers(1, count + 1)), int(chance.integers(count))
    while math.gcd(factor, count) != 1:
        factor += 1
    return lambda ranks: (ranks * factor + shift) % count


# -- the training


def train(job: ps.Job, given: argparse.Namespace) -> None:
    """One worker's part."""
    split = Split(job.rank, job.size, given.held_out)
    mine, kept, features = agreed(job, lambda: load(given, split))
    features = max(job.all_gather(features, name="features"))
    if features < 2:
        raise BadInputError("expected features, the examples have none", everywhere=True)
    w = job.tensor(
        "w",
        np.zeros(features, np.float32),
        optimizer=ps.SGD(given.lr, momentum=given.momentum),
        sparse=given.sparse,
        **options(given),
    )
    record = Record(job, given, "sparse logistic regression", "held-out loss")

    def measure() -> dict[str, float]:
        return {"objective": loss(kept, weights, given.l2)}

    chosen = batches(len(mine), given.batch, given.seed, job.rank)
    for step in range(given.steps):
        weights = w.pull()
        if record.is_due(step):
            record.note(step, measure)
        if given.sparse:
            with record.computing():
                gradient = sparse_gradient(mine.take(next(chosen)), weights, given.l2)
            w.push(gradient)
        else:
            lane = w.lane()
            with record.computing():
                fill_gradient(lane, mine.take(next(chosen)), weights, given.l2)
            w.push()
        job.clock()
    weights = w.pull(slack=0)
    record.note(given.steps, measure)
    record.finish(features=features, trained_on=len(mine), kept=len(kept))
    if given.save is not None:
        w.flush()
        weights = w.pull(slack=0)
        if job.rank == 0:
            with given.save.open("wb") as file:
                np.savez(file, w=weights)


def arguments() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, steps=200, batch=500, lr=4.0, momentum=0.0)
    add = made.add_argument_group("data").add_argument
    add("--data", type=Path, metavar="FILE", help="libsvm text or Criteo TSV (default: generated examples)")
    add("--format", choices=("auto", "libsvm", "criteo"), default="auto", help="of the file (default auto)")
    features = "features to generate, or to hash Criteo's categories to (default 1048576)"
    add("--features", type=whole(0), default=1 << 20, help=features)
    add("--examples", type=whole(1), default=100_000, help="examples to generate (default 100000)")
    add("--nonzeros", type=whole(1), default=30, help="entries of each generated example (default 30)")
    add("--power", type=number, default=1.1, help="of their frequencies' power law (default 1.1)")
    add("--noise", type=number, default=0.05, help="part of the labels that is wrong (default 0.05)")
    add("--l2", type=number, default=1e-6, help="regularisation (default 1e-6)")
    add("--sparse", action="store_true", help="push only the features of the batch")
    return parse(made)


if __name__ == "__main__":
    settings = arguments()
    sys.exit(run(lambda job: train(job, settings)))
