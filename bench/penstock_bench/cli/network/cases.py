"""A case for each number of workers, printed, written and drawn: `pushpull` and `zero-compute`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import count
from penstock.units import format_size, parse_rate
from penstock_bench.cli.common import prepare_files
from penstock_bench.cli.network.arguments import MORE_PEERS, MOST, PEERS, security, topologies
from penstock_bench.cli.network.hosts import measure, place, write

if TYPE_CHECKING:
    from penstock_bench.network.places import Place
    from penstock_bench.network.report import Line
    from penstock_bench.runner import Case
    from penstock_bench.systems import System


def run(
    given: argparse.Namespace,
    name: str,
    nbytes: int,
    layers: list[int] | None,
    workers: list[int],
    systems: list[str],
    *,
    rate: bool,
) -> int:
    """Measures and prints a case for each number of workers."""
    from penstock_bench.network import report
    from penstock_bench.runner import Case

    kinds, chosen = topologies(given.topology), security(given)
    prepare_files(given)
    link = None if given.rate is None else parse_rate(given.rate, "--rate")
    entries: list[dict[str, Any]] = []
    drawn: list[tuple[int, list[Line]]] = []
    failed = False
    for number in workers:
        servers = number if given.servers is None else count(given.servers, "--servers", MOST)
        case = Case(nbytes, number)
        with place(given, number + max(servers, 1)) as where:
            turns = _turns(where, systems, kinds, servers, layers, chosen)
            measure(case, turns, given)
        ideals = _ideals(case, kinds, servers, link)
        measured = report.lines(case, ideals)
        where_said = "test hosts" if given.hosts == "netns" else "the loopback"
        link_said = f", links of {given.rate}" if given.rate else ""
        workers_said = "1 worker" if number == 1 else f"{number} workers"
        terminal.say(f"{name}, {format_size(nbytes)} f32, {workers_said}, {where_said}{link_said}")
        if measured:
            terminal.say(report.table(measured, rate=rate))
        if case.absent:
            terminal.say(report.absent(case))
        failed |= bool(case.failed) or not measured
        entries.append(report.document(case, measured, topologies=kinds, rate=link, servers=servers))
        drawn.append((number, measured))
    write(given, name, entries)
    if given.plot and any(measured for _, measured in drawn):
        from penstock_bench.network import plot

        plot.exchanges(drawn, name, given.plot)
    return int(failed)


def _turns(
    where: Place,
    systems: Sequence[str],
    kinds: Sequence[str],
    servers: int,
    layers: list[int] | None,
    options: dict[str, str],
) -> list[System]:
    from penstock_bench.network.systems import NetworkGloo, NetworkMpi, NetworkPenstock

    turns: list[System] = []
    for name in systems:
        if name == "penstock":
            # On the loopback everything stands on one host: TCP is what is measured.
            alone = {} if where.testbed is not None else {"PENSTOCK_TRANSPORT": "tcp"}
            turns += [
                NetworkPenstock(
                    f"penstock {kind}",
                    where,
                    layers,
                    topology=kind,
                    servers=servers,
                    options={**options, **alone},
                )
                for kind in kinds
            ]
        elif name.startswith("gloo"):
            turns.append(NetworkGloo(name, where, layers))
        else:
            turns.append(NetworkMpi(name, where, layers))
    return turns


def _ideals(case: Case, kinds: Sequence[str], servers: int, link: int | None) -> dict[str, float]:
    from penstock_bench.network import ideal

    if link is None:
        return {}
    ideals = {
        f"penstock {kind}": ideal.seconds(kind, case.nbytes, case.workers, servers, link) for kind in kinds
    }
    # An all-reduce moves what cs moves.
    reduced = ideal.seconds("cs", case.nbytes, case.workers, servers, link)
    ideals |= dict.fromkeys((*PEERS, *MORE_PEERS), reduced)
    return {name: seconds for name, seconds in ideals.items() if seconds > 0}
