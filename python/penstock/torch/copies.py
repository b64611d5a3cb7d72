"""
A model that is copied, or saved as a whole, is an ordinary model: our hooks on it stay behind.

So a file that `torch.save(model)` wrote loads without Penstock, and with `weights_only=True` where the
model's own classes are allowed: word_language_model in pytorch/examples saves and loads so.
"""

from __future__ import annotations

from typing import Any

import torch

_HOOKS = [name for name in vars(torch.nn.Module()) if "_hooks" in name]
"""What torch keeps hooks in, and what it notes of them, such as that they take keywords: by their numbers."""


class Ours:
    """A hook on a module that no copy of the module has."""

    def __reduce__(self) -> Any:
        """Where a module's class decides itself what of it is copied, the copy has one that does nothing."""
        return type(self), ()


_TORCHS: Any = torch.nn.Module.__getstate__
"""What `copy` and `pickle` are told of a module: Python's own answer where torch has none."""


def leave_hooks_behind() -> None:
    """
    Has copies of modules made without those hooks on them that are `Ours`, pickled copies too.

    It is said for all modules: an attribute of one would go with each copy of its attributes, which
    parametrizations make, and would speak of the wrong module there.
    """
    torch.nn.Module.__getstate__ = _state  # type: ignore[method-assign]


def _state(module: torch.nn.Module) -> Any:
    state = _TORCHS(module)
    if isinstance(state, tuple):  # the attributes, and those in slots
        attributes, slots = state
        return (attributes and _without_ours(attributes)), slots
    return state and _without_ours(state)


def _without_ours(attributes: dict[str, Any]) -> dict[str, Any]:
    hooks = {name: attributes[name] for name in _HOOKS if isinstance(attributes.get(name), dict)}
    ours = {number for held in hooks.values() for number, hook in held.items() if isinstance(hook, Ours)}
    if not ours:
        return attributes
    kept = dict(attributes)
    for name, held in hooks.items():
        if not ours.isdisjoint(held):
            kept[name] = type(held)((number, hook) for number, hook in held.items() if number not in ours)
    return kept
