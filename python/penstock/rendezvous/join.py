"""What `penstock.init` does: finds the servers of this process's job, and joins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from penstock import _core
from penstock.exceptions import JobFull
from penstock.rendezvous import alone, environment
from penstock.rendezvous.environment import Place, Way
from penstock.rendezvous.waiting import told_if_slow


def join(given: dict[str, str]) -> _core.Job:
    """
    Joins the job that this process was started for, with the options that it sets; alone, embeds a server.

    Errors are those of `penstock.init`.
    """
    environment.check_names()
    way = environment.way()
    place, secret = way.place, way.secret
    if way.kind == "servers" and place is not None and secret is not None:
        return connect(way.to, secret, place.rank, place.size, given)
    if way.kind == "manager" and secret is not None:
        return _by_manager(way.to[0], secret, place, given)
    if way.kind != "alone" and place is not None:
        return _by_each_other(way, place, given)
    # A process that is alone has no use for PENSTOCK_TOPOLOGY, but a wrong value is refused all the same.
    environment.topology()
    job = _core.Job.embedded(given)
    if place is None:
        alone.say()
    return job


def _by_manager(manager: str, secret: str, place: Place | None, given: Mapping[str, str]) -> _core.Job:
    """A manager names the servers."""
    from penstock.rendezvous.manager import introduce

    known = introduce(manager, secret, place, given)
    return connect(known.servers, secret, known.rank, known.size, known.options)


def _by_each_other(way: Way, place: Place, given: Mapping[str, str]) -> _core.Job:
    """The processes of the job find each other, and start the servers."""
    from penstock.limit import Limit
    from penstock.rendezvous import choose
    from penstock.rendezvous.assemble import assemble

    _core.check_options(given)
    deadline = Limit(float(given.get("deadline") or _default("deadline")))
    exchange = choose.exchange(way, place, deadline)
    try:
        found = assemble(place, exchange, given, deadline)
    finally:
        exchange.close()
    try:
        return connect(found.servers, found.secret, place.rank, place.size, given)
    except BaseException:
        if found.own is not None:
            found.own.end()
        raise


def connect(servers: Sequence[str], secret: str, rank: int, size: int, given: Mapping[str, str]) -> _core.Job:
    """Joins by the servers' endpoint strings."""
    try:
        with told_if_slow(f"{'servers' if len(servers) > 1 else 'the server'} at {', '.join(servers)}"):
            return _core.Job.connect(servers, environment.job_name(), secret, rank, size, given)
    except JobFull as error:
        raise _of_a_child(error) or error from None


def _of_a_child(error: JobFull) -> JobFull | None:
    """The same with the likely cause, where a worker's own child process wanted to join with its place."""
    parent = _parent()
    if parent is None:
        return None
    return JobFull(
        f"{error}; this process ({os.getpid()}) was started by process {parent} with its environment",
        "a child process is not a worker by itself: call `ps.init()` only in the process that the launcher "
        "started (under `if __name__ == '__main__':` if the start method is `spawn` or "
        "`forkserver`), or remove "
        "PENSTOCK_SERVERS, PENSTOCK_MANAGER, PENSTOCK_RENDEZVOUS, PENSTOCK_RANK and PENSTOCK_SIZE from the "
        "child's environment, which makes it a job of its own",
    )


def _parent() -> int | None:
    """The process that multiprocessing started this one for, if it did."""
    if (parent := getattr(sys.modules.get("multiprocessing"), "parent_process", lambda: None)()) is not None:
        return int(parent.pid)
    # Under `spawn` and `forkserver` a script that joins without looking at its `__name__` does so while the
    # child is prepared: its parent is not known yet.
    process = sys.modules.get("multiprocessing.process")
    being = getattr(process, "current_process", lambda: None)()
    return os.getppid() if getattr(being, "_inheriting", False) else None


def _default(name: str) -> str:
    return next(str(option["default"]) for option in _core.options() if option["name"] == name)
