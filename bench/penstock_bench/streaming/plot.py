"""The picture: what each shape takes, in transfers of one link, beside what the planner predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock_bench.streaming.measure import Case
from penstock_bench.streaming.report import Row

_OURS, _PEER = "#0072B2", "#999999"
"""Okabe and Ito's blue, and grey."""


def draw(cases: Sequence[tuple[Case, Sequence[Row]]], path: Path) -> None:
    """A panel for each number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    width = max(4.8, 4.4 * len(cases))
    figure, panels = plt.subplots(1, len(cases), figsize=(width, 4.4), layout="constrained", squeeze=False)
    for axes, (case, rows) in zip(panels[0], cases, strict=True):
        shown = [row for row in rows if row.of_link is not None]
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        heights = [row.of_link or 0.0 for row in shown]
        colours = [_OURS if row.predicted else _PEER for row in shown]
        bars = axes.bar(range(len(shown)), heights, color=colours, width=0.6)
        axes.bar_label(bars, [f"{height:.2f}" for height in heights], padding=2, fontsize=8)
        label: str | None = "planner's prediction"
        for place, row in enumerate(shown):
            if row.predicted is not None:
                ends = (place - 0.4, place + 0.4)
                axes.hlines(row.predicted.ratio, *ends, color="#222222", linestyle="--", label=label)
                label = None
        axes.set_xticks(range(len(shown)), [row.found.name for row in shown], rotation=30, ha="right")
        axes.set_title(f"{case.workers} workers")
        if label is None:
            axes.legend(frameon=False, fontsize=8)
    panels[0][0].set_ylabel("time of a broadcast, in transfers of one link (median)")
    figure.savefig(path, dpi=150)
    plt.close(figure)
