"""
Jobs under `penstock run`, with workers that train: progress, and what becomes of a job when one of its
processes is lost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from launching import command_line

pytest.importorskip("penstock._core")

TRAINING = """
    import os, sys, time
    import numpy as np
    import penstock as ps

    job = ps.init()
    w = job.tensor("w", np.zeros(1000, np.float32), optimizer=ps.SGD(lr=1.0), reduce="sum")
    steps = int(sys.argv[1])
    for step in range(steps):
        value = w.pull()
        w.push(np.full(1000, -1.0, np.float32))
        job.clock()
        if step == 10:
            print("training", os.getpid(), flush=True)
    job.barrier()
    print("sum", w.pull(slack=0)[0], w.pull(slack=0)[-1])
    job.close()
"""

ENDLESS = "1000000000"


def pid_of(run, worker, workers):
    """The process number of a worker that has begun to train, once all have."""
    lines = run.until("training", workers)
    return int(next(line for line in lines if f"[worker {worker}]" in line).split()[-1])


@pytest.mark.parametrize("servers", ["1", "2"])
def test_every_update_of_every_worker_counts(command, script, nothing_left, servers):
    run = command("run", "--workers", "2", "--servers", servers, script(TRAINING), "100")
    assert run.ends() == 0, run.all()
    assert [line.split("] ")[1] for line in run.until("sum", 2)] == ["sum 200.0 200.0"] * 2
    assert run.err == ""
    nothing_left([])


def test_eight_workers_and_a_server_make_progress_on_few_cores(command, script):
    run = command("run", "--workers", "8", script(TRAINING), "200")
    assert run.ends() == 0, run.all()
    assert [line.split("] ")[1] for line in run.until("sum", 8)] == ["sum 1600.0 1600.0"] * 8


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_a_killed_worker_ends_the_job_with_an_error_that_names_it(command, script, nothing_left, consistency):
    run = command("run", "-n", "3", "-c", consistency, script(TRAINING), ENDLESS)
    victim = pid_of(run, 1, 3)
    children = run.children()
    os.kill(victim, signal.SIGKILL)
    assert run.ends() == 137
    nothing_left(children)
    assert "error: worker 1 was killed by SIGKILL (first failure; the other workers were stopped" in run.err
    # The others did not hang: they were told, and say which worker they lost.
    for other in (0, 2):
        told = [
            line for line in run.err.splitlines() if line.startswith(f"[worker {other}]") and "Lost" in line
        ]
        assert any("worker 1" in line for line in told), run.all()


def test_a_worker_that_fails_by_itself_is_the_one_that_is_reported(command, script, nothing_left):
    name = script("""
        import penstock as ps
        job = ps.init()
        w = job.tensor("w", shape=(3,))
        for step in range(5):
            w.pull()
            w.push([1, 1, 1])
            job.clock()
        if job.rank == 1:
            raise RuntimeError("found no more data")
        w.pull(timeout=60)
    """)
    run = command("run", "--workers", "2", name)
    assert run.ends() == 1
    report = run.err[run.err.index("\nerror: ") :]
    assert report.startswith("\nerror: worker 1 ended with exit code 1 (first failure")
    assert "RuntimeError: found no more data" in report
    nothing_left([])


def test_a_killed_server_ends_the_job_with_an_error_that_names_it(command, script, nothing_left):
    run = command("run", "-n", "2", "-s", "2", script(TRAINING), ENDLESS)
    run.until("training", 2)
    children = run.children()
    os.kill(run.child("/s1 "), signal.SIGKILL)
    assert run.ends() == 137
    nothing_left(children)
    assert "error: server 1 was killed by SIGKILL (first failure; the workers were stopped" in run.err
    assert "ServerLost" in run.err


def test_a_worker_that_hangs_is_found_out_by_its_lease(command, script, nothing_left):
    run = command("run", "-n", "2", "--lease", "2", "--grace", "1", script(TRAINING), ENDLESS)
    victim = pid_of(run, 1, 2)
    children = run.children()
    os.kill(victim, signal.SIGSTOP)
    assert run.ends() == 1
    nothing_left(children)
    told = [line for line in run.err.splitlines() if line.startswith("[worker 0]") and "WorkerLost" in line]
    assert any("worker 1" in line for line in told), run.all()
    assert "worker 1 did not end by itself and was killed" in run.err


def test_a_worker_that_is_suspended_for_a_while_once_it_has_left_keeps_what_it_does_then(command, script):
    name = script("""
        import os, signal, subprocess, sys
        import penstock as ps
        with ps.init() as job:
            server = job.tensor("w", shape=1)
        waker = "import os, signal, sys, time; time.sleep(1.5); os.kill(int(sys.argv[1]), signal.SIGCONT)"
        if job.rank == 0:
            subprocess.Popen([sys.executable, "-c", waker, str(os.getpid())], start_new_session=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            print("saved")
    """)
    run = command("run", "-n", "2", name)
    assert run.ends() == 0, run.all()
    assert "[worker 0] saved" in run.out


# Time in which the launcher was suspended itself counted: continued first, it killed whoever was not yet.
def test_a_run_that_is_suspended_for_longer_than_the_grace_goes_on_where_it_was(command, script):
    grace = 2.0
    name = script("""
        import os, signal
        import penstock as ps
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        with ps.init() as job:
            job.tensor("w", shape=1)
        print("left", os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR1])
        print("saved", job.rank)
    """)
    run = command("run", "-n", "2", "--grace", str(grace), name)
    workers = [int(line.split()[-1]) for line in run.until("left", 2)]
    while any("launch.server" in command_line(pid) for pid in run.children()):
        time.sleep(0.01)

    def steps() -> int:
        status = Path(f"/proc/{run.pid}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def looks(before: int) -> None:
        # Stopping and going on are steps as well.
        while steps() < before + 3 and run.children():
            time.sleep(0.001)

    before = steps()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    looks(before)
    run.send(signal.SIGSTOP)
    time.sleep(1.25 * grace)
    before = steps()
    run.send(signal.SIGCONT)
    looks(before)
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGUSR1)
    assert run.ends() == 0, run.all()
    assert run.out.count("saved") == 2


def test_the_others_go_on_without_a_lost_worker_if_they_may(command, script, nothing_left):
    name = script("""
        import os, signal
        import numpy as np
        import penstock as ps
        job = ps.init()
        w = job.tensor("w", np.zeros(10, np.float32), optimizer=ps.SGD(lr=1.0), reduce="sum")
        for step in range(50):
            w.pull()
            if job.rank == 1 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            w.push(np.full(10, -1.0, np.float32))
            job.clock()
        w.pull(slack=0)
        print("finished", job.rank, job.iteration)
        job.close()
    """)
    run = command("run", "-n", "3", "--on-worker-loss", "continue", name)
    assert run.ends() == 0, run.all()
    nothing_left([])
    assert sorted(run.out.splitlines()) == ["[worker 0] finished 0 50", "[worker 2] finished 2 50"]
    assert "warning: worker 1 was killed by SIGKILL" in run.err


def test_a_hung_worker_that_the_others_left_behind_is_ended_with_the_job(command, script, nothing_left):
    run = command("run", "-n", "2", "--on-worker-loss", "continue", "--lease", "2", script(TRAINING), "20000")
    victim = pid_of(run, 1, 2)
    os.kill(victim, signal.SIGSTOP)
    assert run.ends() == 0, run.all()
    nothing_left([victim])
    assert "warning: worker 1" in run.err


def test_rows_of_a_lost_producer_that_were_never_one_set_are_a_typed_error(command, script, tmp_path):
    code = """
    import os, signal
    import penstock as ps

    def meet(name):
        os.close(os.open(name, os.O_WRONLY if job.rank else os.O_RDONLY))

    job = ps.init()
    table = job.table("t", rows=2, produce="all" if job.rank else None, consume="all", propagation="lazy")
    if job.rank:
        alive = os.open("alive", os.O_WRONLY)
        for clock in 1, 2:
            table.set([0, 1], [[clock], [clock]], clock=clock)
            meet(f"set{clock}")
            meet(f"read{clock}")
        os.kill(os.getpid(), signal.SIGKILL)
    alive = os.open("alive", os.O_RDONLY)
    for row, clock in (0, 1), (1, 2):
        meet(f"set{clock}")
        assert table.get(row, clock=clock) == clock
        meet(f"read{clock}")
    assert os.read(alive, 1) == b""  # the producer has ended
    try:
        table.get([1, 0], clock=1)
    except ps.exceptions.RowsApart as error:
        print("apart", error.row, error.producer)
    print("each", table.get(0, clock=9)[0], table.get(1, clock=9)[0])
    """
    for name in ("alive", "set1", "read1", "set2", "read2"):
        os.mkfifo(tmp_path / name)
    options = ("--transport", "tcp", "--on-worker-loss", "continue", "--lease", "3")
    run = command("run", "--workers", "2", *options, script(code))
    run.ends()
    assert run.until("apart")[0].endswith("apart 0 1"), run.all()
    assert run.until("each")[0].endswith("each 1.0 2.0"), run.all()
