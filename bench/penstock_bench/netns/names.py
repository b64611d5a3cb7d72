"""
Names of namespaces that say whose they are, so that what a dead run left behind can be found and removed.

    penstock-PID-START-RANDOM-PART       PART: sw for the switch, 0, 1, ... for the hosts

START is when the process started, in the kernel's ticks: with it a number that was given out a second time is
not mistaken for the first holder's.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

SWITCH = "sw"
_NAME = re.compile(r"penstock-(\d+)-(\d+)-[0-9a-f]{6}-(?:sw|\d+)")


def prefix() -> str:
    """What the names of one testbed of this process begin with."""
    pid = os.getpid()
    return f"penstock-{pid}-{started(pid)}-{secrets.token_hex(3)}"


def started(pid: int) -> int | None:
    """When a process started, in ticks since the host did; None if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses, which may hold anything.
    fields = status.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def abandoned(names: Iterable[str]) -> list[str]:
    """Those of `names` that are a testbed's whose process has ended."""
    left = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match and started(int(match[1])) != int(match[2]):
            left.append(name)
    return left
