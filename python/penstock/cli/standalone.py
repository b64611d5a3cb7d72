"""
`penstock-server`: a server for one job, started by whoever starts its workers.

The same command as the one that `make install` installs with the C library (`crates/penstock-server`), for
hosts that have the Python package; `tests/cli/test_standalone.py` tests both.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from penstock import __version__
from penstock.cli import options, terminal
from penstock.cli.numbers import count
from penstock.launch.ending import Stopped, stop_at_sigterm
from penstock.units import digits

EXAMPLES = """\
  export PENSTOCK_SECRET=$(penstock secret)
  penstock-server --listen 10.0.0.1:7700 --workers 8
  penstock-server --socket /run/user/1000/s0 --workers 2 --servers 2 --index 0

Workers find it by PENSTOCK_SERVERS=tcp://10.0.0.1:7700, or by the socket's path. It ends with the job.
For a server that many jobs share: `penstock server`."""


def parser() -> terminal.Parser:
    """The arguments."""
    result = terminal.Parser(
        "penstock-server",
        "Serves the chunks of one job. The job's secret comes from PENSTOCK_SECRET (64 hexadecimal digits).",
        EXAMPLES,
    )
    result.add_argument("-V", "--version", action="version", version=f"penstock-server {__version__}")
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
    result.add_argument("--consistency", dest="option_consistency", metavar="VALUE", help="the job's default")
    options.add_to(result)
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    from penstock import _core
    from penstock.rendezvous import environment

    given = parser().parse_args(arguments)
    environment.check_names(tell=terminal.warning)
    if not given.socket and not given.listen:
        terminal.refuse("expected --socket or --listen", "`penstock-server --help` shows both")
    endpoint = _endpoint(given.socket, given.listen or [])
    secret = _secret(os.environ.pop("PENSTOCK_SECRET", ""))
    workers = count(given.workers, "--workers", _core.MAX_WORKERS)
    servers = count(given.servers, "--servers", _core.MAX_SERVERS)
    index = _index(given.index, servers)
    settings = options.chosen(given)
    with contextlib.suppress(Stopped):
        stop_at_sigterm()
        _core.warn_on_stderr()
        server = _core.Server(endpoint, given.job, secret, index, servers, workers, settings)
        try:
            failure = server.wait()
        finally:
            server.stop()
        if failure is not None:
            terminal.error(failure)
            return 1
    return 0


def _secret(text: str) -> str:
    hint = "`export PENSTOCK_SECRET=$(openssl rand -hex 32)`, the same for servers and workers"
    if not text:
        terminal.refuse("PENSTOCK_SECRET is not set", hint)
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        terminal.refuse(
            f"expected 64 hexadecimal digits in PENSTOCK_SECRET, got {len(text)} characters", hint
        )
    return text


def _index(text: str, servers: int) -> int:
    """This server's number among `servers`."""
    number = digits(text)
    if number is None or number >= servers:
        terminal.refuse(
            f"expected --index below {servers}, the number of servers, got {text!r}",
            f"give a number from 0 to {servers - 1}",
        )
    return number


def _is_address(text: str) -> bool:
    """Whether it is a host's name or address, that of IPv6 in brackets, and a port."""
    host, _, port = text.rpartition(":")
    number = digits(port)
    if number is None or number >= 1 << 16:
        return False
    if host.startswith("[") and host.endswith("]"):
        return ":" in host
    return host != "" and not set(host) & set(":/[]?&")


def _endpoint(socket: str | None, listen: Sequence[str]) -> str:
    """As the core reads it."""
    for address in listen:
        if not _is_address(address):
            terminal.refuse(
                f"expected --listen HOST:PORT, got {address!r}",
                "such as 10.0.0.1:7700; port 0 lets the system choose",
            )
    if not listen:
        return f"unix:{socket}" if socket else ""
    more = [f"also={address}" for address in listen[1:]] + ([f"unix={socket}"] if socket else [])
    return f"tcp://{listen[0]}" + (f"?{'&'.join(more)}" if more else "")
