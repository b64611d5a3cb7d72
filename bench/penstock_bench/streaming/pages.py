"""
The tables of docs/tree-performance.md, from the files that `penstock bench tree --json` writes.

    python -m penstock_bench.streaming.pages trees-4.json faults.json
    python -m penstock_bench.streaming.pages trees-4.json faults.json --into docs/tree-performance.md

prints them, or puts them into a page: each file's between `<!-- NAME -->` and `<!-- /NAME -->`, where NAME is
the file's without suffix. What the page has no place for is not put there, and named.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.units import format_time
from penstock_bench.flow.pages import markdown, show
from penstock_bench.streaming.report import who


def tables(document: Mapping[str, Any]) -> str:
    """Of one file: a table for each number of workers."""
    return "\n\n".join(_case(case, document["machine"]["cores"]) for case in document["cases"])


def _case(case: Mapping[str, Any], cores: int) -> str:
    busy = statistics.median(case["busy"])
    title = f"{case['workers']} workers; of the {cores} cores others used {busy:.0%}:"
    return f"{title}\n\n{_faults(case) if 'faults' in case else _shapes(case)}"


def _shapes(case: Mapping[str, Any]) -> str:
    lines = [["", "median", "quickest", "slowest", "n", "of one link", "wanted", "theory", "busiest uplink"]]
    lines[0] += ["the server's", "processor"]
    for system in case["systems"]:
        sent = system["sent"]
        host = sent.index(max(sent))
        lines.append(
            [
                f"`{system['system']}`",
                *(format_time(system[name]) for name in ("median", "least", "most")),
                str(system["repeats"]),
                _figure(system["of_link"]),
                _figure(system["wanted_of_link"]),
                _figure(system["predicted_of_link"]),
                f"{sent[host]:.2f}, {who(host, case['workers'])}",
                _figure(sent[0]),
                format_time(system["processor_s"]),
            ]
        )
    return markdown(lines)


def _faults(case: Mapping[str, Any]) -> str:
    heads = ["", "fault", "before", "in which it fails", "added", "itself", "while slow", "after"]
    return markdown([[*heads, "server sends"], *map(_fault, case["faults"])])


def _fault(one: Mapping[str, Any]) -> list[str]:
    return [
        f"`{one['shape']}`",
        one["fault"],
        format_time(one["median"]),
        format_time(one["during"]),
        format_time(max(0.0, one["added"])),
        "-" if one["itself"] is None else format_time(one["itself"]),
        ", ".join(map(format_time, one["slow"])) or "-",
        format_time(statistics.median(one["after"])),
        _figure(one["uplinks"][0]),
    ]


def _figure(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"


def main(arguments: Sequence[str]) -> int:
    """Prints the tables, or puts them into a page."""
    parser = argparse.ArgumentParser(prog="python -m penstock_bench.streaming.pages", allow_abbrev=False)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="default: they are printed")
    given = parser.parse_args(arguments)
    made = {path.stem: tables(json.loads(path.read_text())) for path in given.files}
    return show(made, given.into)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
