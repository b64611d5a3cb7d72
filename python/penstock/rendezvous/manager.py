"""A job that a manager keeps: it names the servers, and gives out ranks where no launcher did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock.rendezvous import environment
from penstock.rendezvous.environment import Place
from penstock.rendezvous.waiting import told_if_slow


@dataclass(frozen=True)
class Introduction:
    """What the manager says of the job."""

    servers: list[str]
    rank: int
    size: int
    options: Mapping[str, str]
    """Those that count here: this process's own go before the job's."""


def introduce(manager: str, secret: str, place: Place | None, given: Mapping[str, str]) -> Introduction:
    """
    Asks the manager for the servers of the job that PENSTOCK_JOB names.

    Parameters
    ----------
    manager
        Its HOST:PORT.
    secret
        The job's.
    place
        This process, if a launcher says which it is; otherwise the manager gives it the lowest free rank.
    given
        The options that this process sets.

    Raises
    ------
    PenstockError
        What the manager says, or that it does not answer.
    """
    rank, size = (place.rank, place.size) if place is not None else (None, None)
    ca = given.get("ca", "")
    job = environment.job_name()
    with told_if_slow(f"the manager at {manager}, or for servers of the job {job!r}"):
        answer: Mapping[str, Any] = _core.connect(manager, job, secret, rank, size, ca, dict(given))
    return Introduction(
        [str(one) for one in answer["servers"]],
        int(answer["rank"]),
        int(answer["size"]),
        _core.options_under_manager(answer["options"], dict(given)),
    )
