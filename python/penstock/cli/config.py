"""`penstock config`: what a compiler needs to build C and C++ programs with this installation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence

from penstock import config
from penstock.cli import terminal

EXAMPLES = """\
  cc lapser.c $(penstock config --cflags --libs) -o lapser
  PKG_CONFIG_PATH=$(penstock config --pkgconfig) make
  cmake -B build -Dpenstock_DIR=$(penstock config --cmake)"""

WORDS: dict[str, tuple[Callable[[], object], str]] = {
    "cflags": (config.cflags, "options for the compiler"),
    "libs": (config.libs, "options for the linker; programs find the library where it is now"),
    "includedir": (config.include_dir, "the folder of penstock.h"),
    "libdir": (config.library_dir, "the folder of libpenstock.so"),
    "pkgconfig": (config.pkgconfig_dir, "the folder of penstock.pc, for PKG_CONFIG_PATH"),
    "cmake": (config.cmake_dir, "the folder of penstock-config.cmake, for penstock_DIR"),
}
"""What can be asked for: where the answer comes from, and what it is."""


def parser() -> terminal.Parser:
    """The arguments."""
    result = terminal.Parser(
        "penstock config",
        "Prints what a compiler needs to build C and C++ programs with this installation, on one line, in "
        "the order in which it is asked for.",
        EXAMPLES,
    )
    for name, (_, summary) in WORDS.items():
        result.add_argument(f"--{name}", dest="asked", action="append_const", const=name, help=summary)
    result.add_argument("--json", action="store_true", help="everything, as a JSON object")
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    given: argparse.Namespace = parser().parse_args(arguments)
    if given.json:
        terminal.say(json.dumps({name: str(answer()) for name, (answer, _) in WORDS.items()}, indent=2))
        return 0
    if not given.asked:
        terminal.refuse("nothing was asked for", f"ask for {', '.join(f'--{name}' for name in WORDS)}")
    terminal.say(" ".join(str(WORDS[name][0]()) for name in given.asked))
    return 0
