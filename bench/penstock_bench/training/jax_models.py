"""What is trained with JAX: parameters, batches that differ by rank, and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Task:
    """A loss over a pytree, and its batches."""

    what: str
    """In words, with batch and sizes."""
    params: Callable[[np.random.Generator], Any]
    width: int
    """Of what goes in and comes out."""
    forward: Callable[[Any, Any], Any]
    batch: int

    def loss(self, params: Any, inputs: Any, wanted: Any) -> Any:
        """Mean square of what is wrong."""
        import jax.numpy as jnp

        return jnp.mean((self.forward(params, inputs) - wanted) ** 2)

    def batch_of(self, rank: int) -> tuple[Any, Any]:
        """A worker's."""
        drawn = np.random.default_rng(1 + rank).standard_normal((2, self.batch, self.width), np.float32)
        return drawn[0], drawn[1]


def task_of(name: str) -> Task:
    """The task of this name, one of `names.JAX_MODELS`."""
    return _TASKS[name]


def _matrices(count: int, width: int) -> Callable[[np.random.Generator], Any]:
    def draw(generator: np.random.Generator) -> Any:
        return [
            generator.standard_normal((width, width), np.float32) / np.float32(width) for _ in range(count)
        ]

    return draw


def _through(params: Any, x: Any) -> Any:
    """Through each matrix, and past it."""
    import jax.numpy as jnp

    for matrix in params:
        x = x + jnp.tanh(x @ matrix)
    return x


_TASKS = {
    "layers": Task("8 layers of 1024x1024, batch 64 a worker", _matrices(8, 1024), 1024, _through, 64),
    "leaves": Task("200 leaves of 32x32, batch 8 a worker", _matrices(200, 32), 32, _through, 8),
}
