"""
Calls on the host from compiled programs, in the order in which these have them.

| copies of an array | in `io_callback` | here, on the CPU |
|---|---|---|
| from XLA's buffer to Python | 2, each into new memory | none: a view of the buffer |
| from Python to XLA's buffer | 1, and that into an array | none: the buffer itself is filled |

An argument and its result share the buffer, where XLA can do without the argument afterwards. Otherwise all
gradients and all means would be there at once, in memory that XLA takes and gives back in each step: more
than malloc keeps, so that each step would take page faults for all of it.

What JAX has no public function for is how a call of our own takes its place in the order of `io_callback`s.
Where JAX or XLA is of a version that differs there, where the device is no CPU, and where a program spans
several devices, it is an `io_callback`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from ..arrays import Array
from .registry import Fill, known_calls, number_of

_TARGET = "penstock_call"
_struct: Any = jax.ShapeDtypeStruct


class _Called:
    """A call, as a program has it."""

    def __init__(self, fill: Fill, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        self.fill = fill
        self.arguments: Sequence[Any] = [_struct(one.shape, np.dtype(one.dtype)) for one in arguments]
        self.results: Sequence[Any] = [_struct(one.shape, np.dtype(one.dtype)) for one in results]

    def __call__(self, *arrays: Any) -> list[Array]:
        """As an `io_callback`."""
        known_calls.check()
        results = [np.empty(one.shape, one.dtype) for one in self.results]
        self.fill([np.asarray(array) for array in arrays], results)
        return results

    def in_place(self) -> dict[int, int]:
        """Arguments whose buffer their result may have."""
        both = zip(self.arguments, self.results, strict=False)
        return {place: place for place, (one, other) in enumerate(both) if one == other}

    def is_plain(self) -> bool:
        """Whether NumPy's elements are in memory as XLA's are."""
        return all(number_of(one.dtype) is not None for one in (*self.arguments, *self.results))


def ordered_call(fill: Fill, results: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """What `fill` fills, like `results`, each time the program that is traced comes here."""
    called = _Called(fill, arguments, results)
    primitive = _primitive()
    if primitive is None or not called.is_plain():
        return _by_io_callback(*arguments, called=called)
    found: list[Any] = primitive.bind(*arguments, called=called)
    return found


def _by_io_callback(*arguments: Any, called: _Called) -> list[Any]:
    return list(io_callback(called, called.results, *arguments, ordered=True))


def _new_primitive() -> Any:
    """The call's name to JAX, with its rules."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    (order,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects
    with warnings.catch_warnings():
        # JAX has another place for it from some version on, and warns of this one: not the script's affair,
        # nor an error where warnings are errors.
        warnings.simplefilter("ignore", DeprecationWarning)
        token: Any = jax.core.abstract_token
    primitive: Any = Primitive(_TARGET)
    primitive.multiple_results = True

    def shapes(*_: Any, called: _Called) -> Any:
        return [jax.core.ShapedArray(one.shape, one.dtype) for one in called.results], {order}

    def lowered(ctx: Any, *operands: Any, called: _Called) -> Any:
        # Of a program for several devices each would make the call: JAX refuses that for an `io_callback`.
        alone = getattr(ctx.module_context.axis_context, "num_devices", 0) == 1
        if not alone or not _is_registered(ctx):
            return otherwise(ctx, *operands, called=called)
        number = known_calls.add(called)
        # Which keeps it for as long as the program runs, and the program out of caches on disk.
        ctx.module_context.add_host_callback(called)
        call = jax.ffi.ffi_lowering(
            _TARGET,
            has_side_effect=True,
            operand_output_aliases={one + 1: other + 1 for one, other in called.in_place().items()},
        )
        # The token, in the first place of both, keeps the order.
        both = ctx.replace(avals_in=[token, *ctx.avals_in], avals_out=[token, *ctx.avals_out])
        after, *results = call(both, ctx.tokens_in.get(order), *operands, number=np.uint64(number))
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({order: after})))
        return results

    def refused(what: str) -> Callable[..., Any]:
        def raises(*_: Any, **__: Any) -> Any:
            raise ValueError(f"calls of ps.jax inside of `jit` {what}")

        return raises

    otherwise = mlir.lower_fun(_by_io_callback)
    # What evaluates a traced program step by step, outside of `jit`, comes here.
    primitive.def_impl(lambda *operands, called: _by_io_callback(*operands, called=called))
    primitive.def_effectful_abstract_eval(shapes)
    batching.primitive_batchers[primitive] = refused("cannot be mapped by `vmap`")
    ad.primitive_jvps[primitive] = refused("cannot be differentiated: average the gradients")
    mlir.register_lowering(primitive, otherwise)
    mlir.register_lowering(primitive, lowered, platform="cpu", cacheable=False)
    return primitive


def _is_registered(ctx: Any) -> bool:
    """Whether XLA takes our function, and has the interface that we know."""
    # XLA refuses the function at once if the backend is there. If not, it would refuse to start the backend.
    ctx.module_context.get_backend()
    return _registered()


def _registered() -> bool:
    return known_calls.taken(lambda target: jax.ffi.register_ffi_target(_TARGET, target, platform="cpu"))


@functools.cache
def _primitive() -> Any:
    """The call as JAX knows it; None where it cannot."""
    try:
        return _new_primitive()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
