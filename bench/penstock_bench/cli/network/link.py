"""`penstock bench link`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.cli import terminal
from penstock.cli.numbers import count, of_bytes, real
from penstock.units import digits, format_rate, format_size, parse_bytes, parse_rate
from penstock_bench.cli.common import distance, prepare_files, progress
from penstock_bench.cli.network.arguments import EXAMPLES

DEFAULT_PORT = 7190
LISTEN = f"0.0.0.0:{DEFAULT_PORT}"
MOST_SECONDS = 3600
LEAST_RATE, MOST_RATE = 10**5, 10**11
LEAST_TRIED = 10**6
"""Bits per second, as in `search.LEAST`."""
_HOSTS_ONLY = ("rate", "competing", "size")
_ASKER_ONLY = {"resolution": "5", "load": "10", "bucket": "256KiB"}
"""And their defaults."""


def run(arguments: Sequence[str]) -> int:
    """`penstock bench link`."""
    from penstock_bench.link.streams import MOST_BUCKET

    given = _parser().parse_args(arguments)
    for name, default in _ASKER_ONLY.items():
        if getattr(given, name) is None:
            setattr(given, name, default)
        elif given.listen is not None:
            terminal.refuse(
                f"--{name} is of the end that asks", "what a listener allows: --most-rate, --most-seconds"
            )
    most = _rate(given.most_rate, "--most-rate", LEAST_TRIED)
    seconds = count(given.most_seconds, "--most-seconds", MOST_SECONDS)
    hint = "give a percentage, such as 5"
    resolution = real(given.resolution, "--resolution", (1, 50), hint) / 100
    load = real(given.load, "--load", (1, 100), hint) / 100
    bucket = 0 if given.bucket == "0" else parse_bytes(given.bucket, "--bucket")
    if bucket > MOST_BUCKET:
        terminal.refuse(
            f"--bucket {given.bucket} is above {format_size(MOST_BUCKET)}", "give the bytes that pass at once"
        )
    asked = [name for name in ("to", "listen", "hosts") if getattr(given, name) is not None]
    if len(asked) != 1:
        terminal.refuse(
            "expected one of HOST:PORT, --listen and --hosts netns",
            "`--listen` on one host, then HOST:PORT on the other",
        )
    for name in _HOSTS_ONLY:
        if getattr(given, name) is not None and given.hosts is None:
            terminal.refuse(f"--{name} is of test hosts", "add --hosts netns")
    if given.once and given.listen is None:
        terminal.refuse("--once is of a listener", "add --listen")
    if given.json and given.listen is not None:
        terminal.refuse("a listener has no figures of its own", "give --json to the end that asks")

    from penstock_bench.link.measure import Settings

    settings = Settings(most, seconds, resolution, load, bucket)
    given.plot = None
    with _realtime() if given.realtime else contextlib.nullcontext():
        if given.listen is not None:
            return _listen(given, settings)
        if given.hosts is not None:
            return _between_test_hosts(given, settings)
        return _ask(given, settings)


def _parser() -> terminal.Parser:
    parser = terminal.Parser(
        "penstock bench link",
        "The available bandwidth between two hosts, each way, by streams of datagrams whose delays grow\n"
        "when their rate is above it (SLoPS, Pathload). Takes TCP and UDP of one port, 10 to 20 seconds;\n"
        "longer below 100 Mbit/s; on the average it loads the path with a tenth of what it finds. Neither\n"
        "encrypted nor authenticated: a listener is for use on demand, inside a cluster.",
        EXAMPLES,
    )
    parser.add_argument("to", nargs="?", metavar="HOST:PORT", help="measure with the listener there")
    parser.add_argument(
        "--listen",
        nargs="?",
        const=LISTEN,
        metavar="ADDRESS:PORT",
        help=f"wait for others to measure; default {LISTEN}",
    )
    parser.add_argument("--once", action="store_true", help="listen for one measurement only")
    parser.add_argument(
        "--most-rate", default="10gbit", help="the highest rate to try, or to allow; default 10gbit"
    )
    parser.add_argument(
        "--most-seconds", default="120", help="the longest measurement to make, or to allow; default 120"
    )
    parser.add_argument("--resolution", help="percent within which to find it; default 5")
    parser.add_argument("--load", help="percent of the path that it may take; default 10")
    parser.add_argument(
        "--bucket",
        help="what a shaper on the path lets through at once after a pause; default 256KiB; 0: no shaper",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="run before all others of this host, to the end (root): where a host is busy",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--hosts", choices=("netns",), help="make test hosts, and compare with what is true there (root)"
    )
    parser.add_argument("--rate", help="of each test host's link; default 1gbit")
    parser.add_argument("--competing", help="rate of a flow that shares each way; default: none")
    parser.add_argument("--size", help="bytes of the TCP transfer beside it; default 64MiB")
    return parser


@contextlib.contextmanager
def _realtime() -> Iterator[None]:
    """Real-time priority, the least there is; what is started meanwhile has it too."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        terminal.refuse(
            f"--realtime: the kernel refuses: {error.strerror}",
            "it takes root or CAP_SYS_NICE; without it, streams that others disturb are discarded",
        )
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def _rate(text: str, flag: str, least: int = LEAST_RATE) -> int:
    rate = parse_rate(text, flag)
    if not least <= rate <= MOST_RATE:
        terminal.refuse(
            f"{flag} {text!r} is out of range: {format_rate(least)} to {format_rate(MOST_RATE)}",
            "such as 1gbit",
        )
    for line in of_bytes(text, flag):
        terminal.note(line)
    return rate


def _address(text: str, flag: str, least: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    number = digits(port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or number is None or not least <= number < 1 << 16:
        terminal.refuse(
            f"expected {flag}, got {text!r}",
            f"such as 10.0.0.1:{DEFAULT_PORT}; an address of IPv6 goes in brackets",
        )
    return host, number


def _listen(given: argparse.Namespace, settings: Any) -> int:
    from penstock_bench.link.control import LinkError
    from penstock_bench.link.listen import Limits, Listener

    host, port = _address(given.listen, "--listen ADDRESS:PORT", 0)
    listener = Listener(host, port, Limits(settings.rate, settings.seconds))
    try:
        where = f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"
        terminal.say(f"listening on {where}, TCP and UDP, neither encrypted nor authenticated")
        while True:
            try:
                listener.serve(terminal.say)
            except LinkError as error:
                # One that is no client of ours, or that went away, is no reason to serve nobody else.
                terminal.warning(str(error))
                if given.once and listener.met:
                    return 1
                continue
            if given.once:
                return 0
    finally:
        listener.close()


def _ask(given: argparse.Namespace, settings: Any) -> int:
    from penstock_bench.link import measure, report

    host, port = _address(given.to, "HOST:PORT", 1)
    prepare_files(given)
    try:
        result = report.document(measure.measure(host, port, settings, progress))
    finally:
        progress("")
    terminal.say(
        f"available bandwidth to and from {result['peer']}, frames of {result['frame_bytes']} bytes, "
        f"{result['seconds']:.1f} s"
    )
    terminal.say(report.table(result))
    _write(given, [result])
    return 0


def _between_test_hosts(given: argparse.Namespace, settings: Any) -> int:
    from penstock_bench.link import hosts, report

    rate = _rate(given.rate or "1gbit", "--rate")
    competing = _rate(given.competing, "--competing") if given.competing else 0
    if competing >= rate:
        terminal.refuse(
            f"--competing {given.competing} leaves nothing of {format_rate(rate)}", "give a lower rate"
        )
    size = parse_bytes(given.size or "64MiB", "--size")
    prepare_files(given)
    compared = hosts.compare(rate, competing, size, settings)
    measured = compared.measured
    against = f", {format_rate(competing)} competing" if competing else ""
    terminal.say(
        f"available bandwidth between test hosts, links of {format_rate(rate)}{against}, frames of "
        f"{measured['frame_bytes']} bytes, {measured['seconds']:.1f} s"
    )
    more = {
        "true": _rates(compared.truth),
        f"TCP, {format_size(size)}": _rates(compared.transfer),
    }
    terminal.say(report.table(measured, more))
    beside = {"rate": rate, "competing": competing, "tcp_bytes": size}
    figures = {
        "true_bits_per_second": compared.truth,
        "competing_bits_per_second": compared.competing,
        "tcp_bits_per_second": compared.transfer,
    }
    _write(given, [{**beside, **measured, **figures}])
    return 0


def _rates(rates: Mapping[str, float]) -> dict[str, str]:
    return {way: format_rate(rate) for way, rate in rates.items()}


def _write(given: argparse.Namespace, cases: list[dict[str, Any]]) -> None:
    from penstock_bench import runner

    if given.json:
        document = {"bench": "link", "machine": runner.machine(distance), "cases": cases}
        given.json.write_text(json.dumps(document, indent=1) + "\n")
