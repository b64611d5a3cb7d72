"""
Servers that this process has started: children that end with their job, and never outlive this process.

A worker that carries a server ends last. Leaving the job is one thing; ending the process would take the
server from the workers that still train, so the interpreter's end waits until the job has ended for all of
them.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock import _core
from penstock.exceptions import ConnectTimeout, PenstockError
from penstock.launch.local import SOCKET_PATH_LIMIT
from penstock.limit import Limit

_GRACE_SECONDS = 5.0
"""Time that a server has to end in when it is told to."""
_LINE_LIMIT = 4096

_running: list[Server] = []
# Those that other code waits for: in a forked child the parent's, at the interpreter's end all. Kept, so that
# they are not taken for finished.
_of_others: list[Server] = []


class Server:
    """
    A server process of this job.

    Parameters
    ----------
    host
        The address at which other hosts reach it; None for a server that only this host's workers use.
    index, servers, workers
        Its number, and how many servers and workers the job has.
    secret, job
        The job's.
    settings
        Additions to its environment: the options, by their environment names.

    Raises
    ------
    PenstockError
        The process could not be started.
    """

    def __init__(
        self,
        host: str | None,
        index: int,
        servers: int,
        workers: int,
        *,
        secret: str,
        job: str,
        settings: Mapping[str, str],
    ) -> None:
        self.index = index
        with contextlib.ExitStack() as undone, contextlib.ExitStack() as passed:
            try:
                self._announced, writing = os.pipe()
                undone.callback(os.close, self._announced)
                passed.callback(os.close, writing)
                self._directory = socket_directory()
                undone.callback(shutil.rmtree, self._directory, ignore_errors=True)
                path = f"{self._directory}/s{index}"
                self.endpoint = path if host is None else f"tcp://{host}:0?unix={path}"
                environment = {
                    **os.environ,
                    **settings,
                    "PENSTOCK_SECRET": secret,
                    "PENSTOCK_JOB": job,
                    "PENSTOCK_DIRECTORY": self._directory,
                    "PENSTOCK_PARENT": str(os.getpid()),
                    "PENSTOCK_ANNOUNCE_FD": str(writing),
                }
                command = [sys.executable, "-u", "-m", "penstock.rendezvous.child", self.endpoint]
                self._process = subprocess.Popen(
                    [*command, str(index), str(servers), str(workers)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(writing,),
                    process_group=0,  # Ctrl-C is the workers' business; they end the server
                )
            except OSError as error:
                raise PenstockError(
                    f"server {index} could not be started: {error.strerror or error}",
                    "`penstock doctor` shows the limits of this host (processes, open files, memory)",
                ) from error
            undone.pop_all()
        _running.append(self)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def listening(self, deadline: Limit[float]) -> str:
        """
        Waits until it listens; returns its endpoint string, as the workers need it.

        Raises
        ------
        ConnectTimeout
            It did not listen in time; it is ended then.
        PenstockError
            It ended before.
        """
        line = b""
        try:
            while not line.endswith(b"\n") and len(line) < _LINE_LIMIT:
                if not select.select([self._announced], [], [], deadline.left())[0]:
                    raise ConnectTimeout(
                        f"server {self.index} did not listen within {deadline.waited():.1f} s",
                        "check its output above, or raise the option `deadline` (PENSTOCK_DEADLINE)",
                        waited=deadline.waited(),
                    )
                data = os.read(self._announced, _LINE_LIMIT)
                if not data:
                    raise PenstockError(
                        f"server {self.index} ended before it listened, {_how(self._process.wait())}",
                        "see its output above; `penstock doctor` shows what this host offers",
                    )
                line += data
        except BaseException:
            self.end()
            raise
        self.endpoint = line.decode("utf-8", "replace").strip()
        return self.endpoint

    def wait(self) -> int:
        """Waits until its job has ended; returns its exit code. Interrupted, it ends the server."""
        try:
            code = self._process.wait()
        except BaseException:
            self.end()
            raise
        self._forget()
        return code

    def end(self) -> None:
        """Ends it now, whatever its job does."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._announced >= 0:
            os.close(self._announced)
            self._announced = -1
        # The server removes it too; it cannot if it was killed.
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(ValueError):
            _running.remove(self)


def see_off() -> None:
    """Waits until the jobs whose servers this process carries have ended for all their workers."""
    while _running:
        _running[0].wait()


def running() -> list[tuple[int, str]]:
    """The process number and the directory of each server that this process carries."""
    return [(server.pid, server._directory) for server in _running]


def leave_running() -> None:
    """From now on the code that ends the process waits for them, and removes what is theirs."""
    _of_others.extend(_running)
    _running.clear()


def socket_directory() -> str:
    """
    A fresh directory that only this user can enter, with a path short enough for sockets and free of commas.
    """
    base = tempfile.gettempdir()
    longest = len(os.fsencode(base)) + len("/penstock-12345678/s") + len(str(_core.MAX_SERVERS))
    if longest > SOCKET_PATH_LIMIT or any(one in base for one in ",?&#%"):
        base = "/tmp"  # noqa: S108 (a fresh directory of mode 0700 is made in it)
    return str(Path(tempfile.mkdtemp(prefix="penstock-", dir=base)).absolute())


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"with exit code {code}"


def _after_fork_in_child() -> None:
    _of_others.extend(_running)
    _running.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
