"""`penstock bench items` and `penstock bench straggler`: item tables beside hand-written MPI, and slack."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import terminal
from penstock.cli.numbers import count, counts, names, real
from penstock.exceptions import OptionError
from penstock.launch.ranks import RanksError
from penstock.units import digits, parse_bytes
from penstock_bench.cli.common import NEIGHBOUR, distance, failed, prepare_files, progress

if TYPE_CHECKING:
    from penstock_bench.items.runner import Measured
    from penstock_bench.items.systems import System

SIZES = "8,64,1KiB,8KiB,64KiB"
CONSUMERS = "1,2,4"
TRANSPORTS = ("shm", "tcp")
PROPAGATIONS = ("eager", "lazy", "bounded")
SYSTEMS = ("penstock", "mpi", "limit")
MOST_ROW = 1 << 20
"""Bytes of a row: larger ones are tensors."""
MOST_BATCH = 4096
MOST_CONSUMERS = 16
MOST_SLACK = 1 << 20
WHO = ("any", "last")
STANDARD_OUTPUT = Path("-")

EXAMPLES = """\
  penstock bench items --plot items.png                     # item tables beside MPI_Put, MPI_Get and messages
  penstock bench items --rows-bytes 8,1KiB --consumers 1 --transport shm --batch 256
  penstock bench straggler --slack 0,1,2,4,8,auto --plot straggler.png"""


def items(arguments: Sequence[str]) -> int:
    """`penstock bench items`."""
    given = _items_parser().parse_args(arguments)
    sizes = [_row_bytes(text) for text in given.rows_bytes.split(",")]
    consumers = counts(given.consumers, "--consumers", MOST_CONSUMERS)
    batches = counts(given.batch, "--batch", MOST_BATCH)
    transports = names(given.transport, "transport", TRANSPORTS)
    propagations = names(given.propagation, "propagation", PROPAGATIONS)
    systems = names(given.systems, "system", SYSTEMS)
    given.rounds = count(given.rounds, "--rounds", 1000)
    given.repeats = None if given.repeats is None else count(given.repeats, "--repeats", 1_000_000)
    printed = given.json == STANDARD_OUTPUT
    _files(given)

    from penstock_bench.items import report, runner
    from penstock_bench.items.work import Work
    from penstock_bench.runner import machine

    cases = [
        runner.Measured(
            Work(size, count, batch, transport),
            latency_too=count == consumers[0] and batch == batches[0],
        )
        for transport in transports
        for count in consumers
        for size in sizes
        for batch in batches
    ]
    _measure(given, cases, systems, propagations, quiet=printed)
    alone, cases = cases, [one for case in cases for one in case.all]
    document = report.document(cases, machine(distance))
    if printed:
        terminal.say(json.dumps(document, indent=1))
    else:
        terminal.say("\n" + report.rates(cases))
        terminal.say("\n" + (report.latencies(cases) or "  no latency was measured"))
        terminal.say("\n" + report.LEGEND)
        if said := report.troubles(cases):
            terminal.say(said)
    if given.json and not printed:
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    measured = any(any(case.rates.values()) for case in cases)
    if given.plot and measured:
        from penstock_bench.items import plot

        plot.draw(alone, given.plot)
    if not measured:
        terminal.error("no system could be measured", "the reasons stand above, system by system")
    return int(not measured or any(case.failed for case in cases))


def _measure(
    given: argparse.Namespace,
    cases: Sequence[Measured],
    systems: Sequence[str],
    propagations: Sequence[str],
    *,
    quiet: bool,
) -> None:
    """Case by case; processes stay up while consumers and transport stay the same."""
    from penstock_bench import neighbour
    from penstock_bench.items import report, runner
    from penstock_bench.runner import busy_cores

    turns: list[System] = []
    before: tuple[str, int] | None = None
    try:
        for case in cases:
            kind = (case.work.transport, case.work.consumers)
            if kind != before:
                _end(turns)
                turns, before = _turns(systems, propagations, case.work.transport), kind
            runner.measure(
                case,
                turns,
                rounds=given.rounds,
                repeats=given.repeats,
                distance=distance,
                busy=busy_cores,
                note=progress,
                neighbour=neighbour.busy if given.neighbour else None,
            )
            progress("")
            if not quiet:
                for one in case.all:
                    terminal.say(report.line(one))
    finally:
        progress("")
        _end(turns)


def _turns(systems: Sequence[str], propagations: Sequence[str], transport: str) -> list[System]:
    from penstock_bench.items import systems as known
    from penstock_bench.items.copies import Copies

    turns: list[System] = []
    if "penstock" in systems:
        turns.append(known.Tables(everywhere=False, propagations=propagations))
        if transport == "tcp":
            turns.append(known.Tables(everywhere=True, propagations=propagations))
    if "mpi" in systems:
        turns.append(known.Mpi())
    if "limit" in systems:
        turns.append(Copies(distance) if transport == "shm" else known.Sockets())
    return turns


def _end(turns: Sequence[System]) -> None:
    for system in turns:
        system.end()


def _items_parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench items",
        "A producer sets rows, every consumer gets all of them, iteration after iteration: item tables,\n"
        "MPI_Put, MPI_Get and messages (mpi4py), and the machine's limit, in turns, on the same work.",
        EXAMPLES,
    )
    parser.add_argument("--rows-bytes", default=SIZES, help=f"bytes of a row; default {SIZES}")
    parser.add_argument(
        "--consumers", default=CONSUMERS, help=f"processes that get every row; default {CONSUMERS}"
    )
    parser.add_argument(
        "--propagation",
        default=",".join(PROPAGATIONS),
        help="of our tables over TCP; default eager,lazy,bounded (on one host nothing is sent: the first)",
    )
    parser.add_argument("--transport", default=",".join(TRANSPORTS), help="default shm,tcp")
    parser.add_argument("--batch", default="1,256", help="rows of a call; default 1,256")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"default {','.join(SYSTEMS)}")
    parser.add_argument("--rounds", default="3", help="turns of each system; default 3")
    parser.add_argument("--repeats", help="iterations in a turn; default: what fits into 0.2 s, at least 5")
    parser.add_argument("--neighbour", action="store_true", help=NEIGHBOUR)
    _add_files(parser)
    return parser


def _add_files(parser: terminal.Parser) -> None:
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        nargs="?",
        const=STANDARD_OUTPUT,
        help="write the figures; without a file: print them in place of the tables",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")


def _files(given: argparse.Namespace) -> None:
    """Refuses files that cannot be written, before minutes of measuring."""
    kept = given.json
    if kept == STANDARD_OUTPUT:
        given.json = None
    prepare_files(given)
    given.json = kept


def _row_bytes(text: str) -> int:
    size = parse_bytes(text, "--rows-bytes", of="float64")
    if size > MOST_ROW:
        raise OptionError(
            f"--rows-bytes {text!r} is above the largest row that is measured, 1 MiB",
            hint="what is larger is a tensor: penstock bench pushpull",
        )
    return size


def straggler(arguments: Sequence[str]) -> int:
    """`penstock bench straggler`."""
    given = _straggler_parser().parse_args(arguments)
    workers = count(given.workers, "--workers", MOST_CONSUMERS)
    slacks = [_slack(text.strip()) for text in dict.fromkeys(given.slack.split(","))]
    sleep = real(given.straggler, "--straggler", (0, 60), "such as 0.02", above=True)
    seconds = real(given.seconds, "--seconds", (0, 3600), "such as 4", above=True)
    target = None if given.loss is None else real(given.loss, "--loss", (0, 10), "such as 0.3", above=True)
    rounds = count(given.rounds, "--rounds", 1000)
    who = names(given.who, "sleeper", WHO)[0]
    printed = given.json == STANDARD_OUTPUT
    _files(given)
    _digits_ready()

    from penstock_bench.items import straggler as measuring
    from penstock_bench.runner import machine

    iterations = max(measuring.LEAST_ITERATIONS, round(seconds / sleep))
    found = measuring.Found(workers, sleep, who, iterations)
    try:
        measuring.measure(found, slacks, rounds=rounds, target=target, note=progress)
    except RanksError as error:
        return failed(error)
    finally:
        progress("")
    if printed:
        terminal.say(json.dumps(measuring.document(found, machine(distance))))
    else:
        sleeper = "another one each time" if who == "any" else "always the last"
        terminal.say(
            f"straggler, {workers} workers, one sleeps {sleep * 1e3:g} ms an iteration ({sleeper}), "
            f"{iterations} iterations, {rounds} rounds, loss to reach {found.target:.4f}"
        )
        terminal.say(measuring.table(found, slacks))
    if given.json and not printed:
        given.json.write_text(json.dumps(measuring.document(found, machine(distance))) + "\n")
    if given.plot:
        measuring.draw(found, slacks, given.plot)
    return 0


def _straggler_parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench straggler",
        "Softmax regression of handwritten digits by workers of whom one at a time sleeps at random:\n"
        "time to a given loss by slack. Slack 0 is BSP.",
        EXAMPLES,
    )
    parser.add_argument("--workers", default="4", help="default 4")
    parser.add_argument("--slack", default="0,1,2,4,8,auto", help="default 0,1,2,4,8,auto")
    parser.add_argument(
        "--straggler", default="0.02", help="seconds that the sleeper sleeps on average; default 0.02"
    )
    parser.add_argument(
        "--who", default="any", help="which worker sleeps: any (another one each time, default) or last"
    )
    parser.add_argument("--seconds", default="4", help="length of a run with slack 0, about; default 4")
    parser.add_argument(
        "--loss", help="the loss to reach; default: what the first slack has after half of its run"
    )
    parser.add_argument("--rounds", default="3", help="runs of each slack; default 3")
    _add_files(parser)
    return parser


def _slack(text: str) -> str:
    if text == "auto":
        return text
    slack = digits(text)
    if slack is None or slack > MOST_SLACK:
        terminal.refuse(
            f"--slack {text!r} is not a valid slack: a whole number from 0 to {MOST_SLACK}, or auto",
            "such as 0,1,2,4,8,auto",
        )
    return str(slack)


def _digits_ready() -> None:
    from importlib.util import find_spec

    if find_spec("sklearn") is None:
        terminal.refuse(
            "the digits come with scikit-learn, which is not installed", "pip install 'penstock-ps[demo]'"
        )


BENCHES: dict[str, Callable[[Sequence[str]], int]] = {"items": items, "straggler": straggler}

__all__ = ["BENCHES", "EXAMPLES"]
