"""What criterion has written of `cargo bench -p penstock-kernels --bench pushes`, as the table of a page.

    python -m penstock_bench.kernels target/criterion --into docs/filters.md

prints the table, or puts it into the page between `<!-- pushes -->` and `<!-- /pushes -->`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock_bench.flow.pages import markdown, show

GROUP = "pushes"
LIMIT = "copy"


class Figure(NamedTuple):
    """A benchmark's: bytes it was counted for, and seconds of its median and of the bounds of that."""

    nbytes: int
    median: float
    least: float
    most: float

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.nbytes / self.median / 1e9

    @property
    def spread(self) -> float:
        """Half of the interval in which the median is with 95 %, of the median."""
        return (self.most - self.least) / 2 / self.median


def figures(folder: Path, group: str = GROUP) -> dict[tuple[str, str], Figure]:
    """What criterion has of a group in its folder, by what was measured and with what."""
    found = {}
    for path in sorted(folder.glob(f"{group}/**/new/benchmark.json")):
        about = json.loads(path.read_text())
        median = json.loads(path.with_name("estimates.json").read_text())["median"]
        bounds = median["confidence_interval"]
        seconds = (median["point_estimate"], bounds["lower_bound"], bounds["upper_bound"])
        nbytes = about["throughput"]["Bytes"]
        found[about["function_id"], about["value_str"]] = Figure(nbytes, *(one / 1e9 for one in seconds))
    return found


def table(found: dict[tuple[str, str], Figure]) -> str:
    """A row a size and part that is held back; GB/s of the dense contribution, and of what a copy has."""
    limits = {given: figure for (what, given), figure in found.items() if what == LIMIT}
    names = sorted({what for what, _ in found} - {LIMIT}, key=_order)
    heads = ["size", "held back", "a copy", *(f"`{name}`" for name in names)]
    rows = {tuple(given.split(", ")) for what, given in found if what != LIMIT}
    lines = [heads]
    for size, part in sorted(rows, key=lambda row: (int(row[0].removesuffix("KiB")), row[1])):
        limit = limits[size]
        cells = [_cell(found.get((name, f"{size}, {part}")), limit) for name in names]
        lines.append([_size(size), part.replace("%", " %"), f"{limit.rate:.1f}", *cells])
    return markdown(lines)


def _order(name: str) -> tuple[bool, str]:
    return (not name.startswith("select"), name)


def _cell(figure: Figure | None, limit: Figure) -> str:
    if figure is None:
        return "-"
    return f"{figure.rate:.1f} ({figure.rate / limit.rate:.2f}) ± {100 * figure.spread:.0f} %"


def _size(label: str) -> str:
    kib = int(label.removesuffix("KiB"))
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"


def main(arguments: Sequence[str]) -> int:
    """Prints the table, or puts it into a page."""
    parser = argparse.ArgumentParser(prog="python -m penstock_bench.kernels", allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="target/criterion", help="where criterion writes")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="default: it is printed")
    given = parser.parse_args(arguments)
    found = figures(given.folder)
    if not found:
        parser.error(
            f"{given.folder} has no figures of {GROUP}: cargo bench -p penstock-kernels --bench {GROUP}"
        )
    return show({GROUP: table(found)}, given.into)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
