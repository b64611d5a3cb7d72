"""
A perceptron with one hidden layer in NumPy: 64 pixels, 128 rectified units, 10 digits, softmax cross entropy;
float32 throughout.
"""

from __future__ import annotations

import numpy as np

from penstock.demo.data import Array

PIXELS, HIDDEN, DIGITS = 64, 128, 10
Parameters = dict[str, Array]


def initial(seed: int) -> Parameters:
    """Parameters to start from (He et al. 2015: variance 2 / inputs before rectified units)."""
    random = np.random.default_rng(seed)

    def normal(rows: int, columns: int, variance: float) -> Array:
        return np.asarray(random.standard_normal((rows, columns)) * np.sqrt(variance), np.float32)

    return {
        "hidden.weight": normal(PIXELS, HIDDEN, 2 / PIXELS),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": normal(HIDDEN, DIGITS, 1 / HIDDEN),
        "output.bias": np.zeros(DIGITS, np.float32),
    }


def logits(parameters: Parameters, x: Array) -> tuple[Array, Array]:
    """Scores (samples, 10) and the hidden units they came from (samples, 128)."""
    hidden = np.maximum(x @ parameters["hidden.weight"] + parameters["hidden.bias"], 0)
    return hidden @ parameters["output.weight"] + parameters["output.bias"], hidden


def gradients(parameters: Parameters, x: Array, y: Array) -> Parameters:
    """Gradient of the mean cross entropy over the samples, for each parameter."""
    scores, hidden = logits(parameters, x)
    error = softmax(scores)
    error[np.arange(len(y)), y] -= 1
    error /= np.float32(len(y))
    back = (error @ parameters["output.weight"].T) * (hidden > 0)
    return {
        "hidden.weight": x.T @ back,
        "hidden.bias": back.sum(axis=0),
        "output.weight": hidden.T @ error,
        "output.bias": error.sum(axis=0),
    }


def softmax(scores: Array) -> Array:
    """Probabilities; the largest score is taken off first, so that nothing overflows."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def judge(scores: Array, y: Array) -> tuple[float, float]:
    """Accuracy and mean cross entropy."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_probability = shifted[np.arange(len(y)), y] - np.log(np.exp(shifted).sum(axis=1))
    return float((scores.argmax(axis=1) == y).mean()), float(-log_probability.mean())
