"""
Numbers and names of a command line, each within its limits. What is wrong is an `OptionError` that names the
option. Sizes, rates and times are read by `penstock.units`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.cli import terminal
from penstock.units import format_rate, parse_rate


def count(text: str, flag: str, most: int) -> int:
    """A number of things, from 1 to `most`."""
    try:
        number = int(text)
    except ValueError:
        terminal.refuse(f"{flag} {text!r} is not a whole number", f"give a number from 1 to {most}")
    return within(number, flag, most)


def within(number: int, flag: str, most: int) -> int:
    """The number, if it is from 1 to `most`."""
    hint = f"give a number from 1 to {most}"
    if number < 1:
        terminal.refuse(f"{flag} is {number}, but has to be at least 1", hint)
    if number > most:
        terminal.refuse(f"{flag} is {number}, but at most {most} are allowed", hint)
    return number


def counts(text: str, flag: str, most: int) -> list[int]:
    """`1,2,4`: such numbers, each once."""
    return list(dict.fromkeys(count(part, flag, most) for part in text.split(",")))


def real(text: str, flag: str, limits: tuple[float, float], hint: str, *, above: bool = False) -> float:
    """A number within `limits`; `above`: the lower one is not among them."""
    least, most = limits
    try:
        number = float(text)
    except ValueError:
        terminal.refuse(f"{flag} {text!r} is not a number", hint)
    if not least <= number <= most or (above and number == least):
        said = f"above {least:g}, at most {most:g}" if above else f"{least:g} to {most:g}"
        terminal.refuse(f"{flag} {text!r} is out of range: {said}", hint)
    return number


def seconds(text: str, flag: str) -> float:
    """A span of time, zero allowed."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        terminal.refuse(
            f"{flag} {text!r} is not a number of seconds", "give a number of 0 or above, such as 2.5"
        )
    return number


def names(text: str, what: str, known: Sequence[str]) -> list[str]:
    """`shm,tcp`: names of `known`, each once."""
    named = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in named:
        if name not in known:
            meant = terminal.near(name, known)
            terminal.refuse(
                f"there is no {what} {name!r}",
                f"did you mean {meant}?" if meant else f"there are {', '.join(known)}",
            )
    return named


def of_bytes(rate: str, flag: str) -> list[str]:
    """A note on a rate in bytes per second, which a user may have meant for bits."""
    if not rate.rstrip().lower().endswith("bps"):
        return []
    return [f"{flag} {rate} is {format_rate(parse_rate(rate))}: bps are bytes per second, as for tc."]
