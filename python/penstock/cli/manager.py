"""`penstock manager`: the control plane; and what every command shares that talks to one."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.cli import terminal
from penstock.exceptions import PenstockError
from penstock.launch.ending import Stopped, stop_at_sigterm

LISTEN = "127.0.0.1:7701"
"""Where a manager listens, and is looked for, by default."""
TOKEN_FILE_BYTES = 4096
"""The most that is read of a token's file: a wrong path may name a large file."""

EXAMPLES = """\
  penstock manager --state /var/lib/penstock                       # for this host
  penstock cert --host manager.example --name manager
  penstock manager --listen 0.0.0.0:7701 --state /var/lib/penstock \\
      --certificate certificates/manager.pem --key certificates/manager.key

It keeps everything that it knows in the state directory, and continues from there when it is
restarted; running jobs do not notice. At the first start it makes the tokens for administrators and
for servers there: admin.token and server.token. Anyone who can read them may do what they allow."""

INSECURE = (
    "--insecure: everything except tokens and the secrets of jobs crosses the network in plain text. "
    "Anyone on the way can read that, or hold it back: every job's settings, where its servers are, "
    "and which jobs a server hosts. Nobody there can change what the manager answers"
)


def parser() -> terminal.Parser:
    """The arguments."""
    result = terminal.Parser(
        "penstock manager",
        "Runs the manager: it creates jobs, gives them to servers, and tells workers where the servers are.",
        EXAMPLES,
    )
    result.add_argument(
        "--listen",
        default=LISTEN,
        metavar="HOST:PORT",
        help=f"where to listen; port 0 for any (default {LISTEN})",
    )
    result.add_argument(
        "--state", required=True, metavar="DIR", help="directory for what must survive a restart"
    )
    result.add_argument("--certificate", metavar="FILE", help="its certificate as PEM; PENSTOCK_CERTIFICATE")
    result.add_argument("--key", metavar="FILE", help="the certificate's key as PEM; PENSTOCK_KEY")
    result.add_argument("--insecure", action="store_true", help="let other hosts talk to it in plain text")
    result.add_argument("--json", action="store_true", help="print where it listens as one line of JSON")
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    from penstock import _core
    from penstock.rendezvous import environment

    given = parser().parse_args(arguments)
    environment.check_names(tell=terminal.warning)
    certificate = given.certificate or os.environ.get("PENSTOCK_CERTIFICATE") or None
    key = given.key or os.environ.get("PENSTOCK_KEY") or None
    plain = insecure(given)
    _more_descriptors()
    with contextlib.suppress(Stopped):
        stop_at_sigterm()
        _core.warn_on_stderr()
        manager = _core.Manager(given.listen, given.state, certificate, key, plain)
        try:
            _tell(given, manager.address, encrypted=certificate is not None, plain=plain)
            manager.wait()
        finally:
            manager.stop()
    return 0


def _tell(given: argparse.Namespace, address: str, *, encrypted: bool, plain: bool) -> None:
    if plain and not encrypted:
        terminal.warning(INSECURE)
    tokens = {name: str((Path(given.state) / f"{name}.token").absolute()) for name in ("admin", "server")}
    if given.json:
        terminal.say(json.dumps({"address": address, "tls": encrypted, "tokens": tokens}))
        return
    terminal.say(f"manager listens on {address} ({'TLS 1.3' if encrypted else 'plain text'})")
    terminal.say(f"  admin token   {tokens['admin']}")
    terminal.say(f"  server token  {tokens['server']}")


def _more_descriptors() -> None:
    """As many as the system allows: each connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Contact(NamedTuple):
    """Which manager, and how to talk to it."""

    address: str
    ca: str
    insecure: bool


def add_contact(
    result: argparse.ArgumentParser, which: str, *, required: bool = False, ca: bool = True
) -> None:
    """
    The arguments of a command that talks to a manager and proves a token.

    Parameters
    ----------
    result
        Where to add them.
    which
        The token: "admin" or "server".
    required
        Whether the manager has to be named.
    ca
        Whether to add `--ca`; a command that has it already leaves it out.
    """
    result.add_argument(
        "--manager",
        metavar="HOST:PORT",
        help="the manager; PENSTOCK_MANAGER" + ("" if required else f" (default {LISTEN})"),
    )
    result.add_argument(
        f"--{which}-token-file",
        metavar="FILE",
        help=f"file with the {which} token; or the token itself in PENSTOCK_{which.upper()}_TOKEN",
    )
    if ca:
        result.add_argument(
            "--ca", metavar="FILE", help="the CA that signed the manager's certificate, as PEM; PENSTOCK_CA"
        )
    result.add_argument("--insecure", action="store_true", help="talk in plain text to another host")


def contact(given: argparse.Namespace, *, required: bool = False) -> Contact:
    """What the arguments and the environment say."""
    address = given.manager or os.environ.get("PENSTOCK_MANAGER") or ("" if required else LISTEN)
    if not address:
        terminal.refuse("no manager was named", "`--manager HOST:PORT`, or PENSTOCK_MANAGER")
    plain = insecure(given)
    ca = given.ca or os.environ.get("PENSTOCK_CA") or ""
    if plain and not ca:
        terminal.warning(INSECURE)
    return Contact(address, ca, plain)


def insecure(given: argparse.Namespace) -> bool:
    """Whether plain text may go to other hosts."""
    return bool(given.insecure) or os.environ.get("PENSTOCK_SECURITY") == "insecure"


def token(given: argparse.Namespace, which: str) -> str:
    """
    The token, from its file or from the environment; never from the command line, which every user of the
    host can read.

    Raises
    ------
    PenstockError
        There is none, or its file cannot be read.
    """
    path: str | None = getattr(given, f"{which}_token_file")
    variable = f"PENSTOCK_{which.upper()}_TOKEN"
    if path is None:
        value = os.environ.pop(variable, "").strip()
        if not value:
            terminal.refuse(
                f"the {which} token is missing",
                f"give --{which}-token-file FILE or set {variable}; "
                f"`penstock manager` keeps it in {which}.token of its state directory",
            )
        return value
    try:
        with Path(path).open("rb") as file:
            return file.read(TOKEN_FILE_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise PenstockError(
            f"the {which} token cannot be read from {path!r}: {error.strerror}",
            hint=f"`penstock manager` keeps it in {which}.token of its state directory",
        ) from None
