"""The picture: time against size and the ratio to the limit, a column for each number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.units import format_ratio, format_size, format_time
from penstock_bench.report import LIMIT, REFERENCE, workers_of
from penstock_bench.runner import Case, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue, black, vermilion, green of Okabe and Ito: told apart by people who see colours differently;
# markers tell the rest.
_STYLES: dict[str, dict[str, Any]] = {
    "penstock": {"color": "#0072B2", "marker": "o", "linewidth": 2.2, "zorder": 4},
    "limit": {"color": "#222222", "marker": "", "linestyle": "--", "linewidth": 1.6, "zorder": 3},
    "gloo+sgd": {"color": "#D55E00", "marker": "s", "linewidth": 1.4, "zorder": 2},
    "mpi+sgd": {"color": "#009E73", "marker": "^", "linewidth": 1.4, "zorder": 2},
}


def draw(cases: Sequence[Case], path: Path) -> None:
    """Draws bars for a single case, curves for several sizes, into `path` (the suffix says the format)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [case for case in cases if case.spreads()]
    several = len({case.nbytes for case in shown}) > 1
    figure = _curves(plt, shown) if several else _bars(plt, shown)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _curves(plt: Any, cases: Sequence[Case]) -> Any:
    counts = sorted({case.workers for case in cases})
    figure, axes = plt.subplots(
        2,
        len(counts),
        figsize=(2.2 + 3.6 * len(counts), 7.2),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, workers in enumerate(counts):
        chosen = sorted((case for case in cases if case.workers == workers), key=lambda case: case.nbytes)
        times, ratios = axes[0][column], axes[1][column]
        _times(times, chosen)
        _ratios(ratios, chosen)
        times.set_title(workers_of(workers))
        _sizes(ratios, sorted({case.nbytes for case in cases}))
    axes[0][0].set_ylabel("time of an iteration (median)")
    axes[1][0].set_ylabel("times the machine's limit")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    join = " " if len(counts) > 2 else "\n"  # a narrow figure would cut the title off
    figure.suptitle(f"pushpull with SGD, float32:{join}gradients in, new parameters visible to all workers")
    return figure


def _names(cases: Sequence[Case]) -> list[str]:
    measured = {name for case in cases for name in case.spreads()}
    return [name for name in _STYLES if name in measured]


def _times(axes: Axes, cases: Sequence[Case]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in _names(cases):
        points = [(case.nbytes, spread) for case in cases if (spread := case.spreads().get(name))]
        sizes = [size for size, _ in points]
        style = _STYLES[name]
        axes.plot(sizes, [spread.median for _, spread in points], label=name, markersize=5, **style)
        low, high = [s.first_quartile for _, s in points], [s.third_quartile for _, s in points]
        axes.fill_between(sizes, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_time(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", alpha=0.3)


def _ratios(axes: Axes, cases: Sequence[Case]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for name in _names(cases):
        ratios = [
            (case.nbytes, spreads[name].median / spreads[LIMIT].median)
            for case in cases
            if name in (spreads := case.spreads()) and LIMIT in spreads
        ]
        if ratios:
            axes.plot(
                [size for size, _ in ratios], [ratio for _, ratio in ratios], markersize=5, **_STYLES[name]
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", alpha=0.3)
    axes.set_xlabel("bytes of one gradient")


def _sizes(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    # Every second size where there are many, counted from the largest: labels must not touch.
    shown = sizes[::-1][:: 2 if len(sizes) > 5 else 1][::-1]
    axes.set_xticks(shown, [format_size(size).replace(" ", "\n") for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def _short_time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor * 0.999:
            return f"{seconds / factor:g} {unit}"
    return f"{seconds / 1e-9:g} ns"


def _bars(plt: Any, cases: Sequence[Case]) -> Any:
    """One size: a bar for each system, in a panel for each number of workers (or each chunk size)."""
    rows = max(1, len(cases))
    figure, axes = plt.subplots(rows, 1, figsize=(9, 1.2 + 2.0 * rows), squeeze=False, layout="constrained")
    for panel, case in zip(axes[:, 0], cases, strict=False):
        spreads = case.spreads()
        names = _names([case])[::-1]
        medians = [spreads[name].median * 1e3 for name in names]
        errors = [
            [(spreads[name].median - spreads[name].first_quartile) * 1e3 for name in names],
            [(spreads[name].third_quartile - spreads[name].median) * 1e3 for name in names],
        ]
        colors = [_STYLES[name]["color"] for name in names]
        panel.barh(
            names, medians, xerr=errors, color=colors, height=0.62, error_kw={"elinewidth": 1, "capsize": 3}
        )
        ours = spreads.get(REFERENCE)
        for place, name in enumerate(names):
            panel.annotate(
                _label(name, spreads[name], ours),
                (spreads[name].third_quartile * 1e3, place),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
            )
        panel.margins(x=0.28)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("milliseconds an iteration (median; whiskers: quartiles)")
        chunk = f", chunks of {format_size(case.chunk)}" if case.chunk else ""
        work = f"pushpull with SGD, {format_size(case.nbytes)} float32, {workers_of(case.workers)}"
        panel.set_title(f"{work}, {case.temperature}{chunk}", loc="left", fontsize=11)
    return figure


def _label(name: str, spread: Spread, ours: Spread | None) -> str:
    said = format_time(spread.median)
    return (
        said
        if ours is None or name == REFERENCE
        else f"{said}  ({format_ratio(spread.median / ours.median)})"
    )
