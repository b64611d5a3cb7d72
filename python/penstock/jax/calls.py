"""
Calls on the host: at once outside of `jax.jit`; inside it when the compiled program comes there, by an
ordered `io_callback`.

What is under way in compiled programs comes first: before a call outside of them, and before the job is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from ..arrays import Array
from ..exceptions import PenstockError
from ..job import Job, before_leaving, current

effects_barrier: Callable[[], None] = jax.effects_barrier
"""Waits until compiled programs have made the calls that are under way."""
Host = Callable[[Job, list[Array]], Sequence[Array]]
"""A call on the host: takes arrays and returns arrays of the kinds that were announced."""


def on_host(job: Job | None, host: Host, arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """
    What `host` returns for the arguments; `results` are like it in shape, element type and device.

    Outside of `jit`, raises what `host` raises. Inside, JAX reports it as an error of its own whose text has
    the type, the message and the hint.
    """
    # Joins here, if need be, and not in the middle of a compiled program.
    found = job or current()
    if any(isinstance(one, jax.core.Tracer) for one in arguments) or not _outside():
        before_leaving["jax"] = effects_barrier

        def called(*arrays: Any) -> list[Array]:
            # A compiled program may outlive the job that it was traced for.
            now = job or current()
            try:
                return list(host(now, [np.asarray(array) for array in arrays]))
            except PenstockError as error:
                # JAX shows the text alone, without notes.
                raise type(error)(f"{error}{_hint(error)}") from error

        shapes = [_struct(one.shape, one.dtype) for one in results]
        return list(io_callback(called, shapes, *arguments, ordered=True))
    effects_barrier()
    arrays = host(found, [np.asarray(one) for one in arguments])
    return [_put(array, like) for array, like in zip(arrays, results, strict=True)]


def _outside() -> bool:
    """Whether no program is being traced: there, whatever is computed is traced too."""
    return not isinstance(jax.lax.full((), 0), jax.core.Tracer)


_struct: Any = jax.ShapeDtypeStruct


def _put(array: Array, like: Any) -> Any:
    return jax.device_put(array, like.sharding) if isinstance(like, jax.Array) else jax.device_put(array)


def _hint(error: PenstockError) -> str:
    return f"\nhint: {error.hint}" if error.hint else ""
