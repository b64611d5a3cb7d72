"""What the benches between hosts share: where their processes run, their turns, the file that they write."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import count
from penstock_bench.cli.common import distance, progress
from penstock_bench.cli.network.arguments import MOST_REPEATS, MOST_ROUNDS

if TYPE_CHECKING:
    from penstock_bench.network.places import Place
    from penstock_bench.runner import Case
    from penstock_bench.systems import System


@contextlib.contextmanager
def place(given: argparse.Namespace, hosts: int) -> Iterator[Place]:
    """The test hosts, or this host."""
    from penstock_bench.netns import NetworkTestbed
    from penstock_bench.network.places import Place

    if given.hosts != "netns":
        if given.rate:
            terminal.refuse("--rate shapes the links of test hosts", "add --hosts netns")
        yield Place(None)
        return
    with NetworkTestbed(hosts=hosts, rate=given.rate) as testbed:
        yield Place(testbed)


def measure(case: Case, systems: Sequence[System], given: argparse.Namespace) -> Case:
    """All systems of a case, in turns."""
    from penstock_bench import runner

    try:
        return runner.measure(
            case,
            systems,
            rounds=count(given.rounds, "--rounds", MOST_ROUNDS),
            repeats=None if given.repeats is None else count(given.repeats, "--repeats", MOST_REPEATS),
            distance=distance,
            busy=runner.busy_cores,
            note=progress,
        )
    finally:
        progress("")
        for system in systems:
            system.end()


def write(given: argparse.Namespace, name: str, entries: list[dict[str, Any]]) -> None:
    """The JSON."""
    from penstock_bench import runner

    if given.json:
        document = {"bench": name, "machine": runner.machine(distance), "cases": entries}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
