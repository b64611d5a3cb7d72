"""`penstock bench flow`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import terminal
from penstock.cli.numbers import count, names
from penstock.units import digits, parse_bytes, parse_rate
from penstock_bench.cli.common import distance, prepare_files, progress

if TYPE_CHECKING:
    from penstock_bench.flow.experiment import Experiment

MOST_WORKERS = MOST_SERVERS = 32
MOST_SLACK = 1 << 20
FULL = "bsp,ssp:1,ssp:4,ssp:16"
"""What the paper's figures compare."""
FULL_REPEATS = "3"

EXAMPLES = """\
  penstock bench flow --rate 1gbit --task lr                # Parameter Flow's experiment; needs root
  penstock bench flow --rate 1gbit --task mf --systems plain,ucc+low,ucc+up --consistency bsp,ssp:4
  penstock bench flow --rate 1gbit --task cnn --full --json cnn.json --plot cnn.png
  penstock bench flow --rate 1gbit --task lr --shared --systems plain,ucc+low,ucc+up"""


def run(arguments: Sequence[str]) -> int:
    """`penstock bench flow`."""
    from penstock_bench.flow import experiment, report, systems
    from penstock_bench.flow.tasks import TASKS

    given = _parser().parse_args(arguments)
    (task,) = names(given.task, "task", tuple(TASKS)) if "," not in given.task else _one_task(given.task)
    chosen = names(given.systems, "system", tuple(systems.SYSTEMS)) if given.systems else list(systems.SHORT)
    if given.full and not given.systems:
        chosen = list(systems.SYSTEMS)
    if not given.systems:
        # Those that the task cannot have are not asked for by a default.
        chosen = [name for name in chosen if name != systems.SPARSE or TASKS[task].sparse]
    chosen += _own(given.filters)
    consistencies = _consistencies(given.consistency or (FULL if given.full else "bsp"))
    repeats = count(given.repeats or (FULL_REPEATS if given.full else "1"), "--repeats", 1000)
    seed = digits(given.seed)
    if seed is None:
        terminal.refuse(f"--seed {given.seed!r} is not a whole number", "give a number of 0 or above")
    if given.chunk is not None:
        parse_bytes(given.chunk, "--chunk")
    scripts = _scripts(given.scripts or experiment.SCRIPTS, TASKS[task].script)
    measured = experiment.Experiment(
        experiment.Setting(
            task,
            None if given.rate is None else parse_rate(given.rate, "--rate"),
            count(given.workers, "--workers", MOST_WORKERS),
            count(given.servers, "--servers", MOST_SERVERS),
            given.shared,
            seed,
            tls=not given.plain,
            options=given.options,
            chunk=given.chunk,
            scripts=experiment.fingerprint(scripts, task),
        )
    )
    if given.resume:
        _resume(given, measured)
    prepare_files(given)
    _measure(given, measured, measured.wanted(chosen, consistencies, repeats), scripts)

    terminal.say(_head(given, task))
    if (systems.PLAIN, "bsp") not in measured.runs:
        terminal.say(_absent(measured))
        terminal.error("plain push and pull could not be measured, and so nothing is compared")
        return 1
    rows = report.rows(measured.runs)
    terminal.say(report.table(rows))
    if wishes := report.wishes(rows, TASKS[task]):
        terminal.say("\n" + wishes)
    terminal.say("\n" + report.LEGEND)
    if layers := report.layers_table(report.overheads(measured.runs)):
        terminal.say(f"\n{layers}\n\n{report.LAYERS_LEGEND}")
    if measured.absent:
        terminal.say(_absent(measured))
    if given.plot:
        from penstock_bench.flow import plot

        plot.draw(measured.runs, _head(given, task), given.plot)
    return int(bool(measured.failed))


BENCHES: dict[str, Callable[[Sequence[str]], int]] = {"flow": run}


def _measure(
    given: argparse.Namespace, measured: Experiment, wanted: Sequence[tuple[str, str]], scripts: Path
) -> None:
    from penstock_bench import runner
    from penstock_bench.flow import experiment

    machine = runner.machine(distance)

    def done() -> None:
        # Not over a file of another day, as long as there is nothing to put in its place.
        if given.json and measured.runs:
            experiment.write(given.json, measured, machine)

    try:
        if wanted:
            experiment.measure(measured, wanted, scripts, note=progress, done=done)
    finally:
        progress("")
        done()


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench flow",
        "Trains a workload of examples/flow between test hosts by plain push and pull, and by each of\n"
        "Parameter Flow's techniques: objective, traffic, time of computation and of communication.",
        EXAMPLES,
    )
    parser.add_argument("--hosts", choices=("netns",), default="netns", help=argparse.SUPPRESS)
    parser.add_argument("--task", default="lr", help="lr (default), mf, cnn")
    parser.add_argument("--systems", metavar="NAME,...", help="default: a few; --full: all")
    filters = "besides, ucc with these filters, such as topk:0.1/dvf:0.01 (-: all is sent); may be repeated"
    parser.add_argument("--filters", metavar="PUSH/BROADCAST", action="append", default=[], help=filters)
    parser.add_argument("--chunk", metavar="SIZE", help="of values that are filtered; default: the task's")
    parser.add_argument(
        "--options", metavar="TEXT", default="", help="more of the task's script, such as --options='--lr 4'"
    )
    parser.add_argument("--consistency", metavar="NAME,...", help=f"default bsp; --full: {FULL}")
    parser.add_argument("--full", action="store_true", help="the whole table, each training three times")
    parser.add_argument("--rate", help="of each link, each way, such as 1gbit; default: not shaped")
    parser.add_argument("--shared", action="store_true", help="competing flows come and go on all links")
    parser.add_argument("--seed", default="0", help="of those flows; default 0")
    parser.add_argument("--workers", default="4", help="default 4")
    parser.add_argument("--servers", default="1", help="default 1")
    parser.add_argument("--repeats", help="trainings of each system; default 1, --full: 3")
    parser.add_argument("--plain", action="store_true", help="no TLS between hosts (security=insecure)")
    parser.add_argument(
        "--scripts", type=Path, metavar="FOLDER", help="default: the checkout's examples/flow"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, after each training")
    parser.add_argument("--resume", action="store_true", help="train only what FILE of --json does not have")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")
    return parser


def _one_task(text: str) -> list[str]:
    terminal.refuse(f"--task {text!r}: expected one task", "make a call for each")


def _consistencies(text: str) -> list[str]:
    """`bsp,ssp:4`."""
    found = []
    for name in text.split(","):
        kind, _, slack = name.strip().partition(":")
        if kind == "ssp":
            found.append(f"ssp:{count(slack, '--consistency ssp', MOST_SLACK)}")
        elif kind == "bsp" and not slack:
            found.append(kind)
        else:
            terminal.refuse(f"there is no consistency {name!r}", "there are bsp and ssp:SLACK, such as ssp:4")
    return list(dict.fromkeys(found))


def _own(filters: Sequence[str]) -> list[str]:
    from penstock_bench.flow import systems

    try:
        return [systems.own(one) for one in filters]
    except ValueError as error:
        terminal.refuse(f"--filters: {error}", "such as topk:0.1/dvf:0.01, or topk:0.1/- for pushes alone")


def _scripts(folder: Path, script: str) -> Path:
    if not (folder / script).is_file():
        terminal.refuse(
            f"{folder} has no {script}", "name the folder examples/flow of a checkout with --scripts"
        )
    return folder


def _resume(given: argparse.Namespace, measured: Experiment) -> None:
    """Reads what has been measured; a file that is not there yet is none."""
    if given.json is None:
        terminal.refuse("--resume needs a file to go on from", "name it with --json")
    if not given.json.exists() or given.json.stat().st_size == 0:
        return
    try:
        measured.take(json.loads(given.json.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        terminal.refuse(f"--resume: cannot go on from {given.json}: {error}", "name another file with --json")


def _head(given: argparse.Namespace, task: str) -> str:
    link = f"links of {given.rate}" if given.rate else "links that are not shaped"
    network = "a shared network" if given.shared else "a dedicated network"
    workers = "1 worker" if given.workers == "1" else f"{given.workers} workers"
    servers = "1 server" if given.servers == "1" else f"{given.servers} servers"
    task += f" {given.options}" if given.options else ""
    return f"flow {task}, {workers}, {servers}, {network}, {link}"


def _absent(measured: Experiment) -> str:
    said = []
    for name, reason in measured.absent.items():
        said.append(f"  {name}: {reason if name in measured.failed else 'skipped: ' + reason}")
        said += [f"      {line}" for line in measured.failed.get(name, "").splitlines()]
    return "\n".join(said)
