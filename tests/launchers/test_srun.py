"""
srun by its contract: the variables that Slurm sets for each task of a step. Also: processes started by hand.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest
from groups import LINEAR, PATIENCE, Group, learned

from penstock.rendezvous import environment


def task(size: int, port_of: int = 4711, **more: str):
    """What srun tells the tasks of a step on this host."""

    def name(rank: int) -> Mapping[str, str]:
        return {
            "SLURM_JOB_ID": str(port_of),
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": str(size),
            "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_STEP_NODELIST": "localhost",
            "SLURM_NODEID": "0",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
            **more,
        }

    return name


def by_hand(size: int, port: int, secret: str):
    """What a user sets who starts the processes without any launcher."""

    def name(rank: int) -> Mapping[str, str]:
        return {
            "PENSTOCK_RENDEZVOUS": f"127.0.0.1:{port}",
            "PENSTOCK_SECRET": secret,
            "PENSTOCK_RANK": str(rank),
            "PENSTOCK_SIZE": str(size),
        }

    return name


@pytest.mark.parametrize("size", [2, 4])
def test_the_tasks_of_a_step_become_one_job(group: Group, secret: str, port: int, size: int) -> None:
    done = group.ranks(LINEAR, size, task(size, port), PENSTOCK_SECRET=secret)
    assert [one.code for one in done] == [0] * size, done
    assert learned("".join(one.out for one in done))


def test_a_step_of_one_task_trains_alone_and_needs_no_secret(group: Group) -> None:
    (done,) = group.ranks(LINEAR, 1, task(1))
    assert (done.code, learned(done.out)) == (0, True), done


def test_a_step_without_a_secret_is_told_how_to_make_one(group: Group) -> None:
    (done,) = group.ranks(LINEAR, 1, task(2))
    assert done.code == 1
    assert "hint: make one where the job is started" in done.err
    assert "export PENSTOCK_SECRET=$(penstock secret)" in done.err


def test_processes_started_by_hand_become_one_job_over_tcp_too(group: Group, secret: str, port: int) -> None:
    done = group.ranks(LINEAR, 3, by_hand(3, port, secret), PENSTOCK_TRANSPORT="tcp")
    assert [one.code for one in done] == [0] * 3, done
    assert learned("".join(one.out for one in done))


def test_two_jobs_on_one_port_are_kept_apart(group: Group, secret: str, port: int) -> None:
    first = group.start([sys.executable, LINEAR], **by_hand(2, port, secret)(0))
    other = group.run([sys.executable, LINEAR], **by_hand(2, port, "0" * 64)(1))
    assert other.code == 1
    assert "AuthenticationError: the rendezvous at 127.0.0.1" in other.err
    assert "0" * 64 not in other.err
    second = group.run([sys.executable, LINEAR], **by_hand(2, port, secret)(1))
    assert (group.ends(first).code, second.code) == (0, 0)


def test_who_does_not_come_is_named_by_all_who_waited(group: Group, secret: str, port: int) -> None:
    started = [
        group.start([sys.executable, LINEAR], **by_hand(3, port, secret)(rank), PENSTOCK_DEADLINE="4")
        for rank in (0, 2)
    ]
    for process in started:
        done = group.ends(process)
        assert done.code == 1
        assert "RendezvousTimeout: waited" in done.err
        assert "for rank 1 of 3 to call penstock.init()" in done.err


def test_a_process_that_cannot_go_on_ends_the_wait_of_the_others_at_once(
    group: Group, secret: str, port: int
) -> None:

    done = group.ranks(
        LINEAR,
        2,
        lambda rank: {
            **by_hand(2, port, secret)(rank),
            **({"PENSTOCK_TOPOLOGY": "ring"} if rank == 0 else {}),
        },
    )
    assert [one.code for one in done] == [1, 1]
    assert "OptionError: expected PENSTOCK_TOPOLOGY to be cs" in done[0].err
    assert "JobFailed: rank 0 could not join: expected PENSTOCK_TOPOLOGY to be cs" in done[1].err


LATE = """
    import os, select, sys
    import numpy as np
    import penstock as ps

    job = ps.init()
    w = job.tensor("w", value=np.zeros(4, np.float32), optimizer=ps.SGD(1.0), reduce="sum")
    w.pull()
    w.push(np.full(4, -1.0, np.float32))
    job.clock()
    w.pull()
    if job.rank == 0:
        job.close()
        print("left", flush=True)
        sys.exit()
    # The first worker, whose child the server is, has left; this one goes on when the test says so.
    select.select([int(os.environ["TEST_GO"])], [], [])
    for _ in range(50):
        w.push(np.full(4, -1.0, np.float32))
        job.clock()
        last = w.pull()[0]
    print("last", last)
"""


def test_the_process_that_carries_the_server_waits_for_the_other_workers(
    group: Group, secret: str, port: int, script
) -> None:
    path = script(LATE)
    reading, writing = os.pipe()
    try:
        first = group.start([sys.executable, path], **by_hand(2, port, secret)(0))
        os.set_inheritable(reading, True)
        second = group.start_with(
            [sys.executable, path], (reading,), **by_hand(2, port, secret)(1), TEST_GO=str(reading)
        )
        assert first.stdout is not None
        assert select.select([first.stdout], [], [], PATIENCE)[0]
        assert first.stdout.readline() == "left\n"
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.5)  # long enough for one that would not wait to be gone
        assert len(group.servers()) == 1
        os.write(writing, b"!")
        late = group.ends(second)
        assert (late.code, late.out) == (0, "last 52.0\n"), late
        assert group.ends(first).code == 0
    finally:
        os.close(reading)
        os.close(writing)


OPEN = """
    import signal
    import penstock as ps

    job = ps.init()
    job.barrier()
    print("there", flush=True)
    if job.rank == 1:
        signal.pause()
"""


def test_a_process_that_ends_with_its_job_open_removes_what_a_killed_server_left(
    group: Group, secret: str, port: int, script
) -> None:
    path = script(OPEN)
    first, second = (
        group.start([sys.executable, path], **by_hand(2, port, secret)(rank)) for rank in range(2)
    )
    for process in (first, second):
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1.0)  # long enough for the interpreter to have ended; the process waits for its server
    (server,) = group.servers()
    os.kill(server, signal.SIGKILL)
    group.ends(first)
    assert not list(group.scratch.glob("penstock-*"))
    second.kill()


STUCK = """
    import signal
    import numpy as np
    import penstock as ps

    job = ps.init()
    w = job.tensor("w", value=np.zeros(4, np.float32))
    w.pull()
    print("trains", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_does_not_outlive_the_process_that_started_it(
    group: Group, secret: str, port: int, script, number: signal.Signals
) -> None:
    path = script(STUCK)
    # The loss of a worker does not end this job: only the parent's end is a reason for the server to end.
    told = {"PENSTOCK_ON_WORKER_LOSS": "continue"}
    started = [
        group.start([sys.executable, path], **by_hand(2, port, secret)(rank), **told) for rank in range(2)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
    (server,) = group.servers()
    descriptor = os.pidfd_open(server)
    os.kill(started[0].pid, number)
    assert group.ends(started[0]).code == -number
    assert select.select([descriptor], [], [], PATIENCE)[0], "the server is still there"
    os.close(descriptor)
    assert started[1].poll() is None
    assert not list(group.scratch.glob("penstock-*"))


def test_a_script_that_fails_ends_its_job_and_its_server(
    group: Group, secret: str, port: int, script
) -> None:
    path = script("""
        import penstock as ps

        job = ps.init()
        w = job.tensor("w", shape=(4,))
        w.pull()
        if job.rank == 0:
            raise RuntimeError("no more data")
        w.push([1, 1, 1, 1])
        job.clock()
        w.pull()
    """)
    done = group.ranks(path, 2, by_hand(2, port, secret))
    assert [one.code for one in done] == [1, 1], done
    assert "RuntimeError: no more data" in done[0].err
    assert "WorkerLost" in done[1].err
    assert "no more data" in done[1].err


def test_a_script_may_join_one_job_after_another(group: Group, secret: str, port: int, script) -> None:
    path = script("""
        import penstock as ps

        for number in range(3):
            with ps.init() as job:
                w = job.tensor("w", shape=(4,), reduce="sum")
                w.push([1, 1, 1, 1])
                job.clock()
                print(number, w.pull()[0])
    """)
    done = group.ranks(path, 2, by_hand(2, port, secret))
    assert [one.out for one in done] == ["0 2.0\n1 2.0\n2 2.0\n"] * 2, done


def test_every_secret_is_new_and_one_that_is_accepted(group: Group) -> None:
    command = [sys.executable, "-m", "penstock.cli", "secret"]
    first, second = (group.run(command).out.strip() for _ in range(2))
    assert first != second
    assert environment.secret({"PENSTOCK_SECRET": first}) == first
    refused = group.run([*command, "mine"])
    assert (refused.code, refused.out) == (2, "")
