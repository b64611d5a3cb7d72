"""What the three workloads share: the command line, the split of the data, and what is recorded of a run."""

from __future__ import annotations

import argparse
import bz2
import gzip
import importlib.util
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

import numpy as np

import penstock as ps
from penstock.exceptions import OptionError

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

LOADING = 3600.0
"""Seconds that the first worker to have its data waits for the last one."""


class BadInputError(Exception):
    """Data or options that cannot be trained on: what was expected, and what came."""

    def __init__(
        self,
        message: str,
        hint: str = "`--help` lists what can be read and generated",
        *,
        everywhere: bool = False,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.everywhere = everywhere
        """Whether all workers raise the same."""


# -- the command line


def parser(about: str, *, steps: int, batch: int, lr: float, momentum: float) -> argparse.ArgumentParser:
    """A parser with the options of all workloads; the defaults are a workload's own."""
    made = argparse.ArgumentParser(description=about.strip().splitlines()[0], allow_abbrev=False)
    add = made.add_argument_group("training").add_argument
    add("--steps", type=whole(1), default=steps, help=f"steps of each worker (default {steps})")
    add("--batch", type=whole(1), default=batch, help=f"examples a worker and step (default {batch})")
    add("--lr", type=number, default=lr, help=f"learning rate (default {lr:g})")
    add("--momentum", type=number, default=momentum, help=f"momentum (default {momentum:g})")
    add("--seed", type=whole(0), default=0, help="of everything that is random (default 0)")
    add("--consistency", choices=("bsp", "ssp", "asp"), help="default: the job's, which is bsp unless set")
    add("--slack", type=whole(0), help="iterations that a read may lag behind under ssp (default 4)")
    add = made.add_argument_group("what travels").add_argument
    how = "such as topk:0.01, dvf:0.001, dvf:1,relative,constant, dvf:0.001..0.002, auto"
    add("--push", type=filter_of, metavar="FILTER", help=f"of pushes, {how} or int8 (default: all is sent)")
    add("--broadcast", type=filter_of, metavar="FILTER", help=f"of values, {how} (default: all is sent)")
    choices = ("pull", "broadcast", "update", "auto")
    add("--propagation", choices=choices, help="what servers send, and when; auto: as it suits")
    add = made.add_argument_group("measuring").add_argument
    held = "keep each N-th example for the objective (default 10)"
    add("--held-out", type=whole(2), default=10, metavar="N", help=held)
    add("--every", type=whole(1), metavar="N", help="steps between two measurements (default a 20th of all)")
    add("--json", type=writable, metavar="FILE", help="write the trajectory to this file")
    add("--plot", type=drawable, metavar="FILE", help="draw it into this picture")
    add("--save", type=writable, metavar="FILE", help="write the trained model to this file")
    return made


def parse(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line, checked; consistency and slack are one word, as the job takes it."""
    given = made.parse_args()
    if given.slack is not None and given.consistency != "ssp":
        made.error("argument --slack: expected --consistency ssp beside it")
    if given.consistency == "ssp":
        given.consistency = f"ssp:{4 if given.slack is None else given.slack}"
    given.every = given.every or max(1, given.steps // 20)
    return given


def options(given: argparse.Namespace) -> dict[str, Any]:
    """How the model's tensors travel: what `job.tensor` and `ps.torch.distribute` get beside the model."""
    chosen: dict[str, Any] = {"consistency": given.consistency}
    if given.push is not None or given.broadcast is not None:
        chosen["filter"] = ps.Filters(push=given.push, broadcast=given.broadcast)
    if given.propagation is not None:
        chosen["propagation"] = given.propagation
    return chosen


def filter_of(text: str) -> Any:
    """
    The type of an option that names a filter, in words that a command line takes as they are.

    `topk:FRACTION`, `randomk:FRACTION`, `dvf:BOUND`, or `dvf:LOW..UP` that follows the network, with
    `,relative` and `,constant` (no decay) behind it or without, `2bit:THRESHOLD`, the other forms of
    `ps.Quantize` by their name, and `auto`: what `filter="auto"` is, in this direction.
    """
    kind, _, setting = text.partition(":")
    setting, *words = setting.split(",")
    if not set(words) <= ({"relative", "constant"} if kind == "dvf" else set()):
        kind = ""
    try:
        match kind:
            case "topk":
                return ps.TopK(float(setting))
            case "randomk":
                return ps.RandomK(float(setting))
            case "dvf":
                decay = None if "constant" in words else "sqrt"
                low, pair, up = setting.partition("..")
                above = float(up) if pair else None
                return ps.DVF(float(low), above, decay=decay, relative="relative" in words)
            case "auto" if text == kind:
                return ps.DVF(0.0, 2.0, decay=None, relative=True)
            case "2bit":
                return ps.Quantize("2bit", threshold=float(setting))
            case "f16" | "bf16" | "int8" | "1bit" if text == kind:
                return ps.Quantize(kind)
    except (ValueError, OptionError) as error:
        raise argparse.ArgumentTypeError(f"expected a filter, got {text!r}: {error}") from None
    known = "topk:FRACTION, randomk:FRACTION, dvf:BOUND, dvf:LOW..UP, auto, f16, bf16, int8, 2bit:THRESHOLD"
    raise argparse.ArgumentTypeError(f"expected {known} or 1bit, got {text!r}")


def whole(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number of `least` or more."""

    def read(text: str) -> int:
        # Not int(): it takes "1_000" and " 7".
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of {least} or more, got {text!r}")
        return int(text)

    return read


def number(text: str) -> float:
    """The type of an option that is a number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")
    return value


def writable(text: str) -> Path:
    """The type of an option that names a file to write: said now, not when the training is over."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text!r}")
    return path


def drawable(text: str) -> Path:
    """The type of an option that names a picture."""
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("expected matplotlib to be installed: pip install matplotlib")
    if Path(text).suffix not in (".pdf", ".png", ".svg"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .png, .svg or .pdf, got {text!r}")
    return writable(text)


# -- the data's split


@dataclass(frozen=True)
class Split:
    """Who gets which example: each `held_out`-th is kept for the objective, the rest go round the workers."""

    rank: int = 0
    size: int = 1
    held_out: int = 10

    def owners(self, examples: Array) -> Array:
        """The rank that trains on each of these examples, by their numbers; -1: kept for the objective."""
        kept = examples % self.held_out == self.held_out - 1
        return np.where(kept, -1, (examples - examples // self.held_out) % self.size)

    def owner(self, example: int) -> int:
        """The same of one, for readers that go line by line."""
        if example % self.held_out == self.held_out - 1:
            return -1
        return (example - example // self.held_out) % self.size

    def mine(self, count: int) -> Array:
        """The examples that this worker trains on, of `count`."""
        return np.flatnonzero(self.owners(np.arange(count)) == self.rank)

    def kept(self, count: int) -> Array:
        """The examples that are kept for the objective; only worker 0 looks at them."""
        return np.arange(self.held_out - 1, count if self.rank == 0 else 0, self.held_out)

    def check(self, mine: int, kept: int, what: str) -> None:
        """Raises BadInputError if there is nothing to train on, or to measure."""
        if mine == 0:
            raise BadInputError(
                f"expected {what} for each worker, worker {self.rank} of {self.size} got none"
            )
        if kept == 0 and self.rank == 0:
            raise BadInputError(
                f"expected at least {self.held_out} {what}, so that one is kept for the objective",
                "give more data, or a smaller --held-out",
            )


def batches(count: int, batch: int, seed: int, rank: int) -> Iterator[Array]:
    """Indices of a worker's batches, without end: its examples in a new order in each epoch."""
    chance = np.random.default_rng((seed, 1, rank))
    waiting = np.empty(0, np.int64)
    while True:
        while len(waiting) < batch:
            waiting = np.concatenate((waiting, chance.permutation(count)))
        yield waiting[:batch]
        waiting = waiting[batch:]


# -- files


def open_text(path: Path) -> TextIO:
    """A text file, as it is or packed by gzip or bzip2. What is no text is left to the parser to refuse."""
    if not path.is_file():
        raise BadInputError(f"{path}: expected a file, there is {'a folder' if path.is_dir() else 'none'}")
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    try:
        opened = openers.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="replace")
        return cast(TextIO, opened)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from error


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not empty, each with its number in the file."""
    with open_text(path) as lines:
        try:
            for at, line in enumerate(lines, 1):
                # Tabs alone are columns that are missing.
                if line.strip(" \r\n"):
                    yield at, line.rstrip("\r\n")
        except (OSError, EOFError, zlib.error) as error:
            raise BadInputError(f"{path}: cannot be unpacked: {error}") from error


def malformed(path: Path, at: int, expected: str, line: str) -> BadInputError:
    """The error for a line that cannot be read."""
    shown = line if len(line) <= 60 else line[:57] + "..."
    return BadInputError(f"{path}, line {at}: expected {expected}, got {shown!r}")


# -- arithmetic


def summed(rows: Array, values: Array) -> tuple[Array, Array]:
    """Each row that is named, once, and the sum of its values."""
    if len(rows) == 0:
        return rows, values
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[first], np.add.reduceat(values[order], first, axis=0)


def add_rows(out: Array, rows: Array, values: Array) -> None:
    """out[rows[i]] += values[i] for each i, where rows may be named many times."""
    named, sums = summed(rows, values)
    out[named] += sums


def power_law(uniform: Array, count: int, power: float) -> Array:
    """Ranks 0 to `count` - 1, rank k about as often as (k + 1) ** -power, from numbers between 0 and 1."""
    if abs(power - 1.0) < 1e-9:
        drawn = np.exp(uniform * math.log(count + 1))
    else:
        drawn = (1.0 + uniform * ((count + 1.0) ** (1.0 - power) - 1.0)) ** (1.0 / (1.0 - power))
    return np.clip(drawn.astype(np.int64) - 1, 0, count - 1)


# -- the run


def agreed(job: ps.Job, load: Callable[[], T]) -> T:
    """
    What `load` returns, once every worker has its data.

    Each worker may read other lines, so that one finds what is wrong and the others do not: then the same
    BadInputError is raised on all of them.
    """
    found: T | None = None
    problem: tuple[str, str] | None = None
    try:
        found = load()
    except BadInputError as error:
        problem = str(error), error.hint
    for told in job.all_gather(problem, name="loading", timeout=max(LOADING, job.deadline)):
        if told is not None:
            raise BadInputError(*told, everywhere=True)
    return cast(T, found)


def run(train: Callable[[ps.Job], None]) -> int:
    """Joins the job and trains; returns an exit code. What all workers raise, worker 0 says."""
    with ps.init() as job:
        try:
            train(job)
        except BadInputError as error:
            if job.rank == 0 or not error.everywhere:
                print(f"error: {error}\n\nhint: {error.hint}", file=sys.stderr)
            if not error.everywhere:
                # Leaves the job as one that failed: the others would wait for its next step.
                sys.exit(2)
            return 2
    return 0


class Record:
    """
    What worker 0 sees of a run: objective, time and bytes by step. Elsewhere it does nothing.

    Seconds are those since every worker was ready to train. They include the measurements, for which the
    others wait under BSP. Those in which a gradient was computed, and those of the measurements, stand beside
    them: the rest is communication, and waiting for the others.
    """

    def __init__(self, job: ps.Job, given: argparse.Namespace, example: str, objective: str) -> None:
        self._job, self._given = job, given
        self._example, self._objective = example, objective
        self._trajectory: list[dict[str, float]] = []
        self._measuring = self._computing = 0.0
        # What the job's default is, a tensor knows.
        told = job.tensor("a tensor's consistency", shape=(), consistency=given.consistency)
        self._consistency = str(told.consistency)
        job.barrier(timeout=max(LOADING, job.deadline), what="the start of training")
        # What joining and loading took is not training.
        self._layers = job.layers() if job.rank == 0 else {}
        # All processes of a host share this clock, so that others can say when something happened here.
        self._start = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether to measure after so many steps."""
        return self._job.rank == 0 and step % self._given.every == 0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is done in it is computation."""
        before = time.monotonic()
        yield
        self._computing += time.monotonic() - before

    def note(self, step: int, measure: Callable[[], dict[str, float]]) -> None:
        """Measures after so many steps: `objective`, and whatever else. Prints a line."""
        if self._job.rank != 0:
            return
        seconds = time.monotonic() - self._start
        bytes_moved = {name: n for name, n in self._job.stats().items() if name.endswith("_bytes")}
        parts = {"computing_seconds": self._computing, "measuring_seconds": self._measuring}
        measured = measure()
        self._measuring += time.monotonic() - self._start - seconds
        self._trajectory.append({"step": step, "seconds": seconds, **parts, **measured, **bytes_moved})
        rate = step * self._given.batch * self._job.size / seconds if step else 0.0
        more = "".join(f"  {name} {value:.4f}" for name, value in measured.items() if name != "objective")
        print(
            f"step {step:6}/{self._given.steps}  {self._objective} {measured['objective']:.5f}{more}"
            f"  {seconds:7.2f} s  {rate:9,.0f} examples/s",
            flush=True,
        )

    def _spent(self) -> dict[str, dict[str, float]]:
        """Seconds in each layer since the start: this worker's, and each server's."""
        return {
            who: {layer: seconds - self._layers[who][layer] for layer, seconds in layers.items()}
            for who, layers in self._job.layers().items()
        }

    def finish(self, **about: object) -> None:
        """Writes what the command line asked for; `about` is what the workload adds to the file."""
        if self._job.rank != 0:
            return
        given = self._given
        report = {
            "example": self._example,
            "objective": self._objective,
            "workers": self._job.size,
            "consistency": self._consistency,
            "arguments": {name: _plain(value) for name, value in vars(given).items()},
            **about,
            "started": self._start,
            "measuring_seconds": self._measuring,
            "layers": self._spent(),
            "trajectory": self._trajectory,
        }
        if given.json is not None:
            given.json.write_text(json.dumps(report, indent=1) + "\n")
        if given.plot is not None:
            draw(given.plot, [report])


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def draw(path: Path, reports: list[dict[str, Any]]) -> None:
    """Draws the objective over steps and over seconds, a curve for each report that `--json` writes."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), dpi=120, sharey=True, layout="constrained")
    for report in reports:
        points = report["trajectory"]
        label = f"{report['workers']} worker{'s' * (report['workers'] != 1)}, {report['consistency']}"
        for axes, along in zip(panels, ("step", "seconds"), strict=True):
            across = [point["objective"] for point in points]
            axes.plot([point[along] for point in points], across, marker="o", markersize=3, label=label)
    for axes, along in zip(panels, ("steps of each worker", "seconds"), strict=True):
        axes.set_xlabel(along)
        axes.set_xlim(left=0)
        axes.grid(color="#d9d9d9", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel(reports[0]["objective"])
    panels[0].legend(frameon=False)
    figure.suptitle(reports[0]["example"], x=0.01, ha="left")
    figure.savefig(path)
    plt.close(figure)
