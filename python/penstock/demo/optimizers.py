"""
The optimizers once more, in plain NumPy, for training in a single process: independent of the server's, and
as short as they can be.

Each rule follows torch.optim (the update written in its documentation), in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.demo.data import Array
from penstock.demo.settings import Rule

Step = Callable[[Array, Array], None]
"""Updates a parameter in place by its gradient."""


def stepper(rule: Rule) -> Step:
    """An optimizer for one parameter, with its state."""
    makers: dict[str, Callable[..., Step]] = {
        "SGD": _sgd,
        "Adagrad": _adagrad,
        "RMSprop": _rmsprop,
        "Adam": _adam,
        "AdamW": _adamw,
    }
    return makers[rule.name](**rule.settings)


def _sgd(lr: float, momentum: float = 0.0, nesterov: bool = False) -> Step:
    velocity: list[Array] = []

    def step(value: Array, gradient: Array) -> None:
        if momentum:
            if velocity:
                velocity[0] = np.float32(momentum) * velocity[0] + gradient
            else:
                velocity.append(gradient.copy())
            gradient = gradient + np.float32(momentum) * velocity[0] if nesterov else velocity[0]
        value -= np.float32(lr) * gradient

    return step


def _adagrad(lr: float, eps: float = 1e-10) -> Step:
    total: Array | np.float32 = np.float32(0)

    def step(value: Array, gradient: Array) -> None:
        nonlocal total
        total = total + gradient * gradient
        value -= np.float32(lr) * gradient / (np.sqrt(total) + np.float32(eps))

    return step


def _rmsprop(lr: float, alpha: float = 0.99, eps: float = 1e-8) -> Step:
    square: Array | np.float32 = np.float32(0)

    def step(value: Array, gradient: Array) -> None:
        nonlocal square
        square = np.float32(alpha) * square + np.float32(1 - alpha) * gradient * gradient
        value -= np.float32(lr) * gradient / (np.sqrt(square) + np.float32(eps))

    return step


def _adam(lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Step:
    first: Array | np.float32 = np.float32(0)
    second: Array | np.float32 = np.float32(0)
    count = 0

    def step(value: Array, gradient: Array) -> None:
        nonlocal first, second, count
        count += 1
        first = np.float32(beta1) * first + np.float32(1 - beta1) * gradient
        second = np.float32(beta2) * second + np.float32(1 - beta2) * gradient * gradient
        root = np.sqrt(second) / np.float32(np.sqrt(1 - beta2**count)) + np.float32(eps)
        value -= np.float32(lr / (1 - beta1**count)) * first / root

    return step


def _adamw(lr: float, weight_decay: float) -> Step:
    adam = _adam(lr)

    def step(value: Array, gradient: Array) -> None:
        value *= np.float32(1 - lr * weight_decay)
        adam(value, gradient)

    return step
