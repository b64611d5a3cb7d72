"""
Which rule of the servers does what a torch optimizer does, and with which numbers.

Only the classes themselves are known, not what derives from them: a subclass may do anything in its `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from .. import optim
from ..exceptions import OptionError
from ..optim import Optimizer

Group: TypeAlias = dict[str, Any]
Numbers: TypeAlias = dict[str, Any]


def _sgd(group: Group) -> Numbers:
    return _taken(group, "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")


def _adagrad(group: Group) -> Numbers:
    return _taken(group, "lr", "lr_decay", "weight_decay", "eps", "maximize")


def _rmsprop(group: Group) -> Numbers:
    return _taken(group, "lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize")


def _adam(group: Group) -> Numbers:
    first, second = group["betas"]
    return _taken(group, "lr", "eps", "weight_decay", "amsgrad", "maximize") | {
        "betas": (float(first), float(second))
    }


def _taken(group: Group, *names: str) -> Numbers:
    # A learning rate may be a tensor; every number that is not a flag goes to the servers as a float.
    return {name: value if isinstance(value := group[name], bool) else float(value) for name in names}


_RULES: dict[type, tuple[type[Optimizer], Callable[[Group], Numbers]]] = {
    torch.optim.SGD: (optim.SGD, _sgd),
    torch.optim.Adagrad: (optim.AdaGrad, _adagrad),
    torch.optim.RMSprop: (optim.RMSProp, _rmsprop),
    torch.optim.Adam: (optim.Adam, _adam),
    torch.optim.AdamW: (optim.AdamW, _adam),
}


def check_flags(group: Group) -> None:
    """
    Raises OptionError for what cannot be had anywhere but inside one process's own autograd or CUDA graph.
    """
    for flag in ("differentiable", "capturable"):
        if group.get(flag):
            raise OptionError(
                f"expected {flag}=False, got True: the servers make the update, outside of this process",
                f"construct the optimizer without {flag}",
            )


def has_rule(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the servers can do what this optimizer does."""
    return type(optimizer) in _RULES


class GroupRule:
    """The rule of one parameter group; its numbers are read from the group anew before each push."""

    def __init__(self, kind: type[torch.optim.Optimizer], group: Group) -> None:
        check_flags(group)
        make, self._numbers = _RULES[kind]
        if group.get("decoupled_weight_decay"):
            make = optim.AdamW
        self._group = group
        self._last = self._numbers(group)
        self.rule: Optimizer = make(**self._last)

    def options(self) -> Group:
        """The group, as torch has it."""
        return self._group

    def refresh(self) -> None:
        """Takes over the group's numbers; raises SettingsError if one is unfit, or if a flag changed."""
        numbers = self._numbers(self._group)
        if numbers != self._last:
            for name, value in numbers.items():
                setattr(self.rule, name, value)
            self._last = numbers


class NoRule:
    """Of a group whose optimizer steps here, on gradients that the servers average."""

    def __init__(self) -> None:
        self.rule: Optimizer = optim.Replace()

    def options(self) -> Group:
        """Nothing that the servers would read."""
        return {}

    def refresh(self) -> None:
        """There are no numbers to take over."""


def torch_state(
    kind: type[torch.optim.Optimizer], state: Mapping[str, Any], parameter: torch.Tensor
) -> dict[str, torch.Tensor]:
    """
    A tensor's state on the servers in torch's own format; {} where torch would have none.

    Half types keep their float32 accumulators: torch casts them when it loads, we do not have to.
    """
    steps = int(state["step"])
    arrays = {
        name: torch.from_numpy(array).to(parameter.device) for name, array in state.items() if name != "step"
    }
    if not arrays or (steps == 0 and kind is not torch.optim.Adagrad):
        return {}
    if kind is not torch.optim.SGD:
        arrays["step"] = torch.tensor(float(steps), dtype=torch.float32)
    return arrays


def steps_of(state: Mapping[str, Any]) -> int:
    """
    Steps that torch's state of a parameter has behind it. SGD does not count; all it tells is "first or not".
    """
    if "step" in state:
        return int(state["step"])
    return int(state.get("momentum_buffer") is not None)
