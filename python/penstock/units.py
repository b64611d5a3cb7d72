"""
Figures as people write them: rates, sizes, counts, times and money; and rates, sizes, times and ratios as
people read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from penstock.exceptions import OptionError

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}
_PREFIXES = _DECIMAL | _BINARY

_RATES = {f"{prefix}bit": factor for prefix, factor in _PREFIXES.items()}
_RATES |= {f"{prefix}bps": 8 * factor for prefix, factor in _PREFIXES.items()}
_RATE_HINT = "write it as for tc: 10gbit, 100mbit, 1.5gbit; 10gbps would be ten gigabytes per second"

_SIZES = {"": 1} | {f"{prefix}b": factor for prefix, factor in _PREFIXES.items()}
_SIZE_HINT = "write a number with kB, MB, GB (powers of 1000) or KiB, MiB, GiB (powers of 1024): 97MB"

_ELEMENTS = {"float32": 4, "float64": 8}

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_COUNT_HINT = "write a number, or one with k, M, B (or G), T: 25.6M"

_TIMES = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "min": Fraction(60),
}
_TIME_HINT = "write it with its unit, us, ms, s or min: 161ms"

_MOST_DIGITS = 19  # int() has a limit too, of some thousands, and an error of its own

_MONEY_HINT = "write a number of dollars, without a sign: 699 or 162.50"

MOST_BITS = 10**18
"""Bits per second: an exabit. A rate above it is a typing error, and would only give figures of zero."""

MOST_BYTES = 10**18
"""Bytes: an exabyte, for the same reason."""

MOST_SECONDS = 10**7
"""Seconds: a step of a hundred days, for the same reason."""


def digits(text: str) -> int | None:
    """The number of 0 or above that `text` writes in ASCII digits, at most 19 of them; else None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def parse_rate(text: str, what: str = "rate") -> int:
    """
    Bits per second of a rate, by the rules of `tc`.

    Parameters
    ----------
    text
        A number and a unit: bit, kbit, mbit, gbit, tbit (powers of 1000), kibit and so on (powers of 1024),
        or bps, kbps, mbps, gbps, tbps, which are **bytes** per second. The unit has to be there: `tc` takes
        a bare number for bits per second, which is hardly ever what was meant. Units in any case, with or
        without a space before them.
    what
        The name of the option, for the error.

    Returns
    -------
    int
        Whole bits per second, at least 1.

    Raises
    ------
    OptionError
        `text` is not a rate, has no unit or an unknown one, or is not between 1 bit and 1 Ebit per second.

    Examples
    --------
    >>> parse_rate("10gbit")
    10000000000
    >>> parse_rate("125mbps")
    1000000000
    """
    exact = _quantity(text, what, "rate", _RATES, _RATE_HINT)
    if exact > MOST_BITS:
        raise OptionError(f"{what} {text!r} is above an exabit per second", hint=_RATE_HINT)
    if exact < 1:
        raise OptionError(f"{what} {text!r} is below one bit per second", hint=_RATE_HINT)
    return int(exact)


def format_rate(bits_per_second: float) -> str:
    """
    A rate as `parse_rate` and `tc` read it, to four digits.

    Parameters
    ----------
    bits_per_second
        Zero or above.

    Returns
    -------
    str
        Such as `10gbit`, `121.9gbit`, `950mbit`, `0bit`. Where every bit counts, write `f"{rate}bit"`.

    Examples
    --------
    >>> format_rate(10_000_000_000)
    '10gbit'
    >>> format_rate(17.828e9)
    '17.83gbit'
    """
    for prefix in ("t", "g", "m", "k"):
        factor = _DECIMAL[prefix]
        # What rounds up to the unit is of the unit: 1gbit, not 1000mbit.
        if float(f"{bits_per_second:.4g}") >= factor:
            return f"{_four_digits(bits_per_second / factor)}{prefix}bit"
    return f"{_four_digits(bits_per_second)}bit"


def parse_bytes(text: str, what: str = "size", of: str | None = None) -> int:
    """
    Bytes of a size such as `97MB`, `1.5GiB` or `4096`, at least 1.

    Parameters
    ----------
    text
        A number, alone or with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024).
        Units in any case, with or without a space before them.
    what
        The name of the option, for the error.
    of
        What the bytes are of, `float32` or `float64`: then they have to be a whole number of these.

    Raises
    ------
    OptionError
        `text` is not a size, has an unknown unit, is not a whole number of bytes or elements, or is not
        between 1 B and 1 EB.

    Examples
    --------
    >>> parse_bytes("64MiB", of="float32")
    67108864
    """
    size = _whole(text, what, "size", _SIZES, _SIZE_HINT, "bytes", MOST_BYTES)
    if of is not None and size % (each := _ELEMENTS[of]):
        raise OptionError(
            f"{what} {text!r} is {size} bytes, not a multiple of {each}: the elements are {of}",
            hint=f"the nearest above is {-(-size // each) * each}",
        )
    return size


def parse_count(text: str, what: str = "count") -> int:
    """
    A number of things such as `25.6M` or `7B`, at least 1.

    Raises
    ------
    OptionError
        `text` is not a number, has an unknown unit, is not a whole number, or is not between 1 and 10^18.
    """
    return _whole(text, what, "number", _COUNTS, _COUNT_HINT, "", MOST_BYTES)


def parse_time(text: str, what: str = "time") -> float:
    """
    Seconds of a time such as `161ms` or `1.5s`; the unit has to be there, since milliseconds and seconds are
    both common here.

    Raises
    ------
    OptionError
        `text` is not a time, has no unit or an unknown one, is not above zero, or is longer than a hundred
        days.
    """
    exact = _quantity(text, what, "time", _TIMES, _TIME_HINT)
    if not 0 < exact <= MOST_SECONDS:
        limit = "not above zero" if exact <= 0 else "above a hundred days"
        raise OptionError(f"{what} {text!r} is {limit}", hint=_TIME_HINT)
    return float(exact)


def parse_money(text: str, what: str = "price") -> float:
    """
    Dollars, zero allowed: a part that you have already costs nothing.

    Raises
    ------
    OptionError
        `text` is not a number of dollars from 0 to 10^9.
    """
    exact = _quantity(text.replace("$", "", 1), what, "price", {"": 1}, _MONEY_HINT)
    if not 0 <= exact <= 10**9:
        raise OptionError(f"{what} {text!r} is not from 0 to a billion", hint=_MONEY_HINT)
    return float(exact)


def format_size(nbytes: int) -> str:
    """A size with the largest unit that leaves at most two decimals: 64 MiB, 1.5 KiB, 100 B."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{round(nbytes / factor, 2):g} {unit}"
    return f"{nbytes} B"


def format_time(seconds: float) -> str:
    """A time with three digits and its unit: 4.12 ms, 870 ns."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def format_ratio(ratio: float) -> str:
    """A ratio: 1.24x, 11.2x, 430x."""
    return f"{_three_digits(ratio)}x"


def _whole(text: str, what: str, kind: str, units: Mapping[str, int], hint: str, noun: str, most: int) -> int:
    exact = _quantity(text, what, kind, units, hint)
    if exact <= 0:
        raise OptionError(f"{what} {text!r} is not above zero", hint=hint)
    if exact.denominator != 1:
        raise OptionError(f"{what} {text!r} is not a whole number{' of ' if noun else ''}{noun}", hint=hint)
    if exact > most:
        raise OptionError(f"{what} {text!r} is above 10^18", hint=hint)
    return int(exact)


def _quantity(
    text: str, what: str, kind: str, units: Mapping[str, int] | Mapping[str, Fraction], hint: str
) -> Fraction:
    """The exact value of a number with a unit, zero or above."""
    match = re.fullmatch(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([a-zA-Z/]*)\s*", text)
    if match is None:
        raise OptionError(f"{what} {text!r} is not a valid {kind}", hint=hint)
    number, unit = match.groups()
    try:
        value = Fraction(Decimal(number))
    except InvalidOperation:  # digits of another script
        raise OptionError(f"{what} {text!r} is not a valid {kind}", hint=hint) from None
    factor = units.get(unit.lower())
    if factor is None and not unit:
        raise OptionError(f"{what} {text!r} has no unit", hint=hint)
    if factor is None:
        raise OptionError(f"{what} {text!r} has the unknown unit {unit!r}", hint=hint)
    if value < 0:
        raise OptionError(f"{what} {text!r} is negative", hint=hint)
    return value * factor


def _four_digits(value: float) -> str:
    """To four digits, without an exponent and without trailing zeros."""
    digits = f"{float(f'{value:.4g}'):f}"
    return digits.rstrip("0").rstrip(".")


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
