"""Rate over the size of a row, a panel for each transport."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.units import format_size
from penstock_bench.items.runner import Measured

# Okabe and Ito's colours: told apart by people who see colours differently; markers and dashes tell the rest.
_STYLES: dict[str, dict[str, Any]] = {
    "penstock eager": {"color": "#0072B2", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "penstock lazy": {"color": "#56B4E9", "marker": "v", "linewidth": 1.8, "zorder": 4},
    "penstock bounded": {"color": "#CC79A7", "marker": "D", "linewidth": 1.8, "zorder": 4},
    "penstock-all-tcp eager": {"color": "#0072B2", "marker": "o", "linestyle": ":", "zorder": 3},
    "penstock-all-tcp lazy": {"color": "#56B4E9", "marker": "v", "linestyle": ":", "zorder": 3},
    "penstock-all-tcp bounded": {"color": "#CC79A7", "marker": "D", "linestyle": ":", "zorder": 3},
    "mpi put": {"color": "#D55E00", "marker": "s", "linewidth": 1.4, "zorder": 2},
    "mpi get": {"color": "#E69F00", "marker": "P", "linewidth": 1.4, "zorder": 2},
    "mpi sendrecv": {"color": "#009E73", "marker": "^", "linewidth": 1.4, "zorder": 2},
    "limit": {"color": "#222222", "linestyle": "--", "linewidth": 1.4, "zorder": 1},
}


def draw(cases: Sequence[Measured], path: Path) -> None:
    """Columns are transports; rows are numbers of consumers and rows a call."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [measured for measured in cases if any(measured.rates.values())]
    transports = list(dict.fromkeys(measured.work.transport for measured in shown))
    kinds = sorted({(measured.work.consumers, measured.work.batch) for measured in shown})
    figure, axes = plt.subplots(
        len(kinds),
        len(transports),
        figsize=(1.6 + 4.6 * len(transports), 1.2 + 2.9 * len(kinds)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    sizes = sorted({measured.work.row_bytes for measured in shown})
    lines: dict[str, Any] = {}
    for row, (consumers, batch) in enumerate(kinds):
        for column, transport in enumerate(transports):
            panel = axes[row][column]
            chosen = [
                measured
                for measured in shown
                if (measured.work.consumers, measured.work.batch, measured.work.transport)
                == (consumers, batch, transport)
            ]
            lines |= _panel(panel, sorted(chosen, key=lambda measured: measured.work.row_bytes))
            calls = "a row a call" if batch == 1 else f"{batch} rows a call"
            panel.set_title(
                f"{transport}, {consumers} consumer{'s' if consumers > 1 else ''}, {calls}", fontsize=10
            )
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(sizes, [format_size(size).replace(" ", "\n") for size in sizes])
            panel.minorticks_off()
            panel.grid(True, which="major", alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in axes[-1]:
        panel.set_xlabel("bytes of a row")
    for panel in axes[:, 0]:
        panel.set_ylabel("rows/s at each consumer")
    order = [name for name in _STYLES if name in lines]
    figure.legend(
        [lines[name] for name in order],
        order,
        loc="outside lower center",
        ncols=min(4, len(order)),
        frameon=False,
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axes: Any, cases: Sequence[Measured]) -> dict[str, Any]:
    drawn = {}
    for name, style in _STYLES.items():
        points = [
            (measured.work.row_bytes, rate) for measured in cases if (rate := measured.rows_per_second(name))
        ]
        if points:
            (drawn[name],) = axes.plot(*zip(*points, strict=True), label=name, markersize=5, **style)
    return drawn
