"""
A small convolutional network in NumPy: two layers of 3 x 3 convolutions with 16 and 32 maps, rectified, and a
linear layer to 10 digits; softmax cross entropy; float32 throughout.

25,000 parameters, the convolutions' used for each pixel: a step of 128 samples computes for about 17 ms on a
core and moves 100 KB each way. That is what pays to be shared; a perceptron of 300,000 parameters on such
pictures computes for a fraction of that and moves 12 times as much. Nothing is pooled by its maximum: where
two pixels are equal but for rounding, as on a blank background, the order of a sum would decide which of them
learns.
"""

from __future__ import annotations

import numpy as np

from penstock.demo.data import Array

SIDE = 8
"""Pixels of a picture, each way."""
KERNEL = 3
LAYERS = {"conv1": (KERNEL**2, 16), "conv2": (KERNEL**2 * 16, 32), "linear": (32 * SIDE**2, 10)}
"""For each layer what goes into one unit, and its maps or units."""
DIGITS = LAYERS["linear"][1]
Parameters = dict[str, Array]


def initial(seed: int) -> Parameters:
    """Parameters to start from (He et al. 2015: variance 2 / inputs before rectified units)."""
    random = np.random.default_rng(seed)
    parameters: Parameters = {}
    for name, (rows, columns) in LAYERS.items():
        variance = (1 if name == "linear" else 2) / rows
        weight = random.standard_normal((rows, columns)) * np.sqrt(variance)
        parameters[f"{name}.weight"] = np.asarray(weight, np.float32)
        parameters[f"{name}.bias"] = np.zeros(columns, np.float32)
    return parameters


def logits(parameters: Parameters, x: Array) -> Array:
    """Scores (samples, 10) of pictures (samples, 64)."""
    return _forward(parameters, x)[0]


def gradients(parameters: Parameters, x: Array, y: Array) -> tuple[Parameters, Array]:
    """Gradient of the mean cross entropy over the samples, for each parameter, and the scores behind it."""
    scores, (pixels, first, patches, second) = _forward(parameters, x)
    error = softmax(scores)
    error[np.arange(len(y)), y] -= 1
    error /= np.float32(len(y))
    result = _affine("linear", second.reshape(len(y), -1), error)
    error = (error @ parameters["linear.weight"].T).reshape(second.shape) * (second > 0)
    result |= _affine("conv2", patches, error)
    error = _spread(error @ parameters["conv2.weight"].T, len(y)).reshape(first.shape) * (first > 0)
    result |= _affine("conv1", pixels, error)
    return result, scores


def softmax(scores: Array) -> Array:
    """Probabilities; the largest score is taken off first, so that nothing overflows."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def judge(scores: Array, y: Array) -> tuple[float, float]:
    """Accuracy and mean cross entropy."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_probability = shifted[np.arange(len(y)), y] - np.log(np.exp(shifted).sum(axis=1))
    return float((scores.argmax(axis=1) == y).mean()), float(-log_probability.mean())


def _forward(parameters: Parameters, x: Array) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """Scores; and what went into each convolution and came out of it, (samples x pixels, .)."""
    pixels = _patches(x, len(x))
    first = _rectified(parameters, "conv1", pixels)
    patches = _patches(first, len(x))
    second = _rectified(parameters, "conv2", patches)
    scores = second.reshape(len(x), -1) @ parameters["linear.weight"] + parameters["linear.bias"]
    return scores, (pixels, first, patches, second)


def _rectified(parameters: Parameters, name: str, given: Array) -> Array:
    units = given @ parameters[f"{name}.weight"] + parameters[f"{name}.bias"]
    return np.asarray(np.maximum(units, 0, out=units))


def _affine(name: str, given: Array, error: Array) -> Parameters:
    """The gradients of one layer."""
    return {f"{name}.weight": given.T @ error, f"{name}.bias": error.sum(axis=0)}


def _patches(maps: Array, samples: int) -> Array:
    """Each pixel's surroundings, zeros outside the picture: (samples x pixels, 9 c)."""
    maps = maps.reshape(samples, SIDE, SIDE, -1)
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
    result = np.empty((samples, SIDE, SIDE, KERNEL**2, maps.shape[3]), np.float32)
    for place in range(KERNEL**2):
        down, right = divmod(place, KERNEL)
        result[:, :, :, place] = padded[:, down : down + SIDE, right : right + SIDE]
    return result.reshape(samples * SIDE**2, -1)


def _spread(patches: Array, samples: int) -> Array:
    """The transpose of `_patches`: adds up what each pixel has in the patches that it is in."""
    patches = patches.reshape(samples, SIDE, SIDE, KERNEL**2, -1)
    padded = np.zeros((samples, SIDE + 2, SIDE + 2, patches.shape[4]), np.float32)
    for place in range(KERNEL**2):
        down, right = divmod(place, KERNEL)
        padded[:, down : down + SIDE, right : right + SIDE] += patches[:, :, :, place]
    return padded[:, 1:-1, 1:-1]
