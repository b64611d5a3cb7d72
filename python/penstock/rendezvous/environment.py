"""
What the environment says: Penstock's own variables, and those that launchers set.

The core reads them, the same for C programs (`crates/penstock-join/src/launcher.rs` has the table).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock import _core
from penstock.exceptions import NotUnderLauncher, OptionError

Launcher = Literal["penstock", "torchrun", "mpirun", "srun"]
Topology = Literal["cs", "cc"]

PAGES: dict[Launcher, str] = {
    "penstock": "docs/launchers/penstock-run.md",
    "torchrun": "docs/launchers/torchrun.md",
    "mpirun": "docs/launchers/mpirun.md",
    "srun": "docs/launchers/slurm.md",
}
"""Where each launcher is explained."""

HOW_TO_GIVE_ONE = (
    "make one where the job is started, so that every process gets it: "
    "export PENSTOCK_SECRET=$(penstock secret)"
)


@dataclass(frozen=True)
class Place:
    """This process among those that were started together."""

    launcher: Launcher
    rank: int
    size: int
    announced_by: str
    """The variable that says how many there are."""


def place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """
    This process's place in the job; None if it was started alone.

    Raises
    ------
    OptionError
        A variable is not a whole number.
    NotUnderLauncher
        A variable says that there are several processes, and none says which of them this is; or which it is,
        and none of how many.
    JobFull
        The rank is not below the number of processes.
    """
    found = _core.LauncherVariables(environment).place()
    return None if found is None else Place(*found)


@dataclass(frozen=True)
class Way:
    """Which way this process joins."""

    kind: Literal["servers", "manager", "rendezvous", "launcher", "alone"]
    place: Place | None
    """None where nothing says it: the manager gives a rank, or the process is alone."""
    to: Sequence[str]
    """The servers' endpoint strings, in the servers' order; or the manager's or the rendezvous' address."""
    secret: str | None = field(repr=False)
    """The job's; None where the way does without."""


def way(environment: Mapping[str, str] = os.environ) -> Way:
    """
    Which way this process joins, in the order that C programs go by too (`crates/penstock-join/src/way.rs`).

    Raises
    ------
    OptionError
        A variable cannot be read.
    NotUnderLauncher
        There is no way in: a variable is missing beside others.
    JobFull
        The rank is not below the number of processes.
    """
    kind, found, to, secret = _core.LauncherVariables(environment).way()
    return Way(kind, None if found is None else Place(*found), to, secret)


def _warn(text: str) -> None:
    """Where `penstock.init` was called."""
    warnings.warn(text, stacklevel=5)


def check_names(environment: Mapping[str, str] = os.environ, *, tell: Callable[[str], None] = _warn) -> None:
    """
    Looks for variables that begin with PENSTOCK_ and that nothing reads; one that may belong to another
    program, which may use the prefix too, is only reported.

    Raises
    ------
    OptionError
        One is nearly the name of one that is read.
    """
    # Others' names may be any bytes. What is not text in ours is shown as the shell writes it.
    ours = [name.encode(errors="surrogateescape") for name in environment if name.startswith("PENSTOCK_")]
    names = [name.decode(errors="backslashreplace") for name in ours]
    for nothing, hint in _core.stray_names(names):
        if hint:
            raise OptionError(nothing, hint)
        tell(nothing)


def job_name(environment: Mapping[str, str] = os.environ) -> str:
    """The job's name."""
    return _core.LauncherVariables(environment).job()


def secret(environment: Mapping[str, str] = os.environ) -> str | None:
    """
    The job's secret; None if there is none.

    Raises
    ------
    OptionError
        It is not 64 hex digits. The error does not show it.
    """
    return _core.LauncherVariables(environment).secret()


def required_secret(why: str, environment: Mapping[str, str] = os.environ) -> str:
    """The job's secret, which is needed here; `why` begins the error."""
    value = secret(environment)
    if value is None:
        raise NotUnderLauncher(f"{why}, but PENSTOCK_SECRET is not set", HOW_TO_GIVE_ONE)
    return value


def topology(environment: Mapping[str, str] = os.environ) -> Topology:
    """
    Where the servers stand that the job starts itself: `cs`, one on each host (the default), or `cc`, one on
    rank 0's.

    Raises
    ------
    OptionError
        It is something else.
    """
    return "cc" if _core.LauncherVariables(environment).alone() else "cs"


def text(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """
    The variable's value; empty if it is not set.

    Raises
    ------
    OptionError
        It is not UTF-8.
    """
    value = environment.get(name, "")
    try:
        value.encode()
    except UnicodeEncodeError:
        shown = value.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise OptionError(f"expected {name} to be UTF-8, got `{shown}`", "check what sets it") from None
    return value


def whole_number(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """
    The variable's value.

    Raises
    ------
    OptionError
        It is not a whole number.
    """
    return _core.LauncherVariables(environment).whole_number(name)
