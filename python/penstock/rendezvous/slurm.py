"""
Where the tasks of a Slurm step meet.

Slurm tells each task which one it is, but offers no exchange that works without its libraries: the tasks meet
by our own rendezvous, on the first node of the step, at a port that the job's and the step's numbers give.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.exceptions import NotUnderLauncher
from penstock.rendezvous.environment import PAGES, text, whole_number
from penstock.units import digits

_FIRST_PORT, _PORTS = 20000, 10000
"""Below the ports that Linux gives to outgoing connections (32768 on)."""


def rendezvous_address(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """
    Host and port for the step's tasks.

    Raises
    ------
    OptionError
        One of them is not UTF-8.
    NotUnderLauncher
        Slurm's variables do not name the nodes or the job.
    """
    nodes = text("SLURM_STEP_NODELIST", environment) or text("SLURM_JOB_NODELIST", environment)
    if not nodes or not environment.get("SLURM_JOB_ID"):
        raise NotUnderLauncher(
            "SLURM_PROCID says that srun started this process, but SLURM_STEP_NODELIST and SLURM_JOB_ID do "
            "not say where its tasks meet",
            f"set PENSTOCK_RENDEZVOUS=HOST:PORT, HOST being rank 0's; see {PAGES['srun']}",
        )
    job = whole_number("SLURM_JOB_ID", environment)
    step = environment.get("SLURM_STEP_ID", "0")
    offset = job * 101 + (digits(step) or 0)
    return first_host(nodes), _FIRST_PORT + offset % _PORTS


def first_host(nodes: str) -> str:
    """
    The first host of Slurm's short form of a list.

    Examples
    --------
    >>> first_host("gpu[007-012,020],login1")
    'gpu007'
    >>> first_host("rack[2-3]n[1-4]-ib,x")
    'rack2n1-ib'
    """
    host = ""
    rest = nodes
    while rest and not rest.startswith(","):
        if rest.startswith("["):
            inside, _, rest = rest[1:].partition("]")
            host += inside.split(",")[0].split("-")[0]
        else:
            ends = [at for at in (rest.find("["), rest.find(",")) if at >= 0]
            end = min(ends, default=len(rest))
            host, rest = host + rest[:end], rest[end:]
    return host
