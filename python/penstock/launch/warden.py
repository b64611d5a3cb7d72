"""
The warden: a process that cleans up after a launcher that was killed outright.

It does nothing but wait on a pipe from the launcher. As long as the launcher lives, the pipe stays open; when
it ends without having said `done`, the warden kills the process groups that it was told about and removes the
launcher's directory. Children also ask the kernel to die with the launcher (`process.die_with`), so either of
the two may fail.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from pathlib import Path

_SETTLE_SECONDS = 2.0
"""How long the warden waits for killed processes to end before it removes the directory under them."""


class Warden:
    """The launcher's side of the pipe."""

    def __init__(self, directory: str) -> None:
        reading, self._pipe = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(reading)
            os.close(self._pipe)
            raise
        if self._pid == 0:
            try:
                _watch(reading, directory)
            finally:
                os._exit(0)
        os.close(reading)

    def guard(self, group: int) -> None:
        """From now on, `group` does not outlive the launcher."""
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        """The group has ended; its number may be given to others."""
        self._tell(f"-{group}\n")

    def dismiss(self) -> None:
        """All is cleaned up: the warden ends."""
        self._tell("done\n")
        os.close(self._pipe)
        ended = _leader(self._pid)
        if ended >= 0:
            # One that was stopped would be waited for without end. There is nothing left for it to do.
            if not select.select([ended], (), (), _SETTLE_SECONDS)[0]:
                os.kill(self._pid, signal.SIGKILL)
            os.close(ended)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _tell(self, message: str) -> None:
        # That the warden was killed is not a reason to fail: the kernel's parent-death signal is still there.
        with contextlib.suppress(OSError):
            os.write(self._pipe, message.encode())


def _watch(reading: int, directory: str) -> None:
    """The warden's whole life, in the forked child: no imports, no output, no terminal."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGCHLD else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    # Descriptors of the launcher that stayed open here would keep its readers waiting after its end.
    # As many as there are, not as there could be: a container may allow a billion, which takes minutes.
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor != reading:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    held = b""
    groups: dict[int, int] = {}
    while data := os.read(reading, 65536):
        *messages, held = (held + data).split(b"\n")
        for message in messages:
            if message == b"done":
                return
            group = int(message[1:])
            if message.startswith(b"+"):
                groups[group] = _leader(group)
            elif (descriptor := groups.pop(group, -1)) >= 0:
                os.close(descriptor)
    _clean(groups, directory)


def _leader(group: int) -> int:
    """A descriptor that becomes readable when the group's first process ends; -1 if the kernel gives none."""
    try:
        return os.pidfd_open(group)
    except OSError:
        return -1


def _clean(groups: dict[int, int], directory: str) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    # A server that still runs could make its socket again: the directory is removed after the
    # processes are gone.
    waiting = {descriptor for descriptor in groups.values() if descriptor >= 0}
    end = time.monotonic() + _SETTLE_SECONDS
    while waiting and (left := end - time.monotonic()) > 0:
        waiting -= set(select.select(waiting, (), (), left)[0])
    shutil.rmtree(directory, ignore_errors=True)
