"""The trees of a plan as a picture, a panel for each stripe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from penstock.plan.trees import Cluster, Planned, Stripe
from penstock.units import format_ratio

MOST_PANELS = 6
"""More would be too small to read; the title says how many there are."""
MOST_NAMES = 40
"""Hosts of a panel that are named; more names would cover each other."""

# Those of Okabe and Ito, told apart by people who see colours differently.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")


def draw(cluster: Cluster, planned: Planned, path: Path) -> None:
    """
    Draws the first server's trees into `path`, whose suffix says the format.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    OSError
        The file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    stripes = planned.servers[0][:MOST_PANELS]
    columns = min(len(stripes), 3)
    rows = math.ceil(len(stripes) / columns)
    # A single chain is a tall picture, a star a wide one.
    width = 4.4 if columns > 1 else 8.0
    height = 2.2 + 0.55 * min(planned.depth, 10)
    figure, panels = plt.subplots(
        rows, columns, figsize=(width * columns, height * rows + 0.8), squeeze=False, layout="constrained"
    )
    for number, panel in enumerate(panels.flat):
        panel.set_axis_off()
        if number < len(stripes):
            _tree(panel, cluster, stripes[number])
            if len(planned.servers[0]) > 1:
                panel.set_title(f"stripe {number + 1}: {stripes[number].share:.1%} of the bytes", fontsize=10)
    shown = f" ({len(stripes)} of them shown)" if len(stripes) < len(planned.servers[0]) else ""
    figure.suptitle(f"{planned.shape}{shown}: {format_ratio(planned.ratio)} one transfer")
    _legend(figure, cluster)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _places(children: list[list[int]]) -> list[tuple[float, float]]:
    """Each leaf beside the one before, each other node above the middle of its children."""
    order, depth = [0], [0] * len(children)
    for node in order:
        for child in children[node]:
            depth[child] = depth[node] + 1
            order.append(child)
    across, free = [0.0] * len(children), 0
    todo = [(0, False)]
    while todo:
        node, done = todo.pop()
        if done:
            across[node] = (across[children[node][0]] + across[children[node][-1]]) / 2
        elif children[node]:
            todo.append((node, True))
            todo += [(child, False) for child in reversed(children[node])]
        else:
            across[node], free = float(free), free + 1
    return [(across[node], -float(depth[node])) for node in range(len(children))]


def _tree(panel: Any, cluster: Cluster, stripe: Stripe) -> None:
    children = stripe.children()
    places = _places(children)
    for node, below in enumerate(children):
        for child in below:
            (x, y), (to_x, to_y) = places[node], places[child]
            panel.plot([x, to_x], [y, to_y], color="#888888", linewidth=0.8, zorder=1)
    colours = _by_rack(cluster)
    size = 60 if len(cluster.hosts) <= MOST_NAMES else 14
    for node, host in enumerate([cluster.servers[0], *cluster.hosts]):
        marker, colour = ("s", "#222222") if node == 0 else ("o", colours[host.zone, host.rack])
        # Who only receives is hollow.
        face = colour if children[node] else "white"
        panel.scatter(*places[node], s=size, marker=marker, color=face, edgecolors=colour, zorder=2)
        if len(cluster.hosts) <= MOST_NAMES:
            _name(panel, host.name, places[node], leaf=not children[node])
    panel.margins(0.1, 0.15)


def _name(panel: Any, name: str, place: tuple[float, float], *, leaf: bool) -> None:
    offset = (0, -7) if leaf else (6, 0)
    panel.annotate(
        name,
        place,
        offset,
        textcoords="offset points",
        fontsize=7,
        rotation=90 if leaf else 0,
        ha="center" if leaf else "left",
        va="top" if leaf else "center",
        zorder=3,
    )


def _by_rack(cluster: Cluster) -> dict[tuple[int, int], str]:
    racks = dict.fromkeys((host.zone, host.rack) for host in cluster.hosts)
    return {rack: _COLOURS[number % len(_COLOURS)] for number, rack in enumerate(racks)}


def _legend(figure: Any, cluster: Cluster) -> None:
    from matplotlib.lines import Line2D

    def entry(marker: str, colour: str, face: str, label: str) -> Any:
        return Line2D([], [], marker=marker, color=colour, markerfacecolor=face, linestyle="", label=label)

    colours = _by_rack(cluster)
    handles = [entry("s", "#222222", "#222222", "server")]
    if 1 < len(colours) <= len(_COLOURS):
        handles += [
            entry("o", colour, colour, f"rack {number}") for number, colour in enumerate(colours.values(), 1)
        ]
    if len(colours) > len(_COLOURS):
        handles.append(entry("o", _COLOURS[0], _COLOURS[0], f"{len(colours)} racks, whose colours repeat"))
    handles.append(entry("o", "#444444", "white", "only receives"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=5 if len(handles) > 6 else len(handles),
        frameon=False,
    )
