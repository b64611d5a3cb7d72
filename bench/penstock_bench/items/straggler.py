"""
Time to a given loss by slack, while one worker at a time sleeps at random: what waiting costs.

With slack 0 every iteration takes as long as its sleeper sleeps. Without any waiting a worker sleeps only its
own part: with N workers, of whom another one sleeps each time, an iteration takes 1 / N of that, and this is
the most that slack can save. If it is always the same worker that sleeps, all others are soon `slack`
iterations ahead of it and go at its pace: slack can save no more than that lead.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.launch.ranks import rank_command
from penstock.units import format_ratio, format_time
from penstock_bench.items.systems import OutspokenRanks
from penstock_bench.network.places import Layout, Place, servers
from penstock_bench.network.report import columns

LEAST_ITERATIONS = 20


@dataclass(frozen=True)
class Run:
    """One run: a slack and a seed."""

    slack: str
    seed: int
    times: list[float]
    """When worker 0 had read the parameters of each iteration; at last, when it ended."""
    losses: list[float]
    waited: float
    """Seconds that a worker waited in gets, on average."""
    max_staleness: float
    """Clocks that a row lacked at most, over all workers."""

    def reached(self, target: float) -> float | None:
        """Seconds until the loss was at most `target` for the first time; None if it never was."""
        return next((t for t, value in zip(self.times, self.losses, strict=True) if value <= target), None)


@dataclass
class Found:
    """All runs."""

    workers: int
    sleep: float
    who: str
    iterations: int
    target: float = float("nan")
    runs: list[Run] = field(default_factory=list)

    def of(self, slack: str) -> list[Run]:
        """The runs of a slack."""
        return [run for run in self.runs if run.slack == slack]

    def times(self, slack: str) -> list[float | None]:
        """Seconds to the target, run by run."""
        return [run.reached(self.target) for run in self.of(slack)]

    def median(self, slack: str) -> float | None:
        """The median of them; None if a run never reached it."""
        times = [time for time in self.times(slack) if time is not None]
        return statistics.median(times) if times and len(times) == len(self.of(slack)) else None


def measure(
    found: Found,
    slacks: Sequence[str],
    *,
    rounds: int,
    target: float | None,
    note: Callable[[str], None],
) -> Found:
    """
    Runs every slack in every round, each round with a seed of its own.

    Parameters
    ----------
    found
        What is filled.
    slacks
        Whole numbers, or "auto".
    rounds
        Runs of each slack.
    target
        The loss to reach; None: what the first slack of the list reaches with half of its iterations, the
        largest over the rounds.
    note
        Told what goes on.

    Raises
    ------
    RanksError
        The workers failed.
    """
    layout = Layout((0,) * found.workers, (0,))
    secret = {"PENSTOCK_SECRET": os.urandom(32).hex(), "PENSTOCK_JOB": "bench"}
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(servers(Place(None), layout, secret))
        common = {
            **secret,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PENSTOCK_SERVERS": ",".join(running.endpoints),
            "PENSTOCK_SIZE": str(found.workers),
        }
        commands = [rank_command("penstock_bench.items.straggler_rank") for _ in range(found.workers)]
        environments = [{**common, "PENSTOCK_RANK": str(rank)} for rank in range(found.workers)]
        ranks = stack.enter_context(OutspokenRanks("penstock", found.workers, commands, environments))
        for number in range(rounds):
            for slack in slacks:
                note(f"slack {slack}, round {number + 1} of {rounds}")
                found.runs.append(_run(ranks, found, slack, number))
    if target is None:
        target = max(run.losses[found.iterations // 2] for run in found.of(slacks[0]))
    found.target = target
    return found


def _run(ranks: OutspokenRanks, found: Found, slack: str, seed: int) -> Run:
    answers = ranks.ask(
        do="train", slack=slack, seed=seed, iterations=found.iterations, sleep=found.sleep, who=found.who
    )
    return Run(
        slack,
        seed,
        answers[0]["times"],
        answers[0]["losses"],
        statistics.mean(answer["waited"] for answer in answers),
        max(answer["max_staleness"] for answer in answers),
    )


def table(found: Found, slacks: Sequence[str]) -> str:
    """A line for each slack."""
    base = found.median(slacks[0])
    rows = [
        f"slack|to the loss|min|max|over slack {slacks[0]}|all iterations|waited|staleness|last loss".split(
            "|"
        )
    ]
    for slack in slacks:
        runs = found.of(slack)
        median, times = found.median(slack), [time for time in found.times(slack) if time is not None]
        rows.append(
            [
                slack,
                "never" if median is None else format_time(median),
                format_time(min(times)) if times else "-",
                format_time(max(times)) if times else "-",
                format_ratio(base / median) if base and median else "-",
                format_time(statistics.median(run.times[-1] for run in runs)),
                f"{statistics.median(run.waited / run.times[-1] for run in runs):.0%}",
                f"{max(run.max_staleness for run in runs):g}",
                f"{statistics.median(run.losses[-1] for run in runs):.4f}",
            ]
        )
    return columns(rows)


def document(found: Found, machine: dict[str, object]) -> dict[str, Any]:
    """The same for programs, with every run's losses over time."""
    return {
        "bench": "straggler",
        "machine": machine,
        "workers": found.workers,
        "sleep_s": found.sleep,
        "who": found.who,
        "iterations": found.iterations,
        "target": found.target,
        "runs": [{**vars(run), "to_target_s": run.reached(found.target)} for run in found.runs],
    }


def draw(found: Found, slacks: Sequence[str], path: Path) -> None:
    """Loss over time, a curve a slack: the median over the rounds, least and greatest as a band."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.6, 4.8), layout="constrained")
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.88, len(slacks)))
    for slack, colour, marker in zip(slacks, colours, "osD^vPX*" * len(slacks), strict=False):
        runs = found.of(slack)
        end = min(run.times[-1] for run in runs)
        grid = np.linspace(0.0, end, 200)
        values = np.array([np.interp(grid, run.times, run.losses) for run in runs])
        style = {"color": colour, "marker": marker, "markevery": 20, "markersize": 4}
        axes.plot(grid, np.median(values, axis=0), label=f"slack {slack}", **style)
        axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.axhline(found.target, color="#222222", linestyle="--", linewidth=1, label="the loss to reach")
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("loss (mean cross-entropy)")
    sleeper = "another one each time" if found.who == "any" else "always the same"
    axes.set_title(
        f"{found.workers} workers, one sleeps {found.sleep * 1e3:g} ms on average an iteration: {sleeper}",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


__all__ = ["Found", "Run", "document", "draw", "measure", "table"]
