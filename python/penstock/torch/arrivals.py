"""
Parameters that a model is given after `distribute`: their gradients are not averaged, and where all are new
no gradient comes that could tell. So the first gradient that backward adds to one is an error. One that is
never trained, such as a teacher's, gets none. Where the servers step, so is the first gradient that autograd
computes of one, even where it is added to nothing, unless the optimizer was given the parameter.

Torch calls a hook whenever any module is given a parameter or a module, for which we look into a dictionary.
The hooks are there while a job is open.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakIdKeyDictionary

from ..exceptions import PenstockError
from .known import Known


class Owner(Protocol):
    """Who averages a model, or has its steps taken."""

    job: Any

    @property
    def watches(self) -> bool:
        """Whether it wants to be told still: not once its job has ended, or its model was unwrapped."""


class Newcomers:
    """Parameters that a model is given after `distribute`, of each of which a gradient is refused."""

    def __init__(
        self,
        owner: Owner,
        known: Known,
        parameters: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        register: Callable[[torch.Tensor, Callable[[torch.Tensor], None]], Any],
        error: Callable[[str], PenstockError],
    ) -> None:
        """
        `known` are no newcomers. `parameters` gives what the model has, by name; `register` a hook to a
        parameter, that hears of its gradients; `error` says why one of that name is refused.
        """
        self._owner = weakref.ref(owner)
        self._known = known
        self._parameters = parameters
        self._register = register
        self._error = error
        self._seen = Known()
        self._refusing: Any = WeakIdKeyDictionary()
        """The handles of hooks on them: a script may give the model new ones again and again."""

    @property
    def watches(self) -> bool:
        """Whether they are looked for still."""
        owner = self._owner()
        return owner is not None and owner.watches

    def is_given(self, parameter: torch.Tensor) -> None:
        """A part of the model was given a parameter, which it may have already."""
        if not self.watches or parameter in self._known or parameter in self._seen:
            return
        if not may_be_trained(parameter):
            return
        self._seen.add(parameter)
        # The hook is the parameter's: it must not keep it.
        newcomers, held = weakref.ref(self), weakref.ref(parameter)

        def came(_: torch.Tensor) -> None:
            found, late = newcomers(), held()
            if found is not None and late is not None:
                found._refuse(late)

        self._refusing[parameter] = self._register(parameter, came)

    def look(self) -> None:
        """For those that came in a way which torch does not tell of."""
        for _, parameter in self._parameters():
            self.is_given(parameter)

    def accept(self, parameter: torch.Tensor) -> None:
        """It is known from now on."""
        self._known.add(parameter)
        if parameter in self._refusing:
            self._refusing.pop(parameter).remove()

    def forget(self) -> None:
        """Removes the hooks."""
        for handle in self._refusing.values():
            handle.remove()
        self._refusing.clear()

    def _refuse(self, parameter: torch.Tensor) -> None:
        owner = self._owner()
        if owner is None or not owner.watches:
            return
        name = next((name for name, one in self._parameters() if one is parameter), None)
        # The model may have lost it again, or another `distribute` may have it.
        if name is not None and not owned_elsewhere(parameter, owner):
            raise self._error(name)


owners_of_parameters: Any = WeakIdKeyDictionary()
"""A weak reference to what each parameter's gradient is averaged by, or its steps taken."""
_owners: Any = WeakIdKeyDictionary()
"""Of modules: who is told what they are given."""
_hooks: list[Any] = []


def watch(model: torch.nn.Module, owner: Newcomers, *, instead: bool = False) -> None:
    """Has `owner` told from now on; `instead` of another that was, of which the model was a part."""
    if not _hooks:
        _hooks.append(register_module_parameter_registration_hook(_given))
        _hooks.append(register_module_module_registration_hook(_given))
    for module in model.modules():
        if instead or _owner_of(module) is None:
            _owners[module] = weakref.ref(owner)


def look_away() -> None:
    """No job is open any more."""
    while _hooks:
        _hooks.pop().remove()
    _owners.clear()


def may_be_trained(parameter: torch.Tensor) -> bool:
    """Whether what a module was given can have a gradient, now or later, that somebody would step by."""
    # What `torch.func.functional_call` puts in a parameter's place for a while is none.
    if not isinstance(parameter, torch.nn.Parameter):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        # Numbers of a quantized teacher have no gradient, nor has what was made to be evaluated only.
        return (parameter.is_floating_point() or parameter.is_complex()) and not parameter.is_inference()


def owned_elsewhere(parameter: torch.Tensor, owner: Owner) -> bool:
    """Whether another than `owner` averages its gradient, or takes its steps."""
    held = owners_of_parameters.get(parameter)
    found = held() if held is not None else None
    return found is not None and found is not owner and not found.job.closed


def when_added_to(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """
    Has backward call the hook when it has added to the parameter's gradient; returns its handle. Of a lazy
    parameter too, which has no shape yet.
    """
    # Compiled autograd would take it into its program, where it learns nothing; so it is called, and
    # raises. (What `torch.compiler.disable` does, without its cost in each call.)
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return with_grad(parameter, lambda: parameter.register_post_accumulate_grad_hook(hook))


def with_grad(parameter: torch.Tensor, register: Callable[[], Any]) -> Any:
    """Registers a hook on a parameter that may be frozen, and unfrozen later."""
    with torch._C.DisableTorchFunctionSubclass():
        frozen = not parameter.requires_grad
        if frozen:
            parameter.requires_grad_(True)
        try:
            return register()
        finally:
            if frozen:
                parameter.requires_grad_(False)


def whenever_computed(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """
    Has autograd call the hook each time it has a gradient of the parameter, before it adds that to anything;
    returns its handle.
    """
    # See `when_added_to`; and where a parameter is saved, torch need not say that this is not.
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return with_grad(parameter, lambda: parameter.register_hook(unserializable_hook(hook)))


def when_computed(parameter: torch.Tensor, hook: Callable[[], object]) -> None:
    """
    Has autograd call the hook once, when it has a gradient of the parameter: also where `torch.autograd.grad`
    gives it to the script, and adds it to nothing. Of a frozen parameter too.
    """
    handles: list[Any] = []

    @unserializable_hook  # type: ignore[untyped-decorator]
    def came(_: torch.Tensor) -> None:
        hook()
        while handles:
            handles.pop().remove()

    handles.append(with_grad(parameter, lambda: parameter.register_hook(came)))


def _owner_of(module: torch.nn.Module) -> Newcomers | None:
    held = _owners.get(module)
    owner: Newcomers | None = None if held is None else held()
    return owner if owner is not None and owner.watches else None


def _given(module: torch.nn.Module, _: str, what: Any) -> None:
    owner = _owner_of(module)
    if owner is None or what is None:
        return
    if isinstance(what, torch.nn.Module):
        watch(what, owner)
        for parameter in what.parameters():
            owner.is_given(parameter)
    else:
        owner.is_given(what)
