"""
All processes of a job on this machine: started, read from, and ended, however the run ends.

Three nets hold the processes. The launcher itself ends them: first by a signal, after a grace by SIGKILL to
their process groups. If the launcher is killed outright, the kernel kills its children (parent-death signal),
and the warden, a small process that waits on a pipe from the launcher, kills their groups and removes the
directory. Shared memory has no name (memfd), so it goes with the last process that maps it.

The launcher has one thread: it waits for output, for its reader, for signals and for ends of children at one
place. If nothing reads them, the processes wait at their pipes; signals and ends are still noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from penstock.exceptions import PenstockError
from penstock.launch.awake import Awake
from penstock.launch.console import Console, Name, Outlet, Stream
from penstock.launch.outcome import Ended, Outcome, first_cause
from penstock.launch.process import Process, die_with
from penstock.launch.server import EXIT_JOB_FAILED
from penstock.launch.warden import Warden

SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path (sun_path, less its end)."""

_ROOM = "TMPDIR=FOLDER in the environment names a folder that has room and can be written"

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """What to start."""

    command: Sequence[str]
    """
    Arguments to the Python interpreter: a script's path, or "-m" and a module, and what it is given. With
    `program` a program's path, and what it is given.
    """
    program: bool = False
    """Whether the command is started as it is, and not by the Python interpreter."""
    workers: int = 1
    servers: int = 1
    consistency: str = ""
    """Default consistency of the job's tensors: "bsp", "ssp:4", "asp"; empty: the core's default."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additions to the environment of every process: the options, by their environment names."""
    grace: float = 5.0
    """Seconds that processes have to end by themselves, before they are killed."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files put into the run's private directory, whose path every process finds in PENSTOCK_DIRECTORY."""
    go_on: bool = False
    """
    Whether the loss of a worker leaves the others running (`on_worker_loss` of the servers has to say the
    same).
    """


@dataclass
class Stage:
    """How far the run has come towards its end: each step is taken when its time has come."""

    after: float
    """By the run's own clock."""
    act: Callable[[], None]


class Launch:
    """
    One run of a plan.

    Parameters
    ----------
    plan
        What to start.
    console
        Where the processes' lines go.
    on_report
        Called with a worker's rank and a line that it wrote to the descriptor in `PENSTOCK_REPORT_FD`;
        without it, workers get no such pipe.
    on_idle
        Called after each round of events, at least every `idle_seconds`.
    """

    def __init__(
        self,
        plan: Plan,
        console: Console,
        *,
        on_report: Callable[[int, bytes], None] | None = None,
        on_idle: Callable[[], None] | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        self.plan = plan
        self._console = console
        self._on_report = on_report
        self._on_idle = on_idle
        self._idle_seconds = idle_seconds
        self._processes: list[Process] = []
        self._ended: list[Ended] = []
        self._hung: list[Name] = []
        self._interrupted: signal.Signals | None = None
        self._broken_pipe = False
        self._awake = Awake(plan.grace)
        """By this clock processes have their time to end."""
        self._stages: list[Stage] = []
        self._suspended: dict[int, float] = {}
        """Workers suspended at the last look, and until when they may be. Their servers have ended."""
        self._reports: dict[int, bytes] = {}
        self._pipes: dict[int, Process] = {}
        """Pipes that have not ended, and their processes."""
        self._full: set[Stream] = set()
        """Streams that keep so much that what is shown there is not read."""
        self._outlets: dict[int, Outlet] = {}
        """What waits for a reader, by descriptor."""
        self._directory = Path()
        self._selector = selectors.DefaultSelector()

    def run(self) -> Outcome:
        """
        Starts all processes, and returns when all have ended and nothing of them is left.

        Raises
        ------
        PenstockError
            A process, or what the run itself needs, could not be had. What had been started is ended.
        """
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self._console.release)
            cleanup.callback(self._selector.close)
            with _named("the run's private directory could not be made", _ROOM):
                directory = _private_directory(self.plan.servers)
            self._directory = Path(directory)
            cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
            with _named("the warden, a process that cleans up after the launcher, could not be started"):
                warden = Warden(directory)
            cleanup.callback(warden.dismiss)
            # Once more: it goes while the warden is still there, for a launcher that is killed just then.
            cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
            cleanup.callback(self._finish)
            cleanup.enter_context(self._signals())
            self._start(warden, directory)
            while any(process.returncode is None for process in self._processes):
                self._step(warden)
            self._write_the_rest()
        return self._outcome()

    # Starting

    def _start(self, warden: Warden, directory: str) -> None:
        plan = self.plan
        with _named("the run's private directory could not be filled", _ROOM):
            for name, content in plan.files.items():
                Path(directory, name).write_bytes(content)
        common = {
            **os.environ,
            **plan.environment,
            "PENSTOCK_DIRECTORY": directory,
            "PENSTOCK_SECRET": os.urandom(32).hex(),
        }
        if plan.consistency:
            common["PENSTOCK_CONSISTENCY"] = plan.consistency
        endpoints = [f"{directory}/s{index}" for index in range(plan.servers)]
        if common.get("PENSTOCK_TRANSPORT") == "tcp":
            ports = _free_ports(plan.servers)
            endpoints = [
                f"tcp://127.0.0.1:{port}?unix={path}" for port, path in zip(ports, endpoints, strict=True)
            ]
        arrange = die_with(os.getpid())
        for index, endpoint in enumerate(endpoints):
            numbers = [str(number) for number in (index, plan.servers, plan.workers)]
            command = [sys.executable, "-u", "-m", "penstock.launch.server", endpoint, *numbers]
            self._spawn(warden, Name("server", index), command, common, arrange)
        for rank in range(plan.workers):
            environment = {**common, **_worker_environment(rank, plan.workers, endpoints)}
            ours = list(plan.command) if plan.program else [sys.executable, "-u", *plan.command]
            self._spawn(warden, Name("worker", rank), ours, environment, arrange)

    def _spawn(
        self,
        warden: Warden,
        name: Name,
        command: Sequence[str],
        environment: Mapping[str, str],
        arrange: Callable[[], None],
    ) -> None:
        report = self._on_report is not None and name.role == "worker"
        with _named(f"{name} could not be started"):
            process = Process(
                name,
                command,
                environment,
                arrange,
                report=report,
                told=name.role == "server",
            )
        warden.guard(process.pid)
        self._processes.append(process)
        for descriptor in process.descriptors():
            self._pipes[descriptor] = process
            self._selector.register(descriptor, selectors.EVENT_READ, process)

    # Listening

    def _step(self, warden: Warden) -> None:
        """Waits for something to happen, and deals with it."""
        due = min([*self._suspended.values(), *(stage.after for stage in self._stages)], default=None)
        timeout = None if due is None else min(max(0.0, due - self._awake.look()), self._awake.interval)
        if self._idle_seconds is not None:
            timeout = self._idle_seconds if timeout is None else min(timeout, self._idle_seconds)
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Outlet):
                key.data.flush()
            elif isinstance(key.data, Process):
                # Another pipe may just have filled it.
                if not self._console.is_full(key.data.shown_as(key.fd)):
                    self._listen(key.data, key.fd)
            else:
                self._signalled(key.fd)
        for process in self._processes:
            if process.returncode is None and process.has_ended():
                self._bury(process, warden)
        self._end_of_workers()
        if self._console.is_closed("stdout") and not self._broken_pipe:
            self._broken_pipe = True
            self._stop_workers(signal.SIGTERM)
        now = self._awake.look() if self._stages else 0.0
        for stage in [stage for stage in self._stages if stage.after <= now]:
            self._stages.remove(stage)
            stage.act()
        if self._on_idle is not None:
            self._on_idle()
        self._attend()

    def _attend(self) -> None:
        """Watches the outlets that wait for their readers, and the pipes whose output they take."""
        waiting = {outlet.descriptor: outlet for outlet in self._console.waiting()}
        for descriptor in self._outlets.keys() - waiting.keys():
            self._selector.unregister(descriptor)
        for descriptor in waiting.keys() - self._outlets.keys():
            self._selector.register(descriptor, selectors.EVENT_WRITE, waiting[descriptor])
        self._outlets = waiting
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        full = {stream for stream in streams if self._console.is_full(stream)}
        if full == self._full:
            return
        for descriptor, process in self._pipes.items():
            stream = process.shown_as(descriptor)
            if stream in full - self._full:
                self._selector.unregister(descriptor)
            elif stream in self._full - full:
                self._selector.register(descriptor, selectors.EVENT_READ, process)
        self._full = full

    def _end_pipe(self, descriptor: int) -> None:
        """Nothing more is read from the pipe."""
        if self._pipes.pop(descriptor).shown_as(descriptor) not in self._full:
            self._selector.unregister(descriptor)

    def _listen(self, process: Process, descriptor: int) -> int:
        """Takes what a pipe holds; how many bytes: 0 at its end or when there is nothing now."""
        data = process.read(descriptor)
        if data is None:
            return 0
        if not data:
            self._end_pipe(descriptor)
        if descriptor == process.report_descriptor:
            self._report(process.name.rank, data)
        else:
            stream, lines = process.streams[descriptor]
            self._console.emit(process.name, stream, lines.feed(data) if data else lines.rest())
        return len(data)

    def _report(self, rank: int, data: bytes) -> None:
        *lines, self._reports[rank] = (self._reports.get(rank, b"") + data).split(b"\n")
        if self._on_report is not None:
            for line in lines:
                self._on_report(rank, line)

    # Ending

    def _bury(self, process: Process, warden: Warden) -> None:
        """An ended process: its last output, what it left behind, and whether it failed."""
        # What it wrote is in the pipes by now, and is taken however much waits for a reader. What a child of
        # its own may still write is not waited for.
        for descriptor in process.descriptors():
            left = process.pending(descriptor) if descriptor in self._pipes else 0
            while left > 0 and (taken := self._listen(process, descriptor)) > 0:
                left -= taken
            if descriptor in self._pipes:
                self._end_pipe(descriptor)
                if descriptor in process.streams:
                    stream, lines = process.streams[descriptor]
                    self._console.emit(process.name, stream, lines.rest())
        code = process.reap()
        warden.release(process.pid)
        process.close()
        ended = Ended(process.name, process.pid, code, process.stopped, process.tail)
        self._ended.append(ended)
        ends_the_run = ended.failed and not (self.plan.go_on and process.name.role == "worker")
        if ends_the_run:
            # Before a server hears of it: it ends then, and a worker that does not reach it looks for a note.
            self._note_the_loss()
        if process.name.role == "worker" and not self._has_lost_a_server():
            # No other process misses one that had not joined, or, for a lease, one on a network connection.
            how = None if code == 0 else ended.how()
            for server in self._running("server"):
                server.tell(json.dumps([process.name.rank, how]).encode())
        if ends_the_run:
            self._wind_down()

    def _has_lost_a_server(self) -> bool:
        """Whether a server has failed: workers that fail then do so because of it."""
        return any(one.failed for one in self._ended if one.name.role == "server")

    def _note_the_loss(self) -> None:
        """
        Notes beside the servers' sockets which processes are lost, for workers that no server tells: one that
        has ended looks to those that join like one that is about to start, and over TCP like one that cannot
        be reached.
        """
        cause = self._cause()
        if cause is None or cause.is_consequence:
            return
        for index in range(self.plan.servers):
            note = self._directory / f"s{index}.lost"
            # Without a note they are told less; a full disk is not a failure of the run itself.
            with contextlib.suppress(OSError):
                if not note.exists():
                    part = note.with_suffix(".part")
                    part.write_text(f"{cause.name.role} {cause.name.rank}\n{cause.how()}\n")
                    part.rename(note)

    def _cause(self) -> Ended | None:
        """What failed first: no worker where the run goes on without workers, and a server failed."""
        servers = [one for one in self._ended if one.name.role == "server"]
        cause = first_cause(servers) if self.plan.go_on else None
        return cause or first_cause(self._ended)

    def _wind_down(self) -> None:
        """
        The first failure: the others get half the grace to fail by themselves, with errors of their own, and
        half to obey.
        """
        if not self._stages and self._interrupted is None and not self._broken_pipe:
            self._stages = [
                Stage(
                    self._awake.after(self.plan.grace / 2),
                    lambda: self._stop_workers(signal.SIGTERM, self.plan.grace / 2),
                )
            ]

    def _stop_workers(self, number: signal.Signals, grace: float | None = None) -> None:
        for process in self._running("worker"):
            process.stopped = True
            process.send(number)
        self._stages = [Stage(self._awake.after(self.plan.grace if grace is None else grace), self._kill_all)]

    def _kill_all(self) -> None:
        for process in self._running("worker") or self._running("server"):
            if process.name.role == "worker":
                self._hung.append(process.name)
            process.stopped = True
            process.kill_group()

    def _end_of_workers(self) -> None:
        """Servers end last: when no worker is left, they are not needed any more."""
        servers = self._running("server")
        workers = self._running("worker")
        if not workers and servers and not all(server.stopped for server in servers):
            for server in servers:
                server.stopped = True
                server.send(signal.SIGTERM)
            self._stages = [Stage(self._awake.after(self.plan.grace), self._kill_all)]
        elif workers and not servers and self.plan.servers > 0:
            # The job is over without these. One that stays suspended (SIGSTOP) will never end. One that is
            # suspended for a while may have left well, and have something to save.
            suspended = [worker for worker in workers if worker.is_suspended() and not worker.stopped]
            is_new = any(worker.pid not in self._suspended for worker in suspended)
            end = self._awake.after(self.plan.grace) if is_new else 0.0
            self._suspended = {worker.pid: self._suspended.get(worker.pid, end) for worker in suspended}
            now = self._awake.look()
            for worker in suspended:
                if self._suspended[worker.pid] <= now:
                    del self._suspended[worker.pid]
                    worker.stopped = True
                    self._hung.append(worker.name)
                    worker.kill_group()
        else:
            self._suspended = {}

    def _running(self, role: str) -> list[Process]:
        return [
            process for process in self._processes if process.name.role == role and process.returncode is None
        ]

    def _finish(self) -> None:
        """Ends whatever still runs: only after an exception in the launcher itself."""
        for process in self._processes:
            if process.returncode is None:
                process.kill_group()
                process.reap()
                process.close()

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """While the run lasts, signals become events."""
        with _named("no signals can be received"):
            receiving, sending = socket.socketpair()
        receiving.setblocking(False)
        sending.setblocking(False)
        # Under nohup, SIGHUP stays ignored.
        caught = [
            one for one in _FORWARDED if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN
        ]
        before = {number: signal.signal(number, _nothing) for number in (*caught, signal.SIGCHLD)}
        wakeup = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        self._selector.register(receiving, selectors.EVENT_READ, "signals")
        try:
            yield
        finally:
            self._selector.unregister(receiving)
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            receiving.close()
            sending.close()

    def _signalled(self, descriptor: int) -> None:
        for number in _asked(descriptor):
            if self._interrupted is None:
                self._interrupted = number
                self._stop_workers(number)
            else:
                self._stages = [Stage(0.0, self._kill_all)]

    # The end

    def _write_the_rest(self) -> None:
        """
        When all processes have ended: writes what waits for its reader, for as long as there is one, or until
        a signal comes. Where a signal has ended the run, a reader that takes nothing has the grace.
        """
        while waiting := self._console.waiting():
            self._attend()
            timeout = None
            if self._interrupted is not None:
                since = max(outlet.stuck_since for outlet in waiting)
                timeout = since + self.plan.grace - time.monotonic()
                if timeout <= 0:
                    return
            for key, _ in self._selector.select(timeout):
                if isinstance(key.data, Outlet):
                    key.data.flush()
                elif asked := _asked(key.fd):
                    if self._outcome().code == 0:
                        self._interrupted = asked[0]
                    return
        if self._console.is_closed("stdout") and self._outcome().code == 0:
            self._broken_pipe = True

    def _outcome(self) -> Outcome:
        if self._interrupted is not None:
            return Outcome(128 + self._interrupted, interrupted=self._interrupted, hung=tuple(self._hung))
        if self._broken_pipe:
            return Outcome(128 + signal.SIGPIPE)
        notes = tuple(
            f"{one.name}: {one.last_line}"
            for one in self._ended
            if one.name.role == "server" and one.returncode == EXIT_JOB_FAILED and one.tail.strip()
        )
        failed = [one for one in self._ended if one.failed]
        lost = [one for one in failed if one.name.role == "worker"]
        finished = any(one.name.role == "worker" and one.returncode == 0 for one in self._ended)
        if self.plan.go_on and finished and lost == failed:
            return Outcome(0, lost=tuple(lost), hung=tuple(self._hung))
        failure = self._cause()
        if failure is None:
            return Outcome(0 if not self._hung else 128 + signal.SIGKILL, hung=tuple(self._hung), notes=notes)
        return Outcome(
            failure.exit_code,
            failure=failure,
            others=self.plan.workers > 1 or failure.name.role == "server",
            hung=tuple(self._hung),
            notes=notes,
        )


@contextlib.contextmanager
def _named(
    what: str, hint: str = "`penstock doctor` shows the limits of this host (processes, open files, memory)"
) -> Iterator[None]:
    """Errors of the system inside the block become errors that say what they were for."""
    try:
        yield
    except OSError as error:
        raise PenstockError(f"{what}: {error.strerror or error}", hint) from error


def _worker_environment(rank: int, size: int, endpoints: Sequence[str]) -> dict[str, str]:
    """
    What a worker reads: our names, torchrun's, and its thread count, which it sets only where the user has
    not.
    """
    cores = len(os.sched_getaffinity(0))
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores // size)),
        "PENSTOCK_RANK": str(rank),
        "PENSTOCK_SIZE": str(size),
        "PENSTOCK_SERVERS": ",".join(endpoints),
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
    }


def _free_ports(count: int) -> list[int]:
    """
    Loopback ports on which nothing listens now. A server that finds its port taken by then says so, and the
    run ends.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _private_directory(servers: int) -> str:
    """A fresh directory that only this user can enter, with a path short enough for sockets."""
    base = tempfile.gettempdir()
    longest = len(os.fsencode(base)) + len("/penstock-12345678/s") + len(str(servers))
    if longest > SOCKET_PATH_LIMIT or "," in base:
        base = "/tmp"  # noqa: S108 (a fresh directory of mode 0700 is made in it)
    return tempfile.mkdtemp(prefix="penstock-", dir=base)  # 0700


def _asked(descriptor: int) -> list[signal.Signals]:
    """The signals that have come, of those that end a run."""
    return [signal.Signals(byte) for byte in os.read(descriptor, 4096) if byte in _FORWARDED]


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor carries the signal; a handler has to be there for it to be written."""
