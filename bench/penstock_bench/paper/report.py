"""PHub's tables beside ours, in words and in JSON: `penstock plan --paper TABLE`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock.cli import terminal
from penstock.plan.report import table, wrap
from penstock_bench.paper import tables


def main(arguments: Sequence[str]) -> int:
    """
    Prints a table; `--json` behind its name: for a program.

    Raises
    ------
    OptionError
        There is no such table.
    """
    name, *more = arguments
    if name not in PRINTED:
        terminal.refuse(f"--paper {name!r} is not one of the tables", f"give {' or '.join(PRINTED)}")
    text, document = PRINTED[name]
    terminal.say(json.dumps(document(), indent=2) if more else text())
    return 0


def table_2() -> str:
    """Table 2: as printed, by the formulas, and from table 3."""
    rows: list[tuple[str, ...]] = [
        ("network", "topology", "paper", "formula", "rounds to it", "from table 3", "")
    ]
    rows += [
        (
            cell.network,
            cell.topology.value,
            str(cell.paper),
            f"{cell.fitted:.1f}",
            "yes" if cell.rounds else "no",
            f"{cell.direct:.1f}",
            f"{cell.excess:+.1%}",
        )
        for cell in tables.table_2()
    ]
    legend = (
        "Gbps at a server's host, both directions added, 8 workers, 8 servers where sharded. formula: "
        "CC 2(N-1)M/T, CS 4(N-1)M/(NT), NCC 2NM/T, NCS 2M/T, with one M/T for each network, taken from its "
        "own row. from table 3: with M and T of the paper's table 3, MB and Gbps as powers of 1024; no "
        "reading of these units makes the two tables agree, so table 2 was made with other sizes or times."
    )
    return f"{table(rows, left=2)}\n\n{wrap(legend, indent='  ')}"


def table_2_document() -> dict[str, Any]:
    """Table 2 for a program."""
    return {
        "table": 2,
        "unit": "Gbps, both directions",
        "cells": [
            {
                "network": cell.network,
                "topology": cell.topology.value,
                "paper": cell.paper,
                "formula": cell.fitted,
                "rounds_to_paper": cell.rounds,
                "from_table_3": cell.direct,
            }
            for cell in tables.table_2()
        ],
    }


def table_5() -> str:
    """Table 5: as printed, and by the cost model as printed."""
    head = ["samples/s for $1000", "a worker"]
    for name in tables.TABLE_5_COLUMNS:
        head += [name.removesuffix(" GPUs"), "ours"]
    rows = [tuple(head)]
    for index, (row, ours) in enumerate(tables.table_5()):
        line = [row.name, f"${row.worker_cost():,.0f}"]
        for column, (printed, value) in enumerate(zip(row.paper, ours, strict=True)):
            fitted = (index, column) in tables.FITTED
            line += [f"{printed:.2f}", f"{value:.2f}{'*' if fitted else ' '}"]
        rows.append(tuple(line))
    found = tables.fit()
    ratio = tables.throughput_ratio_in_table_5(tables.TABLE_5[2])
    fitted_note = (
        f"* fixes a number that the paper does not print: {found.sharded:.0f} samples/s of a sharded worker "
        f"and {found.phub:.0f} of a PHub one, ${found.gpu:,.0f} for a spendy GPU, ${found.saved:,.0f} saved "
        "by cheap processors."
    )
    differ_note = (
        "The other eight differ: the table cannot be derived from the prices that the paper prints. Its own "
        f"columns need a PHub worker at {ratio:.3f} of a sharded one's throughput; with the printed prices "
        f"the first column needs {found.phub / found.sharded:.3f}."
    )
    return "\n\n".join([table(rows), wrap(fitted_note, "  "), wrap(differ_note, "  ")])


def table_5_document() -> dict[str, Any]:
    """Table 5 for a program."""
    found = tables.fit()
    return {
        "table": 5,
        "unit": "samples/s for 1000 dollars",
        "fitted": {
            "sharded_samples_per_s": found.sharded,
            "phub_samples_per_s": found.phub,
            "spendy_gpu": found.gpu,
            "saved_by_cheap_processors": found.saved,
        },
        "cells": [
            {
                "deployment": row.name,
                "column": tables.TABLE_5_COLUMNS[column],
                "worker_cost": row.worker_cost(),
                "paper": row.paper[column],
                "ours": value,
                "fitted": (index, column) in tables.FITTED,
            }
            for index, (row, ours) in enumerate(tables.table_5())
            for column, value in enumerate(ours)
        ],
    }


PRINTED = {"table2": (table_2, table_2_document), "table5": (table_5, table_5_document)}
