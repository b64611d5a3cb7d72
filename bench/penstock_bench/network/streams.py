"""What iperf3 moves between two processes of this host: so many streams, both directions at once."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

from penstock_bench.systems import BenchError

SECONDS = 3


@dataclass(frozen=True)
class Moved:
    """What both processes moved, both directions added."""

    rate: float
    """Bytes per second."""
    processor_per_gb: float
    """Processor seconds of both for each GB."""


def mean(one: Moved, other: Moved) -> Moved:
    """Of two measurements."""
    processor = (one.processor_per_gb + other.processor_per_gb) / 2
    return Moved((one.rate + other.rate) / 2, processor)


def missing() -> str | None:
    """Why iperf3 cannot be asked here."""
    return None if shutil.which("iperf3") else "iperf3 was not found (apt-get install iperf3)"


def both_ways(streams: int, seconds: int = SECONDS) -> Moved:
    """
    Measures.

    Raises
    ------
    BenchError
        iperf3 failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-p", port, "--forceflush"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            if "listening" in line:
                break
        command = [
            "iperf3",
            "-c",
            "127.0.0.1",
            "-p",
            port,
            "-t",
            str(seconds),
            "-P",
            str(streams),
            "--bidir",
            "-J",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30)
        answer = json.loads(done.stdout or "{}")
        if done.returncode != 0 or "end" not in answer:
            raise BenchError(f"iperf3 failed: {answer.get('error', done.stderr.strip())}")
        return read(answer["end"])
    finally:
        server.kill()
        server.wait()


def read(end: dict[str, Any]) -> Moved:
    """What iperf3 says at its end: rates in bits, processor time in percent of the time that passed."""
    bits = sum(
        end[received]["bits_per_second"] for received in ("sum_received", "sum_received_bidir_reverse")
    )
    busy = sum(end["cpu_utilization_percent"][side] for side in ("host_total", "remote_total")) / 100
    return Moved(bits / 8, busy / (bits / 8e9))
