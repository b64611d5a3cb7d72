"""Workers of one job may be written in C and in Python: they meet, and pull the same bits."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from programs import HERE, Done, Runner

AUTHENTICATION, BAD_OPTION, ADDRESS_IN_USE, NOT_UNDER_LAUNCHER = 6, 2, 9, 3
DEADLINE_EXCEEDED, JOB_FAILED = 4, 11
IN_PYTHON = [sys.executable, HERE / "mixed.py"]


@pytest.fixture
def in_c(build: Callable[[Path], Path]) -> list[str | Path]:
    """The worker in C."""
    return [build(HERE / "mixed.c")]


@pytest.fixture
def joiner(build: Callable[[Path], Path]) -> Path:
    """The program that does what its arguments say."""
    return build(HERE / "joiner.c")


@pytest.fixture
def place(port: int) -> dict[str, str]:
    """What processes are told that are started by hand, but for their ranks."""
    return {
        "PENSTOCK_RENDEZVOUS": f"127.0.0.1:{port}",
        "PENSTOCK_SECRET": secrets.token_hex(32),
        "PENSTOCK_DEADLINE": "60",
    }


def started(
    runner: Runner, place: Mapping[str, str], workers: Sequence[Sequence[str | Path]], **environment: str
) -> list[Done]:
    """Runs one process of each command, by hand."""
    size = str(len(workers))
    running = [
        runner.start(worker, **{**place, **environment, "PENSTOCK_RANK": str(rank), "PENSTOCK_SIZE": size})
        for rank, worker in enumerate(workers)
    ]
    return [runner.ends(one) for one in running]


def agree(all_done: Sequence[Done]) -> None:
    """That every worker pulled the same bits, and something else than it began with."""
    size = len(all_done)
    for rank, done in enumerate(all_done):
        assert done.code == 0, done
        assert done.out.startswith(f"{rank} of {size}: "), done
    bits = {done.out.partition(": ")[2] for done in all_done}
    assert len(bits) == 1, bits
    assert "00000000" not in bits.pop()


@pytest.mark.parametrize("first", ["C", "Python"])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_workers_in_c_and_python_meet_and_pull_the_same_bits(
    first: str, transport: str, in_c: list[str | Path], runner: Runner, place: dict[str, str]
) -> None:
    workers = [in_c, IN_PYTHON, in_c] if first == "C" else [IN_PYTHON, in_c, IN_PYTHON]
    agree(started(runner, place, workers, PENSTOCK_TRANSPORT=transport))
    assert runner.left() == []


def test_the_bits_are_those_of_a_job_in_one_language(
    in_c: list[str | Path], runner: Runner, place: dict[str, str]
) -> None:
    every = [
        started(runner, place, workers)
        for workers in ([in_c, in_c], [IN_PYTHON, IN_PYTHON], [in_c, IN_PYTHON])
    ]
    agree([*every[0]])
    assert every[0][0].out == every[1][0].out == every[2][0].out


def test_the_launcher_starts_workers_of_both(in_c: list[str | Path], runner: Runner, tmp_path: Path) -> None:
    # The launcher starts one command: each worker becomes what its rank says.
    either = tmp_path / "either.sh"
    either.write_text(
        f'#!/bin/sh\nif [ "$PENSTOCK_RANK" = 0 ]; then exec {in_c[0]}; fi\n'
        f"exec {sys.executable} {HERE / 'mixed.py'}\n"
    )
    either.chmod(0o755)
    done = runner.run(["penstock", "run", "--workers", "2", either])
    assert done.code == 0, done
    said = sorted(line for line in done.out.splitlines() if " of 2: " in line)
    assert [line.split(": ")[0][-6:] for line in said] == ["0 of 2", "1 of 2"], done
    assert len({line.rpartition(": ")[2] for line in said}) == 1, done


def test_a_worker_in_c_of_another_job_is_refused_at_the_rendezvous(
    joiner: Path, runner: Runner, place: dict[str, str]
) -> None:
    by_hand = {**place, "PENSTOCK_SIZE": "2"}
    first = runner.start([joiner, "init", "finish"], **by_hand, PENSTOCK_RANK="0")
    other = {**by_hand, "PENSTOCK_SECRET": secrets.token_hex(32)}
    done = runner.run([joiner, "init"], **other, PENSTOCK_RANK="1")
    assert done.code == AUTHENTICATION, done
    assert "has a different secret or job name from rank 1" in done.out
    second = runner.run([joiner, "init", "finish"], **by_hand, PENSTOCK_RANK="1")
    assert (second.code, runner.ends(first).code) == (0, 0), second


def test_all_are_told_who_did_not_come_to_the_rendezvous(
    joiner: Path, runner: Runner, place: dict[str, str]
) -> None:
    by_hand = {**place, "PENSTOCK_SIZE": "3", "PENSTOCK_DEADLINE": "3"}
    running = [runner.start([joiner, "init"], **by_hand, PENSTOCK_RANK=rank) for rank in "02"]
    for done in map(runner.ends, running):
        assert done.code == DEADLINE_EXCEEDED, done
        assert "for rank 1 of 3 to call penstock_init()" in done.out


def test_what_keeps_a_worker_in_c_from_joining_is_told_to_one_in_python(
    joiner: Path, runner: Runner, place: dict[str, str]
) -> None:
    # A certificate without its key: rank 0 cannot start its server.
    by_hand = {**place, "PENSTOCK_SIZE": "2", "PENSTOCK_TRANSPORT": "tcp"}
    first = runner.start([joiner, "init"], **by_hand, PENSTOCK_RANK="0", PENSTOCK_CERTIFICATE=str(joiner))
    second = runner.run(IN_PYTHON, **by_hand, PENSTOCK_RANK="1")
    assert runner.ends(first).code != 0
    assert second.code != 0
    assert "rank 0 could not join: the job's server could not be started" in second.err


REFUSED = {
    "no secret": (
        {"PENSTOCK_SECRET": ""},
        NOT_UNDER_LAUNCHER,
        "PENSTOCK_RENDEZVOUS says that 2 processes meet, but PENSTOCK_SECRET is not set",
    ),
    "no place": ({"PENSTOCK_RENDEZVOUS": "here"}, BAD_OPTION, "to be HOST:PORT, got `here`"),
    "no topology": ({"PENSTOCK_TOPOLOGY": "star"}, BAD_OPTION, "to be cs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_rendezvous_that_cannot_be_is_refused_with_what_to_do(
    case: str, joiner: Path, runner: Runner, place: dict[str, str]
) -> None:
    environment, status, text = REFUSED[case]
    by_hand = {**place, "PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "2", **environment}
    done = runner.run([joiner, "init"], **by_hand)
    assert done.code == status, done
    assert text in done.out
    assert "hint: " in done.out
