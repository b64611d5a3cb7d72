"""
Optimizers that run on the servers, fused with the sum of the contributions, chunk by chunk.

Each is torch.optim's of the same name, operation by operation, with float32 arithmetic for float16 and
bfloat16 tensors. Here they are only descriptions: a rule and its flags, fixed at construction, and up to five
numbers that travel with every push. Changing a number therefore takes effect with exactly the next push, on
every chunk.

A tensor keeps its own copy of the optimizer it was declared with: change numbers through `tensor.optimizer`,
in the same way on every worker.

What the core knows of an optimizer is one row of its table, and nothing of it is written here again but the
signatures, which a reader and a type checker want to see; a test compares them.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

from . import _core
from .consistency import BSP, Consistency
from .exceptions import OptionError, SettingsError

Settings: TypeAlias = tuple[float, float, float, float, float]
"""The numbers of an optimizer, in the order in which its rule reads them; unused ones are 0."""


class Setting(NamedTuple):
    """A number of an optimizer: from 0 up to, not including, `below`."""

    name: str
    default: float
    below: float
    expected: str
    """What it may be, in words."""
    needs: str | None
    """The flag without which it counts for nothing."""
    zero_with: str | None
    """The flag with which it must be 0."""


class Flag(NamedTuple):
    """What an optimizer is constructed with; one with the name of a number is set where that is not 0."""

    name: str
    needs: str | None
    """The flag without which it may not be set."""


class Slot(NamedTuple):
    """A part of an optimizer's state, as large as the parameter."""

    name: str
    """As torch calls it."""
    needs: str | None
    """The flag without which there is none."""


class Row(NamedTuple):
    """What the core knows of an optimizer."""

    name: str
    """Its class here and in torch.optim."""
    settings: tuple[Setting, ...]
    """Its numbers, in the order in which they travel."""
    flags: tuple[Flag, ...]
    fixed: frozenset[str]
    """Flags that are not also numbers."""
    slots: tuple[Slot, ...]


def _row(
    name: str,
    settings: list[dict[str, Any]],
    flags: list[dict[str, Any]],
    slots: list[dict[str, Any]],
) -> Row:
    fixed = {flag["name"] for flag in flags} - {setting["name"] for setting in settings}
    return Row(
        name,
        tuple(Setting(**setting) for setting in settings),
        tuple(Flag(**flag) for flag in flags),
        frozenset(fixed),
        tuple(Slot(**slot) for slot in slots),
    )


ROWS: dict[str, Row] = {row["name"]: _row(**row) for row in _core.optimizers()}
"""The core's table."""

DIVIDED: dict[str, dict[str, float]] = {
    "SGD": {"weight_decay": 1.0},
    "Adagrad": {"lr": 0.5, "eps": 0.5, "lr_decay": 1.0, "weight_decay": 1.0},
    "RMSprop": {"lr": 1.0, "eps": 1.0, "weight_decay": 1.0},
    "Adam": {"lr": 1.0, "eps": 1.0, "weight_decay": 1.0},
    "AdamW": {"lr": 1.0, "eps": 1.0},
}
"""
Under SSP and ASP each of the N workers' contributions is a step of its own, by its N-th part of the mean. For
an iteration's N steps to come to what one step would, these are divided by N to that power. Adagrad's steps
shrink with the root of their number; AdamW's decay is multiplied by its learning rate.
"""


def updates_in(lr_scale: str | None, consistency: Consistency, workers: int) -> int:
    """
    Among how many steps an iteration's settings are divided, by the argument of `distribute`.

    Raises OptionError if it is none of those.
    """
    if lr_scale not in (None, "per-update"):
        raise OptionError(f'expected lr_scale "per-update" or None, got {lr_scale!r}')
    return workers if lr_scale and consistency != BSP() else 1


def divisors(name: str, updates: int) -> dict[str, float]:
    """What the settings of the optimizer of that name are divided by, for each of an iteration's updates."""
    # Add and Replace have no settings.
    if updates == 1 or not ROWS[name].settings:
        return {}
    return {setting: float(updates**power) for setting, power in DIVIDED[name].items()}


class Optimizer:
    """
    Base of the optimizers.

    Attributes that hold numbers may be set at any time and are checked; flags may not change. Equality is
    that of class, flags and numbers.

    Raises
    ------
    SettingsError
        From the constructor, and from setting an attribute: the number is out of range, or the attribute is a
        flag. The optimizer stays as it was.
    """

    _row: ClassVar[Row]
    _set: frozenset[str]
    _packed: Settings

    def rule(self) -> str:
        """The rule's name, as the core knows it."""
        return self._row.name.lower()

    def flags(self) -> list[str]:
        """Flags that are set, fixed at construction."""
        return [flag.name for flag in self._row.flags if flag.name in self._set]

    def settings(self) -> Settings:
        """The numbers that travel with the next push."""
        return self._packed

    def copy(self) -> Optimizer:
        """Another one with the same flags and numbers."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _numbers(self) -> dict[str, Any]:
        """The numbers as they were given."""
        return self.__dict__

    def _pack(self) -> Settings:
        """Checks all numbers, keeps them as floats, and packs them."""
        mine, given, flags = self.__dict__, self._numbers(), self._set
        numbers: dict[str, float] = {}
        packed: list[float] = []
        for name, _, below, expected, needs, zero_with in self._row.settings:
            try:
                number = math.nan if isinstance(given[name], str | bytes) else float(given[name])
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if not 0.0 <= number < below:
                raise self._refused(name, expected, given[name])
            if number and zero_with in flags:
                raise self._refused(name, f"0 with {zero_with}", number)
            numbers[name] = number
            if name in mine:
                mine[name] = number
            # The core takes no number that it would not read.
            packed.append(number if needs is None or needs in flags else 0.0)
        for name, needs in self._row.flags:
            if name not in flags and numbers.get(name):
                raise SettingsError(
                    f"this {type(self).__name__} was made without {name}, so the servers keep no state for "
                    f"it; got {numbers[name]}",
                    f"construct it with a {name} above 0",
                )
            if name in flags and needs is not None and not numbers[needs]:
                raise SettingsError(
                    f"{type(self).__name__} with {name} needs a {needs} above 0, got {numbers[needs]}",
                    f"pass a {needs} above 0, or leave `{name}` out",
                )
        return cast(Settings, (*packed, 0.0, 0.0, 0.0, 0.0, 0.0)[:5])

    def _refused(self, name: str, expected: str, got: Any) -> SettingsError:
        owner = type(self).__name__
        return SettingsError(f"{owner} needs `{name}` {expected}, got {got!r}", f"pass `{name}` {expected}")

    def _finish(self, **arguments: Any) -> None:
        """Takes the constructor's arguments over, by their names in the table."""
        arguments |= {name: bool(arguments[name]) for name in self._row.fixed}
        self.__dict__.update(arguments)
        are_set = (flag.name for flag in self._row.flags if bool(arguments[flag.name] != 0))
        self.__dict__["_set"] = frozenset(are_set)
        self.__dict__["_packed"] = self._pack()

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if name not in self.__dict__ or name.startswith("_"):
            raise SettingsError(
                f"{type(self).__name__} has no setting `{name}`",
                f"it has {', '.join(self._public()) or 'none'}",
            )
        if name in self._row.fixed and bool(value) != bool(old):
            raise SettingsError(
                f"`{name}` of {type(self).__name__} is fixed at construction as {old!r}, got {value!r}",
                "declare another tensor for another optimizer",
            )
        self.__dict__[name] = value
        try:
            self.__dict__["_packed"] = self._pack()
        except SettingsError:
            self.__dict__[name] = old
            raise

    def _public(self) -> list[str]:
        return [name for name in self.__dict__ if not name.startswith("_")]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optimizer):
            return NotImplemented
        mine, theirs = (type(self), self.flags(), self._packed), (type(other), other.flags(), other._packed)
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._public())
        return f"{type(self).__name__}({arguments})"


class Add(Optimizer):
    """
    value += the reduced contributions. What a tensor without an optimizer does.

    Examples
    --------
    >>> Add().settings()
    (0.0, 0.0, 0.0, 0.0, 0.0)
    """

    _row = ROWS["Add"]

    def __init__(self) -> None:
        self._finish()


class Replace(Optimizer):
    """
    value = the reduced contributions: an all-reduce.

    Under BSP; elsewhere contributions are folded one by one, so that each replaces the one before: only with
    `reduce="sum"`, where the last contribution to arrive stands, never as a mean.

    Examples
    --------
    >>> Replace().rule()
    'replace'
    """

    _row = ROWS["Replace"]

    def __init__(self) -> None:
        self._finish()


class SGD(Optimizer):
    """
    Stochastic gradient descent; with momentum, with Nesterov's momentum.

    Parameters
    ----------
    lr
        Learning rate, 0 or above.
    momentum
        Factor on the old direction, 0 or above. Default 0: no state is kept. Whether it is 0 is fixed at
        construction.
    dampening
        Part of the gradient that does not enter the direction. Default 0.
    weight_decay
        L2 penalty, added to the gradient. Default 0.
    nesterov
        Look ahead along the direction. Needs momentum above 0 and dampening 0. Default False.
    maximize
        Climb instead of descend. Default False.

    Raises
    ------
    SettingsError
        A number is out of range, or `nesterov` without momentum or with dampening.

    Notes
    -----
    State: one array the size of the tensor with momentum, none without. Sutskever et al. 2013, as
    torch.optim.SGD has it.

    Examples
    --------
    >>> SGD(0.1, momentum=0.9, nesterov=True).flags()
    ['momentum', 'nesterov']
    """

    _row = ROWS["SGD"]
    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool
    maximize: bool

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        self._finish(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )


class Adagrad(Optimizer):
    """
    A step per element that shrinks with the sum of its squared gradients.

    Parameters
    ----------
    lr
        Learning rate, 0 or above. Default 0.01.
    lr_decay
        The rate in step n is lr / (1 + (n - 1) * lr_decay). Default 0.
    weight_decay
        L2 penalty, added to the gradient. Default 0.
    eps
        Added to the root. Default 1e-10.
    maximize
        Climb instead of descend. Default False.

    Raises
    ------
    SettingsError
        A number is out of range.

    Notes
    -----
    State: one array. Duchi et al. 2011, as torch.optim.Adagrad has it.

    Examples
    --------
    >>> Adagrad(0.01).settings()
    (0.01, 0.0, 1e-10, 0.0, 0.0)
    """

    _row = ROWS["Adagrad"]
    lr: float
    lr_decay: float
    weight_decay: float
    eps: float
    maximize: bool

    def __init__(
        self,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
    ) -> None:
        self._finish(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, maximize=maximize)


class RMSprop(Optimizer):
    """
    A step per element that shrinks with a running mean of its squared gradients.

    Parameters
    ----------
    lr
        Learning rate, 0 or above. Default 0.01.
    alpha
        Decay of the running mean, 0 up to, not including, 1. Default 0.99.
    eps
        Added to the root. Default 1e-8.
    weight_decay
        L2 penalty, added to the gradient. Default 0.
    momentum
        Factor on the old direction, 0 or above. Default 0. Whether it is 0 is fixed at construction.
    centered
        Divide by the estimated variance instead of the second moment. Default False.
    maximize
        Climb instead of descend. Default False.

    Raises
    ------
    SettingsError
        A number is out of range.

    Notes
    -----
    State: one array, one more with momentum, one more when centered. Tieleman and Hinton 2012, Graves 2013,
    as torch.optim.RMSprop has it.

    Examples
    --------
    >>> RMSprop(0.01, momentum=0.9, centered=True).flags()
    ['momentum', 'centered']
    """

    _row = ROWS["RMSprop"]
    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool
    maximize: bool

    def __init__(
        self,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
    ) -> None:
        self._finish(
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )


class Adam(Optimizer):
    """
    Running means of the gradient and of its square, corrected for their start at zero.

    Parameters
    ----------
    lr
        Learning rate, 0 or above. Default 0.001.
    betas
        Decays of the two running means, each 0 up to, not including, 1. Default (0.9, 0.999).
    eps
        Added to the root. Default 1e-8.
    weight_decay
        L2 penalty, added to the gradient. Default 0.
    amsgrad
        Divide by the largest second moment so far. Default False.
    maximize
        Climb instead of descend. Default False.

    Raises
    ------
    SettingsError
        A number is out of range.

    Notes
    -----
    State: two arrays, three with `amsgrad`. Kingma and Ba 2015, Reddi et al. 2018, as torch.optim.Adam has
    it.

    Examples
    --------
    >>> Adam().settings()
    (0.001, 0.9, 0.999, 1e-08, 0.0)
    """

    _row = ROWS["Adam"]
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    amsgrad: bool
    maximize: bool

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        self._finish(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
        )

    def _numbers(self) -> dict[str, Any]:
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise SettingsError(
                f"expected two numbers for `betas` of {type(self).__name__}, got {self.betas!r}"
            ) from None
        return {**self.__dict__, "beta1": first, "beta2": second}

    def _pack(self) -> Settings:
        packed = super()._pack()
        self.__dict__["betas"] = packed[1:3]
        return packed


class AdamW(Adam):
    """
    Adam with weight decay taken from the weights themselves instead of through the gradient.

    Parameters
    ----------
    lr, betas, eps, amsgrad, maximize
        As for `Adam`.
    weight_decay
        Each step first multiplies the weights by 1 - lr * weight_decay. Default 0.01.

    Raises
    ------
    SettingsError
        A number is out of range.

    Notes
    -----
    Loshchilov and Hutter 2019, as torch.optim.AdamW has it.

    Examples
    --------
    >>> AdamW().weight_decay
    0.01
    """

    _row = ROWS["AdamW"]

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, amsgrad, maximize)
