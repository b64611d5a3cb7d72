"""`penstock run`: a script on several workers, with servers, on this machine."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from penstock import distribution
from penstock.cli import options, terminal
from penstock.cli.numbers import count, seconds
from penstock.launch.console import Console
from penstock.launch.local import Launch, Plan
from penstock.launch.outcome import Outcome

EXAMPLES = """\
  penstock run --workers 4 train.py --epochs 3
  penstock run --workers 4 --servers 2 --consistency ssp:4 train.py
  penstock run --workers 2 -m my.training --epochs 3
  penstock run --workers 2 ./program --epochs 3              # C, C++ or a shell script: anything executable
  penstock run --workers 4 --on-worker-loss continue train.py

A script joins its job by `penstock.init()`. It finds its rank in PENSTOCK_RANK and RANK, the number
of workers in PENSTOCK_SIZE and WORLD_SIZE. The exit code is 0, or that of the first process that
failed (128 + signal for a killed one), or 130 after Ctrl-C."""


FOREIGN = dict.fromkeys(
    (
        *("-np", "--np", "--nproc", "--nprocs", "--num-proc", "--num-processes", "--num_processes"),
        *("--nproc-per-node", "--nproc_per_node", "--ntasks", "--num-workers", "--num_workers", "--nworkers"),
        *("--world-size", "--world_size", "-w"),
    ),
    "--workers",
) | dict.fromkeys(("--num-servers", "--num_servers", "--nservers", "--ps"), "--servers")
"""What other launchers call our options."""


def parser() -> terminal.Parser:
    """The arguments in front of the script."""
    result = terminal.Parser(
        "penstock run",
        "Starts a script on several workers on this machine, with the servers that they share.",
        EXAMPLES,
    )
    result.usage = "penstock run [options] (script.py | -m module | ./program) ARGS..."
    add_job_arguments(result, workers=1)
    result.add_argument(
        "--grace",
        default="5",
        metavar="SECONDS",
        help="time that processes have to end after a signal or a failure, before SIGKILL (default 5)",
    )
    result.add_argument("-m", "--module", help="run a module, as `python -m` does")
    options.add_to(result)
    return result


def add_job_arguments(result: terminal.Parser, *, workers: int) -> None:
    """What every command takes that starts a job."""
    result.add_argument(
        "-n", "--workers", default=str(workers), metavar="N", help=f"worker processes (default {workers})"
    )
    result.add_argument("-s", "--servers", default="1", metavar="M", help="server processes (default 1)")
    result.add_argument(
        "-c",
        "--consistency",
        dest="option_consistency",
        metavar="MODE",
        help="bsp, ssp:SLACK or asp: what a read may miss, for tensors that do not say (default bsp)",
    )


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    rules = parser()
    head, command = split(rules, arguments)
    given = rules.parse_args(head)
    if not command:
        terminal.refuse("no script was given", "`penstock run --workers 2 train.py`, or `-m module`")
    check_command(command)
    hint_at_options_behind(rules, head, command)
    plan = make_plan(given, command, grace=seconds(given.grace, "--grace"))
    for name in ("PENSTOCK_SERVERS", "PENSTOCK_MANAGER"):
        if os.environ.get(name):
            terminal.warning(
                f"{name} is not used: `penstock run` starts servers of its own; to join those that are "
                "there, start each worker by itself, with PENSTOCK_RANK and PENSTOCK_SIZE"
            )
    if mixed := distribution.other():
        terminal.warning(mixed)
        terminal.note(distribution.REMEDY)
    console = Console(colour=terminal.coloured(sys.stdout))
    outcome = Launch(plan, console).run()
    # A reader that has taken nothing so far would be waited for once more.
    if not console.is_waiting("stderr"):
        tell(outcome)
    return outcome.code


def split(rules: terminal.Parser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    Our own options, and the script's: everything from the script or the module on, whatever it looks like.

    The second part is what the Python interpreter is given, or a program and its arguments.
    """
    rest = list(arguments)
    head: list[str] = []
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in FOREIGN:
            number = value or (rest[0] if rest and rest[0].isdecimal() else "N")
            terminal.refuse(
                f"unknown option {name}", f"it is called {FOREIGN[name]}: `{FOREIGN[name]} {number}`"
            )
        if word in ("-m", "--module"):
            if not rest:
                terminal.refuse("-m needs the name of a module", "`penstock run -m my.training`")
            return head, ["-m", *rest]
        if name == "--module" and equals:
            return head, ["-m", value, *rest]
        if word == "--":
            return head, rest
        if not word.startswith("-") or word == "-":
            return head, [word, *rest]
        head.append(word)
        if not equals and rules.takes_value(name) and rest:
            head.append(rest.pop(0))
    return head, []


def hint_at_options_behind(rules: terminal.Parser, head: Sequence[str], command: Sequence[str]) -> None:
    """
    Points out that an option of ours after the script's name goes to the script: most who write it there mean
    ours. Not if it is given before the script too, or if the script names it: then it is the script's.
    """
    given = {word.partition("=")[0] for word in head}
    ours = {name for name in rules.option_names() if name.startswith("--")} - {"--help", "--module"} - given
    words = command[2:] if command[0] == "-m" else command[1:]
    script = " ".join(command[:2]) if command[0] == "-m" else command[0]
    source = source_of(command)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        number = value or "".join(words[place + 1 : place + 2])
        if name in ours and not _names(source, name):
            meant = f"{word} {number}" if number and not equals and rules.takes_value(name) else word
        elif (
            name in _SHORT
            and source
            and not _names(source, name)
            and number.isdecimal()
            and not _counts(head)
        ):
            meant = f"--workers {number}"
        else:
            continue
        terminal.note(
            f"{name} comes after {script} and is passed to it; "
            f"if it is meant for penstock: `penstock run {meant} {script}`"
        )
        return


_SHORT = {"-n", "-np", "--nproc-per-node", "--nproc_per_node"}
"""Names for the number of workers that could mean anything: looked up in scripts that can be read."""


def _names(source: str, option: str) -> bool:
    """
    Whether a script has an option of this name: as a text of its own, or beside its other spellings. Its
    documentation may tell how to start it with ours, unless that is what its options are read from.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as that of "\\d": the script's own matter
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return option in source
    if "docopt" in source:
        return option in source
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    spellings = (re.split(r"[\s,/|=]+", text) for text in texts)
    return any(option in words for words in spellings if len(words) <= _MOST_SPELLINGS)


_MOST_SPELLINGS = 4
"""Words of a text that names one option: a longer one is prose."""


def _counts(head: Sequence[str]) -> bool:
    """Whether our own options say how many workers there are."""
    return any(word.startswith(("-n", "--workers")) for word in head)


def source_of(command: Sequence[str]) -> str:
    """The text of a script or a module; nothing if it cannot be read, or is not Python."""
    path: str | None = command[0]
    if path == "-m":
        found = _find(command[1])
        inside = found.submodule_search_locations if found else None
        path = f"{inside[0]}/__main__.py" if inside else (found.origin if found else None)
    if path is None or Path(path).suffix != ".py":
        return ""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _find(module: str) -> ModuleSpec | None:
    sys.path.insert(0, str(Path.cwd()))  # where `python -m` looks first
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.pop(0)


def check_command(command: Sequence[str]) -> None:
    """Refuses a script or a module that is not there, before any process is started."""
    name = command[0]
    if name == "-m":
        module = command[1]
        if _find(module) is None:
            terminal.refuse(
                f"there is no module {module!r}",
                "give its name as in `import`, from a folder where Python finds it",
            )
        return
    if (Path(name) / "__main__.py").is_file():
        return
    if not Path(name).exists():
        check_name(name, command[1:])
        terminal.refuse(
            f"the script {name!r} does not exist",
            f"the path is relative to {str(Path.cwd())!r}; options of `penstock run` come before the script",
        )
    if Path(name).is_dir():
        terminal.refuse(
            f"{name!r} is a folder, not a script", "give a Python file, or a folder that holds a __main__.py"
        )
    if begins_with(name, _ELF) and not os.access(name, os.X_OK):
        terminal.refuse(f"the program {name!r} cannot be executed", f"`chmod +x {name}`")
    if is_program(name):
        return
    if not os.access(name, os.R_OK):
        terminal.refuse(f"the script {name!r} cannot be read", "check its permissions")


def check_name(name: str, arguments: Sequence[str]) -> None:
    """Refuses what is not a path to a script but a command, a module or a number, and says what to write."""
    rest = " ".join(["", *arguments])
    missing = f"the script {name!r} does not exist"
    if re.fullmatch(r"python[0-9.]*", name):
        terminal.refuse(
            f"{name!r} is not a script: penstock starts Python itself",
            f"`penstock run [options]{rest or ' train.py'}`",
        )
    if name.isdecimal():
        terminal.refuse(
            f"{name!r} is not a script", f"for the number of workers: `penstock run --workers {name}{rest}`"
        )
    if Path(f"{name}.py").is_file():
        terminal.refuse(missing, f"did you mean `penstock run {name}.py{rest}`?")
    if "/" not in name and (found := shutil.which(name)):
        terminal.refuse(missing, f"for the program: `penstock run {found}{rest}`")
    if re.fullmatch(r"\w+(\.\w+)*", name) and not name.endswith(".py") and _find(name):
        terminal.refuse(missing, f"for the module: `penstock run -m {name}{rest}`")
    folder = Path(name).parent
    if folder.is_dir() and (
        meant := terminal.near(Path(name).name, (one.name for one in folder.glob("*.py")))
    ):
        terminal.refuse(missing, f"did you mean `penstock run {folder / meant}{rest}`?")


_ELF = b"\x7fELF"


def begins_with(name: str, head: bytes) -> bool:
    """Whether a file begins with these bytes, as far as it can be read."""
    try:
        with Path(name).open("rb") as file:
            return file.read(len(head)) == head
    except OSError:
        return False


def is_program(name: str) -> bool:
    """
    Whether a file is started as it is: an executable that is not a Python script, whether it is called .py or
    names Python in its first line.
    """
    if (
        Path(name).suffix in (".py", ".pyz", ".pyc")
        or not Path(name).is_file()
        or not os.access(name, os.X_OK)
    ):
        return False
    if not begins_with(name, b"#!"):
        # One that may be executed but not read is not a script; a Python script without a first line is text.
        return begins_with(name, _ELF) or not os.access(name, os.R_OK)
    with Path(name).open("rb") as file:
        return b"python" not in file.readline(256)


def make_plan(given: argparse.Namespace, command: Sequence[str], *, grace: float = 5.0) -> Plan:
    """
    What to start, checked.

    Raises
    ------
    OptionError
        A number or a mode that cannot be.
    """
    from penstock import _core

    environment = options.environment(given)
    on_loss = options.table()["on_worker_loss"]
    loss = environment.get(on_loss.env) or os.environ.get(on_loss.env) or on_loss.default
    program = is_program(command[0])
    return Plan(
        command=[str(Path(command[0]).absolute()), *command[1:]] if program else command,
        program=program,
        workers=count(given.workers, "--workers", _core.MAX_WORKERS),
        servers=count(given.servers, "--servers", _core.MAX_SERVERS),
        consistency=given.option_consistency or "",
        environment=environment,
        grace=grace,
        go_on=loss == "continue",
    )


def tell(outcome: Outcome) -> None:
    """Says what went wrong in a run, if anything did."""
    for one in outcome.lost:
        terminal.warning(f"{one.name} {one.how()} (pid {one.pid}); the others went on without it")
    if outcome.hung and outcome.failure is None and outcome.interrupted is None:
        names = ", ".join(map(str, outcome.hung))
        terminal.warning(f"{names} did not end by itself and was killed")
    message = outcome.message()
    if message is not None:
        terminal.error(message, outcome.hint(), outcome.detail())
