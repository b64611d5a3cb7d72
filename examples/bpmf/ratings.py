"""Ratings: MovieLens' u.data and ratings.csv, Matrix Market, or made up; as rows, columns and values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


class BadRatingsError(Exception):
    """A file or description that holds no ratings; says which line, what was expected, and what came."""


@dataclass
class Ratings:
    """Known entries of a matrix: entry i says that `users[i]` rated `movies[i]` with `values[i]`."""

    shape: tuple[int, int]
    users: np.ndarray
    movies: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def take(self, which: np.ndarray) -> Ratings:
        """Some of the entries."""
        return Ratings(self.shape, self.users[which], self.movies[which], self.values[which])


def load(data: str, test: str | None, split: float, seed: int) -> tuple[Ratings, Ratings]:
    """
    Training and test ratings.

    `data`: a file, or "synthetic:USERSxMOVIESxRATINGS[:RANK]". Without a `test` file a part `split` of the
    ratings, drawn with `seed`, is kept for the test. Users and movies that no rating names are left out.
    """
    train = synthetic(data, seed) if data.startswith("synthetic:") else read(Path(data))
    if test is not None:
        held = read(Path(test))
        users = np.concatenate((train.users, held.users))
        movies = np.concatenate((train.movies, held.movies))
        both = Ratings((0, 0), users, movies, np.concatenate((train.values, held.values)))
        both = _without_gaps(both)
        first = np.arange(len(users)) < len(train)
        return both.take(first), both.take(~first)
    both = _without_gaps(train)
    if not 0 < split < 1:
        raise BadRatingsError(f"expected a split between 0 and 1, got {split}")
    kept = np.random.default_rng(seed).random(len(both)) >= split
    return both.take(kept), both.take(~kept)


def _without_gaps(ratings: Ratings) -> Ratings:
    users, rows = np.unique(ratings.users, return_inverse=True)
    movies, columns = np.unique(ratings.movies, return_inverse=True)
    return Ratings((len(users), len(movies)), rows, columns, ratings.values)


def synthetic(text: str, seed: int) -> Ratings:
    """Ratings of a matrix of low rank with noise of 0.1: "synthetic:USERSxMOVIESxRATINGS[:RANK]", rank 8."""
    try:
        _, sizes, *rank = text.split(":")
        users, movies, count = (int(size) for size in sizes.split("x"))
        factors = int(rank[0]) if rank else 8
    except ValueError:
        users = movies = count = factors = 0
    if min(users, movies, count, factors) < 1 or count > users * movies:
        raise BadRatingsError(
            f"expected synthetic:USERSxMOVIESxRATINGS[:RANK] with room for them, got {text}"
        )
    chance = np.random.default_rng(seed)
    cells = chance.choice(users * movies, count, replace=False)
    rows, columns = np.divmod(cells, movies)
    left, right = chance.normal(size=(users, factors)), chance.normal(size=(movies, factors))
    values = (left[rows] * right[columns]).sum(axis=1) / np.sqrt(factors) + 0.1 * chance.normal(size=count)
    return Ratings((users, movies), rows, columns, values)


def read(path: Path) -> Ratings:
    """A file, by its ending: .mtx, .csv, or else u.data's four columns."""
    try:
        with path.open() as lines:
            first = lines.readline()
    except OSError as error:
        raise BadRatingsError(f"{path}: {error.strerror}") from error
    if first.startswith("%%MatrixMarket"):
        return _matrix_market(path, first)
    if path.suffix == ".csv":
        names = first.strip().lower().split(",")
        if names[:3] != ["userid", "movieid", "rating"]:
            raise BadRatingsError(
                f"{path}, line 1: expected userId,movieId,rating,..., got {first.strip()!r}"
            )
        return _columns(path, ",", 1)
    return _columns(path, None, 0)


def _columns(path: Path, separator: str | None, skip: int) -> Ratings:
    table = _numbers(path, separator, skip)
    if table.size == 0:
        raise BadRatingsError(f"{path}: expected ratings, got none")
    users, movies = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    if (users != table[:, 0]).any() or (movies != table[:, 1]).any():
        raise BadRatingsError(f"{path}: expected whole numbers for users and movies")
    return Ratings((0, 0), users, movies, table[:, 2])


def _numbers(path: Path, separator: str | None, skip: int) -> np.ndarray:
    try:
        if not path.stat().st_size:
            return np.empty((0, 3))
        return np.loadtxt(path, delimiter=separator, skiprows=skip, usecols=(0, 1, 2), ndmin=2)
    except (ValueError, IndexError):
        # Slowly, to say where.
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split(separator)
            try:
                if number > skip and line.strip():
                    [float(word) for word in words[:3]][2]
            except (ValueError, IndexError):
                raise BadRatingsError(
                    f"{path}, line {number}: expected user, movie and rating, got {line.strip()!r}"
                ) from None
        raise


def _matrix_market(path: Path, first: str) -> Ratings:
    words = first.lower().split()
    if words[1:3] != ["matrix", "coordinate"] or words[3] not in ("real", "integer") or words[4] != "general":
        raise BadRatingsError(
            f"{path}, line 1: expected `matrix coordinate real general`, got {first.strip()!r}"
        )
    skip = 0
    with path.open() as lines:
        for line in lines:
            skip += 1
            if not line.startswith("%"):
                break
    try:
        users, movies, count = (int(word) for word in line.split())
    except ValueError:
        raise BadRatingsError(
            f"{path}, line {skip}: expected rows, columns and entries, got {line!r}"
        ) from None
    ratings = _columns(path, None, skip)
    if len(ratings) != count:
        raise BadRatingsError(f"{path}: expected {count} entries, got {len(ratings)}")
    for ids, most, what in ((ratings.users, users, "row"), (ratings.movies, movies, "column")):
        if ids.min() < 1 or ids.max() > most:
            raise BadRatingsError(
                f"{path}: expected {what}s from 1 to {most}, got {ids.min()} to {ids.max()}"
            )
    return Ratings((users, movies), ratings.users, ratings.movies, ratings.values)
