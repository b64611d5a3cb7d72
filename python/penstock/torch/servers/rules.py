"""
Which rule of the servers does what a torch optimizer does, and with which settings.

Only the classes themselves are known, not what derives from them: a subclass may do anything in its `step`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from ... import optim
from ...exceptions import OptionError, SettingsError
from ...optim import Optimizer

Group: TypeAlias = dict[str, Any]

HOOKS = tuple(
    f"_optimizer_{what}_{when}_hooks"
    for what in ("step", "state_dict", "load_state_dict")
    for when in ("pre", "post")
)
"""Where torch has an optimizer's hooks."""
SLOTS = frozenset(slot.name for row in optim.ROWS.values() for slot in row.slots)
"""What torch's states call the slots of the servers' rules, which are as large as the parameter."""
RATE_OF_ROUNDING = 1e-12
"""A learning rate that is below 0 by less is 0."""
OWN_FLAGS = ("differentiable", "capturable")
"""What only works inside one process's own autograd or CUDA graph."""
_METHODS = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group")
"""That a script calls on the optimizer that `distribute` returns, in place of the original's."""


def _rule_and_names(name: str) -> tuple[type[Optimizer], tuple[str, ...]]:
    ours = getattr(optim, name)
    return ours, tuple(inspect.signature(ours).parameters)


# What a rule reads of a group: what ours takes, which torch calls the same. The servers may have rules that
# torch lacks.
_RULES: dict[type, tuple[type[Optimizer], tuple[str, ...]]] = {
    getattr(torch.optim, name): _rule_and_names(name)
    for name, row in optim.ROWS.items()
    if row.settings and hasattr(torch.optim, name)
}


def _plain(name: str, value: Any) -> Any:
    """
    A number, a pair of numbers or a flag, as Python's own: a learning rate may be a tensor. Raises
    SettingsError if it is none of these.
    """
    if isinstance(value, bool):
        return value
    try:
        plain = tuple(map(_number, value)) if isinstance(value, tuple | list) else _number(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise SettingsError(
            f"expected a number, a pair of them or a flag as `{name}` of a parameter group, got {value!r}",
            "set what the rule knows by that name",
        ) from None
    # A schedule that ends at 0 may miss it by rounding, as LinearLR's with end_factor=0.
    if name == "lr" and isinstance(plain, float) and -RATE_OF_ROUNDING < plain < 0.0:
        return 0.0
    return plain


def _number(value: Any) -> float:
    # Torch refuses texts, also those that read as numbers.
    if isinstance(value, str | bytes | bytearray):
        raise TypeError
    return float(value)


def _is_decoupled(group: Group, make: type[Optimizer]) -> bool | None:
    """Whether a group of Adam's or AdamW's decays weights apart from the gradient; None for other rules."""
    if make is optim.AdamW:
        return bool(group.get("decoupled_weight_decay", True))
    return bool(group.get("decoupled_weight_decay", False)) if make is optim.Adam else None


def check_flags(group: Group) -> None:
    """
    Raises OptionError for flags that only work inside one process's own autograd or CUDA graph.
    """
    for flag in OWN_FLAGS:
        if group.get(flag):
            raise OptionError(
                f"expected {flag}=False, got True: the servers make the update, outside of this process",
                f"construct the optimizer without {flag}",
            )


def has_rule(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the servers can do what this optimizer does."""
    return type(optimizer) in _RULES


def replaced_in(optimizer: torch.optim.Optimizer) -> str | None:
    """
    The method that a script has replaced, of this optimizer or of its class; None if it has replaced none.
    """
    kind = type(optimizer)
    own = {name: value for name, value in vars(optimizer).items() if callable(getattr(kind, name, None))}
    of_class = {name: getattr(kind, name) for name in _METHODS}
    return next((name for name, value in [*own.items(), *of_class.items()] if not _is_torchs(value)), None)


def _is_torchs(method: Any) -> bool:
    """Whether it is torch's, and so is all that it wraps: a scheduler has its own around `step`."""
    while method is not None:
        if not getattr(method, "__globals__", {}).get("__name__", "").startswith("torch."):
            return False
        method = getattr(method, "__wrapped__", None)
    return True


def names() -> str:
    """The optimizers that the servers have, as a sentence lists them."""
    *most, last = (kind.__name__ for kind in _RULES)
    return f"torch.optim.{', '.join(most)} and {last}"


class GroupRule:
    """
    The rule of one parameter group; its settings are read from the group again before each push.

    `updates`: how many steps the rule takes in an iteration, in place of one. `place`: where the group is
    among those of its optimizer.
    """

    def __init__(
        self, kind: type[torch.optim.Optimizer], group: Group, updates: int = 1, place: int = 0
    ) -> None:
        check_flags(group)
        self.place = place
        make, self._names = _RULES[kind]
        # Torch's two go by the group: one that is AdamW's may be Adam's in all but its class.
        self.decoupled = _is_decoupled(group, make)
        if self.decoupled is not None:
            make = optim.AdamW if self.decoupled else optim.Adam
        self._divisors = optim.divisors(make.__name__, updates)
        self._group = group
        self._last = self._now()
        self.rule: Optimizer = make(**dict(zip(self._names, map(self._of_a_step, self._names), strict=True)))

    def options(self) -> Group:
        """The group, as torch has it."""
        return self._group

    def follow(self, group: Group) -> None:
        """From now on the group is this one."""
        self._group = group

    def refresh(self) -> None:
        """Takes over the group's settings; raises SettingsError if one is invalid, or if a flag changed."""
        if self.decoupled is not None and _is_decoupled(self._group, type(self.rule)) != self.decoupled:
            raise SettingsError(
                f"expected decoupled_weight_decay={self.decoupled} as when the group was distributed, got "
                f"{not self.decoupled}: the servers' rule cannot become another",
                "set it before `distribute`",
            )
        now = self._now()
        if now == self._last:
            return
        # One that is refused may leave the rule with some of the new settings: it has none of the last then.
        self._last = []
        for name in self._names:
            setattr(self.rule, name, self._of_a_step(name))
        self._last = now

    def lacking_in(self, group: Group) -> str | None:
        """A setting that the rule has, and this group has not."""
        return next((name for name in self._names if name not in group), None)

    def fits(self) -> bool:
        """Takes over the group's settings if `refresh` would not raise; whether it did."""
        try:
            self.refresh()
        except SettingsError:
            return False
        return True

    def _now(self) -> list[Any]:
        """
        What the settings are now: a tensor or a list may change without becoming another object. Raises
        SettingsError if one is invalid, or not there.
        """
        if (name := self.lacking_in(self._group)) is not None:
            raise SettingsError(
                f"the parameter group has no `{name}` in it", "set what the rule knows by that name"
            )
        return [_plain(name, self._group[name]) for name in self._names]

    def _of_a_step(self, name: str) -> Any:
        """The group's setting, as it is for one step of the rule."""
        value = _plain(name, self._group[name])
        divisor = self._divisors.get(name)
        # The rule refuses a pair where it has a number.
        return value if divisor is None or isinstance(value, tuple) else value / divisor


def kept_by(kind: type[torch.optim.Optimizer], group: Group) -> tuple[str, ...]:
    """
    What torch's optimizer has in the state of each parameter that it has stepped. A momentum may begin later,
    and SGD counts no steps.
    """
    if kind is torch.optim.SGD:
        return ()
    slots = optim.ROWS[kind.__name__].slots
    return (*(slot.name for slot in slots if slot.needs is None or group[slot.needs]), "step")


def torch_state(
    kind: type[torch.optim.Optimizer], state: Mapping[str, Any], parameter: torch.Tensor
) -> dict[str, torch.Tensor]:
    """
    A tensor's state on the servers in torch's own format; {} if torch would have none.

    Half types keep their float32 accumulators: torch casts them when it loads, we do not have to.
    """
    steps = int(state["step"])
    arrays = {
        name: torch.from_numpy(array).to(parameter.device) for name, array in state.items() if name != "step"
    }
    if not arrays or (steps == 0 and kind is not torch.optim.Adagrad):
        return {}
    if kind is not torch.optim.SGD:
        arrays["step"] = torch.tensor(float(steps), dtype=torch.float32, device="cpu")
    return arrays


def steps_of(state: Mapping[str, Any]) -> int:
    """
    The number of steps behind torch's state of a parameter. SGD does not count; all it tells is "first or
    not".
    """
    if "step" in state:
        return int(state["step"])
    return int(state.get("momentum_buffer") is not None)
