"""
Both trainings in one picture: accuracy and loss over the epochs, the parameter server's and the single
process's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.demo.judging import Curve
from penstock.demo.settings import Settings

_SHARED, _ALONE, _INK, _FAINT = "#0b6e99", "#e07a1f", "#222222", "#d9d9d9"


def draw(path: Path, settings: Settings, servers: int, consistency: str, shared: Curve, alone: Curve) -> None:
    """Writes a PNG (or what else the name's ending says)."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

    style: Any = {"font.size": 11, "axes.edgecolor": _INK, "text.color": _INK, "axes.labelcolor": _INK}
    with plt.rc_context(style):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), dpi=150, layout="constrained")
        label = f"Penstock: {count(settings.workers, 'worker')}, {count(servers, 'server')}, {consistency}"
        for axes, ours, theirs in (
            (left, shared.accuracy, alone.accuracy),
            (right, shared.loss, alone.loss),
        ):
            # The wide pale line stays visible under the thin one where the two agree.
            axes.plot(
                alone.epochs,
                theirs,
                color=_ALONE,
                linewidth=5,
                alpha=0.45,
                label="single process",
            )
            axes.plot(
                shared.epochs, ours, color=_SHARED, linewidth=1.8, marker="o", markersize=3, label=label
            )
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(color=_FAINT, linewidth=0.6)
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        left.set_title(
            f"accuracy on the test samples: {shared.accuracy[-1]:.1%} (single: {alone.accuracy[-1]:.1%})",
            loc="left",
            fontsize=12,
        )
        left.yaxis.set_major_formatter(PercentFormatter(1.0))
        left.legend(loc="lower right", frameon=False)
        right.set_title("loss on the training samples", loc="left", fontsize=12)
        right.set_yscale("log")
        right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        right.set_ylabel("mean cross entropy")
        what = "a small CNN in " + ("PyTorch" if settings.torch else "NumPy")
        figure.suptitle(
            f"Handwritten digits: {what}, {settings.optimizer}, {settings.batch} samples a worker and step",
            fontsize=13,
            x=0.01,
            ha="left",
        )
        figure.savefig(path)
        plt.close(figure)


def count(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
