"""
A perceptron with two hidden layers in NumPy: 64 pixels, 2 x 512 rectified units, 10 digits, softmax cross
entropy; float32 throughout.

300,000 parameters: a step of 128 samples computes for some milliseconds, as real models do, and moves 1.2 MB
each way. With far smaller ones a step is over before anyone could share it.
"""

from __future__ import annotations

import numpy as np

from penstock.demo.data import Array

LAYERS = (64, 512, 512, 10)
"""Units of each layer, the pixels first."""
DIGITS = LAYERS[-1]
NAMES = tuple(f"layer{number}" for number in range(1, len(LAYERS)))
Parameters = dict[str, Array]


def initial(seed: int) -> Parameters:
    """Parameters to start from (He et al. 2015: variance 2 / inputs before rectified units)."""
    random = np.random.default_rng(seed)
    parameters: Parameters = {}
    for name, rows, columns in zip(NAMES, LAYERS[:-1], LAYERS[1:], strict=True):
        variance = (1 if name == NAMES[-1] else 2) / rows
        weight = random.standard_normal((rows, columns)) * np.sqrt(variance)
        parameters[f"{name}.weight"] = np.asarray(weight, np.float32)
        parameters[f"{name}.bias"] = np.zeros(columns, np.float32)
    return parameters


def logits(parameters: Parameters, x: Array) -> tuple[Array, list[Array]]:
    """Scores (samples, 10), and what went into each layer: x (samples, 64), hidden units (samples, 512)."""
    inputs = [x]
    for name in NAMES[:-1]:
        units = inputs[-1] @ parameters[f"{name}.weight"] + parameters[f"{name}.bias"]
        inputs.append(np.maximum(units, 0, out=units))
    last = NAMES[-1]
    return inputs[-1] @ parameters[f"{last}.weight"] + parameters[f"{last}.bias"], inputs


def gradients(parameters: Parameters, x: Array, y: Array) -> Parameters:
    """Gradient of the mean cross entropy over the samples, for each parameter."""
    scores, inputs = logits(parameters, x)
    error = softmax(scores)
    error[np.arange(len(y)), y] -= 1
    error /= np.float32(len(y))
    result: Parameters = {}
    for name, given in zip(reversed(NAMES), reversed(inputs), strict=True):
        result[f"{name}.weight"] = given.T @ error
        result[f"{name}.bias"] = error.sum(axis=0)
        if given is not x:
            error = (error @ parameters[f"{name}.weight"].T) * (given > 0)
    return result


def softmax(scores: Array) -> Array:
    """Probabilities; the largest score is taken off first, so that nothing overflows."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def judge(scores: Array, y: Array) -> tuple[float, float]:
    """Accuracy and mean cross entropy."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_probability = shifted[np.arange(len(y)), y] - np.log(np.exp(shifted).sum(axis=1))
    return float((scores.argmax(axis=1) == y).mean()), float(-log_probability.mean())
