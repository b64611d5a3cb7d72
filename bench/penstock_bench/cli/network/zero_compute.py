"""`penstock bench zero-compute`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.cli import terminal
from penstock.cli.numbers import counts, names
from penstock_bench.cli.network import cases
from penstock_bench.cli.network.arguments import EXAMPLES, MORE_PEERS, PEERS, add_hosts

MODELS = ("alexnet", "resnet18", "resnet50", "vgg19")


def run(arguments: Sequence[str]) -> int:
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
    sizes = [4 * math.prod(shape) for shape in layers.shapes(given.model)]
    known = ("penstock", *PEERS, *MORE_PEERS)
    chosen = names(given.systems, "system", known)
    workers = counts(given.workers, "--workers", 32)
    name = f"zero-compute {given.model}, {len(sizes)} layers"
    return cases.run(given, name, sum(sizes), sizes, workers, chosen, rate=True)
