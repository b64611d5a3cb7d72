"""
A server process: `python -m penstock.launch.server ENDPOINT INDEX SERVERS WORKERS`.

ENDPOINT is a socket's path, `tcp://HOST:PORT` (port 0: any that is free) or both. The job's name
(PENSTOCK_JOB), its secret and its options come by environment, never by the command line, which every user of
the host can read. With PENSTOCK_ANNOUNCE_FD, the endpoint at which workers find the server is written to that
descriptor, a line, as soon as it listens. From the descriptor in PENSTOCK_ENDED_FD it reads which workers'
processes have ended, a line of JSON each: [rank, how], where null is a good end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from penstock.launch.ending import Stopped, stop_at_sigterm

if TYPE_CHECKING:
    from penstock import _core

EXIT_JOB_FAILED = 3
"""The server itself is well; the job it served failed (a worker was lost). Its last line says why."""
EXIT_STOPPED = 128 + signal.SIGTERM
"""It was told to end, by anyone, before its job was over."""


def hear_of_ends(server: _core.Server, descriptor: int) -> None:
    """Passes on what the starter of the workers reports about their ends."""
    with os.fdopen(descriptor) as pipe:
        for line in pipe:
            rank, how = json.loads(line)
            server.worker_ended(rank, how)


def main() -> int:
    """Serves until the job has ended."""
    from penstock import _core
    from penstock.exceptions import PenstockError

    endpoint, index, servers, workers = sys.argv[1:]
    job = os.environ.get("PENSTOCK_JOB", "job")
    announce = os.environ.pop("PENSTOCK_ANNOUNCE_FD", "")
    ended = os.environ.pop("PENSTOCK_ENDED_FD", "")
    secret = os.environ.pop("PENSTOCK_SECRET", "")
    options = {
        option["name"]: os.environ[option["env"]]
        for option in _core.options()
        if os.environ.get(option["env"])
    }
    try:
        stop_at_sigterm()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _core.warn_on_stderr()
        server = _core.Server(endpoint, job, secret, int(index), int(servers), int(workers), options)
        if ended:
            threading.Thread(target=hear_of_ends, args=(server, int(ended)), daemon=True).start()
        if announce:
            with os.fdopen(int(announce), "w") as pipe:
                pipe.write(f"{server.endpoint}\n")
        try:
            reason = server.wait()
            # It has ended by itself: what follows says how, even if it is told to stop just now.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        finally:
            server.stop()
    except Stopped:
        return EXIT_STOPPED
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
