"""
The slack sweep: the same factorisation with several slacks, and its pictures.

    python examples/bpmf/sweep.py --data u.data --slacks 0,1,2,4,8 --workers 2 --straggler 1:0.05 --out sweep
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from plots import draw, name


def time_to(run: dict, target: float) -> float | None:
    """Seconds until the averaged RMSE first was at the target."""
    reached = (
        s
        for s, rmse in zip(run["by_iteration_seconds"], run["by_iteration_average"], strict=True)
        if rmse <= target
    )
    return next(reached, None)


def main() -> int:
    """Runs, draws, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--slacks", default="0,1,2,4,8", help="slacks of U and V (default 0,1,2,4,8)")
    parser.add_argument(
        "--hyper", action="store_true", help="give the sums the same slack: no barrier is left"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bpmf-sweep"), help="folder (default bpmf-sweep)")
    parser.add_argument("--target", type=float, help="RMSE (default: what all runs reach)")
    given, rest = parser.parse_known_args()
    given.out.mkdir(parents=True, exist_ok=True)
    runs = []
    for slack in given.slacks.split(","):
        path = given.out / f"slack-{slack.replace(':', '-')}.json"
        command = [
            "penstock",
            "run",
            "--workers",
            str(given.workers),
            str(Path(__file__).parent / "train.py"),
        ]
        command += ["--slack", slack, "--json", str(path), "--quiet", *rest]
        if given.hyper and slack.isdigit():
            command += ["--hyper-slack", slack]
        done = subprocess.run(command, text=True, capture_output=True)
        if done.returncode != 0:
            print(done.stderr or done.stdout, file=sys.stderr)
            return done.returncode
        runs.append(json.loads(path.read_text()))
    target = given.target or max(min(run["by_iteration_average"]) for run in runs)
    first = time_to(runs[0], target)
    print(f"{'':36} {'final RMSE':>10} {'seconds':>8} {f'to {target:.4f}':>10} {'gain':>6}")
    for run in runs:
        reached = time_to(run, target)
        gain = f"{first / reached:5.2f}x" if reached and first else "never"
        print(f"{name(run):36} {run['final']:10.6f} {run['seconds']:8.2f} {reached or 0.0:10.2f} {gain:>6}")
    draw(runs, given.out / "bpmf.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
