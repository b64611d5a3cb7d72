"""
A model that is copied, or saved as a whole, is an ordinary model: our hooks on it stay behind.

So a file that `torch.save(model)` wrote loads without Penstock, and with `weights_only=True` where the
model's own classes are allowed: word_language_model in pytorch/examples saves and loads so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_HOOKS = [name for name in vars(torch.nn.Module()) if "_hooks" in name]
"""What torch keeps hooks in, and what it notes of them, such as that they take keywords: by their numbers."""


class Ours:
    """A hook on a module that no copy of the module has."""

    def __reduce__(self) -> Any:
        """Where a module's class decides itself what of it is copied, the copy has one that does nothing."""
        return type(self), ()

    def left_behind(self) -> None:
        """A copy of the module is about to be made, of what it holds after this."""


def leave_hooks_behind(model: torch.nn.Module) -> None:
    """
    Has copies of the model's modules made without those hooks on them that are `Ours`, pickled copies too.

    It is said for their classes: an attribute of one module would go with each copy of its attributes, which
    parametrizations make, and would speak of the wrong module there.
    """
    if "__getstate__" not in vars(torch.nn.Module):
        # Python's own answer, in older versions of torch.
        torch.nn.Module.__getstate__ = _leaving_ours(object.__getstate__)  # type: ignore[method-assign]
    for kind in {kind for module in model.modules() for kind in type(module).__mro__}:
        own = vars(kind).get("__getstate__")
        if kind is not object and own is not None and not hasattr(own, _MARK):
            kind.__getstate__ = _leaving_ours(own)  # type: ignore[assignment,method-assign]


_MARK = "_leaves_hooks_behind"


def _leaving_ours(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(own)
    def state(module: torch.nn.Module) -> Any:
        found = own(module)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], dict):
            return _without_ours(found[0]), found[1]  # the attributes, and those in slots
        return _without_ours(found) if isinstance(found, dict) else found

    setattr(state, _MARK, True)
    return state


def _without_ours(attributes: dict[str, Any]) -> dict[str, Any]:
    hooks = {name: attributes[name] for name in _HOOKS if isinstance(attributes.get(name), dict)}
    ours = {number for held in hooks.values() for number, hook in held.items() if _ours(hook) is not None}
    if not ours:
        return attributes
    for held in hooks.values():
        for hook in list(held.values()):
            if (mine := _ours(hook)) is not None:
                mine.left_behind()
    kept = dict(attributes)
    for name, held in hooks.items():
        if not ours.isdisjoint(held):
            kept[name] = type(held)((number, hook) for number, hook in held.items() if number not in ours)
    return kept


def _ours(hook: Any) -> Ours | None:
    """The hook, if it is ours; torch keeps some in an object of its own."""
    if not isinstance(hook, Ours):
        hook = getattr(hook, "hook", None)
    return hook if isinstance(hook, Ours) else None
