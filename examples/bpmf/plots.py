"""
The figures of the case study, from files that `train.py --json` wrote.

    python examples/bpmf/plots.py bpmf.png run-*.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def name(run: dict[str, Any]) -> str:
    """What sets a run apart."""
    arguments = run["arguments"]
    words = [f"slack {arguments['slack']}"]
    if arguments["hyper_slack"] != "0":
        words.append(f"sums {arguments['hyper_slack']}")
    if arguments["propagation"] != "eager":
        words.append(arguments["propagation"])
    return f"{', '.join(words)} ({run['workers']} workers)"


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """RMSE over time and iterations, time of each iteration, communication against computation."""
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), constrained_layout=True)
    (over_time, over_iterations), (times, parts) = axes
    labels, computing, communicating = [], [], []
    for run in runs:
        seconds, rmse = run["by_iteration_seconds"], run["by_iteration_average"]
        steps = [after - before for before, after in zip([0, *seconds], seconds, strict=False)]
        communication = run["by_iteration_communication"]
        over_time.plot(seconds, rmse, label=name(run))
        over_iterations.plot(range(1, len(rmse) + 1), rmse)
        times.plot(range(1, len(steps) + 1), [1000 * step for step in steps], linewidth=0.8)
        labels.append(name(run))
        communicating.append(sum(communication))
        computing.append(seconds[-1] - sum(communication))
    over_time.set(xlabel="seconds", ylabel="RMSE (average of samples)", title="RMSE over time")
    over_iterations.set(xlabel="iteration", ylabel="RMSE (average of samples)", title="RMSE by iteration")
    times.set(xlabel="iteration", ylabel="milliseconds", title="time of each iteration, worker 0")
    parts.barh(labels, computing, label="computation")
    parts.barh(labels, communicating, left=computing, label="communication and waiting")
    parts.invert_yaxis()
    parts.set(xlabel="seconds", title="communication against computation, worker 0")
    parts.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    for axis in (over_time, over_iterations):
        best = min(min(run["by_iteration_average"]) for run in runs)
        late = max(run["by_iteration_average"][len(run["by_iteration_average"]) // 10] for run in runs)
        axis.set_ylim(best - 0.1 * (late - best), late)
    over_time.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Draws what the command line names."""
    if len(sys.argv) < 3:
        print("error: expected a picture's path and at least one file of `train.py --json`", file=sys.stderr)
        return 2
    runs = []
    for path in sys.argv[2:]:
        try:
            runs.append(json.loads(Path(path).read_text()))
            name(runs[-1])
        except (OSError, ValueError, KeyError) as error:
            print(f"error: {path} is not a file from `train.py --json`: {error}", file=sys.stderr)
            return 2
    draw(runs, Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
