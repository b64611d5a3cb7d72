"""`penstock plan --tree`: the trees that values would go down, and how long each shape takes."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path

from penstock.cli import terminal
from penstock.cli.numbers import of_bytes, real, within
from penstock.exceptions import OptionError
from penstock.plan import trees
from penstock.plan.trees import Cluster, Host, Planned, Planner
from penstock.units import parse_bytes, parse_count, parse_rate, parse_time

SHAPES = ("auto", "star", "chain", "striped", "tree")
OWN = ("hosts", "degree", "depth", "leaf_penalty", "stripes", "rate", "block", "hop", "colocated", "draw")
"""Options that have a meaning with `--tree` only."""
SHARED = ("tree", "racks", "servers", "bytes", "json")
"""Options that have one without it too."""

MOST_BLOCK = 1 << 20
MOST_PENALTY = 1e6
MOST_EDGES = 2**32 - 1
SUFFIXES = (".png", ".svg")


MOST_PAIRS = 8_000_000
"""Pairs of hosts, for all servers, up to which a tree of least cost is planned unasked, as by `auto`."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `--tree`."""
    group = parser.add_argument_group("overlay trees, instead of topologies")
    group.add_argument("--tree", metavar="SHAPE", help="auto, star, chain, striped or tree; with --bytes")
    group.add_argument("--hosts", metavar="N|NAMES", help="hosts that receive: 8, or a,b,c")
    # --racks and --servers stand elsewhere.
    group.add_argument("--degree", metavar="T", help="most children in a tree (2)")
    group.add_argument("--depth", metavar="H", help="most edges from the server in a tree (the least)")
    group.add_argument("--leaf-penalty", metavar="ALPHA", help="what a leaf of a tree costs (0)")
    group.add_argument("--stripes", metavar="K", help="stripes of striped (as many as are fastest)")
    group.add_argument(
        "--rate", metavar="RATE[,RATE]", help="of an uplink, or measured, of each host (10gbit)"
    )
    group.add_argument("--block", metavar="SIZE", help="bytes that go on together (1MiB, the most)")
    group.add_argument("--hop", metavar="TIME", help="what a hop takes beside the bytes (0)")
    group.add_argument(
        "--colocated", action="store_true", help="servers on the first hosts, not on their own"
    )
    group.add_argument("--draw", metavar="FILE", help="draw it, .png or .svg; needs matplotlib")


def refuse_alone(given: argparse.Namespace) -> None:
    """
    Refuses options of `--tree` without it.

    Raises
    ------
    OptionError
        There is one.
    """
    for name in OWN:
        if getattr(given, name) not in (None, False):
            flag = "--" + name.replace("_", "-")
            terminal.refuse(f"{flag} needs --tree", f"give one of the shapes: --tree {', '.join(SHAPES)}")


def main(given: argparse.Namespace) -> int:
    """
    Prints the plan.

    Raises
    ------
    OptionError
        The command line is wrong.
    """
    for name, value in vars(given).items():
        if value not in (None, False) and name not in (*OWN, *SHARED):
            flag = "--" + name.replace("_", "-")
            terminal.refuse(f"{flag} has no meaning with --tree", "leave it out, or plan topologies apart")
    if given.tree not in SHAPES:
        meant = terminal.near(given.tree, SHAPES)
        hint = f"did you mean {meant}?" if meant else f"there are {', '.join(SHAPES)}"
        terminal.refuse(f"there is no shape {given.tree!r}", hint)
    picture = _picture(given.draw)
    cluster = _cluster(given)
    rows, chosen = _plan(given, cluster)
    notes = [note for rate in (given.rate or "").split(",") for note in of_bytes(rate.strip(), "--rate")]
    terminal.say(
        json.dumps(trees.document(cluster, rows, chosen, notes), indent=2)
        if given.json
        else trees.text(cluster, rows, chosen, notes)
    )
    if picture is not None:
        _draw(cluster, chosen, picture)
    return 0


def _plan(given: argparse.Namespace, cluster: Cluster) -> tuple[list[Planned], Planned]:
    """Every shape in a row, and the one that was asked for."""
    from penstock import _core

    hosts = len(cluster.hosts)
    degree = 2 if given.degree is None else _natural(given.degree, "--degree")
    least = _core.least_depth(hosts, degree)
    depth = (least or 1) if given.depth is None else _natural(given.depth, "--depth")
    alpha = 0.0
    if given.leaf_penalty is not None:
        alpha = real(given.leaf_penalty, "--leaf-penalty", (0, MOST_PENALTY), "0 for none, or such as 0.5")
    stripes = (
        None if given.stripes is None else within(parse_count(given.stripes, "--stripes"), "--stripes", hosts)
    )
    planner = Planner(cluster)

    def planned(shape: str) -> Planned:
        return planner.plan(shape, degree=degree, depth=depth, leaf_penalty=alpha, stripes=stripes)

    # A tree of least cost takes long for many hosts of many servers: only who asks for it waits for it.
    large = hosts * hosts * len(cluster.servers) > MOST_PAIRS and given.tree != "tree"
    rows = {shape: planned(shape) for shape in SHAPES[1:] if not (large and shape == "tree")}
    result = list(rows.values())
    if given.tree != "auto":
        return result, rows[given.tree]
    # The planner's own trees are among its choices; what was given by hand is too.
    best = min([planner.plan("auto"), *result], key=lambda row: row.seconds)
    same = [row for row in result if row.shape == best.shape]
    return (result, same[0]) if same else ([*result, best], best)


def _natural(text: str, flag: str) -> int:
    """A whole number; the planner says what it makes of 0."""
    if re.fullmatch(r"\s*0+\s*", text):
        return 0
    return within(parse_count(text, flag), flag, MOST_EDGES)


def _cluster(given: argparse.Namespace) -> Cluster:
    from penstock import _core

    if given.bytes is None:
        terminal.refuse("--bytes is missing", "how much is sent: 256MiB")
    names = _names(given.hosts, int(_core.MAX_WORKERS))
    racks = _racks(given.racks, len(names))
    rates, measured = _rates(given.rate, len(names))
    hosts = [Host(name, *rack, rate / 8) for name, rack, rate in zip(names, racks, rates, strict=True)]
    most = min(int(_core.MAX_SERVERS), len(hosts) if given.colocated else int(_core.MAX_SERVERS))
    count = 1 if given.servers is None else within(parse_count(given.servers, "--servers"), "--servers", most)
    fastest = max(host.rate for host in hosts)
    places = list(dict.fromkeys(racks))
    own = [
        Host(_unused(f"server{number}", names), *places[number % len(places)], fastest)
        for number in range(count)
    ]
    return Cluster(
        servers=hosts[:count] if given.colocated else own,
        hosts=hosts,
        measured=measured,
        nbytes=parse_bytes(given.bytes, "--bytes"),
        block=MOST_BLOCK if given.block is None else _block(given.block),
        hop=0.0 if given.hop is None else parse_time(given.hop, "--hop"),
    )


def _unused(name: str, names: list[str]) -> str:
    while name in names:
        name += "'"
    return name


def _block(text: str) -> int:
    block = parse_bytes(text, "--block")
    if block > MOST_BLOCK:
        terminal.refuse(f"--block {text!r} is above 1MiB", "larger blocks only come later at the far end")
    return block


def _names(text: str | None, most: int) -> list[str]:
    if text is None:
        terminal.refuse("--hosts is missing", "how many hosts receive, or their names: 8, or a,b,c")
    # What begins like a number is one, or is refused as one; names begin with a letter.
    if re.fullmatch(r"\s*\d+\.\d+\.\d+\.\d+\s*", text):
        terminal.refuse(
            f"--hosts {text!r} is one address", "how many hosts receive, or several names: 8, or a,b,c"
        )
    if "," not in text and not re.match(r"\s*[a-zA-Z_]", text):
        return [f"host{number}" for number in range(within(parse_count(text, "--hosts"), "--hosts", most))]
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if not name:
            terminal.refuse(f"--hosts {text!r} has an empty name", "names with a comma between two: a,b,c")
        if not re.fullmatch(r"[\w.:-]+", name) or (len(names) == 1 and Path(name).is_file()):
            terminal.refuse(
                f"--hosts has {name!r}, which is no host's name", "each by itself: node1,node2,node3"
            )
    within(len(names), "--hosts", most)
    for name, times in Counter(names).items():
        if times > 1:
            terminal.refuse(f"--hosts has {name!r} twice", "workers of one host share a copy: once each")
    return names


def _racks(text: str | None, hosts: int) -> list[tuple[int, int]]:
    """Zone and rack of each host."""
    if text is None:
        return [(0, 0)] * hosts
    if "," not in text and not re.match(r"\s*[a-zA-Z_]", text):
        racks = within(parse_count(text, "--racks"), "--racks", hosts)
        return [(0, host * racks // hosts) for host in range(hosts)]
    labels = [label.strip() for label in text.split(",")]
    if len(labels) != hosts:
        terminal.refuse(
            f"--racks has {len(labels)} labels for {hosts} hosts",
            "a number of racks, or each host's: r1,r1,r2, or with zones z1/r1,z1/r1,z2/r2",
        )
    zones: dict[str, int] = {}
    numbers: dict[str, int] = {}
    result = []
    for label in labels:
        zone, slash, rack = label.rpartition("/")
        if not rack or (slash and not zone):
            terminal.refuse(f"--racks has the label {label!r}", "a rack, or a zone and a rack: r1, z1/r1")
        result.append((zones.setdefault(zone, len(zones)), numbers.setdefault(label, len(numbers))))
    return result


def _rates(text: str | None, hosts: int) -> tuple[list[int], bool]:
    """Bits per second of each host, and whether they were measured."""
    if text is None or "," not in text:
        return [parse_rate("10gbit" if text is None else text, "--rate")] * hosts, False
    rates = [parse_rate(part, "--rate") for part in text.split(",")]
    if len(rates) != hosts:
        terminal.refuse(f"--rate has {len(rates)} rates for {hosts} hosts", "one for all, or one for each")
    return rates, True


def _picture(text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in SUFFIXES:
        terminal.refuse(f"--draw {text!r} does not end in {' or '.join(SUFFIXES)}", "--draw tree.png")
    if not path.parent.is_dir():
        terminal.refuse(f"--draw {text!r} is in a folder that is not there", f"make {path.parent} first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        terminal.refuse("--draw needs matplotlib, which is not installed", "`pip install matplotlib`")
    return path


def _draw(cluster: Cluster, chosen: Planned, path: Path) -> None:
    from penstock.plan.draw import draw

    try:
        draw(cluster, chosen, path)
    except OSError as error:
        raise OptionError(f"--draw {str(path)!r} cannot be written: {error.strerror}") from None
