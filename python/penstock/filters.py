"""
Filters: what of an update is sent now, and what is carried into the next.

A filter drops nothing. What it holds back of a push is added to the worker's next push of the tensor, so
what was sent and what is still held back, together, are what was computed (Parameter Flow, equation 6). Each
chunk of a tensor is filtered for itself. Where elements are chosen the servers get zeros in place of the
others, which take hardly any bytes between hosts.

What a filter holds back of a broadcast is the difference between the value, which the servers keep, and what
the workers have of it. Elements that it lets pass are sent as they are now; the others stay as they were.

| | sent now |
|---|---|
| `DVF(low)` | elements beyond a bound, which may follow the network: `DVF(low, up=...)` |
| `TopK(fraction)` | the largest |
| `RandomK(fraction, seed)` | some, drawn at random, the same on every worker |
| `Quantize(form)` | all of them, in fewer bits; what rounding cuts off is held back |
| a class of `OwnFilter` | of pushes: what the program says |
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Literal, NamedTuple, TypeAlias

from . import _core, units
from .arrays import Array, ArrayLike
from .exceptions import DeclarationConflict, OptionError
from .flags import flag
from .own import told, which


def _number(name: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(f"expected {expected} for `{name}`, got {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise OptionError(f"expected {expected} for `{name}`, got {value!r}")
    return number


def _fraction(value: object) -> float:
    expected = "a number above 0 and at most 1"
    fraction = _number("fraction", value, expected)
    if not 0 < fraction <= 1:
        raise OptionError(f"expected {expected} for `fraction`, got {value!r}")
    return fraction


def _seed(value: object) -> int:
    refused = OptionError(f"expected a whole number from 0 to 2**53 - 1 for `seed`, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refused
    if not 0 <= (seed := int(value)) < 1 << 53:
        raise refused
    return seed


def _bandwidth(value: object) -> float:
    """Bytes a second."""
    if isinstance(value, str):
        return units.parse_rate(value, "sufficient") / 8
    expected = 'a bandwidth such as "50mbit", or a number of bytes a second above 0,'
    number = _number("sufficient", value, expected)
    if number <= 0:
        raise OptionError(f"expected {expected} for `sufficient`, got {value!r}")
    return number


@dataclass(frozen=True)
class DVF:
    """
    The value-bounded filter: an element waits while what is due of it is within a bound. Of a broadcast that
    is the difference between the value and what the workers have.

    Parameters
    ----------
    low
        The bound, 0 or above, in units of what is pushed: gradients; for broadcasts, of the value. 0 holds
        nothing back.
    up
        The bound where the network presses the sender: `low` or above. Whoever sends, a worker its pushes, a
        shard its values, looks at its own connections while it trains, and goes from `low` to `up` and back,
        in four steps; `pressure()` of the tensor, or of what `distribute` gives, says when and why. Default
        None: `low`, always.
    sufficient
        The bandwidth that suffices, such as "50mbit", or in bytes a second: while each connection of the
        sender has as much it uses `low`, else `up`, nothing between (section 3.3.3). Default None: the bound
        rises while sending takes a noticeable part of the time, a tenth where all wait for it (BSP), four
        fifths where it hides behind computing (SSP and ASP), and while that shortens it; this is not in the
        paper.
    decay
        "sqrt": the bound is divided by the square root of t, the worker's clock + 1 (equation 11), which is
        what convergence is proved with; for broadcasts, of the version, and a value that rests is looked at
        again whenever the bound has halved. None: it stays. Default "sqrt".
    relative
        `low` and `up` are multiplied by the root mean square of what is due of the chunk, so that they fit
        updates of any size; 1 holds back some two thirds of numbers that are normally distributed. At most
        7/8 of the largest of them is the bound: something is always sent. This is not in the paper. Default
        False.

    Raises
    ------
    OptionError
        `low` is not a number of 0 or above, `up` is not one of `low` or above, `sufficient` is no bandwidth,
        or given without `up`, `decay` is neither "sqrt" nor None, or `relative` is no bool.

    Notes
    -----
    Parameter Flow, section 3.3, equations 10 and 11. Where the rule is linear in the update, as `Add` and
    SGD without momentum are, and its rate is constant, the value of a tensor of d elements that n workers
    push is at most rate n low sqrt(d) away from what the same pushes give without a filter (after Lemma 1;
    `low` is that of the last push's clock; with `up`, `up`). For momentum and Adam there is no such bound.
    What follows the network is not the same in each run, under BSP neither.

    Examples
    --------
    >>> DVF(low=1e-3)
    DVF(low=0.001, up=None, sufficient=None, decay='sqrt', relative=False)
    >>> DVF(low=1e-4, up=2e-4, sufficient="50mbit")
    DVF(low=0.0001, up=0.0002, sufficient=6250000.0, decay='sqrt', relative=False)
    """

    low: float
    up: float | None = None
    _: KW_ONLY
    sufficient: float | str | None = None
    decay: str | None = "sqrt"
    relative: bool = False

    def __post_init__(self) -> None:
        low = _number("low", self.low, "a number of 0 or above")
        if low < 0:
            raise OptionError(f"expected a number of 0 or above for `low`, got {self.low!r}")
        if self.decay not in (None, "sqrt"):
            raise OptionError(f'expected "sqrt" or None for `decay`, got {self.decay!r}')
        object.__setattr__(self, "relative", flag("`relative`", self.relative))
        # -0.0 is the same bound.
        object.__setattr__(self, "low", low + 0.0)
        if self.up is not None:
            expected = f"a number of {low:g}, which is `low`, or above"
            up = _number("up", self.up, expected)
            if up < low:
                raise OptionError(f"expected {expected} for `up`, got {self.up!r}")
            object.__setattr__(self, "up", up + 0.0)
        if self.sufficient is not None:
            if self.up is None:
                raise OptionError(
                    f"expected `up` beside `sufficient`, got {self.sufficient!r} alone",
                    "there is no other bound to go to where the bandwidth does not suffice",
                )
            object.__setattr__(self, "sufficient", _bandwidth(self.sufficient))

    def _settings(self) -> tuple[float, ...]:
        up = self.low if self.up is None else self.up
        enough = self.sufficient or 0.0
        return (self.low, float(self.decay is not None), float(self.relative), up, float(enough))


@dataclass(frozen=True)
class TopK:
    """
    The largest elements of each chunk, by magnitude; of equally large ones the first.

    Parameters
    ----------
    fraction
        Which part of a chunk's elements is sent: above 0, at most 1, which holds nothing back. At least one
        element is sent.

    Raises
    ------
    OptionError
        `fraction` is out of its range.

    Examples
    --------
    >>> TopK(0.01)
    TopK(fraction=0.01)
    """

    fraction: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _fraction(self.fraction))

    def _settings(self) -> tuple[float, ...]:
        return (self.fraction,)


@dataclass(frozen=True)
class RandomK:
    """
    Elements of each chunk that are drawn at random: the same on every worker that is at the same clock, and
    of the value that the pushes of that clock make.

    Parameters
    ----------
    fraction
        Which part of a chunk's elements is sent: above 0, at most 1, which holds nothing back. At least one
        element is sent.
    seed
        A whole number from 0 to 2**53 - 1. Default 0.

    Raises
    ------
    OptionError
        `fraction` or `seed` is out of its range.

    Examples
    --------
    >>> RandomK(0.1, seed=7)
    RandomK(fraction=0.1, seed=7)
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "fraction", _fraction(self.fraction))
        object.__setattr__(self, "seed", _seed(self.seed))

    def _settings(self) -> tuple[float, ...]:
        return (self.fraction, float(self.seed))


_FORMS = ("f16", "bf16", "int8", "2bit", "1bit")


@dataclass(frozen=True)
class Quantize:
    """
    Every element in fewer bits: rounded to a number that takes few of them. What rounding cuts off is held
    back (error feedback). Of broadcasts, what the workers have of an element moves towards the value by such
    a number; of "1bit" also where it is the value already.

    Parameters
    ----------
    form
        What is sent of an element. "f16" and "bf16": the nearest such number, in 16 bits (tensors of half
        precision are sent as they are). "int8": a multiple, from -127 to 127, of a power of two that 256
        elements share, in 8 bits. "2bit": `threshold` where at least as much is due, its negative where at
        most that is, else 0. "1bit": its sign, with the mean magnitude of what is due of 1024 elements.
    threshold
        Of "2bit": above 0, in units of what is pushed, or for broadcasts of the value; rounded to the
        tensor's dtype, which must hold it. It has to be of the size of what is due: that of an element grows
        for as long as more than one threshold is added, until 1,024 of them are sent at once (or, of float16,
        its largest number).
        Default None: 0.5, as in MXNet. The other forms have none.

    Raises
    ------
    OptionError
        There is no such `form`, or `threshold` is not a number above 0, or is given for a form without one.
        Where a tensor is declared: its dtype cannot hold `threshold`.

    Notes
    -----
    What no form has, such as NaN, or what one would never catch up with, is sent as it is; most often its
    chunk then takes as many bytes as without a filter. "2bit" is MXNet's gradient compression of that name
    (its "1bit" is another); "1bit" is EF-signSGD (Karimireddy et al. 2019), with a mean for each 1024
    elements.

    Examples
    --------
    >>> Quantize("int8")
    Quantize(form='int8', threshold=None)
    >>> Quantize("2bit")
    Quantize(form='2bit', threshold=0.5)
    >>> w = job.tensor("quantized", shape=4, filter=ps.Filters(push=ps.Quantize("2bit", threshold=0.25)))
    >>> w.pushpull(np.array([0.1, 0.25, -0.5, 0], dtype=np.float32))
    array([ 0.  ,  0.25, -0.25,  0.  ], dtype=float32)
    >>> w.held_back.elements
    2
    """

    form: str
    _: KW_ONLY
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.form not in _FORMS:
            raise OptionError(f"expected one of {', '.join(_FORMS)} for `form`, got {self.form!r}")
        if self.threshold is None:
            if self.form == "2bit":
                object.__setattr__(self, "threshold", _core.THRESHOLD)
            return
        if self.form != "2bit":
            raise OptionError(
                f'expected no `threshold` for "{self.form}", got {self.threshold!r}', 'only "2bit" has one'
            )
        threshold = _number("threshold", self.threshold, "a number above 0")
        if threshold <= 0:
            raise OptionError(f"expected a number above 0 for `threshold`, got {self.threshold!r}")
        object.__setattr__(self, "threshold", threshold)

    def _settings(self) -> tuple[float, ...]:
        return () if self.threshold is None else (self.threshold,)


Filter: TypeAlias = DVF | TopK | RandomK
"""What chooses elements: of pushes and of broadcasts."""


class OwnFilter(ABC):
    """
    A filter of a program's own: a class with a method `send`, over NumPy arrays. For pushes of tensors of
    `job.tensor`.

    It is given all of a tensor, not a chunk, and holds what all filters of pushes do: nothing is lost, and
    nothing counts twice; what is not finite is sent at once; a push that fails changes nothing of what is
    held back.

    Every worker declares the same filter: of the same class, by its module and name, with the same settings.
    Those are the object's attributes whose names begin with no underscore: None, numbers, text, arrays, or
    lists, sets and dicts of them. What is no setting, such as a generator of random numbers, has a name that
    begins with an underscore. One object may be the filter of several tensors; what it keeps, they share.

    Notes
    -----
    A push goes over the tensor some ten times in NumPy, beside what `send` does; built-in filters take one
    pass. For as long as it takes there are arrays of five times the tensor's size more, of ten times for half
    precision.

    Examples
    --------
    >>> class Beyond(ps.OwnFilter):
    ...     def __init__(self, bound):
    ...         self.bound = bound
    ...
    ...     def send(self, due, clock):
    ...         return np.where(np.abs(due) > self.bound, due, 0)
    >>> w = job.tensor("own", shape=3, filter=ps.Filters(push=Beyond(0.5)))
    >>> w.pushpull(np.array([0.25, 0.5, 0.75], dtype=np.float32))
    array([0.  , 0.  , 0.75], dtype=float32)
    >>> w.held_back.elements
    2
    """

    __slots__ = ()

    @abstractmethod
    def send(self, due: Array, clock: int) -> ArrayLike:
        """
        What is sent now of what is due; the rest is held back, and is due again with the worker's next push.

        Called once for each push, of the sum of its parts if it has some (`more=True`), on the thread that
        pushes; for a flush it is not called. Once more if meanwhile another thread has pushed a part, or has
        called `Job.clock`; and a push may fail after it. So it is better to keep nothing from one call to the
        next. It may not call `Job.clock`, nor push, flush or load the same tensor: those raise OptionError.

        Parameters
        ----------
        due
            What is pushed, and what was held back of earlier pushes: a read-only array of one dimension, of
            all elements in C order; float64 for a tensor of float64, else float32.
        clock
            The iterations that this worker had completed, 0 in the first.

        Returns
        -------
        ArrayLike
            An array of the shape of `due`, of real floating point numbers, finite where `due` is: they are
            rounded to the tensor's dtype, and what that cuts off, or what exceeds its largest number, is held
            back as well. Where `due` is not finite it does not matter: that is sent.

        Raises
        ------
        Exception
            Whatever it raises, the push raises, and changes nothing.
        """


PushFilter: TypeAlias = Filter | Quantize | OwnFilter


@dataclass(frozen=True)
class Filters:
    """
    A tensor's filters, each direction for itself.

    Parameters
    ----------
    push
        What of a worker's pushes is sent. Default None: all.
    broadcast
        What of the value is sent to the workers, which read what was sent so far, on the servers' host too.
        The rest waits for the next push of the tensor, or for a flush. Default None: all.

    Raises
    ------
    OptionError
        One of them is not a filter of this module.

    Examples
    --------
    >>> w = job.tensor("sparse", shape=1000, filter=ps.Filters(push=ps.TopK(0.01)))
    >>> w.push(np.ones(1000, dtype=np.float32))
    0
    >>> w.held_back.elements
    990
    >>> w = job.tensor("quiet", shape=3, filter=ps.Filters(broadcast=ps.DVF(0.5, decay=None)))
    >>> w.pushpull(np.array([0.25, 0.5, 0.75], dtype=np.float32))
    array([0.  , 0.  , 0.75], dtype=float32)
    >>> w.pull(exact=True)
    array([0.25, 0.5 , 0.75], dtype=float32)
    """

    _: KW_ONLY
    push: PushFilter | None = None
    broadcast: Filter | Quantize | None = None

    def __post_init__(self) -> None:
        if isinstance(self.broadcast, OwnFilter):
            raise OptionError(
                f"expected a filter that Penstock has for `broadcast`, got {self.broadcast!r}",
                "it runs on the servers, which have none of the program's code: `push` may have it",
            )
        for name, given in (("push", self.push), ("broadcast", self.broadcast)):
            if given is not None and not isinstance(given, PushFilter):
                raise OptionError(f"expected a filter for `{name}`, such as ps.DVF(low=1e-3), got {given!r}")
        if isinstance(self.push, OwnFilter):
            # What cannot be told to other workers is refused here already.
            told(self.push)


class HeldBack(NamedTuple):
    """What a worker holds back of its pushes of a tensor."""

    norm: float
    """The Euclidean norm of it."""
    elements: int
    """Elements of which something is held back."""


class Pressed(NamedTuple):
    """When a filter that follows the network changed its bound, and why."""

    at: int
    """From about where on: a worker's clock; of values, a version."""
    share: float
    """Which part of the way from `low` to `up`: 0, a quarter, half, three quarters or 1."""
    busy: float
    """For which part of the time before the busiest connection was at work, by its bytes and its rate."""
    slowest: float | None
    """Bytes a second that the slowest connection made, if that was known."""


class Pressure(NamedTuple):
    """How the filters of a tensor have followed the network."""

    push: list[Pressed]
    """The last changes, 16 at most, of this worker's pushes, the newest last. Empty: `low` so far."""
    broadcast: dict[tuple[int, int], list[Pressed]]
    """The same of the value, by server and shard; empty where its filter does not follow the network."""


def _auto(low: float, decay: float, relative: float, up: float, sufficient: float) -> DVF:
    return DVF(
        low, up, sufficient=sufficient or None, decay="sqrt" if decay else None, relative=bool(relative)
    )


_AUTO = _auto(*_core.AUTO_FILTER)
"""What `filter="auto"` is, in each direction: at most all within twice the root mean square is held back."""


def meant(given: Filters | Literal["auto"] | None, *, replaces: bool = False) -> Filters | None:
    """What "auto" stands for: filters that follow the network, in both directions; else `given`."""
    if isinstance(given, str) and given == "auto":
        if replaces:
            raise OptionError(
                'expected an optimizer that accumulates with filter="auto", got ps.Replace()',
                "each value replaces the one before it: what was held back of one would be an older one's",
            )
        return Filters(push=_AUTO, broadcast=_AUTO)
    if isinstance(given, str):
        raise OptionError(f'expected ps.Filters or "auto" for `filter`, got {given!r}')
    return given


_Named: TypeAlias = tuple[str, tuple[float, ...]]


def _named(given: PushFilter | None) -> _Named:
    match given:
        case None:
            return "everything", ()
        case Quantize():
            # Each form is a filter of its own there.
            return f"Quantize {given.form}", given._settings()
        case OwnFilter():
            return "Own", (which(given),)
        case _:
            return type(given).__name__, given._settings()


def spelled(filters: object) -> tuple[_Named, _Named]:
    """
    The filters of pushes and of broadcasts, by their names and settings, as the core reads them.

    Raises OptionError if it is neither `Filters` nor None.
    """
    if filters is None:
        return _named(None), _named(None)
    if isinstance(filters, PushFilter):
        if isinstance(filters, OwnFilter):
            raise OptionError(
                f"expected ps.Filters for `filter`, got {filters!r} alone", "give filter=ps.Filters(push=...)"
            )
        raise OptionError(
            f"expected which direction is filtered, got {filters!r} alone",
            f"give filter=ps.Filters(push=ps.{filters!r}), or the same with `broadcast`",
        )
    if not isinstance(filters, Filters):
        raise OptionError(
            f"expected ps.Filters for `filter`, got {filters!r}",
            "such as filter=ps.Filters(push=ps.DVF(low=1e-3))",
        )
    return _named(filters.push), _named(filters.broadcast)


@contextlib.contextmanager
def explained(filters: Filters | None) -> Iterator[None]:
    """Notes on a conflict what this worker's own filter is, of which the core knows a number only."""
    try:
        yield
    except DeclarationConflict as error:
        if isinstance(filters, Filters) and isinstance(filters.push, OwnFilter):
            error.add_note(f"this worker's own filter, of which `which` is a number, is {told(filters.push)}")
        raise
