"""
The optimizers whose every step is compared, and the worker that takes the steps. It needs NumPy only: the
workers are started often, and torch would take most of the time.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from typing import Any

import ml_dtypes
import numpy as np

import penstock as ps

STEPS = 20
ELEMENTS = 10_007  # prime: the last chunk is never full; more than one chunk in every dtype
SHOWN = np.unique(
    np.concatenate([np.arange(40), np.arange(0, ELEMENTS, 97), np.arange(ELEMENTS - 40, ELEMENTS)])
)
"""Elements whose value after every step is compared: both ends, and some of each chunk."""

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}

Arguments = dict[str, Any]

# name: (the class, arguments), which have the same names in penstock and torch.optim
CASES: dict[str, tuple[str, Arguments]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd_decay": ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "dampened": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd_up": ("SGD", {"lr": 0.1, "momentum": 0.9, "maximize": True, "weight_decay": 0.01}),
    "adagrad": ("Adagrad", {"lr": 0.1}),
    "adagrad_decay": ("Adagrad", {"lr": 0.1, "lr_decay": 0.05, "weight_decay": 0.01}),
    "adagrad_up": ("Adagrad", {"lr": 0.1, "eps": 1e-6, "maximize": True}),
    "rmsprop": ("RMSprop", {"lr": 0.01}),
    "rmsprop_momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01}),
    "rmsprop_centered": ("RMSprop", {"lr": 0.01, "alpha": 0.9, "centered": True, "eps": 1e-3}),
    "rmsprop_all": (
        "RMSprop",
        {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.01, "maximize": True, "eps": 1e-3},
    ),
    "adam": ("Adam", {"lr": 0.01}),
    "adam_decay": ("Adam", {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.01}),
    "adam_amsgrad": ("Adam", {"lr": 0.01, "betas": (0.9, 0.5), "amsgrad": True}),
    "adam_up": ("Adam", {"lr": 0.01, "eps": 1e-4, "amsgrad": True, "maximize": True}),
    "adamw": ("AdamW", {"lr": 0.01}),
    "adamw_all": (
        "AdamW",
        {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.5), "amsgrad": True, "maximize": True},
    ),
}

# What the runs that are compared bit for bit declare: every rule with state, every dtype.
BITS = {
    "momentum": "float32",
    "adam": "float32",
    "adamw_all": "bfloat16",
    "rmsprop_all": "float16",
    "adagrad": "float64",
}


def start(dtype: str) -> Any:
    """The first value, the same for every case."""
    return np.random.default_rng(0).standard_normal(ELEMENTS).astype(DTYPES[dtype])


@functools.cache
def gradient(dtype: str, rank: int, step: int) -> Any:
    """Worker `rank`'s gradient in iteration `step`; the same array each time."""
    return np.random.default_rng([1, rank, step]).standard_normal(ELEMENTS).astype(DTYPES[dtype])


def rate(lr: float, step: int) -> float:
    """The learning rate changes while training: a half after ten steps."""
    return lr if step < 10 else lr / 2


def train(job: ps.Job, cases: dict[str, list[str]], reduce: str, consistency: str) -> dict[str, Any]:
    """
    Takes all steps of the cases (name: dtypes) side by side. Returns for each `case/dtype` its shown elements
    after every step, as float64 (exact for every dtype), and one digest over all bits of all of its values.
    """
    tensors = {
        f"{case}/{dtype}": job.tensor(
            f"{case}/{dtype}",
            start(dtype),
            optimizer=getattr(ps, CASES[case][0])(**CASES[case][1]),
            reduce=reduce,
            consistency=consistency,
        )
        for case, dtypes in cases.items()
        for dtype in dtypes
    }
    shown: dict[str, list[Any]] = {name: [] for name in tensors}
    digests = {name: hashlib.sha256() for name in tensors}
    for step in range(STEPS):
        gradients = {
            dtype: gradient(dtype, job.rank, step) for dtype in {n.rpartition("/")[2] for n in tensors}
        }
        for name, tensor in tensors.items():
            case, _, dtype = name.rpartition("/")
            tensor.set_lr(rate(CASES[case][1]["lr"], step))
            tensor.push(gradients[dtype])
        job.clock()
        for name, tensor in tensors.items():
            value = tensor.pull()
            shown[name].append(value[SHOWN].astype(np.float64))
            digests[name].update(value.tobytes())
    result: dict[str, Any] = {name: np.array(values) for name, values in shown.items()}
    result.update({f"{name}/digest": np.array(digest.hexdigest()) for name, digest in digests.items()})
    return result


def main() -> None:
    """A worker: which cases, sum or mean, which consistency, where to put the result."""
    which, reduce, consistency, out = sys.argv[1:]
    everything = {name: list(DTYPES) for name in CASES}
    cases = {name: [dtype] for name, dtype in BITS.items()} if which == "bits" else everything
    with ps.init() as job:
        result = train(job, cases, reduce, consistency)
        with open(f"{out}.{job.rank}.npz", "wb") as file:  # noqa: PTH123
            np.savez(file, **result)


if __name__ == "__main__":
    main()
