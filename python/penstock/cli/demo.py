"""
`penstock demo`: a real model on real data, through real server and worker processes, compared with one
process alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import numbers, options, run, terminal
from penstock.demo.settings import RULES, Settings
from penstock.exceptions import PenstockError
from penstock.launch.local import Launch, Plan
from penstock.units import digits

if TYPE_CHECKING:
    from penstock.demo.alone import Single
    from penstock.demo.data import Digits
    from penstock.demo.gloo import Peer
    from penstock.demo.judging import Curve
    from penstock.demo.progress import PlainConsole, Progress

EXAMPLES = """\
  penstock demo
  penstock demo --workers 4 --consistency ssp:4 --optimizer adam
  penstock demo --torch --epochs 5 --json result.json --plot curves.png"""

EPOCHS = 20
PEERS = ("auto", "gloo", "none")
PLOTS = (".png", ".svg", ".pdf")
TORCH_EPOCHS = 10
BATCH = 128
TORCH_BATCH = 32
STALENESS_COLUMNS = 9
"""
What fits beside the workers' names on a terminal of 80 columns; reads further behind are counted together.
"""


def parser() -> terminal.Parser:
    """The command's arguments."""
    result = terminal.Parser(
        "penstock demo",
        "Trains a model on handwritten digits with workers and servers on this machine, then again in a\n"
        "single process on the same batches, and compares the two.",
        EXAMPLES,
    )
    run.add_job_arguments(result, workers=2)
    result.add_argument(
        "--optimizer", default="momentum", metavar="NAME", help=f"{', '.join(RULES)} (default momentum)"
    )
    result.add_argument("--epochs", metavar="N", help=f"default {EPOCHS}; with --torch {TORCH_EPOCHS}")
    result.add_argument(
        "--batch",
        metavar="N",
        help=f"samples per worker and step (default {BATCH}; with --torch {TORCH_BATCH})",
    )
    result.add_argument(
        "--seed", default="0", metavar="N", help="seed of the parameters and the batches (default 0)"
    )
    result.add_argument("--torch", action="store_true", help="train a small CNN with PyTorch")
    result.add_argument(
        "--peer",
        default="auto",
        metavar="NAME",
        help="gloo: train again with Gloo's all-reduce; none: do not; auto: if PyTorch is there (default)",
    )
    result.add_argument("--json", metavar="FILE", help="write the result here")
    result.add_argument(
        "--plot",
        metavar="FILE",
        default="penstock-demo.png",
        help="file for the plot of the curves (default penstock-demo.png)",
    )
    options.add_to(result)
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    given = parser().parse_args(arguments)
    plan = replace(run.make_plan(given, ["-m", "penstock.demo.worker"]), go_on=False)
    settings = settings_of(given, plan.workers)
    outputs = [Path(name) for name in (given.json, given.plot) if name]
    for output in outputs:
        check_output(output)
    if given.plot and Path(given.plot).suffix.lower() not in PLOTS:
        terminal.refuse(f"--plot {given.plot} has a suffix that cannot be drawn", f"use {', '.join(PLOTS)}")
    need("sklearn", "scikit-learn", "demo")
    need("matplotlib", "matplotlib", "demo")
    need("rich", "rich", "demo")
    if given.peer not in PEERS:
        terminal.refuse(f"there is no peer {given.peer!r}", f"one of {', '.join(PEERS)}")
    if settings.torch or given.peer == "gloo":
        need("torch", "PyTorch", "torch")

    from penstock.demo import data, progress

    digits = data.load()
    steps = data.steps_per_epoch(len(digits.train_y), settings.batch, settings.workers)
    if steps == 0:
        terminal.refuse(
            f"{settings.workers} workers with {settings.batch} samples each need "
            f"{settings.workers * settings.batch} samples per step, but there are only {len(digits.train_y)}",
            "fewer workers, or a smaller --batch",
        )
    state = progress.Progress(settings, len(digits.train_y))
    console = progress.console_for(state)
    announce(settings, plan, digits)
    start = time.monotonic()
    code = train(plan, settings, digits, state, console)
    if code != 0:
        return code
    seconds = time.monotonic() - start
    if settings.epochs not in state.album.pictures:
        raise PenstockError(
            "the workers ended without a result", hint="this is a bug in Penstock; please report it"
        )
    return compare(given, plan, settings, digits, state, seconds)


def settings_of(given: argparse.Namespace, workers: int) -> Settings:
    """The demo's own settings, checked."""
    if given.optimizer not in RULES:
        meant = terminal.near(given.optimizer, RULES)
        terminal.refuse(
            f"there is no optimizer {given.optimizer!r}",
            f"did you mean {meant}?" if meant else f"one of {', '.join(RULES)}",
        )
    return Settings(
        workers=workers,
        epochs=numbers.count(
            given.epochs or str(TORCH_EPOCHS if given.torch else EPOCHS), "--epochs", 100_000
        ),
        batch=numbers.count(given.batch or str(TORCH_BATCH if given.torch else BATCH), "--batch", 100_000),
        seed=seed(given.seed),
        optimizer=given.optimizer,
        torch=given.torch,
    )


def seed(text: str) -> int:
    """A seed: any whole number of 0 or above."""
    number = digits(text)
    if number is None:
        terminal.refuse(
            f"--seed {text!r} is not a whole number of 0 or above", "any such number; 0 is the default"
        )
    return number


def check_output(path: Path) -> None:
    """Refuses a file that cannot be written, before the work is done and not after it."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        terminal.refuse(
            f"{str(path)!r} cannot be written", "give a file in an existing folder that you may write to"
        )


def need(module: str, name: str, extra: str) -> None:
    """Refuses to continue without a package that an extra installs."""
    if importlib.util.find_spec(module) is None:
        raise PenstockError(
            f"the demo needs {name}, which is not installed", hint=f"pip install 'penstock-ps[{extra}]'"
        )


def announce(settings: Settings, plan: Plan, digits: Digits) -> None:
    """What will be done."""
    from penstock.demo.plot import count

    what = "a small CNN in " + ("PyTorch" if settings.torch else "NumPy")
    terminal.say(
        f"handwritten digits: {len(digits.train_y)} to learn, {len(digits.test_y)} to test; {what}\n"
        f"{count(plan.workers, 'worker')}, {count(plan.servers, 'server')}, {mode(plan)}, "
        f"{settings.optimizer}, {settings.epochs} epochs, {settings.batch} samples per worker and step\n"
    )


def mode(plan: Plan) -> str:
    """The job's consistency."""
    if plan.consistency:
        return plan.consistency
    option = options.table().get("consistency")
    return (os.environ.get("PENSTOCK_CONSISTENCY") or (option.default if option else "")) or "bsp"


def train(plan: Plan, settings: Settings, digits: Digits, state: Progress, console: PlainConsole) -> int:
    """The job, as `penstock run` would run it; its exit code."""
    plan = replace(plan, files={"settings.json": settings.to_bytes(), "digits.npz": digits.to_bytes()})

    def on_report(rank: int, line: bytes) -> None:
        if state.take(rank, line):
            console.epoch()

    from penstock.demo.progress import REFRESH_SECONDS

    console.start()
    try:
        launch = Launch(
            plan, console, on_report=on_report, on_idle=console.refresh, idle_seconds=REFRESH_SECONDS
        )
        outcome = launch.run()
    finally:
        console.stop()
    run.tell(outcome)
    return outcome.code


def compare(
    given: argparse.Namespace, plan: Plan, settings: Settings, digits: Digits, state: Progress, seconds: float
) -> int:
    """The same training in this process alone, and what came of both."""
    from penstock.demo import alone, gloo, plot

    terminal.say("\nagain, in a single process ...")
    single = alone.train(settings, digits)
    curve = state.album.judged(settings, digits)
    differences = [
        alone.largest_difference(state.album.pictures[epoch], single.album.pictures[epoch])
        for epoch in (curve.epochs[0], curve.epochs[-1])
    ]
    peer = None
    if given.peer == "gloo" or (given.peer == "auto" and gloo.is_there()):
        terminal.say("again, with Gloo's all-reduce ...")
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
            peer = gloo.train(settings, digits, Path(folder))
    table(plan, settings, state, curve, single, peer, differences)
    result = {
        "final_accuracy": curve.accuracy[-1],
        "single_process_accuracy": single.curve.accuracy[-1],
        "workers": plan.workers,
        "servers": plan.servers,
        "consistency": mode(plan),
        "seconds": seconds,
        "max_staleness": state.max_staleness,
        "max_difference": differences[-1],
        "first_difference": differences[0],
        "optimizer": settings.optimizer,
        "epochs": settings.epochs,
        "steps": state.steps,
        "batch": settings.batch,
        "seed": settings.seed,
        "model": "cnn-torch" if settings.torch else "cnn-numpy",
        "training_seconds": state.training_seconds,
        "single_process_seconds": single.seconds,
        "single_process_threads": single.threads,
        "single_process_threaded_samples_per_second": single.threaded_rate,
        "gloo_seconds": peer.seconds if peer else None,
        "gloo_accuracy": peer.accuracy if peer else None,
        "samples_per_second": state.samples_per_second,
        "bytes_moved": sum(seen.moved for seen in state.workers),
        "staleness": [dict(sorted(seen.staleness.items())) for seen in state.workers],
        "judged_epochs": curve.epochs,
        "accuracy": curve.accuracy,
        "loss": curve.loss,
        "single_process_curves": {"accuracy": single.curve.accuracy, "loss": single.curve.loss},
    }
    if given.plot:
        plot.draw(Path(given.plot), settings, plan.servers, mode(plan), curve, single.curve)
        terminal.say(f"curves: {given.plot}")
    if given.json:
        write_json(Path(given.json), result)
        terminal.say(f"result: {given.json}")
    return 0


def table(
    plan: Plan,
    settings: Settings,
    state: Progress,
    curve: Curve,
    single: Single,
    peer: Peer | None,
    differences: list[float],
) -> None:
    """The comparison at the end."""
    from penstock.demo.units import size

    seen = state.steps * settings.batch * settings.workers
    moved = size(sum(one.moved for one in state.workers))
    ours = (curve.accuracy[-1], curve.loss[-1], state.training_seconds, moved)
    columns = [
        ("", "accuracy, test", "loss, training", "training time", "samples/s", "bytes moved"),
        ("penstock", *figures(*ours, seen)),
    ]
    if peer is not None:
        columns.append(("gloo", *figures(peer.accuracy, peer.loss, peer.seconds, "", seen)))
    alone = (single.curve.accuracy[-1], single.curve.loss[-1], single.seconds, "-")
    columns.append(("one process", *figures(*alone, seen)))
    if single.threaded_rate is not None:
        columns.append((f"{single.threads} BLAS threads", *[""] * 3, f"{single.threaded_rate:,.0f}", ""))
    terminal.say()
    for name, *values in zip(*columns, strict=True):
        terminal.say(f"{name:<16}" + "".join(f"{value:>16}" for value in values).rstrip())
    exact = " (same sums in another order)" if mode(plan) == "bsp" else ""
    terminal.say(
        f"\nlargest difference of a parameter: after epoch {curve.epochs[0]} {differences[0]:.1g}, "
        f"at the end {differences[-1]:.1g}{exact}"
    )
    if mode(plan) != "bsp":
        terminal.say(f"most iterations that a read lagged behind: {state.max_staleness}")
        if any(one.staleness for one in state.workers):
            staleness_table(state)
    terminal.say()


def figures(accuracy: float, loss: float, seconds: float, moved: str, samples: int) -> tuple[str, ...]:
    """A column of the comparison, below its name."""
    return (f"{accuracy:.4f}", f"{loss:.4f}", f"{seconds:.2f} s", f"{samples / seconds:,.0f}", moved)


def staleness_table(state: Progress) -> None:
    """How often each worker read a value that lagged so many iterations behind."""
    most = min(state.max_staleness, STALENESS_COLUMNS - 1)
    more = "" if most == state.max_staleness else "+"
    heads = [*map(str, range(most)), f"{most}{more}"]
    terminal.say("\nreads by how many iterations they lagged behind:")
    terminal.say(f"{'':<10}" + "".join(f"{head:>8}" for head in heads))
    for rank, one in enumerate(state.workers):
        total = max(1, one.staleness.total())
        counts = [one.staleness[behind] for behind in range(most)]
        shares = [count / total for count in (*counts, one.staleness.total() - sum(counts))]
        terminal.say(f"worker {rank:<3}" + "".join(f"{share:>8.1%}" for share in shares))


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Writes the result whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(result, indent=2) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
