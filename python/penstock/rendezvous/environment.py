"""
What the environment says: Penstock's own variables, and those that launchers set.

| launcher | rank | size |
|---|---|---|
| Penstock, or by hand | PENSTOCK_RANK | PENSTOCK_SIZE |
| torchrun, or by hand | RANK | WORLD_SIZE |
| Open MPI's mpirun | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE |
| MPICH's and Intel's mpiexec | PMI_RANK | PMI_SIZE |
| srun | SLURM_PROCID | SLURM_STEP_NUM_TASKS, SLURM_NTASKS |

The order matters: torchrun and mpirun are themselves started under srun, and leave its variables to their
processes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from penstock import _core
from penstock.exceptions import JobFull, NotUnderLauncher, OptionError

Launcher = Literal["penstock", "torchrun", "mpirun", "srun"]
Topology = Literal["cs", "cc"]

_VARIABLES: tuple[tuple[Launcher, str, tuple[str, ...]], ...] = (
    ("penstock", "PENSTOCK_RANK", ("PENSTOCK_SIZE",)),
    ("torchrun", "RANK", ("WORLD_SIZE",)),
    ("mpirun", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("mpirun", "PMI_RANK", ("PMI_SIZE",)),
    ("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)

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
_SECRET_DIGITS = 64


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
    for launcher, rank_name, size_names in _VARIABLES:
        size_name = next((name for name in size_names if environment.get(name)), None)
        if launcher == "penstock" and size_name is None:
            _refuse_half(rank_name, size_names[0], environment)
        if size_name is None or (launcher == "srun" and not _is_step(environment)):
            continue
        if not environment.get(rank_name):
            if whole_number(size_name, environment) > 1:
                raise NotUnderLauncher(
                    f"{size_name} says that {environment[size_name]} processes were started, but {rank_name} "
                    "does not say which of them this is",
                    f"start the script as {PAGES[launcher]} shows; to train alone, unset {size_name}",
                )
            continue
        rank, size = whole_number(rank_name, environment), whole_number(size_name, environment)
        # Also of one process: it would train alone, as rank 0 of 1.
        if rank >= size:
            raise JobFull(
                f"rank {rank} is outside the job's size, which {size_name} says is {size}",
                "ranks count from 0; let the launcher set both",
            )
        return Place(launcher, rank, size, size_name)
    for launcher, rank_name, size_names in _VARIABLES:
        if launcher == "mpirun":
            _refuse_half(rank_name, size_names[0], environment)
    # Many programs may set `RANK`; together with torchrun's rendezvous address it is torchrun's.
    if environment.get("MASTER_ADDR") or environment.get("MASTER_PORT"):
        _refuse_half("RANK", "WORLD_SIZE", environment)
    return None


def _refuse_half(rank_name: str, size_name: str, environment: Mapping[str, str]) -> None:
    """Refuses a rank without a size: each process would train alone, as rank 0 of 1."""
    if environment.get(rank_name) and not environment.get(size_name):
        raise NotUnderLauncher(
            f"{rank_name} says that this process is number {environment[rank_name]} of several, but "
            f"{size_name} is not set",
            f"set {size_name} to the number of processes, the same for all; to train alone, unset "
            f"{rank_name}",
        )


def refuse_rendezvous_alone(environment: Mapping[str, str] = os.environ) -> None:
    """
    Refuses a rendezvous address where nothing says how many meet; for a process that has no `place`.

    Raises
    ------
    NotUnderLauncher
        There is one.
    """
    if environment.get("PENSTOCK_RENDEZVOUS"):
        raise NotUnderLauncher(
            "PENSTOCK_RENDEZVOUS says where processes meet, but PENSTOCK_RANK and PENSTOCK_SIZE are not set",
            "set PENSTOCK_SIZE to the number of processes, the same for all, and PENSTOCK_RANK to this "
            "one's, from 0, or let a launcher do so; to train alone, unset PENSTOCK_RENDEZVOUS",
        )


def _warn(text: str) -> None:
    """Where `penstock.init` was called."""
    warnings.warn(text, stacklevel=5)


def check_names(environment: Mapping[str, str] = os.environ, *, tell: Callable[[str], None] = _warn) -> None:
    """
    Looks for variables that begin with PENSTOCK_ and that nothing reads; one that may be somebody else's,
    because others may use the prefix, is only told of.

    Raises
    ------
    OptionError
        One is nearly the name of one that is read.
    """
    # Others' names may be any bytes. Of ours what is no text is shown as the shell writes it.
    ours = [name.encode(errors="surrogateescape") for name in environment if name.startswith("PENSTOCK_")]
    names = [name.decode(errors="backslashreplace") for name in ours]
    for nothing, hint in _core.stray_names(names):
        if hint:
            raise OptionError(nothing, hint)
        tell(nothing)


def several_without_step(environment: Mapping[str, str] = os.environ) -> str | None:
    """Slurm's count of tasks, if the script runs in the batch script itself and not in a step."""
    tasks = environment.get("SLURM_NTASKS", "")
    return tasks if tasks.isdigit() and int(tasks) > 1 and not _is_step(environment) else None


def _is_step(environment: Mapping[str, str]) -> bool:
    """
    Whether srun started this process. A batch script has SLURM_NTASKS and SLURM_PROCID too, but is one
    process.
    """
    return any(environment.get(name) for name in ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"))


def servers(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The servers' endpoint strings, in the servers' order; empty if none are named."""
    return [one for one in environment.get("PENSTOCK_SERVERS", "").split(",") if one]


def job_name(environment: Mapping[str, str] = os.environ) -> str:
    """The job's name."""
    return environment.get("PENSTOCK_JOB") or "job"


def secret(environment: Mapping[str, str] = os.environ) -> str | None:
    """
    The job's secret; None if there is none.

    Raises
    ------
    OptionError
        It is not 64 hex digits. The error does not show it.
    """
    value = environment.get("PENSTOCK_SECRET", "")
    if not value:
        return None
    if len(value) != _SECRET_DIGITS or not all(one in "0123456789abcdefABCDEF" for one in value):
        raise OptionError(
            f"expected PENSTOCK_SECRET to be 64 hex digits, got {len(value)} characters", HOW_TO_GIVE_ONE
        )
    return value


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
    value = environment.get("PENSTOCK_TOPOLOGY") or "cs"
    if value == "cs":
        return "cs"
    if value == "cc":
        return "cc"
    if value in ("ncc", "ncs"):
        raise OptionError(
            f"PENSTOCK_TOPOLOGY={value} asks for servers on hosts without workers, where no process could "
            "start one",
            "start `penstock server` on those hosts and give the workers PENSTOCK_MANAGER or "
            "PENSTOCK_SERVERS",
        )
    raise OptionError(
        f"expected PENSTOCK_TOPOLOGY to be cs (a server on each host) or cc (one, on rank 0's), got `{value}`"
    )


def whole_number(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """
    The variable's value.

    Raises
    ------
    OptionError
        It is not a whole number.
    """
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise OptionError(
            f"expected {name} to be a whole number, got `{text}`", "start workers with `penstock run`"
        )
    return int(text)
