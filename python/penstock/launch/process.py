"""
One process of a job: started in a group of its own, dying with its launcher, its output read through pipes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.launch.console import Lines, Name, Stream

_PR_SET_PDEATHSIG = 1
TAIL_BYTES = 1 << 15
"""Bytes of a process's last error output that are kept for the report of its failure."""
_READ_BYTES = 1 << 16


def die_with(parent: int) -> Callable[[], None]:
    """
    What a child runs between fork and exec so that the kernel kills it when its launcher dies, however that
    happens.

    Everything is looked up beforehand: between fork and exec only two system calls are made. The launcher has
    one thread then, so nothing can be held by a thread that the child does not have.
    """
    prctl = ctypes.CDLL(None).prctl
    kill = int(signal.SIGKILL)

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, kill, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(128 + kill)

    return arrange


class Process:
    """A worker or a server that was started, and what is known about its end."""

    def __init__(
        self,
        name: Name,
        command: Sequence[str],
        environment: Mapping[str, str],
        before_exec: Callable[[], None],
        *,
        report: bool = False,
        told: bool = False,
    ) -> None:
        self.name = name
        self.stopped = False
        """Whether the launcher told it to end, so that its end is not a failure of its own."""
        self.returncode: int | None = None
        self.tail = b""
        with contextlib.ExitStack() as undone, contextlib.ExitStack() as passed:
            reading = writing = hearing = self._telling = -1
            if report:
                reading, writing = os.pipe()
                undone.callback(os.close, reading)
                passed.callback(os.close, writing)
            if told:
                hearing, self._telling = os.pipe()
                undone.callback(os.close, self._telling)
                passed.callback(os.close, hearing)
            self.report_descriptor = reading
            given = {"PENSTOCK_REPORT_FD": writing, "PENSTOCK_ENDED_FD": hearing}
            descriptors = {name: descriptor for name, descriptor in given.items() if descriptor >= 0}
            self._popen = subprocess.Popen(
                command,
                env={**environment, **{name: str(descriptor) for name, descriptor in descriptors.items()}},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=tuple(descriptors.values()),
                process_group=0,
                preexec_fn=before_exec,
            )
            undone.pop_all()
        if told:
            os.set_blocking(self._telling, False)
        self.pid = self._popen.pid
        self.streams: dict[int, tuple[Stream, Lines]] = {}
        for pipe, stream in ((self._popen.stdout, "stdout"), (self._popen.stderr, "stderr")):
            assert pipe is not None
            self.streams[pipe.fileno()] = ("stdout" if stream == "stdout" else "stderr", Lines())
        for descriptor in self.descriptors():
            os.set_blocking(descriptor, False)

    def descriptors(self) -> list[int]:
        """All pipes that come from the process."""
        return [*self.streams, *([self.report_descriptor] if self.report_descriptor >= 0 else [])]

    def shown_as(self, descriptor: int) -> Stream:
        """Where what comes through a pipe is shown. A report may be shown, too."""
        return self.streams[descriptor][0] if descriptor in self.streams else "stdout"

    def read(self, descriptor: int) -> bytes | None:
        """What has come through a pipe: b"" at its end, None when there is nothing now."""
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        if descriptor in self.streams and self.streams[descriptor][0] == "stderr":
            self.tail = (self.tail + data)[-TAIL_BYTES:]
        return data

    def pending(self, descriptor: int) -> int:
        """How many bytes a pipe holds now."""
        return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)

    def has_ended(self) -> bool:
        """
        Whether the process has ended. It stays a zombie until `reap`, so that no other process can get its
        number.
        """
        if self.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def is_suspended(self) -> bool:
        """Whether it was stopped (SIGSTOP; not by a debugger): it will neither continue nor end by itself."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
        except OSError:
            return False

    def tell(self, line: bytes) -> None:
        """Tells the process something, if it was made to be told: a whole line, or nothing."""
        # One that no longer listens, or has not for thousands of lines, need not be told.
        if self._telling >= 0:
            with contextlib.suppress(OSError):
                os.write(self._telling, line + b"\n")

    def send(self, number: signal.Signals) -> None:
        """Signals the process itself, as `kill` would."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kills the process and what it started."""
        if self.returncode is None:
            # The group is not there when the process has not come as far as to make it, or has left it.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Waits for the end, and kills what is left in its group."""
        if self.returncode is None:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.kill_group()
            self.returncode = self._popen.wait()
        return self.returncode

    def close(self) -> None:
        """Closes the pipes."""
        for pipe in (self._popen.stdout, self._popen.stderr):
            assert pipe is not None
            pipe.close()
        if self.report_descriptor >= 0:
            os.close(self.report_descriptor)
            self.report_descriptor = -1
        if self._telling >= 0:
            os.close(self._telling)
            self._telling = -1
