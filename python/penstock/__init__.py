"""
Shared model state for training: workers push gradients and pull parameters, in lockstep or with bounded
staleness.

    import penstock as ps

    job = ps.init()                                    # under a launcher; alone: a server inside this process
    w = job.tensor("w", value=w0, optimizer=ps.SGD(0.1), consistency=ps.SSP(slack=4))
    for x, y in batches:
        w.push(gradient(w.pull(), x, y))
        job.clock()

Everything is loaded on first use: the launcher and the servers start without NumPy, and only `ps.torch` and
`ps.jax`, the adapters, load torch and JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from ._core import __version__
except ImportError as error:
    from .distribution import REMEDY, other

    if (_wrong := other()) is None:
        raise
    raise ImportError(f"{_wrong}\nhint: {REMEDY}") from error

if TYPE_CHECKING:
    from . import exceptions as exceptions
    from . import jax as jax
    from . import ray as ray
    from . import torch as torch
    from .consistency import ASP, BSP, SSP
    from .exceptions import JobFailed, PenstockError, PullTimeout, ServerLost, WorkerLost
    from .filters import DVF, Filters, OwnFilter, Quantize, RandomK, TopK
    from .job import Job, init
    from .optim import SGD, Adagrad, Adam, AdamW, Add, Optimizer, Replace, RMSprop
    from .sparse import Sparse
    from .table import Table
    from .tensor import Tensor
    from .tree import Tree

__all__ = [
    "ASP",
    "BSP",
    "DVF",
    "SGD",
    "SSP",
    "Adagrad",
    "Adam",
    "AdamW",
    "Add",
    "Filters",
    "Job",
    "JobFailed",
    "Optimizer",
    "OwnFilter",
    "PenstockError",
    "PullTimeout",
    "Quantize",
    "RMSprop",
    "RandomK",
    "Replace",
    "ServerLost",
    "Sparse",
    "Table",
    "Tensor",
    "TopK",
    "Tree",
    "WorkerLost",
    "__version__",
    "init",
]

_MODULES = {
    "consistency": ("ASP", "BSP", "SSP"),
    # What scripts catch to go on, or to end in order; the others are reached by `exceptions`.
    "exceptions": ("JobFailed", "PenstockError", "PullTimeout", "ServerLost", "WorkerLost"),
    "filters": ("DVF", "Filters", "OwnFilter", "Quantize", "RandomK", "TopK"),
    "job": ("Job", "init"),
    "optim": ("SGD", "Adagrad", "Adam", "AdamW", "Add", "Optimizer", "RMSprop", "Replace"),
    "table": ("Table",),
    "sparse": ("Sparse",),
    "tensor": ("Tensor",),
    "tree": ("Tree",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("torch", "jax", "ray", "optim", "consistency", "exceptions", "filters"):
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module `penstock` has no attribute `{name}`{_meant(name)}")
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = globals()[name] = getattr(home, name)
    return value


def _meant(name: str) -> str:
    for known in __all__:
        if known.lower() == name.lower():
            return f"; did you mean `{known}`?"
    near = importlib.import_module("difflib").get_close_matches
    close = [] if name.startswith("_") else near(name, __all__, 1, 0.8)
    exceptions = importlib.import_module(".exceptions", __name__)
    found = getattr(exceptions, name, None)
    if isinstance(found, type) and issubclass(found, exceptions.PenstockError):
        return f"; it is `penstock.exceptions.{name}`"
    return f"; did you mean `{close[0]}`?" if close else ""


def __dir__() -> list[str]:
    return [*__all__, "exceptions", "jax", "ray", "torch"]
