"""
Bayesian probabilistic matrix factorisation by Gibbs sampling (Salakhutdinov and Mnih 2008), a side at a time.

Ratings are r = u . v + noise of precision `ALPHA`; rows of a side are normal with mean and precision that are
sampled too, from a Normal-Wishart distribution around (mu0 = 0, beta0 = 2, nu0 = K, W0 = I).

Nothing here depends on which rows are sampled together: products are taken row by row, factorisations matrix
by matrix, substitutions element by element, and sums over rows in fixed blocks. So the same seed gives
the same bits for any number of workers.
"""

from __future__ import annotations

import itertools

import chance
import numpy as np

ALPHA = 2.0
BETA0 = 2.0
BLOCKS = 64
"""Rows of a side are summed in this many blocks, whichever worker samples them."""


def bounds(counts: np.ndarray, parts: int) -> np.ndarray:
    """Cuts rows into `parts` runs of about as many ratings (each row weighs some more): parts + 1 bounds."""
    work = np.concatenate(([0.0], np.cumsum(counts + 8.0)))
    cuts = np.searchsorted(work, np.linspace(0, work[-1], parts + 1)[1:-1])
    return np.concatenate(([0], np.minimum(cuts, len(counts)), [len(counts)])).astype(np.int64)


class Side:
    """The rows of one side that one worker samples, and their ratings."""

    def __init__(
        self, rows: range, own: np.ndarray, other: np.ndarray, values: np.ndarray, latent: int
    ) -> None:
        mine = (own >= rows.start) & (own < rows.stop)
        order = np.lexsort((other[mine], own[mine]))
        self.rows = rows
        self.others = other[mine][order]
        self.values = values[mine][order]
        counts = np.bincount(own[mine] - rows.start, minlength=len(rows))
        self.starts = np.concatenate(([0], np.cumsum(counts)))
        self.latent = latent
        self.numbers = np.arange(rows.start, rows.stop)
        self._ratings = np.empty((len(self.others), latent + 1))
        self._products = np.empty((len(rows), latent + 1, latent + 1))

    def sample(
        self, seed: int, iteration: int, side: int, other: np.ndarray, mean: np.ndarray, precision: np.ndarray
    ) -> np.ndarray:
        """New rows, given the other side's rows and the distribution of this side's: (rows, latent)."""
        k = self.latent
        # Ratings next to features: one product gives the precision's part and the mean's.
        np.take(other, self.others, axis=0, out=self._ratings[:, :k])
        self._ratings[:, k] = self.values
        for at in range(len(self.rows)):
            part = self._ratings[self.starts[at] : self.starts[at + 1]]
            np.dot(part.T, part, out=self._products[at])
        precisions = ALPHA * self._products[:, :k, :k] + precision
        right = ALPHA * self._products[:, :k, k] + precision @ mean
        factors = np.linalg.cholesky(precisions) if len(precisions) else precisions
        draws = chance.normals(seed, iteration, side, self.numbers, k)
        return _backward(factors, _forward(factors, right) + draws)


def _forward(factors: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x of L x = right, for many L, element by element."""
    x = right.copy()
    for j in range(x.shape[1]):
        x[:, j] /= factors[:, j, j]
        x[:, j + 1 :] -= x[:, j, None] * factors[:, j + 1 :, j]
    return x


def _backward(factors: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x of transposed L x = right, likewise."""
    x = right.copy()
    for j in range(x.shape[1] - 1, -1, -1):
        x[:, j] /= factors[:, j, j]
        x[:, :j] -= x[:, j, None] * factors[:, j, :j]
    return x


def block_sums(rows: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """For each block of rows: their sum and the sum of their outer products, (blocks, K + K * K)."""
    k = rows.shape[1]
    out = np.empty((len(cuts) - 1, k + k * k))
    for block, (start, stop) in enumerate(itertools.pairwise(cuts)):
        part = rows[start:stop]
        out[block, :k] = part.sum(axis=0)
        out[block, k:] = np.dot(part.T, part).ravel()
    return out


def hyper(
    seed: int, iteration: int, side: int, sums: np.ndarray, count: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and precision of a side's rows, sampled from its sums over all blocks (equation 14)."""
    total = np.zeros(k + k * k)
    for block in sums:
        total += block
    mean = total[:k] / count
    scatter = total[k:].reshape(k, k) - count * np.outer(mean, mean)
    beta, degrees = BETA0 + count, k + count
    inverse = np.eye(k) + scatter + (BETA0 * count / beta) * np.outer(mean, mean)
    draw = chance.generator(seed, iteration, side)
    # Bartlett's decomposition: precision = C A A' C', with C C' = W.
    lower = np.tril(draw.normal(size=(k, k)), -1)
    lower[np.diag_indices(k)] = np.sqrt(draw.chisquare(degrees - np.arange(k)))
    scale = np.linalg.cholesky(np.linalg.inv((inverse + inverse.T) / 2))
    root = scale @ lower
    precision = root @ root.T
    centre = count * mean / beta
    factor = np.linalg.cholesky(beta * precision)
    return centre + np.linalg.solve(factor.T, draw.normal(size=k)), precision
