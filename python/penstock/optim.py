"""
Optimizers that run on the servers, fused with the sum of the contributions, chunk by chunk.

Each is torch.optim's of the same name, operation by operation, with float32 arithmetic for float16 and
bfloat16 tensors. Here they are only descriptions: a rule and its flags, fixed at construction, and up to five
numbers that travel with every push. Changing a number therefore takes effect with exactly the next push, on
every chunk.

A tensor keeps its own copy of the optimizer it was declared with: change numbers through `tensor.optimizer`,
alike on every worker.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeAlias

from .exceptions import SettingsError

Settings: TypeAlias = tuple[float, float, float, float, float]
"""The numbers of an optimizer, in the order in which its rule reads them; unused ones are 0."""

_AT_LEAST_0 = "a finite number, 0 or above"
_BELOW_1 = "a number from 0 up to, not including, 1"


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

    _rule: ClassVar[str]
    _fixed: ClassVar[frozenset[str]] = frozenset({"nesterov", "maximize", "centered", "amsgrad"})
    _packed: Settings

    def rule(self) -> str:
        """The rule's name, as the core knows it."""
        return self._rule

    def flags(self) -> list[str]:
        """Flags that are set, fixed at construction."""
        return []

    def settings(self) -> Settings:
        """The numbers that travel with the next push."""
        return self._packed

    def copy(self) -> Optimizer:
        """Another one with the same flags and numbers."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _pack(self) -> Settings:
        """Checks all numbers and packs them."""
        return (0.0, 0.0, 0.0, 0.0, 0.0)

    def _finish(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_packed"] = self._pack()

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name)
        if name not in self.__dict__ or name.startswith("_"):
            raise SettingsError(
                f"{type(self).__name__} has no setting `{name}`", f"it has {', '.join(self._public())}"
            )
        if name in self._fixed and bool(value) != bool(old):
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

    def _number(self, name: str, expected: str = _AT_LEAST_0) -> float:
        """Attribute `name` as a float within `expected`, which it is also normalized to."""
        value = self.__dict__[name]
        checked = _checked(type(self).__name__, name, value, expected)
        self.__dict__[name] = checked
        return checked

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optimizer):
            return NotImplemented
        mine, theirs = (type(self), self.flags(), self._packed), (type(other), other.flags(), other._packed)
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._public())
        return f"{type(self).__name__}({arguments})"


def _checked(owner: str, name: str, value: Any, expected: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    fits = math.isfinite(number) and number >= 0.0 and (expected is not _BELOW_1 or number < 1.0)
    if not fits:
        raise SettingsError(f"expected {expected} for `{name}` of {owner}, got {value!r}")
    return number


class Add(Optimizer):
    """
    value += the reduced contributions. What a tensor without an optimizer does.

    Examples
    --------
    >>> Add().settings()
    (0.0, 0.0, 0.0, 0.0, 0.0)
    """

    _rule = "add"

    def __init__(self) -> None:
        self._finish()


class Replace(Optimizer):
    """
    value = the reduced contributions: an all-reduce.

    Under BSP; elsewhere contributions are folded one by one, so that each replaces the one before: only with
    `reduce="sum"`, as the last word of whoever came last, never as a mean.

    Examples
    --------
    >>> Replace().rule()
    'replace'
    """

    _rule = "replace"

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

    _rule = "sgd"
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
            nesterov=bool(nesterov),
            maximize=bool(maximize),
            _keeps_momentum=bool(momentum != 0),
        )

    def flags(self) -> list[str]:
        """Of "momentum", "nesterov", "maximize"."""
        set_flags = {
            "momentum": self.__dict__["_keeps_momentum"],
            "nesterov": self.nesterov,
            "maximize": self.maximize,
        }
        return [name for name, is_set in set_flags.items() if is_set]

    def _pack(self) -> Settings:
        lr, momentum = self._number("lr"), self._number("momentum")
        dampening, weight_decay = self._number("dampening"), self._number("weight_decay")
        if self.nesterov and (momentum == 0.0 or dampening != 0.0):
            raise SettingsError(
                f"nesterov expects momentum above 0 and dampening 0, got {momentum} and {dampening}"
            )
        keeps = self.__dict__["_keeps_momentum"]
        _check_late_momentum(type(self).__name__, momentum, keeps)
        # Without momentum there is nothing to dampen, and the core takes no number that it would not read.
        return (lr, momentum, dampening if keeps else 0.0, weight_decay, 0.0)


def _check_late_momentum(owner: str, momentum: float, keeps: bool) -> None:
    if momentum != 0.0 and not keeps:
        raise SettingsError(
            f"this {owner} was made without momentum, so the servers keep no state for it; got {momentum}",
            "construct it with a momentum above 0",
        )


class AdaGrad(Optimizer):
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
    >>> AdaGrad(0.01).settings()
    (0.01, 0.0, 1e-10, 0.0, 0.0)
    """

    _rule = "adagrad"
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
        self._finish(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, maximize=bool(maximize))

    def flags(self) -> list[str]:
        """Of "maximize"."""
        return ["maximize"] if self.maximize else []

    def _pack(self) -> Settings:
        lr, lr_decay = self._number("lr"), self._number("lr_decay")
        return (lr, lr_decay, self._number("eps"), self._number("weight_decay"), 0.0)


class RMSProp(Optimizer):
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
    >>> RMSProp(0.01, momentum=0.9, centered=True).flags()
    ['momentum', 'centered']
    """

    _rule = "rmsprop"
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
            centered=bool(centered),
            maximize=bool(maximize),
            _keeps_momentum=bool(momentum != 0),
        )

    def flags(self) -> list[str]:
        """Of "momentum", "centered", "maximize"."""
        set_flags = {
            "momentum": self.__dict__["_keeps_momentum"],
            "centered": self.centered,
            "maximize": self.maximize,
        }
        return [name for name, is_set in set_flags.items() if is_set]

    def _pack(self) -> Settings:
        lr, alpha, eps = self._number("lr"), self._number("alpha", _BELOW_1), self._number("eps")
        weight_decay, momentum = self._number("weight_decay"), self._number("momentum")
        _check_late_momentum(type(self).__name__, momentum, self.__dict__["_keeps_momentum"])
        return (lr, alpha, eps, weight_decay, momentum)


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

    _rule = "adam"
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
            amsgrad=bool(amsgrad),
            maximize=bool(maximize),
        )

    def flags(self) -> list[str]:
        """Of "amsgrad", "maximize"."""
        return [name for name in ("amsgrad", "maximize") if self.__dict__[name]]

    def _pack(self) -> Settings:
        owner = type(self).__name__
        try:
            first, second = self.betas
        except (TypeError, ValueError):
            raise SettingsError(f"expected two numbers for `betas` of {owner}, got {self.betas!r}") from None
        beta1, beta2 = (
            _checked(owner, "beta1", first, _BELOW_1),
            _checked(owner, "beta2", second, _BELOW_1),
        )
        self.__dict__["betas"] = (beta1, beta2)
        return (self._number("lr"), beta1, beta2, self._number("eps"), self._number("weight_decay"))


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

    _rule = "adamw"

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
