"""
What the workers of a demo have reported, and how it is shown while they train: a live table on a terminal,
else plain lines.
"""

from __future__ import annotations

import io
import json
import select
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from penstock.demo.data import steps_per_epoch
from penstock.demo.judging import Album
from penstock.demo.settings import Settings
from penstock.demo.units import size
from penstock.launch.console import Console, Name, Outlet, Stream

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_SECONDS = 0.1
_LAST_SECONDS = 1.0
"""Time that a terminal has to take the last picture in."""


@dataclass
class Seen:
    """What a worker has last reported of itself."""

    clock: int = 0
    samples: int = 0
    now: int | None = 0
    max_staleness: int = 0
    moved: int = 0
    begin: float | None = None
    end: float | None = None
    staleness: Counter[int] = field(default_factory=Counter)


class Progress:
    """All reports of a run so far."""

    def __init__(self, settings: Settings, samples: int) -> None:
        self.settings = settings
        self.steps = settings.epochs * steps_per_epoch(samples, settings.batch, settings.workers)
        self.workers = [Seen() for _ in range(settings.workers)]
        self.epoch = 0
        self.accuracy = self.loss = 0.0
        """Of the first worker's batches in the last epoch, each before its step."""
        self.album = Album(settings.epochs)

    def take(self, rank: int, line: bytes) -> bool:
        """Takes a report; whether it ended an epoch."""
        report: dict[str, Any] = json.loads(line)
        seen = self.workers[rank]
        for name in ("clock", "samples", "now", "max_staleness", "moved", "begin", "end"):
            if name in report:
                setattr(seen, name, report[name])
        if "staleness" in report:
            seen.staleness = Counter({int(behind): count for behind, count in report["staleness"].items()})
        if "parameters" in report:
            from penstock.demo.worker import unpacked

            self.album.pictures[report["after"]] = unpacked(report["parameters"])
        if "epoch" in report:
            self.epoch, self.accuracy, self.loss = report["epoch"], report["accuracy"], report["loss"]
        return "epoch" in report

    @property
    def max_staleness(self) -> int:
        """The most iterations that any read lagged behind."""
        return max(seen.max_staleness for seen in self.workers)

    @property
    def training_seconds(self) -> float:
        """From the first worker's first step to the last worker's last; up to now while they train."""
        begins = [seen.begin for seen in self.workers if seen.begin is not None]
        ends = [seen.end for seen in self.workers if seen.end is not None]
        if not begins:
            return 0.0
        return (max(ends) if len(ends) == len(self.workers) else time.time()) - min(begins)

    @property
    def samples_per_second(self) -> float:
        """Of all workers together, since the start."""
        seconds = self.training_seconds
        return sum(seen.samples for seen in self.workers) / seconds if seconds > 0 else 0.0


class PlainConsole(Console):
    """Progress by a line after each epoch, at most ten a second: for files and pipes."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress
        self._said = 0.0

    def start(self) -> None:
        """Nothing to prepare."""

    def stop(self) -> None:
        """Nothing to put away."""

    def refresh(self) -> None:
        """Nothing moves."""

    def epoch(self) -> None:
        """An epoch is complete."""
        progress = self.progress
        last = progress.epoch == progress.settings.epochs
        if not last and time.monotonic() - self._said < REFRESH_SECONDS:
            return
        self._said = time.monotonic()
        clocks = " ".join(str(seen.clock) for seen in progress.workers)
        moved = sum(seen.moved for seen in progress.workers)
        self.write(
            "stdout",
            f"epoch {progress.epoch:3}/{progress.settings.epochs}   "
            f"batches: accuracy {progress.accuracy:.3f}   loss {progress.loss:.3f}   "
            f"{progress.samples_per_second:,.0f} samples/s   clocks {clocks}   "
            f"staleness at most {progress.max_staleness}   moved {size(moved)}\n".encode(),
        )


class _Screen(io.TextIOBase):
    """The terminal, as rich sees it: what is written goes to a console, which waits for no reader."""

    encoding: str = sys.stdout.encoding

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        """Writes, or keeps what the terminal does not take now."""
        self._console.write("stdout", text.encode(self.encoding, "backslashreplace"))
        return len(text)

    def isatty(self) -> bool:
        """It is one."""
        return True

    def fileno(self) -> int:
        """Its descriptor, for its size."""
        return 1


class LiveConsole(PlainConsole):
    """
    Progress by a table that is drawn over and over; the processes' own lines go above it. Where the terminal
    takes nothing (Ctrl-S) pictures are left out: a process that waited for it could not be stopped by Ctrl-C,
    which the launcher hears.
    """

    def __init__(self, progress: Progress) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        super().__init__(progress)
        self._rich = rich = RichConsole(file=cast("IO[str]", _Screen(self)))
        # Drawn from the launcher's own loop: no thread of rich's.
        self._live = Live(console=rich, auto_refresh=False, transient=False)
        self._next = 0.0

    def start(self) -> None:
        """Begins to draw."""
        self._live.start()
        self._draw()

    def stop(self) -> None:
        """Draws the last state and leaves it there, if the terminal takes it."""
        # The launcher has given back the outlets.
        last = Outlet(1)
        self._outlets = {"stdout": last, "stderr": last}
        self._draw()
        self._live.stop()
        end = time.monotonic() + _LAST_SECONDS
        while last.waits and (left := end - time.monotonic()) > 0:
            select.select((), [last.descriptor], (), left)
            last.flush()
        last.release()

    def refresh(self) -> None:
        """Draws, if it is time."""
        if time.monotonic() >= self._next:
            self._draw()

    def epoch(self) -> None:
        """An epoch is complete: it is drawn with the rest."""

    def emit(self, name: Name, stream: Stream, lines: list[bytes]) -> None:  # noqa: ARG002 (one screen for both)
        """Prints lines above the table."""
        from rich.text import Text

        for line in lines:
            self._rich.print(Text(f"[{name}] " + line.decode("utf-8", "replace")))

    def _draw(self) -> None:
        self._next = time.monotonic() + REFRESH_SECONDS
        if not self.is_waiting("stdout"):
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        from rich import box
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self.progress
        done = min(seen.clock for seen in progress.workers)
        head = Table.grid(padding=(0, 2))
        accuracy = (
            f"batches: accuracy {progress.accuracy:.3f}  loss {progress.loss:.3f}"
            if progress.epoch
            else "starting"
        )
        head.add_row(
            Text(f"epoch {progress.epoch}/{progress.settings.epochs}"),
            ProgressBar(total=progress.steps, completed=done, width=32),
            Text(accuracy, style="bold"),
            Text(f"{progress.samples_per_second:,.0f} samples/s"),
        )
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("worker", "clock", "staleness now", "at most", "moved"):
            table.add_column(column, justify="right")
        for rank, seen in enumerate(progress.workers):
            table.add_row(
                str(rank),
                f"{seen.clock}/{progress.steps}",
                "-" if seen.now is None else str(seen.now),
                str(seen.max_staleness),
                size(seen.moved),
            )
        return Group(head, table)


def console_for(progress: Progress) -> PlainConsole:
    """A live table where standard output is a terminal, else plain lines."""
    if sys.stdout.isatty():
        from rich.console import Console as RichConsole

        rich = RichConsole()
        if rich.is_terminal and not rich.is_dumb_terminal:
            return LiveConsole(progress)
    return PlainConsole(progress)
