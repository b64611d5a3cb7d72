"""
Parameters that a model is given after `distribute`: their gradients are not averaged, and where all are new
no gradient comes that could tell.

Torch calls a hook whenever any module is given a parameter or a module, for which we look into a dictionary.
The owner of a model that may have new ones looks at its next forward pass.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.weak import WeakIdKeyDictionary


class Owner(Protocol):
    """Who averages a model."""

    def has_grown(self) -> None:
        """A part of the model was given a parameter or a module."""


_owners: Any = WeakIdKeyDictionary()


def watch(model: torch.nn.Module, owner: Owner) -> None:
    """Has the owner told from now on."""
    if not _hooks:
        _hooks.append(register_module_parameter_registration_hook(_given))
        _hooks.append(register_module_module_registration_hook(_given))
    for module in model.modules():
        _owners[module] = weakref.ref(owner)


_hooks: list[Any] = []


def _given(module: torch.nn.Module, _: str, what: Any) -> None:
    owner = _owners.get(module)
    if owner is not None and what is not None and (told := owner()) is not None:
        told.has_grown()
