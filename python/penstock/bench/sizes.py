"""Sizes as people write them: 64MiB in, 64 MiB out; and times."""

from __future__ import annotations

import re

from penstock.exceptions import OptionError

ELEMENT = 4
"""Bytes of a float32."""

_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_HINT = (
    "write a number of bytes, or a number with KiB, MiB, GiB (powers of 1024) or kB, MB, GB (powers of 1000)"
)


def parse_size(text: str, what: str = "size") -> int:
    """
    Bytes of a size such as `4096`, `4KiB` or `1.5 GiB`.

    Parameters
    ----------
    text
        What the user wrote. Units in any case, a space before them or none.
    what
        The name of the option, for the error.

    Returns
    -------
    int
        Bytes: above zero and a whole number of float32.

    Raises
    ------
    OptionError
        `text` is no size, is not above zero, or is no multiple of four bytes.

    Examples
    --------
    >>> parse_size("64MiB")
    67108864
    """
    match = re.fullmatch(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise OptionError(f"{what} {text!r} is no size", hint=_HINT)
    number, unit = match.groups()
    factor = _UNITS.get(unit.lower() or "b")
    if factor is None:
        raise OptionError(f"{what} {text!r} has the unknown unit {unit!r}", hint=_HINT)
    exact = float(number) * factor if "." in number else int(number) * factor
    if exact <= 0:
        raise OptionError(
            f"{what} {text!r} is not above zero", hint=f"the smallest is {ELEMENT} bytes, one float32"
        )
    if exact % ELEMENT:
        raise OptionError(
            f"{what} {text!r} is {exact:g} bytes, no multiple of {ELEMENT}: the elements are float32",
            hint=f"the nearest below is {int(exact) // ELEMENT * ELEMENT or ELEMENT}",
        )
    return int(exact)


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


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
