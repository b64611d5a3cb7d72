"""`penstock job`: creates, lists, shows and deletes the jobs of a manager."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.cli import manager, terminal
from penstock.cli.numbers import count, real
from penstock.exceptions import PenstockError
from penstock.units import format_size, parse_bytes

MEMORY = "1GiB"

EXAMPLES = """\
  penstock job create mnist --workers 4 --secret-file mnist.secret
  penstock job create bert --workers 16 --servers 4 --memory 64GiB --share 0.5 --set consistency=ssp:2
  penstock job list
  penstock job show mnist --json
  penstock job delete mnist

The admin token comes from --admin-token-file or PENSTOCK_ADMIN_TOKEN; `penstock manager` keeps it in
admin.token of its state directory."""

Call = Callable[[argparse.Namespace, manager.Contact, str], int]


def parser() -> terminal.Parser:
    """The commands and their arguments."""
    result = terminal.Parser(
        "penstock job", "Jobs of a manager: each a namespace with a secret, a quota and settings.", EXAMPLES
    )
    result.usage = "penstock job (create | list | show | delete) [NAME] [options]"
    result.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help=", ".join(COMMANDS))
    return result


def _command(name: str, description: str) -> terminal.Parser:
    result = terminal.Parser(f"penstock job {name}", description, EXAMPLES)
    if name != "list":
        result.add_argument("name", metavar="NAME", help="the name of the job")
    if name == "create":
        result.add_argument("-n", "--workers", required=True, metavar="N", help="workers of the job")
        result.add_argument("-s", "--servers", default="1", metavar="K", help="servers (default 1)")
        result.add_argument(
            "--memory",
            default=MEMORY,
            metavar="BYTES",
            help=f"memory on all its servers together (default {MEMORY})",
        )
        result.add_argument(
            "--share",
            default="1",
            metavar="PART",
            help="its share of each server's bandwidth, above 0 up to 1; if the shares add up to more "
            "than 1, each is scaled down (default 1)",
        )
        result.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="OPTION=VALUE",
            help="a setting of the job, such as consistency=ssp:2; may be repeated",
        )
    if name in ("create", "show"):
        result.add_argument(
            "--secret-file",
            metavar="FILE",
            help="write the job's secret to a new file that only you may read",
        )
        result.add_argument("--print-secret", action="store_true", help="print the job's secret")
    result.add_argument("--json", action="store_true", help="print JSON")
    manager.add_contact(result, "admin")
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        if name in ("-h", "--help"):
            parser().parse_args(["--help"])
        meant = terminal.near(name, COMMANDS)
        terminal.refuse(
            f"there is no `penstock job {name}`" if name else "no command was given",
            f"did you mean `penstock job {meant}`?" if meant else f"the commands are {', '.join(COMMANDS)}",
        )
    description, call = COMMANDS[name]
    given = _command(name, description).parse_args(list(arguments[1:]))
    return call(given, manager.contact(given), manager.token(given, "admin"))


def create(given: argparse.Namespace, contact: manager.Contact, token: str) -> int:
    """Creates a job, and says how to start its workers."""
    from penstock import _core

    workers = count(given.workers, "--workers", _core.MAX_WORKERS)
    servers = count(given.servers, "--servers", _core.MAX_SERVERS)
    memory, settings = parse_bytes(given.memory, "--memory"), _settings(given.set)
    share = real(given.share, "--share", (0, 1), "a part of each server, such as 0.5", above=True)
    _core.check_options(settings)
    with SecretFile(given.secret_file) as file:
        made = _core.create_job(
            contact.address,
            token,
            given.name,
            workers,
            servers,
            memory,
            share,
            settings,
            contact.ca,
            contact.insecure,
        )
        file.write(made["secret"])
    if given.json:
        terminal.say(json.dumps(_without_secret(given, made)))
        return 0
    terminal.say(f"created {_line(made)}")
    terminal.say(_balance(made["balance"]))
    if made["state"] == "waiting":
        there = made["balance"]["servers"]
        terminal.say(
            f"it is waiting: {made['detail']}; {there} {'is' if there == 1 else 'are'} registered; "
            f"start more with `penstock server --manager {contact.address}`"
        )
    terminal.say("\nstart each worker with\n")
    for line in _environment(given, contact, made):
        terminal.say(f"    {line}")
    return 0


def listing(given: argparse.Namespace, contact: manager.Contact, token: str) -> int:
    """Lists jobs and servers."""
    from penstock import _core

    found = _core.list_jobs(contact.address, token, contact.ca, contact.insecure)
    if given.json:
        terminal.say(json.dumps(found))
        return 0
    rows = [("JOB", "STATE", "WORKERS", "SERVERS", "MEMORY", "SHARE")]
    rows += [
        (
            job["name"],
            job["state"],
            f"{_joined(job)}/{job['workers']}",
            f"{len(job['servers'])}/{job['servers_wanted']}",
            format_size(job["memory"]),
            f"{job['share']:g}",
        )
        for job in found["jobs"]
    ]
    _table(rows)
    terminal.say()
    rows = [("SERVER", "ENDPOINT", "JOBS", "LOAD", "FREE", "OF")]
    rows += [
        (
            server["id"][:8],
            server["endpoint"] if server["live"] else f"{server['endpoint']} (not responding)",
            str(server["jobs"]),
            f"{server['load']:.2f}",
            format_size(server["memory_free"]),
            format_size(server["memory"]),
        )
        for server in found["servers"]
    ]
    _table(rows)
    terminal.say()
    terminal.say(_balance(found["balance"]))
    return 0


def show(given: argparse.Namespace, contact: manager.Contact, token: str) -> int:
    """Shows a job."""
    from penstock import _core

    reveal = given.print_secret or given.secret_file is not None
    with SecretFile(given.secret_file) as file:
        job = _core.show_job(contact.address, token, given.name, reveal, contact.ca, contact.insecure)
        if reveal:
            file.write(job["secret"])
    if given.json:
        terminal.say(json.dumps(_without_secret(given, job)))
        return 0
    terminal.say(_line(job))
    terminal.say(f"state: {job['state']}" + (f" ({job['detail']})" if job["detail"] else ""))
    for name, value in job["settings"].items():
        terminal.say(f"setting: {name} = {value}")
    for index, server in enumerate(job["servers"]):
        where = server["endpoint"] or server["server"][:8]
        state = "hosts it" if server["hosted"] else "does not host it yet"
        used = f"{server['workers_joined']} workers, {format_size(server['memory_used'])}"
        terminal.say(f"server {index}: {where}, {state if server['live'] else 'not responding'}, {used}")
    if given.print_secret:
        terminal.say(f"secret: {job['secret']}")
    return 0


def delete(given: argparse.Namespace, contact: manager.Contact, token: str) -> int:
    """Deletes a job."""
    from penstock import _core

    _core.delete_job(contact.address, token, given.name, contact.ca, contact.insecure)
    terminal.say(json.dumps({"deleted": given.name}) if given.json else f"deleted {given.name}")
    return 0


COMMANDS: dict[str, tuple[str, Call]] = {
    "create": ("Creates a job and says how to start its workers.", create),
    "list": ("Lists the jobs and the servers, and how evenly the jobs are spread.", listing),
    "show": ("Shows a job.", show),
    "delete": ("Deletes a job: its servers drop it, its workers get an error.", delete),
}


class SecretFile:
    """
    A new file for a secret, created before the secret: a job whose secret cannot be kept is of no use.

    Left empty, it is removed again.

    Parameters
    ----------
    path
        Where; None for no file at all.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._file: int | None = None
        self._written = False

    def __enter__(self) -> SecretFile:
        if self._path is not None:
            try:
                # Kept open: by then another file may have the name.
                self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise PenstockError(
                    f"the secret cannot be written to {str(self._path)!r}: {error.strerror}",
                    hint="--secret-file takes a file that does not exist yet, in a folder that does",
                ) from None
        return self

    def write(self, secret: str) -> None:
        """
        Writes the secret, and a line's end.

        Raises
        ------
        PenstockError
            The name is no longer this file's: the secret is not in it.
        """
        if self._file is None:
            return
        if not self._is_there():
            raise PenstockError(
                f"the secret is not in {str(self._path)!r}: the file was removed or replaced meanwhile",
                hint="`penstock job show NAME --secret-file FILE` writes it, in a folder of your own",
            )
        with os.fdopen(os.dup(self._file), "w", encoding="ascii") as file:
            file.write(secret + "\n")
        self._written = True

    def __exit__(self, *_error: object) -> None:
        if self._path is None or self._file is None:
            return
        if not self._written and self._is_there():
            self._path.unlink(missing_ok=True)
        os.close(self._file)

    def _is_there(self) -> bool:
        if self._path is None or self._file is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._file), os.lstat(self._path))
        except OSError:
            return False


def _settings(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            terminal.refuse(f"--set {text!r} is not a setting", "write it as in --set consistency=ssp:2")
        found[name.replace("-", "_")] = value
    return found


def _environment(given: argparse.Namespace, contact: manager.Contact, job: Mapping[str, Any]) -> list[str]:
    if given.print_secret:
        secret = job["secret"]
    elif given.secret_file is not None:
        secret = f'$(cat "{Path(given.secret_file).absolute()}")'
    else:
        secret = f"...   # `penstock job show {job['name']} --secret-file FILE` writes it"
    lines = [f"export PENSTOCK_MANAGER={contact.address}", f"export PENSTOCK_JOB={job['name']}"]
    if contact.ca:
        lines.append(f"export PENSTOCK_CA={Path(contact.ca).absolute()}")
    elif contact.insecure:
        lines.append("export PENSTOCK_SECURITY=insecure")
    return [*lines, f"export PENSTOCK_SECRET={secret}", "python train.py"]


def _without_secret(given: argparse.Namespace, job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != "secret" or given.print_secret}


def _line(job: Mapping[str, Any]) -> str:
    def many(number: int, what: str) -> str:
        return f"{number} {what}" + ("" if number == 1 else "s")

    return (
        f"{job['name']}: {many(job['workers'], 'worker')}, {many(job['servers_wanted'], 'server')}, "
        f"{format_size(job['memory'])}, share {job['share']:g}"
    )


def _joined(job: Mapping[str, Any]) -> int:
    """Workers that have joined all of the job's servers."""
    return min((server["workers_joined"] for server in job["servers"]), default=0)


def _balance(balance: Mapping[str, Any]) -> str:
    if not balance["servers"]:
        return "balance: there is no server yet"
    most, mean = balance["most"], balance["mean"]
    ratio = f" ({most / mean:.2f} times)" if mean > 0 else ""
    number = balance["servers"]
    servers = f"{number} server" + ("" if number == 1 else "s")
    return f"balance: the most loaded server carries {most:.2f}, the mean of {servers} is {mean:.2f}{ratio}"


def _table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        terminal.say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
