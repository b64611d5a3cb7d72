"""
How the command line speaks: one error, a blank line, one hint; help that fits a screen; no meaning by colour
alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import NoReturn, TextIO

from penstock.exceptions import OptionError

EXIT_USAGE = 2
"""The command line was wrong: nothing has been started."""


def refuse(message: str, hint: str | None = None) -> NoReturn:
    """Refuses the command line, before anything is started; `main` prints it and exits with `EXIT_USAGE`."""
    raise OptionError(message, hint=hint)


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, if any is close."""
    import difflib

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def error(message: str, hint: str | None = None, detail: str | None = None) -> None:
    """Prints an error to standard error: the message, what belongs to it (indented), and what to do."""
    parts = [f"error: {message}"]
    if detail:
        parts.append("\n".join(f"    {line}".rstrip() for line in detail.split("\n")))
    if hint:
        parts.append(f"hint: {hint}")
    say_to(sys.stderr, "\n\n".join(parts))


def warning(message: str) -> None:
    """Prints a warning to standard error."""
    say_to(sys.stderr, f"warning: {message}")


def note(message: str) -> None:
    """Prints a hint about what may not be meant to standard error."""
    say_to(sys.stderr, f"hint: {message}")


def say(text: str = "") -> None:
    """Prints a line to standard output."""
    say_to(sys.stdout, text)


def say_to(stream: TextIO, text: str) -> None:
    """Prints a line; text that the terminal's encoding cannot show is escaped, never a reason to fail."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def coloured(stream: TextIO) -> bool:
    """Whether `stream` shows colours: a terminal, and the user did not say no (https://no-color.org)."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class Parser(argparse.ArgumentParser):
    """Argument parser whose refusals look like all other errors, and that never guesses an abbreviation."""

    def __init__(self, prog: str, description: str, examples: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=_Help,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Refuses with the option that was probably meant, or the way to the help."""
        hint = f"`{self.prog} --help` lists what it takes"
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            name = unknown.split()[0].split("=")[0]
            message = f"unknown option {name}" if name.startswith("-") else f"unexpected argument {name!r}"
            # Without the dashes, which all of them share.
            options = {option.lstrip("-"): option for option in self.option_names()}
            meant = near(name.lstrip("-"), options)
            if name in ("-V", "--version"):
                hint = "`penstock --version` prints the version"
            elif meant and name.startswith("-"):
                hint = f"did you mean {options[meant]}?"
        refuse(message, hint)

    def option_names(self) -> list[str]:
        """All option strings of this parser, such as `--workers`."""
        return [name for action in self._actions for name in action.option_strings]

    def takes_value(self, name: str) -> bool | None:
        """Whether the option `name` is followed by a value; None for an unknown one."""
        for action in self._actions:
            if name in action.option_strings:
                return action.nargs != 0
        return None


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)
