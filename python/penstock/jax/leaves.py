"""
Leaves of pytrees, and the tensors of the job that hold them.

All small leaves of one element type share one flat array, and so one tensor; a larger leaf has its own. The
flat arrays are made, and taken apart, by compiled functions. A flat array is copied once into the lane, and
once out of the value. Complex leaves are pairs of real numbers.
"""

from __future__ import annotations

import functools
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
from ..gather import printable
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
                    f"{what}{leaf.path or 'itself'} is {leaf.dtype}, expected float32, float64, float16, "
                    "bfloat16, complex64 or complex128",
                    "leave such leaves out; `job.mean` and `job.sum` take whole numbers",
                )
            if leaf.size:
                places.append(place)
        return places


def _array(value: Any, path: str) -> Any:
    if isinstance(value, jax.Array) or getattr(value, "dtype", None) == jax.dtypes.float0:
        return value
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise DtypeError(
            f"expected a pytree of arrays, got {type(value).__name__} as {path or 'the value'}"
        ) from error


def digest_of(lines: Sequence[str]) -> str:
    """What a tree's kind is known by."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def difference(rank: int, mine: Sequence[str], other: int, theirs: Sequence[str]) -> DeclarationConflict:
    """The error for trees that differ: names the first leaf that does."""
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing more")
    here, there = map(printable, next(pair for pair in pairs if pair[0] != pair[1]))
    return DeclarationConflict(
        f"workers gave different pytrees: worker {rank} has {here}, worker {other} has {there}",
        "give trees of the same structure, shapes and element types on every worker",
    )


class _Piece(NamedTuple):
    """A leaf's part of a flat array, counted in its elements."""

    place: int
    leaf: Leaf
    start: int
    end: int


class Group(NamedTuple):
    """Leaves that share a flat array, and a tensor."""

    name: str
    dtype: np.dtype[Any]
    pieces: list[_Piece]

    @property
    def elements(self) -> int:
        """Of the flat array."""
        return self.pieces[-1].end


class Layout:
    """How leaves lie in flat arrays. Leaves are in lists, in the order in which they were given."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        members: dict[str, list[tuple[int, Leaf]]] = {}
        for place, leaf in enumerate(leaves):
            name = _NAMES[_real_of(leaf)]
            large = leaf.size * np.dtype(leaf.dtype).itemsize >= LARGE_BYTES
            members.setdefault(f"{name}/{place}" if large else name, []).append((place, leaf))
        self.groups: list[Group] = []
        for name, inside in members.items():
            dtype = _real_of(inside[0][1])
            pieces, end = [], 0
            for place, leaf in inside:
                start, end = end, end + leaf.size * (np.dtype(leaf.dtype).itemsize // dtype.itemsize)
                pieces.append(_Piece(place, leaf, start, end))
            self.groups.append(Group(name, dtype, pieces))
        # Compiled: hundreds of small leaves are one call each way.
        self.pack: Callable[[list[Any]], list[Any]] = jax.jit(self._pack)
        """From leaves to flat arrays."""
        self.unpack: Callable[[list[Any]], list[Any]] = jax.jit(self._unpack)
        """And back."""

    def shapes(self) -> list[Any]:
        """What the flat arrays are."""
        struct: Any = jax.ShapeDtypeStruct
        return [struct((group.elements,), group.dtype) for group in self.groups]

    def pack_on_host(self, values: Sequence[Any]) -> list[Array]:
        """`pack`, for leaves on several devices."""
        arrays = [np.ascontiguousarray(value).reshape(-1) for value in values]
        return [
            np.concatenate([arrays[piece.place].view(group.dtype) for piece in group.pieces])
            for group in self.groups
        ]

    def unpack_on_host(self, flats: Sequence[Array]) -> list[Array]:
        """`unpack`, for leaves on several devices."""
        found = {
            piece.place: flat[piece.start : piece.end].view(piece.leaf.dtype).reshape(piece.leaf.shape)
            for flat, group in zip(flats, self.groups, strict=True)
            for piece in group.pieces
        }
        return [found[place] for place in range(len(found))]

    def _pack(self, values: list[Any]) -> list[Any]:
        flats = []
        for group in self.groups:
            parts = []
            for piece in group.pieces:
                value = values[piece.place]
                if piece.leaf.dtype in _REAL:
                    value = jnp.stack([value.real, value.imag], axis=-1)
                parts.append(value.reshape(-1))
            flats.append(jnp.concatenate(parts) if len(parts) > 1 else parts[0])
        return flats

    def _unpack(self, flats: list[Any]) -> list[Any]:
        found = {}
        for flat, group in zip(flats, self.groups, strict=True):
            for piece in group.pieces:
                value = flat[piece.start : piece.end]
                if piece.leaf.dtype in _REAL:
                    value = jax.lax.complex(value[::2], value[1::2])
                found[piece.place] = value.reshape(piece.leaf.shape)
        return [found[place] for place in range(len(found))]


@functools.lru_cache(maxsize=64)
def layout_of(leaves: tuple[Leaf, ...]) -> Layout:
    """The leaves' layout: the same object for the same leaves, since its functions are compiled."""
    return Layout(leaves)


def _real_of(leaf: Leaf) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(_REAL.get(leaf.dtype, leaf.dtype))
    return dtype


class Tensors:
    """A layout's flat arrays as tensors of the job, which `declare` makes of groups."""

    def __init__(self, layout: Layout, declare: Callable[[Group], Tensor]) -> None:
        self.all = [declare(group) for group in layout.groups]

    def push(self, flats: Sequence[Array], timeout: float | None) -> None:
        """Contributes the flat arrays."""
        for tensor, flat in zip(self.all, flats, strict=True):
            tensor.push(flat, timeout=timeout)

    def pull(
        self, flats: Sequence[Array], slack: int | None, timeout: float | None, exact: bool = False
    ) -> None:
        """Fills the flat arrays."""
        for tensor, flat in zip(self.all, flats, strict=True):
            tensor.pull(flat, slack=slack, exact=exact, timeout=timeout)
