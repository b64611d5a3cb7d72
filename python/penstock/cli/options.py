"""
The options of `run` and `demo` that the core's own table defines: their flags, their help and their limits.

One table in the core names them all; a flag is an option's name with dashes. The value is checked here so
that a wrong one is refused before anything is started, and travels to the processes in the environment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.cli import terminal

_OWN = ("consistency", "workers", "servers")
"""Options that the commands have as arguments of their own."""


@dataclass(frozen=True)
class Option:
    """A row of the core's table."""

    name: str
    env: str
    default: str
    unit: str
    minimum: str
    maximum: str
    doc: str

    @property
    def flag(self) -> str:
        """`--worker-loss` for `worker_loss`."""
        return "--" + self.name.replace("_", "-")


def table() -> dict[str, Option]:
    """The core's options by name."""
    from penstock import _core

    def text(value: object) -> str:
        return "" if value is None else str(value)

    rows = (
        Option(**{key: text(row.get(key)) for key in Option.__dataclass_fields__}) for row in _core.options()
    )
    return {row.name: row for row in rows}


def add_to(parser: terminal.Parser) -> None:
    """Adds a flag for each option."""
    group = parser.add_argument_group(
        "options of the job (also by environment, for every process that is started)"
    )
    for option in table().values():
        if option.name not in _OWN:
            group.add_argument(
                option.flag, dest=_destination(option), metavar=_metavar(option), help=_help(option)
            )


def environment(given: argparse.Namespace) -> dict[str, str]:
    """
    What `given` sets, by the options' environment names.

    Values that stand in the environment already are checked too: a wrong one would only be found when the
    processes have started.

    Raises
    ------
    OptionError
        A value is not of its option's kind, or outside its limits.
    """
    found: dict[str, str] = {}
    for option in table().values():
        value = getattr(given, _destination(option), None)
        source = option.flag
        if value is None and option.name not in _OWN:
            value, source = os.environ.get(option.env) or None, option.env
        if value is None:
            continue
        check(option, str(value), source)
        if source == option.flag:
            found[option.env] = str(value)
    return found


def check(option: Option, value: str, source: str) -> None:
    """Refuses a value of the wrong kind or outside the option's limits."""
    if not (option.minimum or option.maximum):
        return
    unit = f" {option.unit}" if option.unit else ""
    number = _number(value)
    if number is None:
        terminal.refuse(
            f"{source} {value!r} is not a number", f"{option.doc}; default {option.default}{unit}"
        )
    low, high = _number(option.minimum), _number(option.maximum)
    if (low is not None and number < low) or (high is not None and number > high):
        terminal.refuse(
            f"{source} {value} is outside its limits: {option.minimum} to {option.maximum}{unit}",
            f"{option.doc}; default {option.default}{unit}",
        )
    if option.name == "chunk_bytes" and (number % 1 or int(number) & (int(number) - 1)):
        below = 1 << (int(number).bit_length() - 1)
        terminal.refuse(
            f"{source} {value} is not a power of two",
            f"{below} and {2 * below} are the nearest; default {option.default}{unit}",
        )


def maximum(name: str, otherwise: int) -> int:
    """The greatest value that the core allows for an option."""
    option = table().get(name)
    number = _number(option.maximum) if option else None
    return otherwise if number is None else int(number)


def set_values(given: Mapping[str, str]) -> Iterator[tuple[Option, str]]:
    """The options that an environment sets."""
    for option in table().values():
        if given.get(option.env):
            yield option, given[option.env]


def _destination(option: Option) -> str:
    return f"option_{option.name}"


def _metavar(option: Option) -> str:
    return (option.unit or "value").replace(" ", "-").upper()


def _help(option: Option) -> str:
    parts = [option.doc.rstrip(".")]
    if option.default:
        parts.append(f"default {option.default}")
    parts.append(option.env)
    return "; ".join(parts).replace("%", "%%")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
