"""
A model that is copied, or saved as a whole, is an ordinary model: our hooks on it stay behind.

So a file that `torch.save(model)` wrote loads without Penstock, and with `weights_only=True` where the
model's own classes are allowed: word_language_model in pytorch/examples saves and loads so.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

_STATE = "__getstate__"
_HOOKS = [name for name in vars(torch.nn.Module()) if "_hooks" in name]
"""What torch keeps hooks in, and what it notes of them, such as that they take keywords: by their numbers."""


class Ours:
    """A hook on a module that no copy of the module has."""

    def __reduce__(self) -> Any:
        """Where a module's class decides itself what of it is copied, the copy has one that does nothing."""
        return type(self), ()


def leave_hooks_behind(model: torch.nn.Module) -> None:
    """Has copies of `model` made without what of its hooks, and its parts', is `Ours`: pickled copies too."""
    for module in model.modules():
        if _STATE not in vars(module):
            # On this module, not on its class: others of the class are none of our business.
            object.__setattr__(module, _STATE, _State(weakref.ref(module)))


class _State:
    """What `copy` and `pickle` ask a module for, instead of its class's own answer."""

    def __init__(self, model: weakref.ref[torch.nn.Module]) -> None:
        self._model = model

    def __call__(self) -> Any:
        model = self._model()
        assert model is not None, "asked by the model itself"
        state = type(model).__getstate__(model)
        return _without_ours(state) if isinstance(state, Mapping) else state


def _without_ours(state: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in state.items() if name != _STATE}
    hooks = {name: kept[name] for name in _HOOKS if isinstance(kept.get(name), dict)}
    ours = {number for held in hooks.values() for number, hook in held.items() if isinstance(hook, Ours)}
    for name, held in hooks.items():
        if not ours.isdisjoint(held):
            kept[name] = type(held)((number, hook) for number, hook in held.items() if number not in ours)
    return kept
