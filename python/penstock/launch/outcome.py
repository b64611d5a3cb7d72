"""
How a run ended: which process failed first, and what to tell the user.

When one worker dies, the others fail soon after, each with an error that names it. Those are consequences;
the first failure that is not one is the cause, whichever process the launcher happened to see first.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field, replace

from penstock.launch.console import Lines, Name
from penstock.launch.server import EXIT_JOB_FAILED, EXIT_STOPPED

_CONSEQUENCES = (
    "WorkerLost",
    "ServerLost",
    "JobFailed",
    "JobClosed",
    "ConnectTimeout",
    "BarrierTimeout",
    "PullTimeout",
    "LaneTimeout",
    "GetTimeout",
    "RowsApart",
    "FirstFailed",
)
# How a server says that a worker was lost because it needs more memory than it may have.
_NEEDS_MORE = "it needs more than it may have"
_OF_MEMORY = " bytes of memory, but only "
# How a server says why its job has failed, at the start of a line of its own.
_JOB_FAILED = "the job failed: "
_WORKER_FAILED = re.compile(rf"{_JOB_FAILED}worker (\d+) was lost: it failed: ")
_TAIL_LINES = 20
_TRACEBACK_LINES = 60


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    name: Name
    pid: int
    returncode: int
    """As `subprocess` gives it: negative for the signal that killed it."""
    stopped: bool
    """The launcher had told it to end."""
    tail: bytes
    """The last of its error output."""

    @property
    def failed(self) -> bool:
        """Whether it ended badly, and of itself."""
        return self.returncode != 0 and not self.stopped

    @property
    def exit_code(self) -> int:
        """As a shell gives it: 128 + signal for a killed process."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def is_consequence(self) -> bool:
        """Whether it failed only because another process had failed."""
        if self.name.role == "server":
            return self.returncode == EXIT_JOB_FAILED
        return self.returncode > 0 and _last_error(self.tail) in _CONSEQUENCES

    @property
    def last_line(self) -> str:
        """The last line that it wrote."""
        return _lines(self.tail)[-1]

    def how(self) -> str:
        """The end in words."""
        if self.stopped and self.returncode == 1:
            return "failed, and took long to end"
        if self.returncode < 0:
            return f"was killed by {signal_name(-self.returncode)}"
        if self.name.role == "server" and self.returncode == EXIT_STOPPED:
            return "was stopped by SIGTERM"
        return f"ended with exit code {self.returncode}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    code: int
    """Exit code of the run."""
    failure: Ended | None = None
    """The first failure, unless the run went on in spite of it."""
    others: bool = False
    """Whether there were other workers."""
    lost: tuple[Ended, ...] = ()
    """Workers that failed while the others went on, as `on_worker_loss` allowed."""
    hung: tuple[Name, ...] = ()
    """Workers that had to be killed, because they did not end when they were told to."""
    interrupted: signal.Signals | None = None
    """The signal that ended the run."""
    notes: tuple[str, ...] = field(default=())
    """The last messages of servers that saw the job fail."""

    def message(self) -> str | None:
        """What the user is told, if anything went wrong."""
        if self.interrupted is not None:
            by = "Ctrl-C" if self.interrupted == signal.SIGINT else self.interrupted.name
            return f"stopped by {by}"
        if self.failure is None:
            return None
        one = self.failure
        first = ""
        if self.others:
            who = "other workers" if one.name.role == "worker" else "workers"
            first = f"first failure; the {who} were stopped; "
        text = f"{one.name} {one.how()} ({first}pid {one.pid})"
        for name in self.hung:
            text += f"\n{name} did not end by itself and was killed"
        return "\n".join((text, *self.notes))

    def detail(self) -> str | None:
        """The traceback of the first failure, or the last lines it wrote."""
        if self.interrupted is not None or self.failure is None:
            return None
        return traceback_of(self.failure.tail) or None

    def hint(self) -> str | None:
        """What to do about it."""
        if self.failure is None or self.interrupted is not None:
            return None
        if self.failure.returncode == -signal.SIGKILL:
            return (
                "the kernel kills like this when memory runs out (see `dmesg`), and so does `kill -9`; "
                "`penstock doctor` shows the memory limit"
            )
        if self.failure.returncode in (
            -signal.SIGSEGV,
            -signal.SIGBUS,
            -signal.SIGABRT,
            -signal.SIGILL,
            -signal.SIGFPE,
        ):
            return "run it with PYTHONFAULTHANDLER=1 in the environment to see where it crashed"
        if _has_hint(self.failure.tail):
            return None
        if any(_NEEDS_MORE in note and _OF_MEMORY in note for note in self.notes):
            return "raise the option `memory`"
        if self.failure.is_consequence:
            return "it failed because of another process of the job; check the one that the error names"
        if self.failure.name.role == "server":
            what = (
                "the lines above are its output"
                if self.failure.tail
                else "it wrote nothing to standard error"
            )
            return f"{what}; `penstock doctor` shows what this host offers"
        going_on = "`--on-worker-loss continue` lets the others go on without it"
        if not self.failure.tail:
            return f"{self.failure.name} wrote nothing to standard error; {going_on}"
        return f"the lines above are the output of {self.failure.name}; {going_on}"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number itself for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def first_cause(ended: list[Ended]) -> Ended | None:
    """The failure that caused the others, of processes in the order in which they ended."""
    failed = [one for one in ended if one.failed]
    causes = [one for one in failed if not one.is_consequence]
    workers = [one for one in failed if one.name.role == "worker"]
    if not causes or _may_wrap_another(causes[0]):
        named = _named_by_servers(ended)
        named_causes = [one for one in causes if one.name.role == "worker" and one.name.rank in named]
        causes = named_causes or _slow_to_end(ended, named) or causes
    return next(iter(causes or workers or failed), None)


def _may_wrap_another(one: Ended) -> bool:
    """Whether its error may have another's failure in it: a script may raise its own from what it caught."""
    return one.name.role == "worker" and one.returncode > 0


def _named_by_servers(ended: list[Ended]) -> set[int]:
    """Workers of which servers say that the job has failed because they had."""
    named = set()
    for one in ended:
        if one.name.role == "server" and one.returncode == EXIT_JOB_FAILED:
            # Its own word comes last. What workers have said stands behind the start of a line, but for where
            # the first line of the tail is cut.
            said = [line for line in _lines(one.tail) if line.startswith(_JOB_FAILED)]
            if said and (found := _WORKER_FAILED.match(said[-1])):
                named.add(int(found[1]))
    return named


def _slow_to_end(ended: list[Ended], failed: set[int]) -> list[Ended]:
    """
    Of workers that had failed, those that were told to end before they had: an interpreter with PyTorch in it
    may take seconds to, and a server that heard of the failure takes none.
    """
    slow = [one for one in ended if one.stopped and one.name.role == "worker" and one.name.rank in failed]
    # The code with which Python ends for an exception.
    slow = [replace(one, returncode=1) for one in slow if one.returncode != 0]
    return [one for one in slow if not one.is_consequence]


def _lines(tail: bytes) -> list[str]:
    """
    The lines that a process wrote, as the console shows them; one at least. `str.splitlines` splits where no
    line ends there, and so another's words, in one that does, could pass for the process's own.
    """
    lines = Lines()
    return [line.decode("utf-8", "replace") for line in (*lines.feed(tail), *lines.rest())] or [""]


def traceback_of(tail: bytes) -> str:
    """The last traceback in a process's error output, chained ones with it; without any, the last lines."""
    lines = _lines(tail)
    starts = [
        index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last):")
    ]
    if not starts:
        return "\n".join(lines[-_TAIL_LINES:])
    start = starts[-1]
    for earlier in reversed(starts[:-1]):
        between = lines[earlier:start]
        if not any(
            "exception was the direct cause" in line or "another exception occurred" in line
            for line in between
        ):
            break
        start = earlier
    found = lines[start:]
    if len(found) > _TRACEBACK_LINES:
        half = _TRACEBACK_LINES // 2
        found = [*found[:half], f"... {len(found) - 2 * half} lines ...", *found[-half:]]
    return "\n".join(found)


def _has_hint(tail: bytes) -> bool:
    """Whether the error that ended a process already says what to do."""
    return any(line.startswith("hint: ") for line in traceback_of(tail).split("\n"))


def _last_error(tail: bytes) -> str | None:
    """The class name of the exception that ended a Python process, without its module."""
    for line in reversed(_lines(tail)):
        if found := re.match(r"(?:[A-Za-z_]\w*\.)*([A-Z]\w*)(?::|$)", line):
            return found[1]
    return None
