"""
Kills one process of a job at a moment that a seed chooses, and judges what the others make of it.

    python tests/soak/kills.py --schedules 1000 --seed 0 --at-once 2

A schedule is a job of two to four workers and one or two servers under `penstock run`, by shared memory or
TCP, with `on_worker_loss` stop or continue. Its victim is a worker, a server or the launcher; the moment is
just after the victim (or, for a server or the launcher, some worker) has said a certain mark, and a few
milliseconds. What must hold:

- every worker that survives says how it ended: by a typed error that names the victim, within a lease and a
  second of the kill, or of its own `ps.init()`; or well, and then with exactly the result of all pushes that
  count;
- a push counts in all elements or in none; only the last push of a worker that is lost under `continue` may
  count in some chunks and not in others (docs/consistency.md);
- the launcher says that the run failed where it did, and nothing is left: no process, no file.

A schedule that fails prints its seed, which gives the same schedule again.
"""

from __future__ import annotations

import argparse
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
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("program.py")
LEASE = 2.0
DEADLINE = 20.0
ITERATIONS = 6
PATIENCE = 60.0
"""Seconds after which a run that has not ended counts as stuck."""
MARKS = ("start", "joined", "declared", "pulled", "pushed", "clocked", "barrier", "leaving")
BEFORE_ANY = "no mark"


@dataclass(frozen=True)
class Schedule:
    """What is done in one run."""

    seed: int
    workers: int
    servers: int
    transport: str
    loss: str
    role: str
    victim: int
    mark: str
    times: int
    delay: float

    @classmethod
    def draw(cls, seed: int) -> Schedule:
        """The schedule of a seed."""
        chance = random.Random(seed)
        workers, servers = chance.randint(2, 4), chance.randint(1, 2)
        role = chance.choices(("worker", "server", "launcher"), (6, 3, 1))[0]
        mark = chance.choice(MARKS)
        repeated = mark in ("pulled", "pushed", "clocked")
        return cls(
            seed=seed,
            workers=workers,
            servers=servers,
            transport=chance.choice(("shm", "tcp")),
            loss=chance.choice(("stop", "continue")),
            role=role,
            victim=chance.randrange({"worker": workers, "server": servers, "launcher": 1}[role]),
            mark=mark,
            times=chance.randint(1, ITERATIONS) if repeated else 1,
            delay=chance.choice((0.0, chance.random() * 0.003, chance.random() * 0.05)),
        )

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.workers} workers, {self.servers} servers, {self.transport}, "
            f"{self.loss}; kill {self.role} {self.victim} {self.delay * 1000:.1f} ms after `{self.mark}` "
            f"no. {self.times}"
        )


@dataclass
class Run:
    """What was seen of one run."""

    schedule: Schedule
    killed_at: float = 0.0
    """By the host's monotonic clock; 0: the moment never came."""
    code: int = 0
    output: str = ""
    marks: dict[int, list[str]] = field(default_factory=dict)
    outcomes: dict[int, dict[str, Any]] = field(default_factory=dict)
    left_files: list[str] = field(default_factory=list)
    left_processes: list[str] = field(default_factory=list)
    stuck: bool = False
    slowest: float = 0.0

    def read_outcomes(self, folder: Path) -> None:
        """Takes what the workers wrote down, and what was printed."""
        for path in folder.glob("outcome.*.json"):
            self.outcomes[int(path.name.split(".")[1])] = json.loads(path.read_text())
        self.output = (folder / "output").read_text(errors="replace")


def run(schedule: Schedule) -> Run:
    """Carries a schedule out; every process of it is gone at the end."""
    seen = Run(schedule)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    (folder / "t").mkdir()
    token = f"soak-{os.getpid()}-{schedule.seed}-{time.monotonic_ns()}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.bind(str(folder / "marks"))
            _conduct(seen, folder, token, line)
        seen.left_files = [str(path.relative_to(folder)) for path in (folder / "t").rglob("*")]
        seen.read_outcomes(folder)
    finally:
        for pid in bearers(token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
    return seen


def _conduct(seen: Run, folder: Path, token: str, line: socket.socket) -> None:
    schedule = seen.schedule
    arguments = ["--workers", str(schedule.workers), "--servers", str(schedule.servers)]
    # Processes that are still starting when one is killed should get far enough to hear of it.
    arguments += ["--grace", str(DEADLINE)]
    arguments += ["--on-worker-loss", schedule.loss, "--lease", str(LEASE), "--deadline", str(DEADLINE)]
    if schedule.transport == "tcp":
        arguments += ["--transport", "tcp"]
    program = [str(PROGRAM), str(folder), str(ITERATIONS), str(schedule.seed)]
    environment = {
        **os.environ,
        "TMPDIR": str(folder / "t"),
        "SOAK_SOCKET": str(folder / "marks"),
        "SOAK": token,
    }
    with (folder / "output").open("wb") as output:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "run", *arguments, *program],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _kill(seen, launcher, line)
            seen.stuck = not _listen_to_the_end(seen, launcher, line)
            seen.code = launcher.returncode or 0
            if schedule.role == "launcher":
                _await_end(token)
            seen.left_processes = [command_line(pid) for pid in bearers(token)] if not seen.stuck else []
        finally:
            launcher.kill()
            launcher.wait()


def _listen_to_the_end(seen: Run, launcher: subprocess.Popen[bytes], line: socket.socket) -> bool:
    """Whether the launcher ended. A socket that nobody reads would hold the workers up."""
    end = time.monotonic() + PATIENCE
    watch = os.pidfd_open(launcher.pid)
    try:
        while True:
            ready, _, _ = select.select([line, watch], [], [], max(0.0, end - time.monotonic()))
            if line in ready:
                note(seen, line.recv(200))
            elif watch in ready:
                launcher.wait()
                return True
            else:
                return False
    finally:
        os.close(watch)


def _kill(seen: Run, launcher: subprocess.Popen[bytes], line: socket.socket) -> None:
    """Waits for the moment, and kills."""
    schedule = seen.schedule
    pids: dict[int, int] = {}
    end = time.monotonic() + PATIENCE
    said = 0
    watch = os.pidfd_open(launcher.pid)
    try:
        while said < schedule.times:
            ready, _, _ = select.select([line, watch], [], [], max(0.0, end - time.monotonic()))
            if line not in ready:
                return  # the run has ended before the moment came, or is stuck: judged later
            rank, pid, mark = note(seen, line.recv(200))
            pids[rank] = pid
            about = schedule.role != "worker" or rank == schedule.victim
            said += about and mark == schedule.mark
    finally:
        os.close(watch)
    time.sleep(schedule.delay)
    match schedule.role:
        case "worker":
            victim = pids.get(schedule.victim)
        case "launcher":
            victim = launcher.pid
        case _:
            victim = _server(launcher.pid, schedule.victim)
    seen.killed_at = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        if victim is not None:
            os.kill(victim, signal.SIGKILL)


def note(seen: Run, message: bytes) -> tuple[int, int, str]:
    """Takes a worker's message: its rank, its process, and how far it is."""
    rank, pid, mark, _ = message.decode().split()
    seen.marks.setdefault(int(rank), []).append(mark)
    return int(rank), int(pid), mark


def _server(launcher: int, index: int) -> int | None:
    for pid in map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()):
        words = command_line(pid).split()
        if "penstock.launch.server" in words and words[words.index("penstock.launch.server") + 2] == str(
            index
        ):
            return pid
    return None


def command_line(pid: int) -> str:
    """What a process was started with; nothing where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def bearers(token: str) -> Iterator[int]:
    """Processes that have inherited the run's token."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "environ").read_bytes():
                    yield int(entry.name)


def _await_end(token: str) -> None:
    """Nobody is there to wait for when the launcher is killed: its processes must end by themselves."""
    end = time.monotonic() + LEASE + DEADLINE / 2
    for pid in list(bearers(token)):
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            finally:
                os.close(descriptor)


def judge(seen: Run, slack: float = 1.0, patience: float | None = None) -> list[str]:
    """
    What was not as it must be; `slack`: seconds beyond the lease for everybody to hear. With `patience`
    nobody saw a killed server's process end: who had not joined it may try for so many seconds.
    """
    schedule, wrong = seen.schedule, []
    if seen.stuck:
        return [f"the run did not end within {PATIENCE:g} s"]
    if seen.left_processes:
        wrong.append(f"processes are left: {seen.left_processes}")
    if schedule.role == "launcher":
        if seen.left_files:
            wrong.append(f"files are left: {seen.left_files}")
        return wrong
    if seen.left_files:
        wrong.append(f"files are left: {seen.left_files}")
    survivors = [
        rank for rank in range(schedule.workers) if (schedule.role, schedule.victim) != ("worker", rank)
    ]
    for rank in survivors:
        outcome = seen.outcomes.get(rank)
        if outcome is None:
            wrong.append(f"worker {rank} did not say how it ended (marks {seen.marks.get(rank, [])[-2:]})")
        elif "error" in outcome:
            wrong += _judge_error(seen, rank, outcome, slack, patience)
        else:
            wrong += _judge_result(seen, rank, outcome)
    finals = [outcome for rank, outcome in seen.outcomes.items() if rank in survivors and "least" in outcome]
    if any((one["least"], one["most"]) != (finals[0]["least"], finals[0]["most"]) for one in finals):
        wrong.append(f"survivors have different results: {finals}")
    if not seen.killed_at:
        wrong.append("the moment to kill never came")
    failed = any("error" in outcome for outcome in seen.outcomes.values())
    if failed and seen.code == 0:
        wrong.append("the exit code says that all went well")
    return wrong


def _judge_error(
    seen: Run, rank: int, outcome: dict[str, Any], slack: float, patience: float | None
) -> list[str]:
    schedule, wrong = seen.schedule, []
    if schedule.role == "manager":
        return [f"worker {rank} noticed that the manager was killed: {outcome['error']}: {outcome['text']}"]
    # Where a process starts slowly, one that was killed as it started may be dead before another asks for it.
    late = outcome["when"] - max(seen.killed_at, outcome["asked"])
    if patience is not None and "joined" not in seen.marks.get(rank, []):
        if late > patience + slack or f"server {schedule.victim}" not in outcome["text"]:
            wrong.append(
                f"worker {rank} joined in vain for {late:.1f} s: {outcome['error']}: {outcome['text']}"
            )
        return wrong
    seen.slowest = max(seen.slowest, late)
    if late > LEASE + slack:
        wrong.append(
            f"worker {rank} heard {late:.1f} s after the kill: {outcome['error']}: {outcome['text']}"
        )
    if schedule.role == "worker":
        if schedule.victim == 0 and "declared" not in seen.marks.get(0, []) and "worker 0" in outcome["text"]:
            return wrong  # no other gives a tensor its first value: there is nothing to go on with
        if schedule.loss == "continue":
            wrong.append(f"worker {rank} should have gone on: {outcome['error']}: {outcome['text']}")
        named = outcome["error"] == "WorkerLost" and outcome["rank"] == schedule.victim
    else:
        named = outcome["error"] == "ServerLost" and outcome["server"] == schedule.victim
    if not named:
        wrong.append(f"worker {rank} does not name the victim: {outcome['error']}: {outcome['text']}")
    return wrong


def _judge_result(seen: Run, rank: int, outcome: dict[str, Any]) -> list[str]:
    schedule, wrong = seen.schedule, []
    for other, (least, most) in enumerate(zip(outcome["least"], outcome["most"], strict=True)):
        is_victim = (schedule.role, schedule.victim) == ("worker", other)
        # What it had done before a barrier that the others passed with it is in, whole.
        whole = not is_victim or "barrier" in seen.marks.get(other, [])
        if most > ITERATIONS or (whole and least < ITERATIONS):
            wrong.append(f"worker {rank}: {least} to {most} pushes of worker {other}, not {ITERATIONS}")
        if most - least > is_victim:
            wrong.append(
                f"worker {rank}: {least} pushes of worker {other} in some elements, {most} in others"
            )
    return wrong


def main(
    draw: Callable[[int], Schedule],
    play: Callable[[Any], Run],
    judged: Callable[[Any, float], list[str]],
    about: str,
) -> int:
    """Plays as many schedules as the arguments say, and prints what came of them."""
    parser = argparse.ArgumentParser(description=about.split("\n\n")[0])
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--slack", type=float, default=1.0, help="seconds beyond the lease (default 1)")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.schedules)
    kinds: Counter[str] = Counter()
    heard: list[float] = []
    failed = 0
    began = time.monotonic()
    with ThreadPoolExecutor(given.at_once) as pool:
        for seen in pool.map(play, map(draw, seeds)):
            schedule = seen.schedule
            kinds[f"{schedule.role}, {schedule.transport}, {schedule.loss}"] += 1
            wrong = judged(seen, given.slack)
            if seen.slowest:
                heard.append(seen.slowest)
            if wrong:
                failed += 1
                print(f"FAILED {schedule}", *wrong, sep="\n  ", flush=True)
                print("  " + "\n  ".join(seen.output.splitlines()[-12:]), flush=True)
    print(
        f"{given.schedules} kills from seed {given.seed}, {time.monotonic() - began:.0f} s: {failed} failed"
    )
    for kind, count in sorted(kinds.items()):
        print(f"  {kind:<30}{count:>6}")
    if heard:
        heard.sort()
        print(
            f"the last survivor heard after {heard[len(heard) // 2]:.3f} s (median), "
            f"{heard[int(len(heard) * 0.99)]:.3f} s (99 of 100), {heard[-1]:.3f} s (longest); "
            f"lease {LEASE:g} s"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Schedule.draw, run, judge, __doc__ or ""))
