"""A job that a manager keeps: it names the servers, and gives out ranks where no launcher did."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock import _core
from penstock.exceptions import NotUnderLauncher
from penstock.rendezvous import environment
from penstock.rendezvous.environment import Place


@dataclass(frozen=True)
class Introduction:
    """What the manager says of the job."""

    servers: list[str]
    rank: int
    size: int
    options: Mapping[str, str]


def introduce(manager: str, place: Place | None, given: Mapping[str, str]) -> Introduction:
    """
    Asks the manager for the servers of the job that PENSTOCK_JOB and PENSTOCK_SECRET name.

    Parameters
    ----------
    manager
        Its HOST:PORT.
    place
        This process, if a launcher says which it is; otherwise the manager gives it the lowest free rank.
    given
        The options that this process sets.

    Raises
    ------
    NotUnderLauncher
        There is no PENSTOCK_JOB or no PENSTOCK_SECRET.
    PenstockError
        What the manager says, or that it does not answer.
    """
    if not os.environ.get("PENSTOCK_JOB"):
        raise NotUnderLauncher(
            f"PENSTOCK_MANAGER names the manager at {manager}, but PENSTOCK_JOB is not set",
            "set PENSTOCK_JOB to the job's name, as `penstock job list` shows it",
        )
    secret = environment.secret()
    if secret is None:
        raise NotUnderLauncher(
            f"PENSTOCK_MANAGER names the manager at {manager}, but PENSTOCK_SECRET is not set",
            "`penstock job create` writes the job's secret; give it to every worker as PENSTOCK_SECRET",
        )
    rank, size = (place.rank, place.size) if place is not None else (None, None)
    answer = _ask(manager, environment.job_name(), secret, rank, size, given)
    return Introduction(
        [str(one) for one in answer["servers"]],
        int(answer["rank"]),
        int(answer["size"]),
        {str(name): str(value) for name, value in dict(answer["options"]).items()},
    )


def _ask(
    manager: str, job: str, secret: str, rank: int | None, size: int | None, given: Mapping[str, str]
) -> Mapping[str, Any]:
    ca = given.get("ca", "")
    answer: Mapping[str, Any] = _core.connect(manager, job, secret, rank, size, ca, dict(given))
    return answer
