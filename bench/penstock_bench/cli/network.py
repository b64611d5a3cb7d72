"""`penstock bench` between hosts: pushpull --hosts netns, loopback, zero-compute, tenants."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import count, counts, names
from penstock.units import format_size, parse_bytes, parse_rate
from penstock_bench.cli.common import distance, prepare_files, progress

if TYPE_CHECKING:
    from penstock_bench.network.places import Place
    from penstock_bench.network.report import Line
    from penstock_bench.runner import Case
    from penstock_bench.systems import System

MODELS = ("alexnet", "resnet18", "resnet50", "vgg19")
PEERS = ("gloo", "mpi")
MORE_PEERS = (*(f"{peer}-layer" for peer in PEERS), "mpi-ring")
"""What is measured where it is asked for."""
MOST = 64
MOST_ROUNDS = MOST_REPEATS = 1_000_000

EXAMPLES = """\
  penstock bench pushpull --hosts netns --rate 1gbit --workers 2 --size 64MiB      # needs root
  penstock bench pushpull --hosts netns --rate 1gbit --workers 4 --topology cs
  penstock bench loopback                                   # beside iperf3, plain and under TLS
  penstock bench zero-compute --model resnet50 --workers 4
  penstock bench zero-compute --model resnet18 --hosts netns --rate 10gbit --workers 1,2,4,8 --plot zero.png
  penstock bench tenants --jobs 1,2,4,8                     # jobs that share a server
  penstock bench tenants --jobs 2 --greedy"""


def add_hosts(parser: terminal.Parser) -> None:
    """The arguments that say where the processes run."""
    parser.add_argument("--hosts", choices=("netns", "loopback"), default="loopback", help=argparse.SUPPRESS)
    parser.add_argument(
        "--rate", help="of each test host's link, each way, such as 1gbit; default: not shaped"
    )
    parser.add_argument(
        "--topology",
        default="ncc",
        help="ncc (default), cc, ncs, cs: servers apart or beside workers, one or several; or all",
    )
    parser.add_argument("--servers", help="of ncs; default: as many as workers")
    parser.add_argument("--plain", action="store_true", help="no TLS between hosts (security=insecure)")
    parser.add_argument("--tls", action="store_true", help="TLS on the loopback too (security=tls)")
    parser.add_argument("--rounds", default="3", help="turns of each system; default 3")
    parser.add_argument("--repeats", help="iterations in a turn; default: what fits into 0.4 s, at least 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them (needs matplotlib)")


def topologies(text: str) -> list[str]:
    """The topologies of `--topology`."""
    from penstock_bench.network.ideal import TOPOLOGIES

    if text == "all":
        return list(TOPOLOGIES)
    named = text.split(",")
    for name in named:
        if name not in TOPOLOGIES:
            terminal.refuse(f"there is no topology {name!r}", f"there are {', '.join(TOPOLOGIES)}, and all")
    return named


def security(given: argparse.Namespace) -> dict[str, str]:
    """Environment of `--plain` and `--tls`."""
    if given.plain and given.tls:
        terminal.refuse("--plain and --tls exclude each other")
    chosen = {"PENSTOCK_SECURITY": "insecure"} if given.plain else {}
    return chosen or ({"PENSTOCK_SECURITY": "tls"} if given.tls else {})


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


def pushpull(arguments: Sequence[str]) -> int:
    """`penstock bench pushpull --hosts netns`."""
    parser = terminal.Parser(
        "penstock bench pushpull --hosts netns",
        "One tensor, pushed and pulled by workers on test hosts, beside the least time that the links\n"
        "allow and beside all-reduce in the same hosts.",
        EXAMPLES,
    )
    parser.add_argument("--size", default="64MiB", help="bytes of the tensor; default 64MiB")
    parser.add_argument("--workers", default="2", help="such as 2 (default) or 2,4")
    parser.add_argument("--systems", default=",".join(("penstock", *PEERS)), help="default penstock,gloo,mpi")
    add_hosts(parser)
    given = parser.parse_args(arguments)
    size, prepared = parse_bytes(given.size, "--size", of="float32"), counts(given.workers, "--workers", 32)
    chosen = names(given.systems, "system", ("penstock", *PEERS, *MORE_PEERS))
    return _cases(given, "pushpull between hosts", size, None, prepared, chosen, rate=False)


def zero_compute(arguments: Sequence[str]) -> int:
    """`penstock bench zero-compute`."""
    from penstock_bench.network import layers

    parser = terminal.Parser(
        "penstock bench zero-compute",
        "Exchanges of all parameters of a network, layer by layer, by workers that compute nothing\n"
        "(PHub, 4.4): how fast could the workers at most be?",
        EXAMPLES,
    )
    parser.add_argument("--model", default="resnet18", help=f"one of {', '.join(MODELS)}; default resnet18")
    parser.add_argument("--workers", default="2", help="such as 1,2,4,8; default 2")
    parser.add_argument(
        "--systems",
        default="penstock,gloo,mpi",
        help="default penstock,gloo,mpi (in buckets of 25 MiB, as DDP); also gloo-layer, mpi-layer, mpi-ring",
    )
    add_hosts(parser)
    given = parser.parse_args(arguments)
    if given.model not in MODELS:
        meant = terminal.near(given.model, dict.fromkeys(MODELS))
        terminal.refuse(
            f"there is no model {given.model!r}",
            f"did you mean {meant}?" if meant else f"there are {', '.join(MODELS)}",
        )
    sizes = [4 * _product(shape) for shape in layers.shapes(given.model)]
    known = ("penstock", *PEERS, *MORE_PEERS)
    chosen = names(given.systems, "system", known)
    workers = counts(given.workers, "--workers", 32)
    name = f"zero-compute {given.model}, {len(sizes)} layers"
    return _cases(given, name, sum(sizes), sizes, workers, chosen, rate=True)


def _product(shape: Sequence[int]) -> int:
    result = 1
    for dimension in shape:
        result *= dimension
    return result


def _cases(
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


def loopback(arguments: Sequence[str]) -> int:
    """`penstock bench loopback`."""
    from penstock_bench.network import report, streams
    from penstock_bench.network.places import Place
    from penstock_bench.network.systems import NetworkPenstock
    from penstock_bench.runner import Case

    parser = terminal.Parser(
        "penstock bench loopback",
        "Payload that one worker and one server exchange by TCP on this host, plain and under TLS, beside\n"
        "what iperf3 moves with as many streams, both directions at once.",
        EXAMPLES,
    )
    parser.add_argument(
        "--size", default="64MiB", help="bytes of the tensor; default 64MiB; such as 4MiB,64MiB"
    )
    parser.add_argument("--streams", default="2", help="connections: shards of the server; default 2")
    parser.add_argument("--rounds", default="3", help="turns of each system; default 3")
    parser.add_argument("--repeats", help="iterations in a turn; default: what fits into 0.4 s, at least 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    given = parser.parse_args(arguments)
    given.plot = None
    shards = count(given.streams, "--streams", 32)
    sizes = [parse_bytes(text, "--size", of="float32") for text in given.size.split(",")]
    prepare_files(given)
    entries: list[dict[str, Any]] = []
    failed = False
    for size in sizes:
        case = Case(size, 1)
        shared = {"PENSTOCK_TRANSPORT": "tcp", "PENSTOCK_SHARDS": str(shards)}

        def system(name: str, security: str, shared: dict[str, str] = shared) -> NetworkPenstock:
            options = {**shared, "PENSTOCK_SECURITY": security}
            return NetworkPenstock(name, Place(None), None, topology="ncc", servers=1, options=options)

        turns: list[System] = [system("penstock", "auto"), system("penstock tls", "tls")]
        why = streams.missing()
        before = None if why else streams.both_ways(shards)
        measure(case, turns, given)
        after = None if why else streams.both_ways(shards)
        measured = {line.system: line.spread for line in report.lines(case, {})}
        moved = {name: 2 * size / spread.median for name, spread in measured.items()}
        reference = None if before is None or after is None else (before + after) / 2
        terminal.say(f"loopback {format_size(size)} f32, 1 worker, {shards} streams, both directions at once")
        rows = [["system", "GB/s", "of iperf3", "of plain", "median", "IQR/2", "repeats"]]
        for name, rate in moved.items():
            spread = measured[name]
            rows.append(
                [
                    name,
                    f"{rate / 1e9:.2f}",
                    "-" if reference is None else f"{rate / reference:.2f}",
                    f"{rate / moved['penstock']:.2f}" if "penstock" in moved else "-",
                    f"{spread.median * 1e3:.2f} ms",
                    f"{spread.relative:.0%}",
                    str(spread.repeats),
                ]
            )
        if reference is not None:
            rows.append(["iperf3", f"{reference / 1e9:.2f}", "1.00", "-", "-", "-", "2"])
        terminal.say(report.columns(rows))
        if before is not None and after is not None:
            terminal.say(f"  iperf3 before and after: {before / 1e9:.2f} and {after / 1e9:.2f} GB/s")
        if why:
            terminal.say(f"  iperf3: skipped: {why}")
        if case.absent:
            terminal.say(report.absent(case))
        failed |= bool(case.failed) or not measured
        more = {"streams": shards, "iperf3_bytes_per_second": [before, after], "bytes_per_second": moved}
        entries.append(report.document(case, report.lines(case, {}), **more))
    write(given, "loopback", entries)
    return int(failed)


def tenants(arguments: Sequence[str]) -> int:
    """`penstock bench tenants`."""
    from penstock_bench.network import report
    from penstock_bench.network import tenants as measuring

    parser = terminal.Parser(
        "penstock bench tenants",
        "Jobs that share one server (PHub, 4.8): what each moves, against its fair share.",
        EXAMPLES,
    )
    parser.add_argument("--jobs", default="1,2,4,8", help="how many at once; default 1,2,4,8")
    parser.add_argument("--greedy", action="store_true", help="the last job has four times the workers")
    parser.add_argument("--size", default="4MiB", help="bytes of each job's tensor; default 4MiB")
    parser.add_argument("--seconds", default="5", help="of each measurement; default 5")
    add_hosts(parser)
    given = parser.parse_args(arguments)
    jobs, seconds = counts(given.jobs, "--jobs", 16), count(given.seconds, "--seconds", 3600)
    if given.greedy and min(jobs) < 2:
        terminal.refuse("a greedy job needs another beside it", "--jobs 2 --greedy")
    size, chosen = parse_bytes(given.size, "--size", of="float32"), security(given)
    rounds = count(given.rounds, "--rounds", MOST_ROUNDS)
    prepare_files(given)
    with place(given, max(jobs) + 1) as where:
        found = measuring.run(where, jobs, size, seconds, rounds, chosen, greedy=given.greedy)
    terminal.say(
        f"tenants, {format_size(size)} f32 a job, 1 worker a job"
        f"{' (the last: 4)' if given.greedy else ''}, {seconds} s, {rounds} rounds"
        f"{', links of ' + given.rate if given.rate else ''}"
    )
    alone = found.alone
    rows = [["jobs", "together", "lost to sharing", "each, of its fair share: least", "median", "most"]]
    for number, rates in found.by_jobs.items():
        together = sum(rates)
        fair = together / number
        shares = sorted(rate / fair for rate in rates)
        rows.append(
            [
                str(number),
                f"{together / 1e6:.1f} MB/s",
                f"{(1 - together / alone):.1%}",
                f"{shares[0]:.2f}",
                f"{shares[len(shares) // 2]:.2f}",
                f"{shares[-1]:.2f}",
            ]
        )
    terminal.say(report.columns(rows))
    if given.greedy:
        for number, rates in found.by_jobs.items():
            fair = sum(rates) / number
            terminal.say(
                f"  {number} jobs: the greedy one has {rates[-1] / fair:.2f} of its share, "
                f"the others at least {min(rates[:-1]) / fair:.2f} of theirs"
            )
    entries = [{"jobs": n, "bytes_per_second": rates} for n, rates in found.by_jobs.items()]
    write(given, "tenants", [{"alone": alone, "greedy": given.greedy, "runs": entries}])
    if given.plot:
        from penstock_bench.network import plot

        plot.tenants(found, given.plot)
    return 0


BENCHES: dict[str, Callable[[Sequence[str]], int]] = {
    "loopback": loopback,
    "zero-compute": zero_compute,
    "tenants": tenants,
}
"""Beside `pushpull --hosts netns`."""

__all__ = ["BENCHES", "EXAMPLES", "pushpull"]
