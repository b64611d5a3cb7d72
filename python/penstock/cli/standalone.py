"""
`penstock-server`: a server for one job, that whoever starts its workers starts too.

The same command as the one that `make install` puts beside the C library, for hosts that have the Python
package.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from penstock.cli import options, terminal
from penstock.cli.run import count

EXAMPLES = """\
  export PENSTOCK_SECRET=$(penstock secret)
  penstock-server --listen 10.0.0.1:7700 --workers 8
  penstock-server --socket /run/user/1000/s0 --workers 2 --servers 2 --index 0

Workers find it by PENSTOCK_SERVERS=tcp://10.0.0.1:7700, or by the socket's path. It ends with the job.
For a server that many jobs share: `penstock server`."""


class _Stopped(BaseException):
    """SIGTERM: an orderly end."""


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Stopped


def parser() -> terminal.Parser:
    """The arguments."""
    result = terminal.Parser(
        "penstock-server",
        "Homes the chunks of one job. The job's secret is read from PENSTOCK_SECRET (64 hexadecimal digits).",
        EXAMPLES,
    )
    result.add_argument("--socket", metavar="PATH", help="path of a Unix socket, for workers on this host")
    result.add_argument(
        "--listen",
        action="append",
        metavar="HOST:PORT",
        help="where to listen for workers on other hosts; may be repeated, for several interfaces",
    )
    result.add_argument("--job", default="job", metavar="NAME", help="the job's name (default job)")
    for name, what in (("workers", "workers of the job"), ("servers", "servers of the job")):
        result.add_argument(f"--{name}", default="1", metavar="N", help=f"{what} (default 1)")
    result.add_argument("--index", default="0", metavar="N", help="this server's number, from 0 (default 0)")
    options.add_to(result)
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    from penstock import _core

    given = parser().parse_args(arguments)
    if not given.socket and not given.listen:
        terminal.refuse("expected --socket or --listen", "`penstock-server --help` shows both")
    secret = os.environ.pop("PENSTOCK_SECRET", "")
    if not secret:
        terminal.refuse("PENSTOCK_SECRET is not set", "`export PENSTOCK_SECRET=$(penstock secret)`")
    workers = count(given.workers, "--workers", _core.MAX_WORKERS)
    servers = count(given.servers, "--servers", _core.MAX_SERVERS)
    index = count(str(int(given.index) + 1) if given.index.isdigit() else given.index, "--index", servers) - 1
    settings = options.chosen(given)
    with contextlib.suppress(_Stopped):
        signal.signal(signal.SIGTERM, _stop)
        endpoint = _endpoint(given.socket, given.listen or [])
        server = _core.Server(endpoint, given.job, secret, index, servers, workers, settings)
        try:
            failure = server.wait()
        finally:
            server.stop()
        if failure is not None:
            terminal.error(failure)
            return 1
    return 0


def _endpoint(socket: str | None, listen: Sequence[str]) -> str:
    """As the core reads it."""
    if not listen:
        return socket or ""
    more = [f"also={address}" for address in listen[1:]] + ([f"unix={socket}"] if socket else [])
    return f"tcp://{listen[0]}" + (f"?{'&'.join(more)}" if more else "")
