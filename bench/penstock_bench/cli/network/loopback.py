"""`penstock bench loopback`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import terminal
from penstock.cli.numbers import count
from penstock.units import format_size, parse_bytes
from penstock_bench.cli.common import prepare_files
from penstock_bench.cli.network.arguments import EXAMPLES, add_turns
from penstock_bench.cli.network.hosts import measure, write

if TYPE_CHECKING:
    from penstock_bench.systems import System


def run(arguments: Sequence[str]) -> int:
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
    add_turns(parser)
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
        measured = {line.system: line for line in report.lines(case, {})}
        moved = {name: 2 * size / line.spread.median for name, line in measured.items()}
        peer = None if before is None or after is None else streams.mean(before, after)
        reference = None if peer is None else peer.rate
        terminal.say(f"loopback {format_size(size)} f32, 1 worker, {shards} streams, both directions at once")
        rows = [["system", "GB/s", "of iperf3", "of plain", "median", "IQR/2", "repeats", report.PROCESSOR]]
        for name, rate in moved.items():
            spread = measured[name].spread
            rows.append(
                [
                    name,
                    f"{rate / 1e9:.2f}",
                    "-" if reference is None else f"{rate / reference:.2f}",
                    f"{rate / moved['penstock']:.2f}" if "penstock" in moved else "-",
                    f"{spread.median * 1e3:.2f} ms",
                    f"{spread.relative:.0%}",
                    str(spread.repeats),
                    report.processor(measured[name].processor_per_gb),
                ]
            )
        if peer is not None:
            used = report.processor(peer.processor_per_gb)
            rows.append(["iperf3", f"{peer.rate / 1e9:.2f}", "1.00", "-", "-", "-", "2", used])
        terminal.say(report.columns(rows))
        if before is not None and after is not None:
            terminal.say(
                f"  iperf3 before and after: {before.rate / 1e9:.2f} and {after.rate / 1e9:.2f} GB/s"
            )
        if why:
            terminal.say(f"  iperf3: skipped: {why}")
        if case.absent:
            terminal.say(report.absent(case))
        failed |= bool(case.failed) or not measured
        more = {
            "streams": shards,
            "iperf3_bytes_per_second": [None if one is None else one.rate for one in (before, after)],
            "iperf3_processor_s_per_gb": None if peer is None else peer.processor_per_gb,
            "bytes_per_second": moved,
        }
        entries.append(report.document(case, report.lines(case, {}), **more))
    write(given, "loopback", entries)
    return int(failed)
