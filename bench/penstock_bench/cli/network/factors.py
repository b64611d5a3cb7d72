"""`penstock bench factors`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import counts, names
from penstock.units import digits, format_ratio, format_time, parse_rate
from penstock_bench.cli.common import prepare_files
from penstock_bench.cli.network.arguments import EXAMPLES, add_rounds, security
from penstock_bench.cli.network.hosts import measure, place, write

if TYPE_CHECKING:
    from penstock_bench.network.systems import NetworkFactors
    from penstock_bench.runner import Case

MOST_WORKERS = 32
MOST_RANK = 1024
"""What a tensor can be declared with."""
LEGEND = """\
  received, sent: MB of a worker's connections in an iteration, as its own counters say. pull: the matrix
  comes down; update-sums: what its optimizer was given; update: the factors of all workers.
  of pull: its time"""


def run(arguments: Sequence[str]) -> int:
    """`penstock bench factors`."""
    from penstock_bench.network.factors import WAYS
    from penstock_bench.network.systems import NetworkFactors
    from penstock_bench.runner import Case

    given = _parser().parse_args(arguments)
    rows, columns = _shape(given.shape)
    workers = counts(given.workers, "--workers", MOST_WORKERS)
    thin = counts(given.rank, "--rank", MOST_RANK)
    ways = names(given.ways, "way", WAYS)
    chosen = {**security(given), "PENSTOCK_TRANSPORT": "tcp", "PENSTOCK_PIN": "off"}
    if given.rate:
        parse_rate(given.rate, "--rate")
    prepare_files(given)

    entries: list[dict[str, Any]] = []
    failed = False
    for number in workers:
        for rank in thin:
            case = Case(4 * rows * columns, number)
            with place(given, number + 1) as where:
                systems = [NetworkFactors(way, where, (rows, columns), rank, chosen) for way in ways]
                measure(case, systems, given)
            failed |= _say(given, case, systems, rank)
            entries.append(_entry(given, case, systems, rank))
    terminal.say(LEGEND)
    write(given, "factors", entries)
    return int(failed)


def _say(given: argparse.Namespace, case: Case, systems: Sequence[NetworkFactors], rank: int) -> bool:
    """Prints a case; whether something failed."""
    from penstock_bench.network import report

    where = "test hosts" if given.hosts == "netns" else "the loopback"
    link = f", links of {given.rate}" if given.rate else ""
    workers = "1 worker" if case.workers == 1 else f"{case.workers} workers"
    others = max((one.busy for one in case.rounds), default=0.0)
    terminal.say(
        f"factors {given.shape} f32, rank {rank}, {workers}, {where}{link}; others used {others:.0%}"
    )
    spreads = case.spreads()
    lines = [["system", "received", "sent", "median", "min", "max", "IQR/2", "repeats", "of pull"]]
    for system in systems:
        if (spread := spreads.get(system.name)) is None or system.moved is None:
            continue
        pull = spreads.get("pull")
        lines.append(
            [
                system.name,
                *(f"{moved / 1e6:.2f}" for moved in (system.moved.received, system.moved.sent)),
                *map(format_time, (spread.median, spread.least, spread.most)),
                f"{spread.relative:.0%}",
                str(spread.repeats),
                "-" if pull is None else format_ratio(spread.median / pull.median),
            ]
        )
    if len(lines) > 1:
        terminal.say(report.columns(lines))
    if case.absent:
        terminal.say(report.absent(case))
    digests = {digest for system in systems for digest in system.digests}
    if len(digests) > 1:
        terminal.error("the workers, or the ways, did not come to the same bits")
    return bool(case.failed) or len(lines) == 1 or len(digests) > 1


def _entry(
    given: argparse.Namespace, case: Case, systems: Sequence[NetworkFactors], rank: int
) -> dict[str, Any]:
    from penstock_bench.network import report

    moved = {system.name: vars(system.moved) for system in systems if system.moved is not None}
    more = {"shape": given.shape, "rank": rank, "rate": given.rate, "hosts": given.hosts, "moved": moved}
    return report.document(case, report.lines(case, {}), **more)


def _shape(text: str) -> tuple[int, int]:
    """`4096x4096`."""
    parts = [digits(part) or 0 for part in text.split("x")]
    if len(parts) != 2 or 0 in parts:
        terminal.refuse(f"--shape {text!r} is not a matrix", "give rows and columns, such as 4096x4096")
    return parts[0], parts[1]


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench factors",
        "Workers push factors of a matrix under Adam: bytes and time where the matrix comes down, where the\n"
        "optimizer's sums do, and where the factors do.",
        EXAMPLES,
    )
    parser.add_argument("--shape", default="4096x4096", help="rows and columns; default 4096x4096")
    parser.add_argument("--rank", default="4,32", metavar="R,...", help="of the factors; default 4,32")
    parser.add_argument("--workers", default="2", metavar="N,...", help="default 2")
    parser.add_argument("--ways", default="pull,update-sums,update", metavar="NAME,...", help="default: all")
    parser.add_argument("--hosts", choices=("netns", "loopback"), default="loopback", help=argparse.SUPPRESS)
    parser.add_argument(
        "--rate", help="of each test host's link, each way, such as 1gbit (with --hosts netns)"
    )
    parser.add_argument("--plain", action="store_true", help="no TLS between hosts (security=insecure)")
    parser.add_argument("--tls", action="store_true", help="TLS on the loopback too (security=tls)")
    parser.add_argument("--repeats", help="iterations in a turn; default: what fits into 0.4 s, at least 3")
    add_rounds(parser)
    parser.set_defaults(plot=None)
    return parser
