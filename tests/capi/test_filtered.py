"""Filters, rows, elements and factors in C: programs in C read the same bits as those in Python."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import HERE, Done, Runner

IN_PYTHON = [sys.executable, HERE / "filtered.py"]


@pytest.fixture
def in_c(build: Callable[[Path], Path]) -> list[str | Path]:
    """The worker in C."""
    return [build(HERE / "filtered.c")]


@pytest.fixture
def start(runner: Runner, port: int) -> Callable[..., list[Done]]:
    """Runs one process of each command, by hand."""

    def started(*workers: list[str | Path], **more: str) -> list[Done]:
        place = {
            "PENSTOCK_RENDEZVOUS": f"127.0.0.1:{port}",
            "PENSTOCK_SECRET": secrets.token_hex(32),
            "PENSTOCK_DEADLINE": "60",
            "PENSTOCK_SIZE": str(len(workers)),
            **more,
        }
        running = [
            runner.start(worker, **place, PENSTOCK_RANK=str(rank)) for rank, worker in enumerate(workers)
        ]
        return [runner.ends(one) for one in running]

    return started


def read(all_done: list[Done]) -> str:
    """What every worker has read."""
    size = len(all_done)
    for rank, done in enumerate(all_done):
        assert (done.code, done.err) == (0, ""), done
        assert done.out.startswith(f"{rank} of {size}: "), done
    (same,) = {done.out.partition(": ")[2] for done in all_done}
    return same


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("first", ["C", "Python"])
def test_workers_in_c_and_python_filter_alike_and_read_the_same(
    first: str, transport: str, in_c: list[str | Path], start: Callable[..., list[Done]]
) -> None:
    workers = [in_c, IN_PYTHON, in_c] if first == "C" else [IN_PYTHON, in_c]
    read(start(*workers, PENSTOCK_TRANSPORT=transport))


def test_a_job_in_c_reads_what_one_in_python_does(
    in_c: list[str | Path], start: Callable[..., list[Done]]
) -> None:
    # On one host: what follows the network differs from run to run elsewhere.
    assert read(start(in_c, in_c)) == read(start(IN_PYTHON, IN_PYTHON))


@pytest.mark.parametrize("second", ["C", "Python"])
def test_a_filter_that_is_not_the_others_is_a_conflict_of_declarations(
    second: str, in_c: list[str | Path], start: Callable[..., list[Done]]
) -> None:
    other = in_c if second == "C" else IN_PYTHON
    for done in start([*in_c, "conflict"], [*other, "conflict"]):
        assert done == (0, "", "")
    for done in start([*IN_PYTHON, "conflict"], [*in_c, "conflict"]):
        assert done == (0, "", "")
