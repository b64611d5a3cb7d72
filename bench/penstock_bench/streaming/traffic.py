"""
What each test host has sent and received, as the kernel counts it at its port of the switch: every byte,
whoever sent it, headers and what TCP sent again included.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock_bench.flow.counters import parse
from penstock_bench.netns import NetworkTestbed
from penstock_bench.systems import BenchError

_RECEIVED, _SENT = 0, 8
"""Columns of the kernel's table. What a port receives, its host has sent."""


@dataclass(frozen=True)
class Bytes:
    """By host."""

    sent: Sequence[int]
    received: Sequence[int]

    def since(self, before: Bytes) -> Bytes:
        """What was added since then."""
        return Bytes(
            [after - earlier for after, earlier in zip(self.sent, before.sent, strict=True)],
            [after - earlier for after, earlier in zip(self.received, before.received, strict=True)],
        )


class Traffic:
    """
    The counters of a testbed's hosts, as a context manager.

    A process stands in the switch's namespace, through which its table is read at any time.
    """

    def __init__(self, testbed: NetworkTestbed) -> None:
        self._testbed = testbed
        self._inside: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # It says something once it stands there: before, it is in our own namespace.
        command = [*("ip", "netns", "exec", self._testbed.switch), "sh", "-c", "echo; exec cat"]
        self._inside = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._inside.stdout is not None
        if not self._inside.stdout.readline():
            raise BenchError(f"the links' counters cannot be read: `ip` ended with {self._inside.wait()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._inside is not None:
            self._inside.communicate()

    def read(self) -> Bytes:
        """All hosts' bytes so far."""
        assert self._inside is not None
        devices = parse(Path(f"/proc/{self._inside.pid}/net/dev").read_text())
        ports = [devices[f"p{host}"] for host in range(self._testbed.hosts)]
        return Bytes([port[_RECEIVED] for port in ports], [port[_SENT] for port in ports])
