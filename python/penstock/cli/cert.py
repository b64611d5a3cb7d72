"""`penstock cert`: a development CA, and certificates below it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.cli import terminal
from penstock.units import digits

DAYS = 365
MOST_DAYS = 3650

EXAMPLES = """\
  penstock cert --host manager.example --host 10.0.0.1 --name manager
  penstock cert --host node1 --name node1 --out certificates      # below the same CA
  penstock cert --host node1 --name node1 --force                 # a fresh one in its place

The first call makes the CA. Give ca.pem to everyone who connects (--ca, PENSTOCK_CA), and each server its
own certificate and key. ca.key signs for every name: keep it away from the hosts of the jobs.
Meant for development and closed clusters; if you have a CA of your own, use that instead."""


def parser() -> terminal.Parser:
    """The arguments."""
    result = terminal.Parser(
        "penstock cert", "Makes certificates for managers and servers, and a CA that signs them.", EXAMPLES
    )
    result.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="name or IP address that it is for; may be repeated",
    )
    result.add_argument(
        "--name", default="server", help="name of the files: NAME.pem, NAME.key (default server)"
    )
    result.add_argument(
        "--out", default="certificates", metavar="DIR", help="where to write (default ./certificates)"
    )
    result.add_argument(
        "--days", default=str(DAYS), metavar="N", help=f"validity, 1 to {MOST_DAYS} days (default {DAYS})"
    )
    result.add_argument(
        "--force", action="store_true", help="replace the certificate that is there (never the CA)"
    )
    result.add_argument("--json", action="store_true", help="print the paths as JSON")
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    from penstock import _core

    given = parser().parse_args(arguments)
    if not given.host:
        terminal.refuse("no host was named", "`penstock cert --host manager.example --host 10.0.0.1`")
    days = digits(given.days)
    if days is None or not 1 <= days <= MOST_DAYS:
        terminal.refuse(
            f"--days {given.days!r} is not a valid time", f"give a whole number of days from 1 to {MOST_DAYS}"
        )
    made = _core.make_certificate(given.out, given.name, given.host, days, given.force)
    paths = {name: str(made[name]) for name in ("ca", "certificate", "key")}
    if given.json:
        terminal.say(json.dumps({**paths, "ca_kept": made["ca_kept"]}))
        return 0
    terminal.say(f"certificate  {paths['certificate']} for {', '.join(given.host)}, {days} days")
    terminal.say(f"key          {paths['key']} (only you may read it)")
    terminal.say(f"CA           {paths['ca']} ({'as it was' if made['ca_kept'] else 'new'})")
    return 0
