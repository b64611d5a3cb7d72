"""
The tables of docs/flow-performance.md, from the files that `penstock bench flow --json` writes.

    python -m penstock_bench.flow.pages lr.json mf.json
    python -m penstock_bench.flow.pages lr.json mf.json --into docs/flow-performance.md

prints them, or puts them into a page: each file's between `<!-- NAME -->` and `<!-- /NAME -->`, where NAME is
the file's without suffix, and what was wanted and what is there, of all files of one call, between
`<!-- wanted -->` and its end. What the page has no place for is not put there, and named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.cli import terminal
from penstock.units import format_size, format_time
from penstock_bench.flow.report import OF_THE_SERVERS, OF_THE_WORKER, Overhead, Row, find, times, wants
from penstock_bench.flow.systems import GLOO, PLAIN, SPARSE
from penstock_bench.flow.tasks import TASKS

WANTED = "wanted"
"""The place of the table over all files."""


def tables(measured: Sequence[Row]) -> str:
    """Of one file: what each system took under BSP, and beside it what it took under the others."""
    consistencies = list(dict.fromkeys(row.consistency for row in measured))
    bsp = [row for row in measured if row.consistency == "bsp"]
    if len(consistencies) == 1:
        return _full(bsp)
    return _full(bsp) + "\n\n" + _short(measured, consistencies)


def _full(bsp: Sequence[Row]) -> str:
    plain, sparse, gloo = (find(bsp, name) for name in (PLAIN, SPARSE, GLOO))
    heads = ["system", "steps", "of plain's", "sent", "times less", "less than sparse", "time"]
    heads += ["communicating", "times faster", "faster than Gloo"]
    lines = []
    for row in bsp:
        if row.steps is None or row.bytes is None or row.seconds is None:
            lines.append([f"`{row.system}`", f"not reached: {row.best:.4f}", *["-"] * (len(heads) - 2)])
            continue
        lines.append(
            [
                f"`{row.system}`",
                f"{row.steps:.0f}",
                _figure(_over(plain, row, "steps"), 2),
                format_size(round(row.bytes)),
                _figure(_over(row, plain, "bytes")),
                _figure(_over(row, sparse, "bytes")),
                format_time(row.seconds),
                format_time(row.communicating or 0.0),
                _figure(_over(row, plain, "seconds"), 2),
                _figure(_over(row, gloo, "seconds"), 2),
            ]
        )
    # A column for what was not measured says nothing.
    without = {at for at, there in ((5, sparse), (9, gloo)) if there is None}
    return markdown([[cell for at, cell in enumerate(line) if at not in without] for line in [heads, *lines]])


def _short(measured: Sequence[Row], consistencies: Sequence[str]) -> str:
    plain = find(measured, PLAIN)
    lines = [["system", *(f"`{consistency}`" for consistency in consistencies)]]
    for name in dict.fromkeys(row.system for row in measured if row.system != GLOO):
        cells = [f"`{name}`"]
        for consistency in consistencies:
            row = find(measured, name, consistency)
            if row is None:
                cells.append("-")
            elif row.steps is None:
                cells.append(f"not reached: {row.best:.4f}")
            else:
                steps = _figure(_over(plain, row, "steps"), 2)
                fewer = _figure(_over(row, plain, "bytes"))
                cells.append(f"{steps}, {fewer}, {_figure(_over(row, plain, 'seconds'), 2)}")
        lines.append(cells)
    return markdown(lines)


def layers(overheads: Sequence[Overhead]) -> str:
    """Where a step's time goes under BSP, in milliseconds; nothing where it was not counted."""
    bsp = [one for one in overheads if one.consistency == "bsp"]
    if not bsp:
        return ""
    heads = [
        "system",
        "a step",
        "compute",
        *OF_THE_WORKER,
        *(f"servers' {layer}" for layer in OF_THE_SERVERS),
    ]
    lines = [heads]
    for one in bsp:
        every = (one.step, one.computing, *one.worker.values(), *one.servers.values())
        lines.append([f"`{one.system}`", *(f"{1e3 * seconds:.2f}" for seconds in every)])
    return "\n\n" + markdown(lines)


def wanted(files: Mapping[str, tuple[str, Sequence[Row]]]) -> str:
    """What was wanted of the tasks' own filters, and what is there: of each file, by name, task and rows."""
    lines = [["", "", "wanted", "found", ""]]
    for name, (task, measured) in files.items():
        for want in wants(measured, TASKS[task]):
            said = "" if want.good else "**not reached**"
            lines.append([f"`{name}`", want.what, f"{want.wanted:g}", _figure(want.found, 2), said])
    return markdown(lines)


def put(page: str, name: str, table: str) -> str | None:
    """The page with a table in its place; None: it has no such place."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found, rest = page.partition(start)
    _, ended, after = rest.partition(end)
    return f"{before}{start}\n{table}\n\n{end}{after}" if found and ended else None


def rows_of(document: Mapping[str, Any]) -> list[Row]:
    """The rows as they were written."""
    return [Row(**{name: row[name] for name in Row.__dataclass_fields__}) for row in document["rows"]]


def _over(row: Row | None, base: Row | None, what: str) -> float | None:
    """How many times `row`'s figure is `base`'s; None: one of them was not measured, or not reached."""
    return times(getattr(row, what), getattr(base, what)) if row and base else None


def _figure(ratio: float | None, digits: int = 1) -> str:
    return "-" if ratio is None else f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.{digits}f}"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table: the first line is its head."""
    heads, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([heads, "|" + "---|" * len(lines[0]), *rest])


def show(made: Mapping[str, str], into: Path | None) -> int:
    """
    Prints the tables, or puts each into its place of the page `into`. Returns the exit status: 1 when the
    page has no place for one of them, which is named.
    """
    if into is None:
        terminal.say("\n\n".join(f"{name}\n\n{table}" for name, table in made.items()))
        return 0
    page, without = into.read_text(), []
    for name, table in made.items():
        changed = put(page, name, table)
        if changed is None:
            without.append(name)
        page = changed or page
    into.write_text(page)
    if without:
        terminal.error(f"{into} has no place for {', '.join(without)}")
    return int(bool(without))


def main(arguments: Sequence[str]) -> int:
    """Prints the tables, or puts them into a page."""
    parser = argparse.ArgumentParser(prog="python -m penstock_bench.flow.pages", allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="default: they are printed")
    given = parser.parse_args(arguments)
    files, made = {}, {}
    for path in given.files:
        document = json.loads(path.read_text())
        files[path.stem] = document["setting"], rows_of(document)
        overheads = [Overhead(**one) for one in document.get("overheads", [])]
        made[path.stem] = tables(files[path.stem][1]) + layers(overheads)
    # What was wanted is wanted of the tasks as they are, in a network of their own.
    own = {
        name: (setting["task"], measured)
        for name, (setting, measured) in files.items()
        if not (setting["shared"] or setting["options"] or setting["chunk"])
    }
    if any(wants(measured, TASKS[task]) for task, measured in own.values()):
        made[WANTED] = wanted(own)
    return show(made, given.into)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
