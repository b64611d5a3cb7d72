"""Arguments that several benches between hosts have, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli import terminal

PEERS = ("gloo", "mpi")
MORE_PEERS = (*(f"{peer}-layer" for peer in PEERS), "mpi-ring")
"""Measured only on request."""
MOST = 64
MOST_ROUNDS = MOST_REPEATS = 1_000_000

EXAMPLES = """\
  penstock bench pushpull --hosts netns --rate 1gbit --workers 2 --size 64MiB      # needs root
  penstock bench pushpull --hosts netns --rate 1gbit --workers 4 --topology cs
  penstock bench loopback                                   # beside iperf3, plain and under TLS
  penstock bench zero-compute --model resnet50 --workers 4
  penstock bench zero-compute --model resnet18 --hosts netns --rate 10gbit --workers 1,2,4,8 --plot zero.png
  penstock bench tenants --jobs 1,2,4,8                     # jobs that share a server
  penstock bench tenants --jobs 2 --greedy
  penstock bench link --listen                              # on one host
  penstock bench link 10.0.0.1:7190                         # on the other: what each way has to spare
  penstock bench link --hosts netns --competing 400mbit     # against what is true; needs root
  penstock bench factors --hosts netns --rate 1gbit --workers 2,4     # contributions of low rank"""


def add_turns(parser: terminal.Parser) -> None:
    """The arguments that say how often to measure, and where to write the figures."""
    parser.add_argument("--repeats", help="iterations in a turn; default: what fits into 0.4 s, at least 3")
    add_rounds(parser)


def add_rounds(parser: terminal.Parser) -> None:
    """The same where a turn lasts for a time."""
    parser.add_argument("--rounds", default="3", help="turns of each system; default 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")


def add_hosts(parser: terminal.Parser) -> None:
    """The arguments of a bench of topologies."""
    parser.add_argument(
        "--topology",
        default="ncc",
        help="ncc (default), cc, ncs, cs: servers on their own hosts or beside workers, one or several; "
        "`all` measures each",
    )
    parser.add_argument("--servers", help="number of servers for ncs; default: one for each worker")
    add_links(parser)
    add_turns(parser)


def add_links(parser: terminal.Parser) -> None:
    """The arguments that say what connects the processes."""
    parser.add_argument("--hosts", choices=("netns", "loopback"), default="loopback", help=argparse.SUPPRESS)
    parser.add_argument(
        "--rate", help="of each test host's link, each way, such as 1gbit; default: not shaped"
    )
    parser.add_argument("--plain", action="store_true", help="no TLS between hosts (security=insecure)")
    parser.add_argument("--tls", action="store_true", help="TLS on the loopback too (security=tls)")
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
