"""
Random numbers that depend on what they are for, and on nothing else: (seed, iteration, side, row, feature).

So a row is the same whichever worker draws it. Philox4x32-10 (Salmon et al. 2011), for whole arrays.
"""

from __future__ import annotations

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEYS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Four arrays of 32 random bits (as uint64) for four arrays of 32 bits."""
    a, b, c, d = (np.asarray(word, dtype=np.uint64) for word in counter)
    first, second = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        low, high = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (high >> _HALF) ^ b ^ first, high & _LOW, (low >> _HALF) ^ d ^ second, low & _LOW
        first, second = (first + _KEYS[0]) & _LOW, (second + _KEYS[1]) & _LOW
    return a, b, c, d


def normals(seed: int, iteration: int, side: int, rows: np.ndarray, width: int) -> np.ndarray:
    """Standard normal numbers, (len(rows), width): a row's depend on its number alone (Box, Muller 1958)."""
    pairs = np.arange((width + 1) // 2, dtype=np.uint64)
    row = np.repeat(np.asarray(rows, dtype=np.uint64)[:, None], len(pairs), axis=1)
    pair = np.broadcast_to(pairs, row.shape)
    step = np.full(row.shape, 2 * iteration + side, dtype=np.uint64)
    bits = philox((row & _LOW, row >> _HALF, step, pair), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    scale = 2.0**-53
    one, two = ((((bits[i] << _HALF) | bits[i + 1]) >> np.uint64(11)).astype(np.float64) for i in (0, 2))
    radius = np.sqrt(-2.0 * np.log((one + 1.0) * scale))
    angle = 2.0 * np.pi * (two * scale)
    both = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=2)
    return both.reshape(len(row), -1)[:, :width]


def generator(seed: int, iteration: int, side: int) -> np.random.Generator:
    """For the few numbers that belong to no row: all workers draw the same."""
    return np.random.Generator(np.random.Philox(key=[seed, 2 * iteration + side]))
