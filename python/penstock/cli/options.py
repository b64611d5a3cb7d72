"""
The options of `run` and `demo` that the core's own table defines: their flags, their help and their limits.

One table in the core names them all; a flag is an option's name with dashes. The core
checks the values before anything is started; they travel to the processes in the environment.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from penstock.cli import terminal

_OWN = ("consistency",)
"""Options that the commands have as arguments of their own, under `option_` and the name too."""


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
        """`--chunk-bytes` for `chunk_bytes`."""
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

    What the environment already sets is checked too: otherwise a wrong value would only be found when the
    processes have started.

    Raises
    ------
    OptionError
        An option has a value that it cannot have.
    """
    from penstock import _core

    found = {option: getattr(given, _destination(option), None) for option in table().values()}
    _core.check_options({option.name: value for option, value in found.items() if value is not None})
    return {option.env: value for option, value in found.items() if value is not None}


def chosen(given: argparse.Namespace) -> dict[str, str]:
    """
    What `given` sets, by the options' names, checked.

    Raises
    ------
    OptionError
        An option has a value that it cannot have.
    """
    environment(given)
    found = {name: getattr(given, f"option_{name}", None) for name in table()}
    return {name: value for name, value in found.items() if value is not None}


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
