"""The examples in C and C++, alone and under every launcher that a host can have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from programs import EXAMPLES, PERMITTED, Done, Runner

Build = Callable[[Path], Path]

EXPECTED = {
    "tensor.c": r"weights 2\.00 -1\.00 0\.50 3\.00\n",
    "lapser.c": r"10000 iterations, no item more than 5 versions late \(at most [0-5] here\)\n",
    "overlap.c": r"apart by 0\.00\d\d\n",
    "groups.cpp": r"[12] workers, 1 in its group, sum [12], in the group 1\n",
    "filter.c": r"error 1\.00 -> 0\.00, [89]\d % held back\n",
    "words.cpp": r"right 0\.\d -> (0\.9|1\.0)\n",
    "mf.cpp": r"rmse [01]\.\d\d -> 0\.(09|1\d)\n",
}
EACH = pytest.mark.parametrize("source", EXPECTED)


def ended_well(done: Done, source: str) -> bool:
    """Whether the example printed what it says it prints, once, and nothing else."""
    return done.code == 0 and re.fullmatch(EXPECTED[source], done.out) is not None


@EACH
def test_alone(source: str, build: Build, runner: Runner) -> None:
    done = runner.run([build(EXAMPLES / source)])
    assert ended_well(done, source), done


@EACH
def test_under_mpirun(source: str, build: Build, runner: Runner, mpirun: list[str | Path]) -> None:
    done = runner.run([*mpirun, build(EXAMPLES / source)], **PERMITTED)
    assert ended_well(done, source), done
    assert runner.left() == []


@EACH
def test_under_penstock_run(source: str, build: Build, runner: Runner) -> None:
    done = runner.run(["penstock", "run", "--workers", "2", build(EXAMPLES / source)])
    out = done.out.replace("[worker 0] ", "")
    assert ended_well(Done(done.code, out, done.err), source), done


def test_over_tcp(build: Build, runner: Runner) -> None:
    command = ["penstock", "run", "--workers", "2", "--transport", "tcp"]
    done = runner.run([*command, build(EXAMPLES / "tensor.c")])
    assert "weights 2.00 -1.00 0.50 3.00" in done.out, done


@pytest.mark.parametrize("source", ["filter.c", "words.cpp"])
def test_what_filters_and_rows_bring_comes_by_tcp_too(source: str, build: Build, runner: Runner) -> None:
    command = ["penstock", "run", "--workers", "2", "--transport", "tcp"]
    done = runner.run([*command, build(EXAMPLES / source)])
    assert ended_well(Done(done.code, done.out.replace("[worker 0] ", ""), done.err), source), done


def test_under_mpirun_with_tcp_where_the_user_wants_it(
    build: Build, runner: Runner, mpirun: list[str | Path]
) -> None:
    done = runner.run([*mpirun, build(EXAMPLES / "tensor.c")], **PERMITTED, PENSTOCK_TRANSPORT="tcp")
    assert ended_well(done, "tensor.c"), done


# What other launchers say to their processes. The launcher itself is this process: all have one parent.
LAUNCHERS: dict[str, Callable[[int], Mapping[str, str]]] = {
    "mpich": lambda rank: {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"},
    "srun": lambda rank: {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "node1",
        "SLURM_NNODES": "1",
        "SLURM_JOB_ID": f"7{os.getpid()}",
        "SLURM_STEP_ID": "0",
    },
    "torchrun": lambda rank: {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": f"run{os.getpid()}",
    },
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_as_other_launchers_start_processes(launcher: str, build: Build, runner: Runner) -> None:
    first, second = runner.ranks([build(EXAMPLES / "tensor.c")], 2, LAUNCHERS[launcher])
    assert ended_well(first, "tensor.c"), first
    assert (second.code, second.out) == (0, ""), second
    assert runner.left() == []


def test_the_benchmark_prints_a_line_a_size(build: Build, runner: Runner) -> None:
    done = runner.run([build(EXAMPLES / "get_bench.c")])
    assert done.code == 0, done
    assert [int(line.split()[0]) for line in done.out.splitlines()] == [8, 64, 256, 1024, 4096, 65536]
    assert all(re.search(r"get +\d+ ns \[\d+ to \d+\]", line) for line in done.out.splitlines())


@pytest.mark.parametrize("source", [*EXPECTED, "get_bench.c"])
def test_what_an_example_says_of_itself_is_how_it_is_built(source: str) -> None:
    head = (EXAMPLES / source).read_text()[:1200]
    stem = Path(source).stem
    assert re.search(rf"(cc|c\+\+) .*-o {stem} {source} \$\(pkg-config --cflags --libs penstock\)", head)
    assert f"mpirun -n 2 ./{stem}" in head
