"""
`penstock bench`: pushpull beside the machine's limit and beside all-reduce; the latency of a pull; the time
to the first step. The benches of the folders beside this one have their command lines in files of their own.

Here the command line is read and the figures are printed; what measures stands beside this folder.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import terminal
from penstock.cli.numbers import count
from penstock.exceptions import OptionError
from penstock.launch.ranks import RanksError
from penstock.units import format_ratio, format_size, format_time, parse_bytes
from penstock_bench.cli.common import NEIGHBOUR, distance, failed, prepare_files, progress

if TYPE_CHECKING:
    from penstock_bench.runner import Case, Spread
    from penstock_bench.systems import System

SYSTEMS = ("penstock", "limit", "gloo+sgd", "mpi+sgd")
SWEEP_SIZES = tuple(4096 << 2 * step for step in range(9))
"""4 KiB to 256 MiB, by four."""
SWEEP_WORKERS = (1, 2, 4, 8)
MOST_WORKERS = 64
"""More processes than that on one host measure its scheduler."""
PULL_GOAL = 2e-6
STARTUP_GOAL = 1.0

_EXAMPLES = """\
  penstock bench pushpull --workers 2 --size 64MiB --json figures.json --plot figures.png
  penstock bench pushpull --sweep --plot sweep.png          # 4 KiB to 256 MiB, 1 to 8 workers
  penstock bench pushpull --size 64MiB --systems penstock,limit --chunk-size 16KiB --chunk-size 64KiB
  penstock bench pushpull --size 4KiB --neighbour           # and beside a process that is always at work
  penstock bench pull                                       # a fresh 4 KiB tensor
  penstock bench startup                                    # from `penstock run` to the first step"""


def main(arguments: Sequence[str]) -> int:
    """
    Runs one benchmark.

    Returns
    -------
    int
        0; 1 when a system failed or gave a wrong answer, or when none could be measured.

    Raises
    ------
    OptionError
        The command line is wrong: nothing was started.
    """
    from penstock_bench.cli import flow, items, network, training, tree

    benches: dict[str, Callable[[Sequence[str]], int]] = {
        "pushpull": _pushpull,
        "pull": _pull,
        "startup": _startup,
        **network.BENCHES,
        **flow.BENCHES,
        **tree.BENCHES,
        **items.BENCHES,
        **training.BENCHES,
    }
    if not arguments or arguments[0] in ("-h", "--help"):
        benches_of = (network, flow, tree, items, training)
        examples = "\n".join([_EXAMPLES, *(module.EXAMPLES for module in benches_of)])
        terminal.say(f"usage: penstock bench {{{','.join(benches)}}} ...\n\nexamples:\n{examples}")
        return 0 if arguments else terminal.EXIT_USAGE
    name, rest = arguments[0], arguments[1:]
    if name not in benches:
        meant = terminal.near(name, benches)
        terminal.refuse(
            f"there is no benchmark {name!r}",
            f"did you mean `penstock bench {meant}`?" if meant else f"there are {', '.join(benches)}",
        )
    return benches[name](rest)


def _pushpull(arguments: Sequence[str]) -> int:
    if any(argument.split("=")[0] == "--hosts" for argument in arguments):
        from penstock_bench.cli.network import pushpull

        return pushpull.run(arguments)
    given = _read(_pushpull_parser(), arguments)
    given.systems = [name for text in given.systems or [",".join(SYSTEMS)] for name in _system_names(text)]
    sizes: list[int] = given.size or (list(SWEEP_SIZES) if given.sweep else [64 << 20])
    workers: list[int] = given.workers or (list(SWEEP_WORKERS) if given.sweep else [2])
    chunks: list[int | None] = given.chunk_size or [None]
    for chunk in given.chunk_size or []:
        from penstock import _core

        _core.check_options({"chunk_bytes": str(chunk)})
    prepare_files(given)

    from penstock_bench import report, runner

    _measure(given, alone := [runner.Case(s, w, c) for c in chunks for w in workers for s in sizes])
    cases = [case for one in alone for case in one.all]
    if len(cases) > 1:
        terminal.say("\n" + report.summary(cases))
    terminal.say("\n" + report.LEGEND)
    if given.json:
        document = report.document(cases, runner.machine(distance))
        given.json.write_text(json.dumps(document, indent=1) + "\n")
    measured = any(case.spreads() for case in cases)
    if given.plot and measured:
        from penstock_bench import plot

        plot.draw(alone, given.plot)
    if not measured:
        terminal.error("no system could be measured", "the reasons stand above, system by system")
    return int(not measured or any(case.failed for case in cases))


def _measure(given: argparse.Namespace, cases: list[Case]) -> None:
    """Measures and prints case by case. Processes stay up from case to case as long as they fit."""
    from penstock_bench import neighbour, report, runner
    from penstock_bench.systems import gloo, limit, mpi, penstock

    systems: dict[str, System] = {}
    made: dict[str, Callable[[int | None], System]] = {
        "penstock": lambda chunk: penstock.Penstock(
            given.servers, {} if chunk is None else {"chunk-bytes": str(chunk)}
        ),
        "limit": lambda _: limit.Limit(given.threads),
        "gloo+sgd": lambda _: gloo.Gloo(),
        "mpi+sgd": lambda _: mpi.Mpi(),
    }
    try:
        for index, case in enumerate(cases):
            for name in given.systems:
                if name not in systems or (name == "penstock" and case.chunk != cases[index - 1].chunk):
                    systems[name] = made[name](case.chunk)
            turns = list(systems.values())
            runner.measure(
                case,
                turns,
                rounds=given.rounds,
                repeats=given.repeats,
                distance=distance,
                busy=runner.busy_cores,
                note=progress,
                neighbour=neighbour.busy if given.neighbour else None,
            )
            progress("")
            for one in case.all:
                terminal.say(report.line(one))
                terminal.say(report.details(one))
    finally:
        progress("")
        for system in systems.values():
            system.end()


def _pull(arguments: Sequence[str]) -> int:
    parser = terminal.Parser(
        "penstock bench pull", "Latency of a pull of a fresh value, and of pushpull.", _EXAMPLES
    )
    parser.add_argument("--size", default="4KiB", help="bytes of the tensor; default 4KiB")
    parser.add_argument("--workers", default="1", help="default 1")
    parser.add_argument("--repeats", default="5000", help="default 5000")
    given = _read(parser, arguments)

    from penstock_bench.report import workers_of
    from penstock_bench.runner import Spread
    from penstock_bench.systems.penstock import Penstock

    system = Penstock()
    if reason := system.missing():
        terminal.error(reason)
        return 1
    try:
        system.open(given.size, given.workers)
        latencies = system.latencies(given.repeats)
    except RanksError as error:
        return failed(error)
    finally:
        system.end()
    terminal.say(
        f"pull {format_size(given.size)} f32, fresh, {workers_of(given.workers)}, "
        f"n={given.repeats}, cores {_placement(distance())}"
    )
    for name, times in latencies.items():
        spread = Spread.of(times)
        percentile = sorted(times)[math.ceil(0.99 * len(times)) - 1]
        goal = f"   {_against(spread, PULL_GOAL)}" if name == "pull" and given.size == 4096 else ""
        figures = f"median {format_time(spread.median):>8}   p99 {format_time(percentile):>8}"
        terminal.say(f"  {name:<11} {figures}{goal}")
    return 0


def _startup(arguments: Sequence[str]) -> int:
    parser = terminal.Parser(
        "penstock bench startup", "Time from `penstock run` to the first step.", _EXAMPLES
    )
    parser.add_argument("--workers", default="2", help="default 2")
    parser.add_argument("--servers", default="1", help="default 1")
    parser.add_argument("--repeats", default="5", help="default 5")
    given = _read(parser, arguments)

    from penstock_bench import startup
    from penstock_bench.report import workers_of
    from penstock_bench.runner import Spread

    try:
        times = [startup.seconds(given.workers, given.servers) for _ in range(given.repeats)]
    except RanksError as error:
        return failed(error)
    spread = Spread.of(times)
    terminal.say(
        f"startup, {workers_of(given.workers)}   median {format_time(spread.median)}   "
        f"min {format_time(spread.least)}   max {format_time(spread.most)}   n={spread.repeats}   "
        f"{_against(spread, STARTUP_GOAL)}"
    )
    return 0


def _against(spread: Spread, goal: float) -> str:
    return f"({format_ratio(spread.median / goal)} of the {format_time(goal)} wanted)"


def _pushpull_parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench pushpull",
        "N workers each hold a float32 gradient; afterwards w -= lr * (g0 + g1 + ...) is visible to all.\n"
        "Penstock, the machine's limit, Gloo and Open MPI take turns, on the same work.",
        _EXAMPLES,
    )
    parser.add_argument(
        "--size",
        action="append",
        help="bytes of one gradient, such as 64MiB (default); repeatable",
    )
    parser.add_argument("--workers", action="append", help="default 2; repeatable")
    parser.add_argument("--servers", default="1", help="Penstock's; default 1")
    parser.add_argument("--rounds", default="5", help="turns of each system; default 5")
    parser.add_argument("--repeats", help="iterations in a turn; default: what fits into 0.4 s")
    parser.add_argument("--systems", action="append", metavar="NAME,...", help=f"default {','.join(SYSTEMS)}")
    parser.add_argument("--threads", help="of the limit; default: one a core")
    parser.add_argument(
        "--chunk-size",
        action="append",
        help="Penstock's, such as 32KiB; repeatable",
    )
    parser.add_argument(
        "--sweep", action="store_true", help="4 KiB to 256 MiB by four, 1, 2, 4 and 8 workers"
    )
    parser.add_argument("--neighbour", action="store_true", help=NEIGHBOUR)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    return parser


def _read(parser: terminal.Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """
    Reads the command line; sizes and counts become numbers.

    Not by argparse's own `type=`: it would put a sentence of its own in the place of ours and of the hint.
    """
    given = parser.parse_args(arguments)
    for name, limits in _NUMBERS.items():
        value = getattr(given, name, None)
        if value is None:
            continue
        option = "--" + name.replace("_", "-")
        texts = value if isinstance(value, list) else [value]
        numbers = [
            parse_bytes(text, option, of="float32") if limits is None else count(text, option, limits)
            for text in texts
        ]
        setattr(given, name, numbers if isinstance(value, list) else numbers[0])
    return given


_NUMBERS: dict[str, int | None] = {
    "size": None,
    "chunk_size": None,
    "workers": MOST_WORKERS,
    "servers": MOST_WORKERS,
    "threads": 1024,
    "rounds": 1_000_000,
    "repeats": 1_000_000,
}
"""Options that are numbers, and the greatest that is taken; None: a size."""


def _system_names(text: str) -> list[str]:
    """The systems in `penstock,gloo`: the part before the + is enough."""
    known = {**{name: name for name in SYSTEMS}, **{name.split("+")[0]: name for name in SYSTEMS}}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise OptionError(
                f"there is no system {name!r} to measure", hint=f"there are {', '.join(SYSTEMS)}"
            )
    return [known[name] for name in names]


def _placement(distance: float) -> str:
    from penstock_bench.runner import Round

    return f"{Round((distance, distance)).placement} ({distance:.0f} ns)"
