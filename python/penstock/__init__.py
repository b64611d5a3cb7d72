"""
Shared model state for training: workers push gradients and pull parameters, in lockstep or with bounded
staleness.

    import penstock as ps

    job = ps.init()                                    # under a launcher; alone: a server inside this process
    w = job.tensor("w", value=w0, optimizer=ps.SGD(0.1), consistency=ps.SSP(slack=4))
    for x, y in batches:
        w.push(gradient(w.pull(), x, y))
        job.clock()

Everything is loaded on first use: the launcher and the servers start without NumPy, and only `ps.torch`, the
PyTorch adapter, loads torch.
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
    from . import ray as ray
    from . import torch as torch
    from .consistency import ASP, BSP, SSP
    from .exceptions import (
        AddressInUse,
        AlreadyPushed,
        AuthenticationError,
        BarrierTimeout,
        CircularWait,
        ClockBackwards,
        ConnectTimeout,
        DeadlineExceeded,
        DeclarationConflict,
        DtypeError,
        GetTimeout,
        JobClosed,
        JobExists,
        JobFailed,
        JobFull,
        LaneTimeout,
        ManagerUnavailable,
        NeverSet,
        NonFiniteError,
        NoSuchJob,
        NotDelivered,
        NotProducer,
        NotUnderLauncher,
        OptionError,
        OutOfMemory,
        PenstockError,
        ProtocolError,
        PullTimeout,
        QuotaExceeded,
        RowTwice,
        ServerLost,
        SettingsConflict,
        SettingsError,
        ShapeError,
        TableDropped,
        TensorNameError,
        TornView,
        TwoProducers,
        UnknownRow,
        WorkerLost,
    )
    from .job import Job, init
    from .optim import SGD, Adagrad, Adam, AdamW, Add, Optimizer, Replace, RMSprop
    from .table import Table
    from .tensor import Tensor

__all__ = [
    "ASP",
    "BSP",
    "SGD",
    "SSP",
    "Adagrad",
    "Adam",
    "AdamW",
    "Add",
    "AddressInUse",
    "AlreadyPushed",
    "AuthenticationError",
    "BarrierTimeout",
    "CircularWait",
    "ClockBackwards",
    "ConnectTimeout",
    "DeadlineExceeded",
    "DeclarationConflict",
    "DtypeError",
    "GetTimeout",
    "Job",
    "JobClosed",
    "JobExists",
    "JobFailed",
    "JobFull",
    "LaneTimeout",
    "ManagerUnavailable",
    "NeverSet",
    "NoSuchJob",
    "NonFiniteError",
    "NotDelivered",
    "NotProducer",
    "NotUnderLauncher",
    "Optimizer",
    "OptionError",
    "OutOfMemory",
    "PenstockError",
    "ProtocolError",
    "PullTimeout",
    "QuotaExceeded",
    "RMSprop",
    "Replace",
    "RowTwice",
    "ServerLost",
    "SettingsConflict",
    "SettingsError",
    "ShapeError",
    "Table",
    "TableDropped",
    "Tensor",
    "TensorNameError",
    "TornView",
    "TwoProducers",
    "UnknownRow",
    "WorkerLost",
    "__version__",
    "init",
]

_MODULES = {
    "consistency": ("ASP", "BSP", "SSP"),
    "job": ("Job", "init"),
    "optim": ("SGD", "Adagrad", "Adam", "AdamW", "Add", "Optimizer", "RMSprop", "Replace"),
    "table": ("Table",),
    "tensor": ("Tensor",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("torch", "ray", "optim", "consistency", "exceptions"):
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        meant = [known for known in __all__ if known.lower() == name.lower()]
        hint = f"; did you mean `{meant[0]}`?" if meant else ""
        raise AttributeError(f"module `penstock` has no attribute `{name}`{hint}")
    home = importlib.import_module(f".{_HOMES.get(name, 'exceptions')}", __name__)
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "ray", "torch"]
