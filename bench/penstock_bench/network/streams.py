"""What iperf3 moves between two processes of this host: so many streams, both directions at once."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess

from penstock_bench.systems import BenchError

SECONDS = 3


def missing() -> str | None:
    """Why iperf3 cannot be asked here."""
    return None if shutil.which("iperf3") else "iperf3 was not found (apt-get install iperf3)"


def both_ways(streams: int, seconds: int = SECONDS) -> float:
    """
    Bytes per second, both directions added.

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
        end = answer["end"]
        bits = end["sum_received"]["bits_per_second"] + end["sum_received_bidir_reverse"]["bits_per_second"]
        return float(bits) / 8
    finally:
        server.kill()
        server.wait()
