"""The picture of an experiment: what the paper's figures 9, 10 and 12 to 14 show, of one task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock_bench.flow import report
from penstock_bench.flow.systems import GLOO, PLAIN, SYSTEMS
from penstock_bench.flow.training import Point

_COMPUTING = "#bbbbbb"
# Okabe and Ito's colours, and three of Tol's, told apart by people who see colours differently; dashes tell
# the rest.
_COLOURS = (
    *("#222222", "#56B4E9", "#CC79A7", "#F0E442", "#DDCC77", "#E69F00"),
    *("#D55E00", "#882255", "#009E73", "#117733", "#0072B2"),
)
_OWN = ("#666666", "#88CCEE", "#AA4499", "#999933")
_STYLES = dict(zip(SYSTEMS, _COLOURS, strict=True))
_DASHES = {PLAIN: "--", GLOO: ":"}


def draw(runs: report.Runs, title: str, path: Path) -> None:
    """Objective by steps and by time, what is saved of the traffic, and where the time goes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(14.4, 8.0), dpi=110, layout="constrained")
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
    by_steps, by_seconds, saved, parts, speedup, sent = panels.flat
    _trajectories(by_steps, by_seconds, runs)
    _saved(saved, runs)
    measured = report.rows(runs)
    _parts(parts, measured)
    _bars(speedup, measured, "seconds", "speedup over plain under bsp")
    _bars(sent, measured, "bytes", "times fewer bytes than plain under bsp")
    sent.set_yscale("log")
    handles, labels = by_steps.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, x=0.01, ha="left")
    figure.savefig(path)
    plt.close(figure)


def _colour(name: str) -> str:
    return _STYLES.get(name) or _OWN[sum(name.encode()) % len(_OWN)]


def _trajectories(by_steps: Any, by_seconds: Any, runs: report.Runs) -> None:
    """Under BSP, the first training of each."""
    for (name, consistency), trained in runs.items():
        if consistency != "bsp":
            continue
        points = trained[0].points
        across = [point.objective for point in points]
        style = {"color": _colour(name), "linestyle": _DASHES.get(name, "-"), "label": name}
        by_steps.plot([point.step for point in points], across, **style)
        by_seconds.plot([point.seconds for point in points], across, **style)
    for axes, along in ((by_steps, "steps, under bsp"), (by_seconds, "seconds, under bsp")):
        axes.axhline(report.objective(runs), color="#999999", linewidth=0.8)
        axes.set_xlabel(along)
        axes.set_ylabel("objective, and the one to reach")


def _saved(axes: Any, runs: report.Runs) -> None:
    """By steps, beside plain under the same consistency: the paper's figures 9 and 10."""
    for (name, consistency), trained in runs.items():
        base = runs.get((PLAIN, consistency))
        if base is None or name in (PLAIN, GLOO):
            continue
        steps, share = saved(base[0].points, trained[0].points)
        under = {"bsp": "-", "ssp:1": "--", "ssp:4": "-.", "ssp:16": ":"}.get(consistency, "-")
        axes.plot(steps, share, color=_colour(name), linestyle=under)
    axes.set_xlabel("steps (bsp -, ssp:1 --, ssp:4 -., ssp:16 ..)")
    axes.set_ylabel("saved of plain's traffic so far, %")
    axes.set_ylim(bottom=-25, top=100)


def saved(base: Sequence[Point], points: Sequence[Point]) -> tuple[list[int], list[float]]:
    """Per cent of plain's bytes that were not sent until then, by step."""
    shown = [point for point in points if 0 < point.step <= base[-1].step]
    steps = [point.step for point in shown]
    plain = np.interp(steps, [point.step for point in base], [point.bytes for point in base])
    share = 100 * (1 - np.array([point.bytes for point in shown]) / plain)
    return steps, [float(one) for one in share]


def _parts(axes: Any, measured: Sequence[report.Row]) -> None:
    """Computation and communication: figure 12."""
    shown = [row for row in measured if row.computing is not None]
    places = range(len(shown))
    computing = [row.computing or 0.0 for row in shown]
    axes.bar(places, computing, color=_COMPUTING, width=0.7)
    axes.bar(
        places,
        [row.communicating or 0.0 for row in shown],
        bottom=computing,
        color=[_colour(row.system) for row in shown],
        width=0.7,
    )
    axes.set_xticks(places, [f"{row.system} {row.consistency}" for row in shown], rotation=90, fontsize=7)
    axes.set_ylabel("seconds to the objective\n(grey: computation)")


def _bars(axes: Any, measured: Sequence[report.Row], what: str, said: str) -> None:
    """A group for each consistency: figures 13 and 14."""
    plain = report.find(measured, PLAIN)
    if plain is None:
        return
    consistencies = list(dict.fromkeys(row.consistency for row in measured))
    names = list(dict.fromkeys(row.system for row in measured))
    width = 0.85 / len(names)
    for row in measured:
        ratio = report.times(getattr(row, what), getattr(plain, what))
        if ratio is not None:
            place = consistencies.index(row.consistency) + width * (names.index(row.system) + 0.5) - 0.425
            axes.bar(place, ratio, width, color=_colour(row.system))
    axes.set_xticks(range(len(consistencies)), consistencies)
    axes.axhline(1.0, color="#222222", linewidth=0.8)
    axes.set_ylabel(said)
