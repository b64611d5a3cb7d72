"""`ip` and `tc`, run one at a time with a deadline; what they say when they fail becomes the error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from penstock_bench.netns.errors import NetworkTestbedError

DEADLINE = 30.0
"""Seconds for one command: each takes milliseconds; the kernel may hold one up while it removes others."""

_ADMINISTRATOR = 12
"""CAP_NET_ADMIN: make and change interfaces."""
_SYSTEM = 21
"""CAP_SYS_ADMIN: make namespaces and enter them."""


def run(*command: str, check: bool = True) -> str:
    """
    Runs one command and returns what it printed.

    Raises
    ------
    NetworkTestbedError
        It failed (where `check`), or did not end before the deadline; the text has what it said.
    """
    said = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False
        )
    except subprocess.TimeoutExpired:
        raise NetworkTestbedError(
            f"`{said}` did not end within {DEADLINE:g} s", "look at `dmesg`: the kernel may hold an interface"
        ) from None
    except OSError as error:
        raise NetworkTestbedError(
            f"`{said}` could not be run: {error.strerror or error}", missing()
        ) from None
    if check and done.returncode:
        raise NetworkTestbedError(f"`{said}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def missing() -> str | None:
    """
    Why there can be no test hosts here; None if there can be.

    Looks, and changes nothing: that the kernel refuses all the same is possible, and told when it does.
    """
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"`{tool}` was not found (apt-get install iproute2)"
    if not Path("/proc/self/ns/net").exists():
        return "this kernel has no network namespaces"
    held = _capabilities()
    if held is None:
        return None if os.geteuid() == 0 else "only root may make network namespaces"
    if not (held >> _ADMINISTRATOR & 1 and held >> _SYSTEM & 1):
        return (
            "network namespaces need root, or the capabilities CAP_NET_ADMIN and CAP_SYS_ADMIN "
            "(docker run --privileged)"
        )
    return None


def _capabilities() -> int | None:
    """The effective capabilities of this process, a bit each; None if the kernel does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), None)
