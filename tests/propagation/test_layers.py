"""`job.layers()`: where the time goes between a push and a pull."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "layers.py"
SERVERS = {"filter", "encode", "send", "receive", "decode", "fold"}


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_time_is_counted_in_the_layers_that_a_push_and_a_pull_go_through(transport: str) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "1", "--servers", "2"]
    command += ["--transport", transport, str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "server1" in line)
    before, after = json.loads(line[line.index("[{") :])
    assert set(after) == {"worker", "server0", "server1"}
    assert set(after["worker"]) == SERVERS | {"wait"}
    # On one host nothing is made into bytes, nor out of them.
    here = {"worker": {"filter", "wait"}, "server": {"filter", "fold"}}
    for who, layers in after.items():
        kind = who.rstrip("01")
        risen = {layer for layer, seconds in layers.items() if seconds > before[who][layer]}
        there = set(layers) - ({"fold"} if kind == "worker" else set())
        assert risen == (here[kind] if transport == "auto" else there), who
        assert kind == "worker" or set(layers) == SERVERS
