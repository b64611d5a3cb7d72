"""
Leaves of pytrees, and the tensors of the job that hold them.

All small leaves of one element type share one flat tensor; a larger leaf has its own. A leaf is copied once
into the lane, and once out of the value. Complex leaves are pairs of real numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import DTYPES, Array
from ..exceptions import DeclarationConflict, DtypeError
from ..tensor import Tensor

LARGE_BYTES = 1 << 20
"""From here on a leaf has a tensor of its own, whose copies the servers' work overlaps with."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_REAL: dict[Any, np.dtype[Any]] = {
    np.dtype(np.complex64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.float64),
}


class Leaf(NamedTuple):
    """Where a leaf is, and of what kind."""

    path: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def line(self) -> str:
        """In words, for comparing with other workers'."""
        return f"{self.path or 'the value'}: {self.dtype} {self.shape}"


class Tree:
    """A pytree, flattened."""

    def __init__(self, tree: Any) -> None:
        found, self._treedef = jax.tree_util.tree_flatten_with_path(tree)
        self.values = [_array(value, jax.tree_util.keystr(path)) for path, value in found]
        self.leaves = [
            Leaf(jax.tree_util.keystr(path), tuple(value.shape), value.dtype)
            for (path, _), value in zip(found, self.values, strict=True)
        ]

    def lines(self) -> list[str]:
        """What must be the same on all workers."""
        return [leaf.line() for leaf in self.leaves]

    def rebuilt(self, changed: dict[int, Any]) -> Any:
        """The tree with other values in some places."""
        values = [changed.get(place, value) for place, value in enumerate(self.values)]
        return jax.tree_util.tree_unflatten(self._treedef, values)

    def shared(self, what: str) -> list[int]:
        """
        Places of leaves with numbers in them. Empty ones, and `float0`, which JAX gives as the gradient of
        whole numbers, have none.

        Raises DtypeError for leaves that are no floating point numbers.
        """
        places = []
        for place, leaf in enumerate(self.leaves):
            if leaf.dtype == jax.dtypes.float0:
                continue
            if _REAL.get(leaf.dtype, leaf.dtype) not in _NAMES:
                raise DtypeError(
                    f"{what}{leaf.path} is {leaf.dtype}, expected float32, float64, float16, bfloat16, "
                    "complex64 or complex128",
                    "leave such leaves out; `job.mean` and `job.sum` take whole numbers",
                )
            if leaf.size:
                places.append(place)
        return places


def _array(value: Any, path: str) -> Any:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return value
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"expected a pytree of arrays, got {type(value).__name__} as {path}") from error


def digest_of(lines: Sequence[str]) -> str:
    """What a tree's kind is known by."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def difference(rank: int, mine: Sequence[str], other: int, theirs: Sequence[str]) -> DeclarationConflict:
    """The error for trees that differ: names the first leaf that does."""
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing more")
    here, there = next(pair for pair in pairs if pair[0] != pair[1])
    return DeclarationConflict(
        f"workers gave different pytrees: worker {rank} has {here}, worker {other} has {there}",
        "give trees of the same structure, shapes and element types on every worker",
    )


class _Piece(NamedTuple):
    """A leaf's part of a tensor, counted in the tensor's elements."""

    place: int
    leaf: Leaf
    start: int
    end: int


class Pack:
    """
    Leaves in tensors. `declare` makes a tensor from a name, its elements, its element type and the places of
    its leaves.
    """

    def __init__(
        self,
        leaves: Sequence[tuple[int, Leaf]],
        prefix: str,
        declare: Callable[[str, int, str, Sequence[int]], Tensor],
    ) -> None:
        groups: dict[str, list[tuple[int, Leaf, int]]] = {}
        for place, leaf in leaves:
            real = _REAL.get(leaf.dtype, np.dtype(leaf.dtype))
            elements = leaf.size * (np.dtype(leaf.dtype).itemsize // real.itemsize)
            large = elements * real.itemsize >= LARGE_BYTES
            groups.setdefault(f"{_NAMES[real]}/{place}" if large else _NAMES[real], []).append(
                (place, leaf, elements)
            )
        self.tensors: list[tuple[Tensor, list[_Piece]]] = []
        for name, members in groups.items():
            pieces, end = [], 0
            for place, leaf, elements in members:
                pieces.append(_Piece(place, leaf, end, end + elements))
                end += elements
            dtype = name.partition("/")[0]
            tensor = declare(f"{prefix}/{name}", end, dtype, [piece.place for piece in pieces])
            self.tensors.append((tensor, pieces))

    def push(self, arrays: dict[int, Array], timeout: float | None) -> None:
        """Contributes the leaves, by place."""
        for tensor, pieces in self.tensors:
            if len(pieces) == 1:
                tensor.push(_flat(arrays[pieces[0].place], tensor.dtype), timeout=timeout)
                continue
            lane = tensor.lane()
            for piece in pieces:
                lane[piece.start : piece.end] = _flat(arrays[piece.place], tensor.dtype)
            tensor.push(timeout=timeout)

    def pull(self, slack: int | None, timeout: float | None) -> dict[int, Array]:
        """The leaves, by place."""
        found: dict[int, Array] = {}
        for tensor, pieces in self.tensors:
            # A copy: JAX may keep the memory that it is given, and this is the servers'.
            value = np.array(tensor.pull(slack=slack, timeout=timeout))
            for piece in pieces:
                part = value[piece.start : piece.end].view(piece.leaf.dtype)
                found[piece.place] = part.reshape(piece.leaf.shape)
        return found


def flat(arrays: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """The arrays one after the other, as real numbers."""
    return np.concatenate([_flat(array, dtype) for array in arrays])


def _flat(array: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(dtype)
