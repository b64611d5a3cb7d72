"""
The `penstock` command: a table of commands, each in a file of its own.

A command's module is imported only when it is called, and has one entry, `main(arguments) -> exit code`. It
may raise any `PenstockError`: what is wrong with the command line (`OptionError`) ends with exit code 2,
everything else with 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from penstock.cli import terminal
from penstock.exceptions import OptionError, PenstockError


class Command(NamedTuple):
    """Where a command lives and what it is for."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "run": Command("penstock.cli.run", "start a script on several workers, with servers, on this machine"),
    "demo": Command("penstock.cli.demo", "train a real model and compare it with single-process training"),
    "bench": Command("penstock.cli.bench", "measure against the machine's limit and against all-reduce"),
    "plan": Command("penstock.cli.plan", "the bandwidth a job needs, what it costs, and the best topology"),
    "manager": Command("penstock.cli.manager", "the control plane: jobs, servers, and how workers find them"),
    "server": Command("penstock.cli.server", "a server for the jobs that a manager gives it"),
    "job": Command("penstock.cli.jobs", "create, list, show and delete a manager's jobs"),
    "cert": Command("penstock.cli.cert", "a development certificate authority and certificates"),
    "secret": Command("penstock.cli.secret", "a fresh secret for a job, 64 hexadecimal digits"),
    "config": Command("penstock.cli.config", "what a compiler needs to build C and C++ programs"),
    "doctor": Command("penstock.cli.doctor", "what this host offers, and what to change"),
}

EXAMPLES = """\
  penstock demo                                    # 2 workers, 1 server, handwritten digits, a plot
  penstock run --workers 4 train.py --lr 0.1       # what follows the script is the script's
  penstock run --workers 4 --consistency ssp:4 -m my.training
  penstock plan --model resnet50 --workers 8 --link 10gbit
  penstock doctor"""


def usage() -> str:
    """The text of `penstock --help`."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        "usage: penstock COMMAND ...\n\n"
        "Shared model state for training: workers push gradients and pull parameters.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n  -h, --help     this text; `penstock COMMAND --help` for a command's own\n"
        "  -V, --version  print the version\n\n"
        f"examples:\n{EXAMPLES}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Runs the command line and returns its exit code.

    Parameters
    ----------
    arguments
        What follows `penstock`. Default: the process's own arguments.

    Returns
    -------
    int
        0, or what the command says; 2 for a wrong command line, 130 after Ctrl-C.
    """
    return answered(_dispatch, arguments)


def server(arguments: Sequence[str] | None = None) -> int:
    """Runs `penstock-server`, and returns its exit code; arguments as for `main`."""
    from penstock.cli import standalone

    return answered(standalone.main, arguments)


def answered(entry: Callable[[list[str]], int], arguments: Sequence[str] | None) -> int:
    """Runs a command; what is wrong is said on standard error."""
    _replace_closed()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return entry(given)
    except SystemExit as ended:  # argparse after --help
        return ended.code if isinstance(ended.code, int) else 0
    except PenstockError as error:
        terminal.error(_message(error), error.hint)
        return terminal.EXIT_USAGE if isinstance(error, OptionError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, and the interpreter's last flush must not
        # complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _replace_closed() -> None:
    """
    A caller that closed a standard stream (`>&-`) wants nothing from it. Left closed it would be no stream at
    all, or the next file or connection that is opened.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode)  # noqa: SIM115
            # The lowest that is free, so nearly always its own, which processes started here are to have too.
            os.set_inheritable(stream.fileno(), stream.fileno() == number)
            setattr(sys, name, stream)


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        terminal.say(usage())
        return 0 if given else terminal.EXIT_USAGE
    name, rest = given[0], given[1:]
    if name in ("-V", "--version"):
        from penstock import __version__

        terminal.say(f"penstock {__version__}")
        return 0
    if name not in COMMANDS:
        if name.endswith(".py") or name in ("-n", "-m", "--workers"):
            terminal.refuse(f"there is no command {name!r}", f"to start it: `penstock run {' '.join(given)}`")
        meant = terminal.near(name, COMMANDS)
        terminal.refuse(
            f"there is no command {name!r}",
            f"did you mean `penstock {meant}`?" if meant else f"the commands are {', '.join(COMMANDS)}",
        )
    entry = cast(Callable[[Sequence[str]], int], import_module(COMMANDS[name].module).main)
    return entry(rest)


def _message(error: PenstockError) -> str:
    """The message without the hint, which `terminal.error` puts on a line of its own."""
    return str(error).split("\nhint: ")[0].rstrip()
