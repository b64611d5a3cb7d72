"""`penstock bench tree`: broadcasts through trees. (`penstock plan --tree` plans them and sends nothing.)"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import count, counts, names
from penstock.exceptions import OptionError
from penstock.launch.ranks import RanksError
from penstock.units import parse_bytes, parse_rate
from penstock_bench.cli.common import distance, prepare_files, progress

if TYPE_CHECKING:
    from penstock.plan.trees import Planned
    from penstock_bench.netns import NetworkTestbed
    from penstock_bench.streaming.measure import Case
    from penstock_bench.streaming.report import Row
    from penstock_bench.streaming.systems import Streaming
    from penstock_bench.streaming.traffic import Traffic

SHAPES = "star,chain,striped,tree:degree=2,auto"
MOST_WORKERS = MOST_SERVERS = MOST_SHARDS = 64
MOST_TURNS = 1_000_000

EXAMPLES = """\
  penstock bench tree                                       # broadcasts by each shape of tree; needs root
  penstock bench tree --workers 8,15 --rate 100mbit --bytes 4MB --json trees.json --plot trees.png
  penstock bench tree --fail kill,hang,cut,slow --shapes chain,striped"""


def run(arguments: Sequence[str]) -> int:
    """`penstock bench tree`."""
    from penstock_bench import runner
    from penstock_bench.streaming import faults, report
    from penstock_bench.streaming.measure import Case
    from penstock_bench.streaming.systems import PEERS, testbed
    from penstock_bench.streaming.traffic import Traffic

    given = _parser().parse_args(arguments)
    given.shapes = shapes(given.shapes)
    given.peers = [] if given.peers == "none" else names(given.peers, "peer", PEERS)
    given.fail = names(given.fail, "fault", faults.FAULTS) if given.fail else []
    workers = counts(given.workers, "--workers", MOST_WORKERS)
    given.servers = count(given.servers, "--servers", MOST_SERVERS)
    given.shards = count(given.shards, "--shards", MOST_SHARDS)
    given.rounds = count(given.rounds, "--rounds", MOST_TURNS)
    given.repeats = count(given.repeats, "--repeats", MOST_TURNS)
    rate, nbytes = _rate(given.rate), _bytes(given.bytes)
    if given.fail and given.plot:
        terminal.refuse("--plot draws no faults", "leave --fail or --plot out")
    plans = {number: _plans(given, number, nbytes, rate) for number in workers}
    prepare_files(given)

    machine = runner.machine(distance)
    drawn: list[tuple[Case, Sequence[Row]]] = []
    documents: list[dict[str, Any]] = []
    is_good = True
    for number in workers:
        case = Case(number, given.servers, nbytes, rate)
        with testbed(number, given.servers, rate) as hosts, Traffic(hosts) as traffic:
            if given.fail:
                document, rows = _faults(given, case, hosts, traffic)
            else:
                document, rows = _measure(given, case, hosts, traffic, plans[number])
        progress("")
        documents.append(document)
        if rows:
            drawn.append((case, rows))
        terminal.say(report.load(case, machine["cores"]))
        if case.absent:
            terminal.say(report.absent(case))
        terminal.say("")
        is_good &= not case.failed and bool(document.get("systems") or document.get("faults"))
        if given.json:
            text = {"bench": "tree", "cases": documents, "machine": machine}
            given.json.write_text(json.dumps(text, indent=1) + "\n")
    terminal.say(report.FAULTS_LEGEND if given.fail else report.LEGEND)
    if given.plot and drawn:
        from penstock_bench.streaming import plot

        plot.draw(drawn, given.plot)
    return int(not is_good)


BENCHES: dict[str, Callable[[Sequence[str]], int]] = {"tree": run}


def _plans(given: argparse.Namespace, workers: int, nbytes: int, rate: int) -> dict[str, Planned]:
    """What the planner predicts of each shape for so many workers, before anything is measured."""
    from penstock_bench.streaming import theory

    plans = {}
    for shape in given.shapes:
        try:
            plans[shape] = theory.predicted(shape, workers, nbytes, rate, given.servers)
        except OptionError as error:
            what = (
                f"--shapes {shape!r} cannot be had for {workers} worker{'' if workers == 1 else 's'}: {error}"
            )
            terminal.refuse(what, "name other --shapes or --workers")
    return plans


def _measure(
    given: argparse.Namespace,
    case: Case,
    hosts: NetworkTestbed,
    traffic: Traffic,
    plans: Mapping[str, Planned],
) -> tuple[dict[str, Any], Sequence[Row]]:
    from penstock_bench.network.places import Place
    from penstock_bench.runner import busy_cores
    from penstock_bench.streaming import measure, report
    from penstock_bench.streaming.systems import GLOO, LINK, Gloo, Link, System

    place = Place(hosts)
    peers: dict[str, type[System]] = {LINK: Link, GLOO: Gloo}
    systems: list[System] = [peers[name](place, case.workers, case.nbytes) for name in given.peers]
    systems += [_streaming(given, case, hosts, shape, {}) for shape in given.shapes]
    measure.measure(
        case,
        systems,
        traffic,
        rounds=given.rounds,
        repeats=given.repeats,
        busy=busy_cores,
        note=progress,
    )
    progress("")
    rows = report.rows(case, plans)
    terminal.say(report.head(case, _security(given)))
    if rows:
        terminal.say(report.table(case, rows))
    if said := report.wishes(rows):
        terminal.say(said)
    return report.document(case, rows), rows


def _faults(
    given: argparse.Namespace, case: Case, hosts: NetworkTestbed, traffic: Traffic
) -> tuple[dict[str, Any], Sequence[Row]]:
    from penstock_bench.runner import busy_cores
    from penstock_bench.streaming import faults, report

    outcomes = []
    for fault in given.fail:
        for shape in given.shapes:
            case.busy.append(busy_cores())
            system = _streaming(given, case, hosts, shape, faults.options(fault))
            name = f"{shape}, {fault}"
            try:
                outcomes.append(faults.run(system, fault, hosts, traffic, progress))
            except faults.NoInnerNodeError:
                case.absent[name] = "no worker passes anything on"
            except RanksError as error:
                case.absent[name], case.failed[name] = f"failed: {error}", error.detail
    progress("")
    terminal.say(report.head(case, _security(given)))
    if outcomes:
        terminal.say(report.outcomes(outcomes))
    return report.fault_document(case, outcomes), []


def _streaming(
    given: argparse.Namespace, case: Case, hosts: NetworkTestbed, shape: str, more: dict[str, str]
) -> Streaming:
    from penstock_bench.network.places import Place
    from penstock_bench.streaming.systems import Streaming

    options = {"PENSTOCK_SHARDS": str(given.shards), **more}
    if given.plain:
        options["PENSTOCK_SECURITY"] = "insecure"
    return Streaming(
        Place(hosts), case.workers, case.nbytes, shape=shape, number=case.servers, options=options
    )


def _security(given: argparse.Namespace) -> str:
    return "in the clear" if given.plain else "under TLS"


def shapes(text: str) -> list[str]:
    """
    `star,tree:degree=2,depth=3`: the shapes, each once. A part without a name belongs to the one before.

    Examples
    --------
    >>> shapes("star,tree:degree=2,depth=3,striped:4")
    ['star', 'tree:degree=2,depth=3', 'striped:4']
    """
    from penstock import _core

    found: list[str] = []
    for part in map(str.strip, text.split(",")):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    for shape in found:
        try:
            _core.check_options({"tree": shape})
        except OptionError as error:
            terminal.refuse(f"--shapes {shape!r}: {error}", f"such as {SHAPES}, or striped:4")
    return list(dict.fromkeys(found))


def _rate(text: str) -> int:
    rate = parse_rate(text, "--rate")
    if not rate:
        terminal.refuse(f"--rate {text!r} lets nothing through", "give a rate above 0, such as 1gbit")
    return rate


def _bytes(text: str) -> int:
    from penstock_bench.streaming.rank import shape_of

    nbytes = parse_bytes(text, "--bytes")
    try:
        shape_of(nbytes)
    except ValueError as error:
        terminal.refuse(f"--bytes {text!r}: {error}", "such as 16MB or 16MiB")
    return nbytes


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench tree",
        "A server broadcasts a value to workers on test hosts, by each shape of tree in turn: time beside\n"
        "one link's transfer of the same bytes, and who sends how much. `penstock plan --tree` only plans.",
        EXAMPLES,
    )
    parser.add_argument("--hosts", choices=("netns",), default="netns", help=argparse.SUPPRESS)
    parser.add_argument(
        "--workers", default="4", metavar="N,...", help="each on a host of its own; default 4"
    )
    parser.add_argument("--servers", default="1", help="default 1")
    parser.add_argument("--shards", default="1", help="of each server; default 1")
    parser.add_argument("--rate", default="1gbit", help="of each link, each way; default 1gbit")
    parser.add_argument("--bytes", default="16MB", metavar="SIZE", help="of the value; default 16MB")
    parser.add_argument("--shapes", default=SHAPES, metavar="SHAPE,...", help=f"default {SHAPES}")
    parser.add_argument("--peers", default="link,gloo", metavar="NAME,...", help="default link,gloo; or none")
    parser.add_argument("--rounds", default="3", help="turns of each system; default 3")
    parser.add_argument("--repeats", default="5", help="broadcasts in a turn; default 5")
    parser.add_argument(
        "--fail", metavar="FAULT,...", help="instead: kill, hang, cut or slow a worker that passes values on"
    )
    parser.add_argument("--plain", action="store_true", help="no TLS between hosts (security=insecure)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    return parser
