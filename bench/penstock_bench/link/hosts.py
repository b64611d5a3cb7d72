"""
The same between test hosts, where the truth is known: the shaper's rate less what competes.

    host 0 asks, host 1 listens; hosts 2 and 3 send the competing flows, 2 to host 1 and 3 to host 0

So what competes shares the port of the switch that the streams leave by, and neither end knows of it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from penstock_bench.link.measure import WAYS, Settings
from penstock_bench.netns import NetworkTestbed
from penstock_bench.systems import BenchError

HOSTS = 4


@dataclass(frozen=True)
class Compared:
    """What was measured, beside what is so. Rates in bits per second."""

    measured: dict[str, Any]
    """As `report.document` has it."""
    truth: dict[str, float]
    """The shaper's rate, less what the competing flow really sent."""
    competing: dict[str, float]
    """What that was."""
    transfer: dict[str, float]
    """Payload of a plain TCP connection, before the measurement."""


def compare(rate: int, competing: int, size: int, settings: Settings) -> Compared:
    """
    Makes test hosts and measures between them.

    Parameters
    ----------
    rate
        Of each link, in bits per second.
    competing
        Of the competing flow, each way; 0: none.
    size
        Bytes of the TCP transfer.
    settings
        Of the measurement.

    Raises
    ------
    NetworkTestbedError
        Test hosts cannot be had here.
    BenchError
        A process ended before its work was done; `detail` is what it said.
    """
    with NetworkTestbed(hosts=HOSTS, rate=rate) as testbed, contextlib.ExitStack() as stack:
        listens = testbed.address(1)
        ports = [
            _hear(stack.enter_context(_process(testbed, host, "sink", testbed.address(host))))["port"]
            for host in (0, 1)
        ]
        flows: list[subprocess.Popen[str]] = []
        if competing:
            for host, to in ((2, 1), (3, 0)):
                arguments = (testbed.address(to), str(ports[to]), str(competing))
                flows.append(stack.enter_context(_process(testbed, host, "flow", *arguments)))
                _hear(flows[-1])
        transfer = {}
        for way, host, to in zip(WAYS, (0, 1), (1, 0), strict=True):
            sending = _process(testbed, host, "transfer", testbed.address(to), str(ports[to]), str(size))
            with sending as process:
                transfer[way] = float(_hear(process)["rate"])
        limits = (str(settings.rate), str(settings.seconds))
        listener = stack.enter_context(_process(testbed, 1, "listen", listens, *limits))
        port = str(_hear(listener)["port"])
        asking = _process(testbed, 0, "measure", listens, port, json.dumps(asdict(settings)))
        with asking as process:
            measured = _hear(process)
        used = dict.fromkeys(WAYS, 0.0)
        for way, flow in zip(WAYS, flows, strict=False):
            assert flow.stdin is not None
            flow.stdin.close()
            used[way] = float(_hear(flow)["rate"])
        truth = {way: rate - used[way] for way in WAYS}
        return Compared(measured, truth, used, transfer)


@contextlib.contextmanager
def _process(testbed: NetworkTestbed, host: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = testbed.spawn(
        host,
        [sys.executable, "-m", "penstock_bench.link.processes", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchError(f"a process of the measurement ended with {process.wait()}")
    heard: dict[str, Any] = json.loads(line)
    return heard
