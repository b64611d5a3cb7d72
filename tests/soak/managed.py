"""
Kills a manager, or a server that it directs, at a moment that a seed chooses, and judges what the others make
of it.

    python tests/soak/managed.py --schedules 300 --seed 0 --at-once 2

A schedule is a job of two to four workers on one or two servers of a manager, each a process of its own
without a launcher; the workers' ranks come from their environment or from the manager. A manager that is
killed is started again where it was, up to two seconds later. What must hold:

- the job does not notice that its manager was killed: every worker ends well, with exactly the result of all
  pushes, also one that joins while there is no manager;
- what a job's creation says is so: a job that was created is there when the manager is back, with its secret;
  else whoever wanted to create it is told by a typed error;
- a manager that is back hears how the job ended;
- a server that is killed is judged as under a launcher (kills.py). But nobody sees its process end, so who
  has not joined it yet may try until its deadline;
- nothing is left: no process, no file.

A schedule that fails prints its seed, which gives the same schedule again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kills
from kills import DEADLINE, ITERATIONS, LEASE, MARKS, PATIENCE, PROGRAM

from penstock import PenstockError, _core
from penstock.exceptions import JobExists

CREATION = "creation"
"""The moment of the job's creation, before there is a worker."""
MEMORY = 64 << 20
STARTS_WITHIN = 5.0
"""Seconds that a worker may take until it begins to join."""
KEEPS_TRYING = 5.0
"""Seconds that a server may take to find a manager that is back, and to say how its jobs stand."""


@dataclass(frozen=True)
class Schedule(kills.Schedule):
    """What is done in one run."""

    away: float
    """Seconds until a manager that was killed is started again."""
    ranked: bool
    """Whether the workers are told their ranks; else the manager gives them."""

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        """The schedule of a seed."""
        chance = random.Random(f"managed {seed}")
        workers, servers = chance.randint(2, 4), chance.randint(1, 2)
        role = chance.choices(("manager", "server"), (2, 1))[0]
        mark = chance.choice((CREATION, *MARKS) if role == "manager" else MARKS)
        repeated = mark in ("pulled", "pushed", "clocked")
        return cls(
            seed=seed,
            workers=workers,
            servers=servers,
            transport=chance.choice(("shm", "tcp")),
            loss=chance.choice(("stop", "continue")),
            role=role,
            victim=chance.randrange(servers) if role == "server" else 0,
            mark=mark,
            times=chance.randint(1, ITERATIONS) if repeated else 1,
            delay=chance.choice((0.0, chance.random() * 0.003, chance.random() * 0.05)),
            away=chance.choice((0.0, chance.random() * 0.3, chance.random() * 2)),
            ranked=chance.random() < 0.5,
        )

    def __str__(self) -> str:
        ranks = "ranks given" if self.ranked else "ranks from the manager"
        back = f", back after {self.away:.2f} s" if self.role == "manager" else ""
        return f"{super().__str__()}{back}; {ranks}"


@dataclass
class Run(kills.Run):
    """What was seen of one run."""

    state: str = ""
    """Of the job, as the manager says at the end."""
    wrong: list[str] = field(default_factory=list)
    """What the manager did that it must not do."""


class Site:
    """The processes of one run, in a folder of their own."""

    def __init__(self, schedule: Schedule, folder: Path, token: str) -> None:
        self.schedule, self.folder = schedule, folder
        self.output = (folder / "output").open("ab")
        own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environment = {**own, "TMPDIR": str(folder / "t"), "SOAK": token}
        self.address = "127.0.0.1:0"
        self.manager: subprocess.Popen[bytes] | None = None
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.workers: list[subprocess.Popen[bytes]] = []

    def _start(self, command: Sequence[str], *, heard: bool, **more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if heard else self.output,
            stderr=self.output,
        )

    def start_manager(self) -> None:
        """Starts the manager, or another where the last one was, and waits until it listens."""
        end = time.monotonic() + PATIENCE
        while True:
            state = str(self.folder / "state")
            words = ["-m", "penstock.cli", "manager", "--listen", self.address, "--state", state, "--json"]
            self.manager = self._start(words, heard=True)
            if said := _first_line(self.manager):
                self.address = said["address"]
                return
            # Another process may have its port for a moment.
            assert time.monotonic() < end, "the manager did not start again"
            time.sleep(0.1)

    def start_servers(self) -> None:
        """Starts the servers, and waits until they listen."""
        words = ["-m", "penstock.cli", "server", "--manager", self.address, "--memory", "256MiB", "--json"]
        starting = [
            self._start(words, heard=True, PENSTOCK_SERVER_TOKEN=self.token("server"))
            for _ in range(self.schedule.servers)
        ]
        for server in starting:
            said = _first_line(server)
            assert said, "a server did not start"
            self.servers[said["endpoint"]] = server

    def start_workers(self, secret: str) -> None:
        """Starts the workers of the job."""
        schedule = self.schedule
        common = {
            "PENSTOCK_MANAGER": self.address,
            "PENSTOCK_JOB": "job",
            "PENSTOCK_SECRET": secret,
            "PENSTOCK_DEADLINE": str(DEADLINE),
            "PENSTOCK_TRANSPORT": "tcp" if schedule.transport == "tcp" else "auto",
            "SOAK_SOCKET": str(self.folder / "marks"),
        }
        program = [str(PROGRAM), str(self.folder), str(ITERATIONS), str(schedule.seed)]
        for number in range(schedule.workers):
            who = {"SOAK_NUMBER": str(number)}
            if schedule.ranked:
                who |= {"PENSTOCK_RANK": str(number), "PENSTOCK_SIZE": str(schedule.workers)}
            self.workers.append(self._start(program, heard=False, **common, **who))

    def token(self, which: str) -> str:
        """What stands in a token's file."""
        return (self.folder / "state" / f"{which}.token").read_text().strip()

    def create(self, name: str) -> dict[str, Any]:
        """Creates a job, as its administrator does."""
        schedule = self.schedule
        settings = {"lease": str(LEASE), "deadline": str(DEADLINE), "on_worker_loss": schedule.loss}
        return _core.create_job(
            self.address,
            self.token("admin"),
            name,
            schedule.workers,
            schedule.servers,
            MEMORY,
            1.0,
            settings,
        )

    def show(self, name: str) -> dict[str, Any]:
        """A job, with its secret."""
        return _core.show_job(self.address, self.token("admin"), name, True)

    def stop(self) -> list[str]:
        """Ends servers and manager in order; what was wrong with their ends."""
        killed = -signal.SIGKILL
        everybody = [("a server", server) for server in self.servers.values()]
        everybody += [("the manager", self.manager)] if self.manager else []
        for _, process in everybody:
            process.terminate()
        codes = [(name, process.wait(PATIENCE)) for name, process in everybody]
        return [f"{name} ended with {code}" for name, code in codes if code not in (0, killed)]

    def kill(self) -> None:
        """Kills what is left."""
        everybody = [*self.workers, *self.servers.values(), *([self.manager] if self.manager else [])]
        for process in everybody:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
        self.output.close()


def _first_line(process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """What it says when it listens; nothing where it ended instead."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
    line = process.stdout.readline() if ready else b""
    return json.loads(line) if line else None


class Creation:
    """A job that is created in a thread of its own, while who would create it may die."""

    def __init__(self, site: Site, name: str) -> None:
        self.name, self._site = name, site
        self.made: dict[str, Any] | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._create)
        self._thread.start()

    def _create(self) -> None:
        try:
            self.made = self._site.create(self.name)
        except Exception as error:  # judged by the caller that waits for it
            self.error = error

    def settle(self) -> tuple[str, list[str]]:
        """When there is a manager again: the job's secret, and what was wrong."""
        self._thread.join()
        wrong = []
        if self.error is not None and not isinstance(self.error, PenstockError):
            wrong.append(f"`{self.name}` was not created by an untyped error: {self.error!r}")
        if self.made is None:
            # Whether the lost answer was yes is not known; asked again, it is.
            with contextlib.suppress(JobExists):
                self._site.create(self.name)
        secret = self._site.show(self.name)["secret"]
        if self.made is not None and secret != self.made["secret"]:
            wrong.append(f"`{self.name}` was created with another secret than the manager has now")
        return secret, wrong


def run(schedule: Schedule) -> Run:
    """Carries a schedule out; every process of it is gone at the end."""
    seen = Run(schedule)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    (folder / "t").mkdir()
    token = f"soak-{os.getpid()}-{schedule.seed}-{time.monotonic_ns()}"
    site = Site(schedule, folder, token)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.bind(str(folder / "marks"))
            _conduct(seen, site, line)
        seen.left_processes = [kills.command_line(pid) for pid in kills.bearers(token)]
        seen.left_files = [
            str(path.relative_to(folder))
            for path in (folder / "t").rglob("*")
            if not _is_a_killed_servers(seen, path)
        ]
        seen.read_outcomes(folder)
    finally:
        site.kill()
        for pid in kills.bearers(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    return seen


def _is_a_killed_servers(seen: Run, path: Path) -> bool:
    """What a server that was killed leaves: the next one on its host takes it away."""
    return seen.schedule.role == "server" and any(part.startswith("penstock-service-") for part in path.parts)


def _conduct(seen: Run, site: Site, line: socket.socket) -> None:
    schedule = site.schedule
    site.start_manager()
    site.start_servers()
    at_creation = schedule.mark == CREATION
    creation = Creation(site, "job")
    if at_creation:
        time.sleep(schedule.delay)
        _kill_manager(seen, site)
        _start_again(site)
    secret, wrong = creation.settle()
    seen.wrong += wrong
    site.start_workers(secret)
    beside, returns = None, None
    if not at_creation and _await_moment(seen, site, line):
        if schedule.role == "server":
            _kill_server(seen, site)
        else:
            beside = Creation(site, "beside")
            _kill_manager(seen, site)
            returns = threading.Thread(target=_start_again, args=(site,))
            returns.start()
    seen.stuck = not _listen_to_the_end(seen, site, line)
    if returns is not None and beside is not None:
        returns.join()
        seen.wrong += beside.settle()[1]
    if schedule.role == "manager" and not seen.stuck:
        seen.state = _final_state(site)
    seen.code = max((worker.returncode or 0 for worker in site.workers), default=0)
    seen.wrong += site.stop()


def _await_moment(seen: Run, site: Site, line: socket.socket) -> bool:
    """Waits for the moment to kill; `False` where everybody has ended before."""
    schedule, said = site.schedule, 0
    end = time.monotonic() + PATIENCE
    while said < schedule.times:
        ready, _, _ = select.select([line], [], [], 0.5)
        if ready:
            _, _, mark = kills.note(seen, line.recv(200))
            said += mark == schedule.mark
        elif time.monotonic() > end or all(worker.poll() is not None for worker in site.workers):
            return False
    time.sleep(schedule.delay)
    return True


def _kill_manager(seen: Run, site: Site) -> None:
    assert site.manager is not None
    seen.killed_at = time.monotonic()
    site.manager.kill()
    site.manager.wait()


def _start_again(site: Site) -> None:
    assert site.manager is not None
    assert site.manager.stdout is not None
    site.manager.stdout.close()
    time.sleep(site.schedule.away)
    site.start_manager()


def _kill_server(seen: Run, site: Site) -> None:
    """Kills the server that is the victim-th of the job."""
    endpoint = site.show("job")["servers"][site.schedule.victim]["endpoint"]
    seen.killed_at = time.monotonic()
    site.servers[endpoint].kill()


def _listen_to_the_end(seen: Run, site: Site, line: socket.socket) -> bool:
    """Whether all workers ended."""
    end = time.monotonic() + PATIENCE
    while any(worker.poll() is None for worker in site.workers):
        ready, _, _ = select.select([line], [], [], 0.05)
        if ready:
            kills.note(seen, line.recv(200))
        elif time.monotonic() > end:
            return False
    return True


def _final_state(site: Site) -> str:
    """The job's state, as soon as the manager has heard of its end, or as it is after a while."""
    end = time.monotonic() + KEEPS_TRYING
    while True:
        state = str(site.show("job")["state"])
        if state == "ended" or time.monotonic() > end:
            return state
        time.sleep(0.05)


def judge(seen: Run, slack: float = 1.0) -> list[str]:
    """What was not as it must be; `slack`: seconds beyond the lease for everybody to hear."""
    schedule = seen.schedule
    assert isinstance(schedule, Schedule)
    if schedule.role == "server":
        return seen.wrong + kills.judge(seen, slack, STARTS_WITHIN + DEADLINE)
    wrong = seen.wrong + kills.judge(seen, slack)
    if not seen.stuck and seen.state != "ended":
        wrong.append(f"the manager that is back says that the job is {seen.state}")
    return wrong


if __name__ == "__main__":
    sys.exit(kills.main(Schedule.draw, run, judge, __doc__ or ""))
