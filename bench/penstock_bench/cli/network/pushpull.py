"""`penstock bench pushpull --hosts netns`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli import terminal
from penstock.cli.numbers import counts, names
from penstock.units import parse_bytes
from penstock_bench.cli.network import cases
from penstock_bench.cli.network.arguments import EXAMPLES, MORE_PEERS, PEERS, add_hosts


def run(arguments: Sequence[str]) -> int:
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
    return cases.run(given, "pushpull between hosts", size, None, prepared, chosen, rate=False)
