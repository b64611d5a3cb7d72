"""
Contributions of low rank: two thin matrices in place of their product.

`tensor.push_factors(u, v)` means what a push of `u @ v` would. Between hosts it can travel as u and v.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, ArrayLike, as_array, contribution
from .exceptions import ShapeError


class Factors:
    """`u @ v`, u of shape (m, r) and v of shape (r, n)."""

    __slots__ = ("u", "v")

    def __init__(self, u: ArrayLike, v: ArrayLike) -> None:
        self.u, self.v = u, v

    def fit(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array, int]:
        """
        For the tensor of that name: both, and their rank.

        Raises
        ------
        ShapeError, DtypeError
            The tensor is no matrix, or they are not its factors, or of another type.
        """
        if len(shape) != 2:
            raise ShapeError(
                f"`{name}`: expected a tensor of two dimensions for factors, got shape {shape}",
                "push the product",
            )
        (rows, columns), given = shape, (as_array(self.u).shape, as_array(self.v).shape)
        rank = given[0][1] if len(given[0]) == 2 else 0
        if given != ((rows, rank), (rank, columns)):
            hint = None
            if given == ((rows, rank), (columns, rank)):
                hint = "give v.T: what is contributed is u @ v"
            raise ShapeError(
                f"`{name}`: expected factors of shapes ({rows}, r) and (r, {columns}), got {given[0]} and "
                f"{given[1]}",
                hint,
            )
        u = contribution(self.u, name, (rows, rank), dtype)
        v = contribution(self.v, name, (rank, columns), dtype)
        return u, v, rank
