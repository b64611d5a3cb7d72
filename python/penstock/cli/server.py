"""`penstock server`: a server for the jobs that a manager gives it."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence

from penstock.cli import manager, options, terminal
from penstock.launch.ending import Stopped, stop_at_sigterm

LISTEN = "127.0.0.1:0"

EXAMPLES = """\
  penstock server --manager 127.0.0.1:7701 --server-token-file state/server.token
  penstock server --manager manager.example:7701 --ca ca.pem --listen 10.0.0.2:7700 --memory 64GiB
  penstock server --manager manager.example:7701 --ca ca.pem \\
      --listen 10.0.0.2:7700 --listen 10.1.0.2:7700                # two network interfaces

It hosts every job that the manager gives it, isolated from the others, until it is stopped. The
server token comes from --server-token-file or PENSTOCK_SERVER_TOKEN."""


def parser() -> terminal.Parser:
    """The arguments."""
    result = terminal.Parser("penstock server", "Runs a server shared by many jobs, for a manager.", EXAMPLES)
    # `--ca` is an option of the table already: it says which CAs to trust, be it for a manager or a worker.
    manager.add_contact(result, "server", required=True, ca=False)
    result.add_argument(
        "--listen",
        action="append",
        metavar="HOST:PORT",
        help=f"where workers find it; may be repeated, port 0 for any (default {LISTEN})",
    )
    result.add_argument(
        "--advertise",
        metavar="HOST:PORT",
        help="the address that workers are given instead, if they know this host by another name",
    )
    result.add_argument("--json", action="store_true", help="print where it listens as one line of JSON")
    options.add_to(result)
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    from penstock import _core
    from penstock.rendezvous import environment

    given = parser().parse_args(arguments)
    environment.check_names(tell=terminal.warning)
    given.ca, given.insecure = given.option_ca, given.insecure or given.option_security == "insecure"
    contact = manager.contact(given, required=True)
    token = manager.token(given, "server")
    settings = options.chosen(given)
    with contextlib.suppress(Stopped):
        stop_at_sigterm()
        _core.warn_on_stderr()
        service = _core.Service(given.listen or [LISTEN], settings, given.advertise)
        try:
            _tell(given, service.endpoint, contact.address)
            service.serve(contact.address, token, contact.ca, contact.insecure)
        finally:
            service.stop()
    return 0


def _tell(given: argparse.Namespace, where: str, address: str) -> None:
    if given.json:
        terminal.say(json.dumps({"endpoint": where, "manager": address}))
    else:
        terminal.say(f"server listens on {where}, for the manager at {address}")
