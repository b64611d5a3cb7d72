"""
Calls on the host: at once outside of `jax.jit`; inside it when the compiled program comes there.

What is under way in compiled programs comes first: before a call outside of them, and before the job is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..arrays import Array
from ..exceptions import OptionError, PenstockError
from ..job import Job, before_leaving, current
from .compiled import ordered_call
from .leaves import Layout
from .registry import known_calls

effects_barrier: Callable[[], None] = jax.effects_barrier
"""Waits until compiled programs have made the calls that are under way."""
Host = Callable[[Job, list[Array], list[Array]], None]
"""
A call on the host: takes arrays, and fills arrays of the shapes that were announced. One to fill may be over
the memory of the argument in its place: it is filled when the arguments have been read.
"""
_ALIGNMENT = 64
"""Bytes: where XLA's buffers begin on the CPU. JAX takes an array that does as it is, and copies others."""


def on_host(
    job: Job | None, host: Host, arguments: Sequence[Any], shapes: Sequence[Any], likes: Sequence[Any] = ()
) -> list[Any]:
    """
    What `host` fills for the arguments, on the devices of `likes` if there are any.

    Outside of `jit`, raises what `host` raises. Inside, JAX reports it as an error of its own whose text has
    the type, the message and the hint. Raises OptionError while a program for several devices is traced.
    """
    _refuse_devices()
    # Joins here, if need be, and not in the middle of a compiled program.
    found = job or current()
    if is_traced(arguments):
        before_leaving["jax"] = lambda _: effects_barrier()

        def fill(arrays: list[Array], results: list[Array]) -> None:
            # A compiled program may outlive the job that it was traced for.
            now = job or current()
            try:
                host(now, arrays, results)
            except PenstockError as error:
                # JAX shows the text alone, without notes.
                raise type(error)(f"{error}{_hint(error)}") from error

        return ordered_call(fill, shapes, arguments)
    effects_barrier()
    known_calls.check()
    arrays = [_new(shape) for shape in shapes]
    host(found, [np.asarray(one) for one in arguments], arrays)
    if not likes:
        return [jax.device_put(array) for array in arrays]
    return [put_like(array, like) for array, like in zip(arrays, likes, strict=True)]


def packed(
    job: Job | None, host: Host, layout: Layout, leaves: Sequence[Any], others: Sequence[Any] = ()
) -> list[Any]:
    """
    `on_host`, where `host` takes the leaves' flat arrays and then `others`, and fills flat arrays; gives the
    leaves in them.
    """
    values = list(leaves)
    if is_traced(values):
        return layout.unpack(on_host(job, host, [*layout.pack(values), *others], layout.shapes()))
    devices = {device for value in values for device in value.devices()}
    if len(devices) <= 1:
        flats = layout.pack(values)
        likes = values[:1] * len(flats)
        return layout.unpack(on_host(job, host, [*flats, *others], layout.shapes(), likes))
    effects_barrier()
    known_calls.check()
    found = [_new(shape) for shape in layout.shapes()]
    host(job or current(), [*layout.pack_on_host(values), *map(np.asarray, others)], found)
    return [put_like(array, like) for array, like in zip(layout.unpack_on_host(found), values, strict=True)]


def is_traced(values: Sequence[Any]) -> bool:
    """Whether a program is being traced: then whatever is computed is traced too."""
    if any(isinstance(value, jax.core.Tracer) for value in values):
        return True
    return isinstance(jax.lax.full((), 0), jax.core.Tracer)


def _refuse_devices() -> None:
    """
    Raises OptionError inside `shard_map` and `pmap` over several devices: JAX makes a callback there once for
    each device, with that device's part.
    """
    # Versions without it refuse ordered callbacks for several devices themselves.
    find: Any = getattr(jax.sharding, "get_abstract_mesh", lambda: None)
    mesh = find()
    for axis in getattr(mesh, "manual_axes", ()):
        if mesh.shape[axis] > 1:
            raise OptionError(
                f"expected a call outside of `shard_map` and `pmap`, got one inside, over {mesh.shape[axis]} "
                f"devices: each of them would make the call, with its part alone",
                "call it outside of them, and outside of `jit`: sharded arrays are gathered there, and the "
                "result is sharded as they were",
            )


def put_like(array: Array, like: Any) -> Any:
    """The array on the devices of `like`; bound to them only if that is."""
    return jax.device_put(array, like.sharding if getattr(like, "committed", True) else None)


def _new(like: Any) -> Array:
    """An array to fill, which JAX can take as it is."""
    dtype = np.dtype(like.dtype)
    nbytes = math.prod(like.shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    array: Array = memory[start : start + nbytes].view(dtype).reshape(like.shape)
    return array


def _hint(error: PenstockError) -> str:
    return f"\nhint: {error.hint}" if error.hint else ""
