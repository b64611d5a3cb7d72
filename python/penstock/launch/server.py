"""
A server process: `python -m penstock.launch.server PATH INDEX SERVERS WORKERS`.

The job's secret and its options come by environment, never by the command line, which every user of the host
can read.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

EXIT_JOB_FAILED = 3
"""The server itself is well; the job it served failed (a worker was lost). Its last line says why."""


class _Stopped(BaseException):
    """The launcher said that the job is over."""


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stopped


def main() -> int:
    """Serves until the job has ended."""
    from penstock import _core
    from penstock.exceptions import PenstockError

    path, index, servers, workers = sys.argv[1:]
    secret = os.environ.pop("PENSTOCK_SECRET", "")
    options = {
        option["name"]: os.environ[option["env"]]
        for option in _core.options()
        if os.environ.get(option["env"])
    }
    try:
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server = _core.Server(path, secret, int(index), int(servers), int(workers), options)
        try:
            reason = server.wait()
        finally:
            server.stop()
    except _Stopped:
        return 0
    except PenstockError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {str(error).split(chr(10) + 'hint: ')[0]}{hint}\n")
        return 1
    if reason is not None:
        sys.stderr.write(f"the job failed: {reason}\n")
        return EXIT_JOB_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
