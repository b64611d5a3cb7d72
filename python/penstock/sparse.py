"""
Sparse contributions: some elements of a tensor, and zeros for all others; and the places of sparse pulls.

`tensor.push(ps.Sparse(indices, values))` means what a push of the whole array would, with zeros where nothing
is named. Where zeros change nothing by the tensor's rule, only the chunks that are touched move.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from .arrays import Array, ArrayLike, as_array, contribution, is_plain
from .exceptions import DtypeError, OptionError, ShapeError, UnknownElement


class Sparse:
    """
    A contribution to some elements of a tensor; the others get zeros.

    Parameters
    ----------
    indices
        Whole numbers from 0 on: n places along the first dimension, or an array of shape (k, n), of n
        places along the first k dimensions, as torch's sparse tensors have them. In any order; what is named
        twice is summed.
    values
        n elements, rows or blocks: an array of shape (n, ...), with the tensor's other dimensions behind n,
        and of its dtype. Lists of numbers are converted.

    Raises
    ------
    ShapeError, DtypeError
        There are not as many values as indices, or the indices are no whole numbers.

    Examples
    --------
    >>> Sparse([4, 1], [0.5, 2.0])
    Sparse(2 places)
    """

    __slots__ = ("indices", "shape", "values")

    indices: Array
    values: ArrayLike
    shape: tuple[int, ...] | None
    """Of the whole array, where it says so."""

    def __init__(self, indices: ArrayLike, values: ArrayLike) -> None:
        places = _places(indices, "indices", (1, 2))
        given = as_array(values)
        if given.ndim == 0 or len(given) != places.shape[-1]:
            raise ShapeError(
                f"expected as many values as indices, {places.shape[-1]}, got values of shape {given.shape}",
                "give `indices.T`: an array of shape (dimensions, n)"
                if places.ndim == 2 and given.ndim and len(given) == len(places)
                else None,
            )
        self.indices, self.values, self.shape = places, values, None

    def __repr__(self) -> str:
        return f"Sparse({self.indices.shape[-1]} places)"

    def fit(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, int, Array]:
        """
        For the tensor of that name: where each block of elements begins, counted in blocks, how many elements
        a block has, and the values.

        Raises
        ------
        ShapeError, DtypeError, UnknownElement
            The tensor has no such places, or values of another shape or type.
        """
        if self.shape is not None and self.shape != shape:
            raise ShapeError(f"`{name}` has shape {shape}, got {self.shape}")
        places = np.atleast_2d(self.indices)
        named, behind = shape[: len(places)], shape[len(places) :]
        if len(named) < len(places):
            raise ShapeError(f"`{name}` has {len(shape)} dimensions, got indices of {len(places)}")
        units = _units(places, named, name)
        expected = (places.shape[1], *behind)
        if (given := as_array(self.values)).shape != expected:
            raise ShapeError(f"`{name}`: expected values of shape {expected}, got {given.shape}")
        values = contribution(self.values, name, expected, dtype)
        return units, int(np.prod(behind, dtype=np.int64)), values

    def dense(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """All of it, for that tensor; raises as `fit`."""
        units, unit, values = self.fit(name, shape, dtype)
        whole = np.zeros(shape, dtype)
        with np.errstate(all="ignore"):
            np.add.at(whole.reshape(-1, unit), units.astype(np.intp), values.reshape(-1, unit))
        return whole


def _places(indices: ArrayLike, what: str, dimensions: tuple[int, ...]) -> Array:
    """`indices` as an array of whole numbers; raises DtypeError or ShapeError."""
    try:
        places = as_array(indices)
    except DtypeError:
        if is_plain(indices) and (found := _beyond(indices)) is not None:
            raise _too_large(what, found) from None
        raise
    if places.size == 0 and is_plain(indices):
        places = places.astype(np.int64)  # an empty list is float64 to NumPy
    if places.dtype.kind == "b":
        way = "numpy.flatnonzero(mask)" if places.ndim == 1 else "numpy.stack(numpy.nonzero(mask))"
        raise DtypeError(f"expected {what} as whole numbers, got dtype bool", f"of a mask, give `{way}`")
    if places.dtype.kind not in "iu":
        if is_plain(indices) and (found := _beyond(indices)) is not None:
            raise _too_large(what, found)
        raise DtypeError(f"expected {what} as whole numbers, got dtype {places.dtype.name}")
    if places.ndim not in dimensions:
        shapes = " or ".join(("(n,)", "(dimensions, n)")[: len(dimensions)])
        raise ShapeError(f"expected {what} of shape {shapes}, got {places.shape}")
    return places


def _beyond(indices: Any) -> int | None:
    """The first whole number in these lists that 64 bits do not hold, of which NumPy makes something else."""
    for one in indices if isinstance(indices, list | tuple) else [indices]:
        if isinstance(one, list | tuple):
            if (found := _beyond(one)) is not None:
                return found
        elif isinstance(one, int) and not -(2**63) <= one < 2**63:
            return one
    return None


def _too_large(what: str, found: int) -> DtypeError:
    return DtypeError(f"expected {what} from 0 to {2**63 - 1}, got {found}")


def _transposed(places: Array, dimensions: int) -> str | None:
    """A hint where an array of indices has the places along its first dimension."""
    if places.ndim == 2 and places.shape[1] == dimensions:
        return "give `indices.T`: an array of shape (dimensions, n)"
    return None


def _units(places: Array, named: tuple[int, ...], name: str) -> Array:
    """
    Places of shape (dimensions, n) along dimensions of these sizes, each as one number.

    Raises
    ------
    UnknownElement
        A dimension has no such place.
    """
    for along, size in zip(places, named, strict=True):
        wrong = np.flatnonzero((along < 0) | (along >= size))
        if len(wrong):
            place = int(wrong[0])
            raise UnknownElement(
                f"`{name}`: expected indices from 0 to {size - 1}, got {along[place]} at place {place}",
                "indices count from 0, along the dimensions that they name",
                place=place,
            )
    units = np.zeros(places.shape[1], np.uint64)
    for along, size in zip(places, named, strict=True):
        units = units * np.uint64(size) + along.astype(np.uint64)
    return units


def gathered(
    name: str, shape: tuple[int, ...], rows: ArrayLike | None, indices: ArrayLike | None
) -> tuple[Array, int, tuple[int, ...]]:
    """
    What a pull of some rows, or of some elements, of the tensor of that name and shape takes: where each
    begins, counted in its length, how many elements it has, and the shape of the result.

    Raises
    ------
    OptionError
        Both are given.
    ShapeError, DtypeError, UnknownElement
        The tensor has no such places, or they are no whole numbers.
    """
    if rows is not None and indices is not None:
        raise OptionError(
            f"`{name}`: expected `rows` or `indices`, got both", "pull rows and single elements one by one"
        )
    if rows is not None:
        if not shape:
            raise ShapeError(f"`{name}` has shape (), and no rows")
        places, named, behind = _places(rows, "rows", (1,)), shape[:1], shape[1:]
    else:
        places = _places(indices, "indices", (1, 2))
        # Elements counted over all dimensions, or along each.
        named, behind = (math.prod(shape),) if places.ndim == 1 else shape, ()
    places = np.atleast_2d(places)
    if len(places) != len(named):
        raise ShapeError(
            f"`{name}` has {len(named)} dimensions, got indices of {len(places)}",
            _transposed(places, len(named)),
        )
    return _units(places, named, name), math.prod(behind), (places.shape[1], *behind)


def sparse_of(value: object) -> Sparse | None:
    """
    `value` as a sparse contribution, if it is one, or a sparse tensor of torch, array of JAX or SciPy; None
    for all else.

    Raises
    ------
    DtypeError
        It is a sparse tensor of torch of another layout than COO, or of JAX of another than BCOO.
    ShapeError
        It is one of JAX with batch dimensions.
    """
    if isinstance(value, Sparse):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, torch)
    # Another thread may just be importing it.
    jax = getattr(sys.modules.get("jax.experimental.sparse"), "JAXSparse", None)
    if jax is not None and isinstance(value, jax):
        return _of_jax(value)
    if hasattr(value, "tocoo"):
        given: Any = value.tocoo()
        # Arrays of SciPy may have one dimension, and more than two.
        places = getattr(given, "coords", None)
        found = Sparse(np.stack((given.row, given.col) if places is None else places), given.data)
        found.shape = tuple(given.shape)
        return found
    return None


def _of_torch(value: Any, torch: Any) -> Sparse | None:
    layout = value.layout
    if layout == torch.strided or value.is_nested or value.is_meta:
        return None
    if layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        raise DtypeError(
            f"expected a dense tensor or a sparse one of layout torch.sparse_coo, got {layout}",
            "call `to_sparse_coo()`",
        )
    if layout != torch.sparse_coo:
        return None
    value = value.detach()
    # As they stand: what is named twice is summed here.
    found = Sparse(value._indices().cpu().numpy(), value._values())
    found.shape = tuple(value.shape)
    return found


def _of_jax(value: Any) -> Sparse:
    if type(value).__name__ != "BCOO":
        raise DtypeError(
            f"expected a dense array or a sparse one of layout BCOO, got {type(value).__name__}",
            "call `to_bcoo()` of a BCSR array; make others with `BCOO.fromdense(it.todense())`",
        )
    if value.n_batch:
        raise ShapeError(
            f"expected a BCOO array without batch dimensions, got {value.n_batch}",
            "call `update_layout(n_batch=0)`",
        )
    found = Sparse(as_array(value.indices).T, as_array(value.data))
    # JAX fills up to a fixed number of places with some that are beyond the array.
    sizes = np.asarray(value.shape[: value.n_sparse])
    inside = np.all(sizes > found.indices.T, axis=1)
    if not inside.all():
        found = Sparse(found.indices[:, inside], found.values[inside])
    found.shape = tuple(value.shape)
    return found
