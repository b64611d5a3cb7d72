"""
The server process that a worker starts: `python -m penstock.rendezvous.child ENDPOINT INDEX SERVERS WORKERS`.

It is `penstock.launch.server`, which it runs, and it does not outlive its parent: it watches the process
named in PENSTOCK_PARENT and ends when that does, however it ends. (The kernel's parent-death signal would
follow the thread that started the server instead of the process.) Its directory, in PENSTOCK_DIRECTORY, goes
with it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading

_GRACE_SECONDS = 5.0
"""Time to end in after the parent's end."""


def main() -> int:
    """Serves until the job has ended, or the parent has."""
    directory = os.environ.pop("PENSTOCK_DIRECTORY", "")
    parent = int(os.environ.pop("PENSTOCK_PARENT"))
    finished = threading.Event()
    signal.signal(
        signal.SIGTERM, lambda _number, _frame: sys.exit(0)
    )  # until the server has a handler of its own
    try:
        _watch(parent, directory, finished)
        from penstock.launch import server

        try:
            return server.main()
        finally:
            # It ends anyway: another signal would end it in the middle of cleaning up.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        finished.set()
        _remove(directory)


def _watch(parent: int, directory: str, finished: threading.Event) -> None:
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        sys.exit(0)
    if os.getppid() != parent:  # the number may be another process's by now
        sys.exit(0)
    threading.Thread(target=_end_with, args=(descriptor, directory, finished), daemon=True).start()


def _end_with(descriptor: int, directory: str, finished: threading.Event) -> None:
    select.select([descriptor], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
    if not finished.wait(_GRACE_SECONDS):
        _remove(directory)
        os._exit(128 + signal.SIGTERM)


def _remove(directory: str) -> None:
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
