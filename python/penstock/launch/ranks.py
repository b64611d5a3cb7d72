"""
Processes that do the same work, as the process that started them says: one JSON object per line, over a Unix
socket. Between two commands a process blocks in `recv` and costs nothing.

For what is measured and compared (the demo's peer, the benchmarks); jobs are started by `local`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

CONTROL = "PENSTOCK_BENCH_CONTROL"
"""Environment variable: the path of the starter's socket."""

START_DEADLINE = 120.0
"""Seconds for all ranks to come: eight processes that import torch on two cores take 25."""
REPLY_DEADLINE = 600.0
"""Seconds for an answer: the longest round is an all-reduce of 256 MiB by eight ranks on two cores."""
END_DEADLINE = 10.0
"""Seconds for the processes to end by themselves before they are killed."""
_TAIL_BYTES = 4000


class RanksError(Exception):
    """A process failed, or has gone. `detail` is what the processes last said."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class _Peer:
    """The connection to one rank."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(REPLY_DEADLINE)
        self.connection = connection
        self.lines = connection.makefile("rw", encoding="utf-8")

    def say(self, message: Mapping[str, Any]) -> None:
        _say(self.lines, message)

    def hear(self) -> dict[str, Any]:
        line = self.lines.readline()
        if not line:
            raise EOFError
        heard: dict[str, Any] = json.loads(line)
        return heard

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.lines.close()
        self.connection.close()


class Ranks:
    """
    The processes, each with a rank.

    Parameters
    ----------
    name
        What they are, for errors.
    size
        Number of ranks.
    commands
        What to start: a launcher that starts all ranks, or each rank by itself. `{folder}` in an argument
        becomes a private folder that lives as long as the ranks.
    environments
        What each command finds in its environment beside ours.
    """

    def __init__(
        self,
        name: str,
        size: int,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
    ) -> None:
        self.name = name
        self.size = size
        self.lost: Collection[int] = ()
        """Ranks that have gone, or may go meanwhile: their answer is then {}."""
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
        self._peers: list[_Peer] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self._folder / "control"))
                listener.listen(size)
                self._start(commands, environments)
                self._meet(listener)
        except BaseException:
            self.end()
            raise

    def _start(self, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> None:
        for command, environment in zip(commands, environments, strict=True):
            with (self._folder / "output").open("ab") as output:
                self._processes.append(
                    subprocess.Popen(
                        [argument.replace("{folder}", str(self._folder)) for argument in command],
                        env={**os.environ, **environment, CONTROL: str(self._folder / "control")},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,  # Ctrl-C is ours; we end them in order
                    )
                )

    def _meet(self, listener: socket.socket) -> None:
        """Waits until every rank has come, or a process has ended before it should."""
        deadline = time.monotonic() + START_DEADLINE
        came: dict[int, _Peer] = {}
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as descriptors:
            selector.register(listener, selectors.EVENT_READ)
            for process in self._processes:
                descriptor = os.pidfd_open(process.pid)
                descriptors.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ, process)
            while len(came) < self.size:
                events = selector.select(deadline - time.monotonic())
                if not events:
                    raise self._failed(
                        f"only {len(came)} of {self.size} ranks came within {START_DEADLINE:g} s"
                    )
                for key, _ in events:
                    if key.data is not None:
                        raise self._failed(
                            f"a process ended with {key.data.wait()} before all ranks had come"
                        )
                    peer = _Peer(listener.accept()[0])
                    self._peers.append(peer)
                    came[peer.hear()["rank"]] = peer
        self._peers = [came[rank] for rank in sorted(came)]

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """
        Tells all ranks the same and returns what they answer, in rank order.

        Raises
        ------
        RanksError
            A rank failed, has gone, or did not answer in time.
        """
        answers: list[dict[str, Any]] = []
        rank = 0
        try:
            for rank, peer in enumerate(self._peers):
                with contextlib.suppress(*([OSError] if rank in self.lost else [])):
                    peer.say(command)
            for rank, peer in enumerate(self._peers):
                try:
                    answer = peer.hear()
                except (EOFError, ConnectionError):
                    if rank not in self.lost:
                        raise
                    answer = {}
                if "error" in answer:
                    raise self._failed(f"rank {rank}: {answer['error']}", answer["traceback"])
                answers.append(answer)
        except TimeoutError:
            raise self._failed(f"rank {rank} did not answer within {REPLY_DEADLINE:g} s") from None
        except (EOFError, OSError) as error:
            raise self._failed(f"rank {rank} has gone ({type(error).__name__})") from None
        return answers

    def _failed(self, what: str, detail: str = "") -> RanksError:
        return RanksError(f"{self.name}: {what}", detail or self.output())

    def output(self) -> str:
        """The end of what the processes printed."""
        try:
            return (self._folder / "output").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""

    def end(self) -> None:
        """Ends the processes: they are told to, and killed if they do not."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.say({"do": "end"})
            with contextlib.suppress(OSError):
                peer.close()
        told = bool(self._peers)
        self._peers = []
        deadline = time.monotonic() + (END_DEADLINE if told else 0.0)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            # A launcher passes SIGTERM on to ranks in sessions of their own, which a signal to the group
            # does not reach.
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_DEADLINE)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes = []
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.end()


Command = Callable[[dict[str, Any]], dict[str, Any]]
"""What a process does when it is told to: takes the message, returns the answer."""


def serve(rank: int, commands: Mapping[str, Command]) -> None:
    """Does what the starter says until it says `end`, or is gone."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(os.environ[CONTROL])
        with control.makefile("rw", encoding="utf-8") as lines:
            _say(lines, {"rank": rank})
            for line in lines:
                command = json.loads(line)
                if command["do"] == "end":
                    return
                try:
                    _say(lines, commands[command["do"]](command))
                except Exception as error:  # whatever is thrown is told to the starter, which shows it
                    _say(
                        lines,
                        {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()},
                    )


def rank_command(module: str) -> list[str]:
    """The command of one rank: a module, by the interpreter that runs us."""
    return [sys.executable, "-m", module]


def _say(lines: TextIO, message: Mapping[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()
