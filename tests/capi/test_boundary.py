"""Wrong calls get errors, not crashes; the compiler's sanitizers agree."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import HERE, Runner

WRONG = pytest.mark.parametrize(
    "source", [HERE / "boundary.c", HERE / "filters.c"], ids=lambda path: path.stem
)
REQUESTS = HERE / "requests.c"
Sanitized = Callable[[Path], Path]


@pytest.fixture
def sanitized(tmp_path: Path, cc: str, flags: list[str], libs: list[str]) -> Sanitized:
    """Compiles a program with the compiler's sanitizers."""

    def make(source: Path) -> Path:
        program = tmp_path / source.stem
        # A pointer that is not aligned is one of the wrong calls, and nothing looks through it.
        sanitize = [
            "-fsanitize=address,undefined",
            "-fno-sanitize=alignment",
            "-fno-sanitize-recover=all",
            "-g",
        ]
        command = [cc, "-std=c99", *sanitize, "-pthread", *flags, "-o", str(program), str(source), *libs]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip(f"{cc} has no sanitizers here: {made.stderr.splitlines()[-1]}")
        return program

    return make


def pair(rank: int) -> dict[str, str]:
    """What MPICH's mpiexec tells one of two processes."""
    return {"PMI_RANK": str(rank), "PMI_SIZE": "2", "ASAN_OPTIONS": "detect_leaks=1"}


@WRONG
def test_every_wrong_call_is_answered_with_an_error_that_names_what_is_wrong(
    source: Path, build: Callable[[Path], Path], runner: Runner
) -> None:
    done = runner.run([build(source)])
    assert done == (0, "", "")


@WRONG
def test_the_sanitizers_find_nothing(source: Path, sanitized: Sanitized, runner: Runner) -> None:
    done = runner.run([sanitized(source)], ASAN_OPTIONS="detect_leaks=1")
    assert done == (0, "", "")


def test_a_load_that_worker_0_puts_off_is_seen_by_all_when_it_is_done(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    for done in runner.ranks([build(HERE / "load.c")], 2, pair):
        assert done == (0, "", "")


def test_requests_are_done_once_in_order_and_say_what_went_wrong(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    assert runner.run([build(REQUESTS)]) == (0, "", "")
    for done in runner.ranks([build(REQUESTS)], 2, pair):
        assert done == (0, "", "")


def test_the_sanitizers_find_nothing_in_requests(sanitized: Sanitized, runner: Runner) -> None:
    for done in runner.ranks([sanitized(REQUESTS)], 2, pair):
        assert done == (0, "", "")


def test_what_was_started_keeps_what_was_so_then_and_nothing_waits_longer_than_it_says(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    for done in runner.ranks([build(HERE / "started.c")], 2, pair):
        assert done == (0, "", "")


def test_a_push_that_never_leaves_is_an_error_of_the_clock_and_of_the_end(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    for done in runner.ranks([build(HERE / "started.c"), "stuck"], 2, pair):
        assert done == (0, "", "")


def test_a_forked_child_is_told_so_by_every_call_and_may_have_a_job_of_its_own(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    assert runner.run([build(HERE / "forked.c")]) == (0, "", "")


def test_threads_set_get_and_fail_at_the_same_time(build: Callable[[Path], Path], runner: Runner) -> None:
    done = runner.run([build(HERE / "threads.c")])
    assert done == (0, "", "")


@pytest.mark.parametrize("how", ["told", "untold", "wait", "test", "any", "clock", "thread", "unheard"])
def test_a_job_that_has_failed_is_finished_at_once_and_its_failure_told_once(
    build: Callable[[Path], Path], runner: Runner, how: str
) -> None:
    # Each server was asked to let it go, for 5 seconds; and what a call had told of a request, or another
    # thread's call, was told again.
    sockets = [runner.runtime / f"s{index}" for index in range(2)]
    place = {"PENSTOCK_SECRET": "5a" * 32, "PENSTOCK_SERVERS": ",".join(map(str, sockets))}
    of = ["--servers", "2", "--workers", "1"]
    servers = [
        runner.start(["penstock-server", "--socket", socket, "--index", str(index), *of], **place)
        for index, socket in enumerate(sockets)
    ]
    failed = runner.runtime / "failed"
    words = [how] if how == "told" else [how, failed]
    worker = runner.start([build(HERE / "finish.c"), *words], **place, PENSTOCK_RANK="0", PENSTOCK_SIZE="1")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "here\n"
    servers[1].kill()
    servers[1].wait()
    failed.touch()
    assert runner.ends(worker) == (0, "", "")
    assert "server 1" in runner.ends(servers[0]).err
