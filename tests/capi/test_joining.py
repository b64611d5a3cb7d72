"""How C programs find their job, when processes come late, never, twice, or after others were killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from programs import HERE, PATIENCE, PERMITTED, Runner

DEADLINE_EXCEEDED, NOT_UNDER_LAUNCHER, BAD_OPTION, JOB_FULL = 4, 3, 2, 7
JOB_FAILED, WORKER_LOST, SYSTEM = 11, 12, 60


@pytest.fixture
def joiner(build: Callable[[Path], Path]) -> Path:
    """The program that does what its arguments say."""
    return build(HERE / "joiner.c")


def mpich(rank: int, size: int = 2) -> dict[str, str]:
    """What MPICH's mpiexec tells a process. Ours all have this process as parent, as its have its proxy."""
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "PENSTOCK_DEADLINE": "60"}


def test_processes_may_join_one_job_after_another(
    joiner: Path, runner: Runner, mpirun: list[str | Path]
) -> None:
    words = ["init", "say", "finish"] * 5
    done = runner.run([*mpirun, joiner, *words], **PERMITTED)
    assert (done.code, sorted(done.out.splitlines())) == (0, ["rank 0 of 2"] * 5 + ["rank 1 of 2"] * 5), done
    assert runner.left() == []


def test_two_launches_at_one_time_do_not_meet(joiner: Path, runner: Runner, mpirun: list[str | Path]) -> None:
    started = [runner.start([*mpirun, joiner, "init", "say", "barrier", "finish"], **PERMITTED) for _ in "ab"]
    for done in map(runner.ends, started):
        assert (done.code, sorted(done.out.splitlines())) == (0, ["rank 0 of 2", "rank 1 of 2"]), done


def test_a_rank_that_never_comes_is_named_by_all_who_waited(joiner: Path, runner: Runner) -> None:
    # The last one waits already when the first comes, and hears from it.
    last = runner.start([joiner, "init"], **mpich(2, 3))
    first = runner.run([joiner, "init"], **{**mpich(0, 3), "PENSTOCK_DEADLINE": "3"})
    assert first.code == DEADLINE_EXCEEDED, first
    assert "for rank 1 of 3 to call penstock_init()" in first.out
    done = runner.ends(last)
    assert done.code == JOB_FAILED, done
    assert "rank 0 could not join: waited" in done.out
    assert "for rank 1 of 3 to call penstock_init()" in done.out
    assert [Path(name).suffix for name in runner.left()] == [".join"], "only what late ones are told"


def test_who_waits_for_rank_0_says_so(joiner: Path, runner: Runner) -> None:
    done = runner.run([joiner, "init"], **{**mpich(1), "PENSTOCK_DEADLINE": "0.2"})
    assert done.code == DEADLINE_EXCEEDED, done
    assert "for rank 0 of 2 to call penstock_init()" in done.out


def test_what_keeps_rank_0_from_joining_is_told_to_the_others(joiner: Path, runner: Runner) -> None:
    # A certificate without its key, on rank 0 only.
    half = {"PENSTOCK_TRANSPORT": "tcp", "PENSTOCK_CERTIFICATE": str(joiner)}
    first, second = runner.ranks(
        [joiner, "init"], 2, lambda rank: {**mpich(rank), **(half if rank == 0 else {})}
    )
    assert first.code == SYSTEM, first
    assert "the job's server could not be started" in first.out
    assert second.code == JOB_FAILED, second
    assert "rank 0 could not join: the job's server could not be started" in second.out


def test_what_killed_processes_left_behind_harms_nobody(joiner: Path, runner: Runner) -> None:
    killed = runner.start([joiner, "init"], **mpich(0))
    until = time.monotonic() + PATIENCE
    while not any(name.endswith(".join") for name in runner.left()):
        assert killed.poll() is None
        assert time.monotonic() < until
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    runner.ends(killed)
    assert runner.left() != []
    for done in runner.ranks([joiner, "init", "say", "finish"], 2, mpich):
        assert done.code == 0, done
    assert runner.left() == []


def test_the_others_go_on_when_rank_0_has_finished(joiner: Path, runner: Runner) -> None:
    # A barrier waits only for those that may still come: these open because rank 0 has left. Its
    # server is there.
    first = runner.start([joiner, "init", "finish"], **mpich(0))
    second = runner.start([joiner, "init", "barrier", "barrier", "finish"], **mpich(1))
    assert runner.ends(second) == (0, "", "")
    assert runner.ends(first) == (0, "", "")


def test_a_process_that_ends_without_finishing_is_named(joiner: Path, runner: Runner) -> None:
    first = runner.start([joiner, "init", "barrier", "finish"], **mpich(0))
    second = runner.start([joiner, "init", "vanish"], **mpich(1))
    assert runner.ends(second).code == 0
    done = runner.ends(first)
    assert done.code == WORKER_LOST, done
    assert "worker 1" in done.out


def test_who_leaves_because_of_an_error_tells_the_others(joiner: Path, runner: Runner) -> None:
    first = runner.start([joiner, "init", "barrier", "finish"], **mpich(0))
    second = runner.start([joiner, "init", "fail"], **mpich(1))
    assert runner.ends(second).code == 0
    done = runner.ends(first)
    assert done.code == WORKER_LOST, done
    assert "it had enough" in done.out


def test_processes_do_not_meet_where_others_may_enter(joiner: Path, runner: Runner) -> None:
    (runner.runtime / "penstock").mkdir(mode=0o755)
    done = runner.run([joiner, "init"], **mpich(0))
    assert done.code == SYSTEM, done
    assert "others may enter it (mode 055)" in done.out


def test_without_a_runtime_directory_they_meet_in_tmp(joiner: Path, runner: Runner) -> None:
    nowhere = {"XDG_RUNTIME_DIR": str(runner.runtime / "gone")}
    for done in runner.ranks([joiner, "init", "finish"], 2, lambda rank: {**mpich(rank), **nowhere}):
        assert done == (0, "", "")


def test_a_part_of_the_processes_is_a_job_of_its_own(joiner: Path, runner: Runner) -> None:
    # By the structure: processes 0 and 2 of a launch are a job, 1 and 3 another; then all are a third.
    words = [
        ["with", f"half {rank % 2}", str(rank // 2), "2", "say", "barrier", "finish"] for rank in range(4)
    ]
    started = [
        runner.start([joiner, *words[rank], "init", "say", "finish"], **mpich(rank, 4)) for rank in range(4)
    ]
    for rank, done in enumerate(map(runner.ends, started)):
        assert (done.code, done.out) == (0, f"rank {rank // 2} of 2\nrank {rank} of 4\n"), done
    assert runner.left() == []


def test_processes_without_a_launcher_join_by_the_structure(joiner: Path, runner: Runner) -> None:
    words = lambda rank: [joiner, "with", "by hand", str(rank), "2", "say", "barrier", "finish"]  # noqa: E731
    started = [runner.start(words(rank)) for rank in range(2)]
    for rank, done in enumerate(map(runner.ends, started)):
        assert (done.code, done.out) == (0, f"rank {rank} of 2\n"), done


def test_a_process_joins_named_servers_by_the_structure(joiner: Path, runner: Runner) -> None:
    secret = "5a" * 32
    socket = runner.runtime / "s"
    server = runner.start(["penstock-server", "--socket", socket, "--job", "named"], PENSTOCK_SECRET=secret)
    done = runner.run([joiner, "with", "named", "0", "1", socket, secret, "say", "finish"])
    assert (done.code, done.out) == (0, "rank 0 of 1\n"), done
    assert runner.ends(server).code == 0
    wrong = runner.run([joiner, "with", "named", "0", "1", socket, "hush", "finish"])
    assert wrong.code == BAD_OPTION, wrong
    assert "`options->secret` to be 64 hexadecimal digits, got 4 characters" in wrong.out


def test_a_rank_outside_the_size_is_refused_by_the_call_that_says_so(joiner: Path, runner: Runner) -> None:
    done = runner.run([joiner, "with", "small", "2", "2", "finish"])
    assert done.code == JOB_FULL, done
    assert "penstock_init_with() says is 2" in done.out


def test_who_says_that_it_is_alone_may_be_told_where_others_meet(joiner: Path, runner: Runner) -> None:
    # It was refused for not saying how many meet, which it did. Python took it.
    place = {"PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "1"}
    done = runner.run([joiner, "init", "say", "finish"], **place, PENSTOCK_RENDEZVOUS="h:1")
    assert (done.code, done.out) == (0, "rank 0 of 1\n"), done


REFUSED: dict[str, tuple[Mapping[str, str], int, str]] = {
    "several hosts": (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        NOT_UNDER_LAUNCHER,
        "some of them on other hosts",
    ),
    "a size without a rank": ({"PMI_SIZE": "2"}, NOT_UNDER_LAUNCHER, "PMI_RANK does not say which"),
    # Each of them trained alone, in silence.
    "a rank without a size": ({"PENSTOCK_RANK": "1"}, NOT_UNDER_LAUNCHER, "but PENSTOCK_SIZE is not set"),
    "a rank of mpirun's without a size": (
        {"OMPI_COMM_WORLD_RANK": "1"},
        NOT_UNDER_LAUNCHER,
        "number 1 of several, but OMPI_COMM_WORLD_SIZE is not set",
    ),
    "a rendezvous address alone": (
        {"PENSTOCK_RENDEZVOUS": "h:1"},
        NOT_UNDER_LAUNCHER,
        "says where processes meet",
    ),
    "a misspelled variable": ({"PENSTOCK_SERVER": "/x"}, BAD_OPTION, "did you mean PENSTOCK_SERVERS?"),
    # It was looked for as a socket in the current directory.
    "an address without tcp": (
        {
            "PENSTOCK_SERVERS": "localhost:7700",
            "PENSTOCK_RANK": "0",
            "PENSTOCK_SIZE": "1",
            "PENSTOCK_SECRET": "ab" * 32,
        },
        BAD_OPTION,
        "give tcp://localhost:7700",
    ),
    "a rank of one process": (
        {"PENSTOCK_RANK": "1", "PENSTOCK_SIZE": "1"},
        JOB_FULL,
        "PENSTOCK_SIZE says is 1",
    ),
    "a rank of none": ({"RANK": "3", "WORLD_SIZE": "0"}, JOB_FULL, "WORLD_SIZE says is 0"),
    "a rank that is no number": ({"PMI_SIZE": "2", "PMI_RANK": "x"}, BAD_OPTION, "PMI_RANK to be a whole"),
    "a rank by hand": (
        {"PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "2"},
        NOT_UNDER_LAUNCHER,
        "PENSTOCK_SERVERS names no servers",
    ),
    "servers without a secret": (
        {"PENSTOCK_SERVERS": "/nowhere", "PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "1"},
        NOT_UNDER_LAUNCHER,
        "PENSTOCK_SECRET is not",
    ),
    "servers without a place": (
        {"PENSTOCK_SERVERS": "/nowhere", "PENSTOCK_SECRET": "ab" * 32},
        NOT_UNDER_LAUNCHER,
        "PENSTOCK_RANK is not set",
    ),
    "a secret that is none": (
        {"PENSTOCK_SERVERS": "/nowhere", "PENSTOCK_SECRET": "hush"},
        BAD_OPTION,
        "got 4 characters",
    ),
    "a batch script": ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, NOT_UNDER_LAUNCHER, "srun did not start"),
    "a manager without a job": ({"PENSTOCK_MANAGER": "m:1"}, NOT_UNDER_LAUNCHER, "PENSTOCK_JOB is not"),
    "a manager without a secret": (
        {"PENSTOCK_MANAGER": "m:1", "PENSTOCK_JOB": "j"},
        NOT_UNDER_LAUNCHER,
        "PENSTOCK_SECRET is not",
    ),
    "an option": ({"PENSTOCK_CHUNK_BYTES": "3"}, BAD_OPTION, "`chunk_bytes`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_environment_that_cannot_be_is_refused_with_what_to_do(
    case: str, joiner: Path, runner: Runner
) -> None:
    environment, status, text = REFUSED[case]
    done = runner.run([joiner, "init"], **environment)
    assert done.code == status, done
    assert text in done.out
    assert "hint: " in done.out


def test_an_mpi_program_uses_both(
    tmp_path: Path, flags: list[str], libs: list[str], runner: Runner, mpirun: list[str | Path]
) -> None:
    made = runner.run(["mpicc", "-std=c99", *flags, HERE / "mpi.c", "-o", tmp_path / "mpi", *libs])
    if made.code != 0:
        pytest.skip(f"mpicc cannot be used here: {made.err.splitlines()[-1]}")
    done = runner.run([*mpirun, tmp_path / "mpi"], **PERMITTED)
    assert (done.code, done.out) == (0, "1 2 3 3\n" * 2), done


def test_a_variable_that_nobody_reads_is_told_of(joiner: Path, runner: Runner) -> None:
    done = runner.run([joiner, "init"], PENSTOCK_TIMEOUT="5")
    assert done.code == 0, done
    assert "PENSTOCK_TIMEOUT sets nothing" in done.err
