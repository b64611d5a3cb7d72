"""The pictures of the network benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_bench.network.report import Line
from penstock_bench.network.tenants import Found

# Okabe and Ito's colours, told apart by people who see colours differently; markers tell the rest.
_COLOURS = ("#0072B2", "#56B4E9", "#CC79A7", "#E69F00", "#D55E00", "#009E73", "#222222", "#999999")
_MARKERS = "osD^vPX*"


def _figure() -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    return plt, figure, axes


def exchanges(cases: Sequence[tuple[int, Sequence[Line]]], title: str, path: Path) -> None:
    """Exchanges per second by the number of workers, a curve a system; bars where there is one number."""
    plt, figure, axes = _figure()
    names = list(dict.fromkeys(line.system for _, lines in cases for line in lines))
    if len(cases) == 1:
        workers, lines = cases[0]
        values = [1 / line.spread.median for line in lines]
        colours = [_COLOURS[index % len(_COLOURS)] for index in range(len(lines))]
        bars = axes.bar([line.system for line in lines], values, color=colours, width=0.6)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=2)
        ideals = [1 / line.ideal if line.ideal else None for line in lines]
        for index, best in enumerate(ideals):
            if best:
                label = "the links' limit" if index == 0 else None
                axes.hlines(best, index - 0.4, index + 0.4, color="#222222", linestyle="--", label=label)
        if any(ideals):
            axes.legend(frameon=False)
        axes.set_title(f"{title}: {workers} worker{'s' if workers > 1 else ''}")
    else:
        for index, name in enumerate(names):
            points = [(n, line.spread) for n, lines in cases for line in lines if line.system == name]
            style = {"color": _COLOURS[index % len(_COLOURS)], "marker": _MARKERS[index % len(_MARKERS)]}
            axes.plot(
                [n for n, _ in points], [1 / spread.median for _, spread in points], label=name, **style
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks([n for n, _ in cases], [str(n) for n, _ in cases])
        axes.set_xlabel("workers")
        values = [1 / line.spread.median for _, lines in cases for line in lines]
        if max(values) > 20 * min(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        axes.set_title(title)
    axes.set_ylabel("exchanges per second (median)")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def tenants(found: Found, path: Path) -> None:
    """Each job's rate against its fair share, by the number of jobs."""
    plt, figure, axes = _figure()
    numbers = list(found.by_jobs)
    for place, number in enumerate(numbers):
        rates = found.by_jobs[number]
        axes.scatter([place] * number, [rate / 1e6 for rate in rates], color=_COLOURS[0], zorder=3, s=28)
        axes.hlines(found.alone / number / 1e6, place - 0.3, place + 0.3, color="#222222", linestyle="--")
    axes.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    axes.set_xlabel("jobs on one server")
    axes.set_ylabel("payload of each job, MB/s")
    axes.set_ylim(bottom=0)
    axes.set_title("Each job (dots) and its fair share of what one job alone moves (dashes)")
    figure.savefig(path, dpi=150)
    plt.close(figure)
