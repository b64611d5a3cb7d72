"""`penstock run`: exit codes, signals, who is named, and that nothing is left, whatever way a run ends."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import PATIENCE, command_line

SLEEPER = """
    import os, signal, subprocess, sys, time
    if "stubborn" in sys.argv:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: print("no", flush=True))
    child = subprocess.Popen(["sleep", "600"])
    print("ready", os.getpid(), child.pid, flush=True)
    while True:
        time.sleep(600)
"""


def ready(run, workers):
    """
    Process numbers of all workers and of the child of each, once all are up; with all of the launcher's own
    children.
    """
    numbers = [int(word) for line in run.until("ready", workers) for word in line.split()[-2:]]
    return numbers + run.children()


def test_the_first_failure_is_reported_with_its_rank_and_its_traceback(command, script, nothing_left):
    name = script("""
        import os, time
        print("pid", os.getpid(), flush=True)
        if os.environ["RANK"] == "1":
            raise KeyError("what went wrong")
        time.sleep(600)
    """)
    run = command("run", "--workers", "3", "--grace", "0.2", name)
    assert run.ends() == 1
    pids = [int(line.split()[-1]) for line in run.until("pid", 3) if "[worker" in line]
    nothing_left(pids)
    report = run.err[run.err.index("error: ") :]
    assert report.startswith(
        "error: worker 1 ended with exit code 1 (first failure; the other workers were stopped"
    )
    assert 'raise KeyError("what went wrong")' in report
    assert "\n\nhint: " in report


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("sys.exit(7)", 7, "ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + signal.SIGSEGV, "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, "was killed by SIGKILL"),
    ],
)
def test_the_exit_code_is_that_of_the_worker_that_failed(command, script, ending, code, words):
    run = command("run", script(f"import os, signal, sys; {ending}"))
    assert run.ends() == code
    assert f"error: worker 0 {words} (pid " in run.err


def test_a_script_that_joins_no_job_may_still_end_well(command, script, nothing_left):
    run = command("run", "--workers", "2", "--servers", "2", script("pass"))
    assert run.ends() == 0
    assert run.err == ""
    nothing_left([])


def test_what_a_worker_leaves_behind_goes_with_it(command, script, gone):
    name = script("""
        import subprocess
        print("child", subprocess.Popen(["sleep", "600"]).pid)
    """)
    run = command("run", name)
    assert run.ends() == 0
    gone(int(run.out.split()[-1]))


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "error: stopped by Ctrl-C"),
        (signal.SIGTERM, 143, "error: stopped by SIGTERM"),
        (signal.SIGHUP, 129, "error: stopped by SIGHUP"),
    ],
)
def test_a_signal_ends_everything(command, script, nothing_left, number, code, words):
    run = command("run", "--workers", "2", "--servers", "2", script(SLEEPER))
    pids = ready(run, 2)
    run.send(number)
    assert run.ends() == code
    nothing_left(pids)
    assert words in run.err


def test_a_worker_that_ignores_signals_is_killed_after_the_grace(command, script, nothing_left):
    run = command("run", "--workers", "2", "--grace", "0.3", script(SLEEPER), "stubborn")
    pids = ready(run, 2)
    run.send(signal.SIGINT)
    assert run.ends() == 130
    nothing_left(pids)


def test_a_second_signal_kills_at_once(command, script, nothing_left):
    # The grace is longer than the test's patience: only the second signal can end this.
    run = command("run", "--workers", "2", "--grace", "3600", script(SLEEPER), "stubborn")
    pids = ready(run, 2)
    run.send(signal.SIGINT)
    run.until("no", 2)
    run.send(signal.SIGTERM)
    assert run.ends() == 130
    nothing_left(pids)


def test_a_worker_may_end_in_its_own_way_after_ctrl_c(command, script):
    name = script("""
        import time
        try:
            print("ready", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("saved")
    """)
    run = command("run", name)
    run.until("ready")
    run.send(signal.SIGINT)
    assert run.ends() == 130
    assert "[worker 0] saved" in run.out


def test_a_launcher_that_is_killed_outright_leaves_nothing(command, script, nothing_left):
    run = command("run", "--workers", "2", "--servers", "2", script(SLEEPER), "stubborn")
    pids = ready(run, 2)
    run.send(signal.SIGKILL)
    assert run.ends() == -signal.SIGKILL
    nothing_left(pids)


def test_the_kernel_ends_the_processes_if_launcher_and_warden_are_killed(command, script, gone):
    run = command("run", "--workers", "2", script(SLEEPER), "stubborn")
    run.until("ready", 2)
    children = run.children()
    # The warden was forked, not executed: its command line is the launcher's.
    os.kill(run.child("penstock.cli"), signal.SIGKILL)
    run.send(signal.SIGKILL)
    run.ends()
    for pid in children:
        gone(pid)


def test_a_killed_worker_is_named_and_the_others_are_stopped(command, script, nothing_left):
    run = command("run", "--workers", "3", "--grace", "0.2", script(SLEEPER))
    pids = ready(run, 3)
    victim = int(next(line for line in run.until("ready", 3) if "worker 2" in line).split()[-2])
    os.kill(victim, signal.SIGKILL)
    assert run.ends() == 137
    nothing_left(pids)
    assert (
        f"error: worker 2 was killed by SIGKILL (first failure; the other workers were stopped; pid {victim})"
        in run.err
    )


def test_a_killed_server_is_named_and_the_workers_are_stopped(command, script, nothing_left):
    run = command("run", "--workers", "2", "--servers", "2", "--grace", "0.2", script(SLEEPER))
    pids = ready(run, 2)
    victim = next(pid for pid in run.children() if b"/s1\0" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    assert run.ends() == 137
    nothing_left(pids)
    assert "error: server 1 was killed by SIGKILL (first failure; the workers were stopped" in run.err


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("servers", [1, 2])
def test_each_worker_hears_of_a_killed_server_before_it_is_told_to_end(command, script, transport, servers):
    """Over TCP it is for a lease like one that cannot be reached: longer than half the grace."""
    run = command(
        *("run", "--workers", "2", "--servers", str(servers), "--transport", transport),
        script("""
        import penstock as ps
        with ps.init() as job:
            job.barrier()
            print("ready", flush=True)
            while True:
                job.barrier()
        """),
    )
    run.until("ready", 2)
    last = f"/s{servers - 1}\0".encode()
    victim = next(pid for pid in run.children() if last in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    assert run.ends() == 137, run.all()
    for rank in range(2):
        heard = f"ServerLost: the job has ended: server {servers - 1} was lost"
        assert f"[worker {rank}] penstock.exceptions.{heard}" in run.err, run.all()


def test_no_hangup_ends_a_run_under_nohup(tmp_path, script, command):
    name = script("""
        import os, signal
        os.kill(os.getppid(), signal.SIGHUP)
        print("still here")
    """)
    run = subprocess.run(
        ["bash", "-c", 'trap "" HUP; exec "$0" -m penstock.cli run "$1"', sys.executable, name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "[worker 0] still here\n"
    assert run.returncode == 0


HEARS = """
    import os, signal, time
    import penstock as ps
    if os.environ["PENSTOCK_RANK"] == "1":
        {first}
        print("dies:", time.monotonic(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: print("told to end before it heard why", flush=True))
    print("joins:", time.monotonic(), flush=True)
    try:
        with ps.init(deadline=60, lease=30) as job:
            job.barrier()
    except ps.WorkerLost as error:
        print("heard:", time.monotonic(), flush=True)
        print(f"rank 0 heard of worker {{error.rank}}: {{error}}", flush=True)
        raise
"""


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("first", ["", "job = ps.init(deadline=60, lease=30); job.clock()"])
def test_the_others_hear_at_once_of_a_worker_that_is_killed_before_or_after_it_joined(
    command, script, nothing_left, transport, first
):
    run = command(
        "run",
        *("--workers", "2", "--transport", transport, "--lease", "30", "--grace", "40"),
        script(HEARS.format(first=first)),
    )
    assert run.ends() == 137, run.all()
    assert "rank 0 heard of worker 1: " in run.out, run.all()
    assert "worker 1 was lost: its process" in run.out, run.all()
    assert "told to end" not in run.out
    assert "worker 1 was killed by SIGKILL (first failure" in run.err
    # All processes of a host have one clock. It is heard of at once; the lease is 30 s, the deadline 60.
    at = {what: float(run.until(what)[0].split()[-1]) for what in ("dies:", "joins:", "heard:")}
    assert at["heard:"] - max(at["dies:"], at["joins:"]) < 10, at
    nothing_left([])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_over_tcp_the_others_hear_why_before_they_are_told_to_end_with_the_defaults(command, script, number):
    """They were told to end after half the grace, 2.5 s, and would have heard by the lease, after 10."""
    run = command(
        *("run", "--workers", "2", "--transport", "tcp"),
        script(f"""
        import os
        import penstock as ps
        with ps.init() as job:
            job.barrier()
            if job.rank == 1:
                os.kill(os.getpid(), {int(number)})
            job.barrier()
        """),
    )
    assert run.ends() == 128 + number, run.all()
    how = f"WorkerLost: the job has ended: worker 1 was lost: its process was killed by {number.name}"
    assert how in run.err, run.all()
    assert f"worker 1 was killed by {number.name} (first failure" in run.err


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "worker 1 was killed by SIGKILL (first failure"),
        ("os._exit(0)", 3, "server 0 ended with exit code 3 (first failure"),
    ],
    ids=["killed", "ended"],
)
def test_a_run_whose_workers_caught_the_loss_in_their_blocks_has_not_ended_well(
    command, script, nothing_left, transport, ending, code, error
):
    run = command(
        *("run", "--workers", "3", "--transport", transport, "--grace", "40"),
        script(f"""
        import os, signal
        import penstock as ps
        with ps.init(deadline=60, lease=30) as job:
            job.barrier()
            if job.rank == 1:
                {ending}
            try:
                job.barrier()
            except ps.WorkerLost as error:
                print("caught the loss of", error.rank, flush=True)
        print("the block has ended", flush=True)
        """),
    )
    assert run.ends() == code, run.all()
    assert run.out.count("caught the loss of 1") == 2, run.all()
    assert run.out.count("the block has ended") == 2, run.all()
    assert error in run.err, run.all()
    nothing_left([])


def test_a_worker_that_dies_before_it_joins_is_not_waited_for_where_losses_are_allowed(
    command, script, nothing_left
):
    run = command(
        *("run", "--workers", "2", "--on-worker-loss", "continue"),
        script(
            """
            import os, sys
            import numpy as np, penstock as ps
            if os.environ["PENSTOCK_RANK"] == "1":
                sys.exit(7)
            with ps.init(deadline=60) as job:
                w = job.tensor("w", shape=3, reduce="sum")
                w.push(np.ones(3, np.float32))
                job.clock()
                print("alone:", w.pull().tolist(), flush=True)
                job.barrier()
            """
        ),
    )
    assert run.ends() == 0, run.all()
    assert "alone: [1.0, 1.0, 1.0]" in run.out
    assert "worker 1 ended with exit code 7" in run.err
    nothing_left([])


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit()", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1)]
)
def test_only_an_exit_code_other_than_0_leaves_the_block_as_a_failure(command, script, ending, code):
    run = command(
        *("run", "--workers", "2", "--grace", "20"),
        script(f"""
        import sys
        import penstock as ps
        with ps.init(deadline=60) as job:
            job.barrier()
            if job.rank == 1:
                {ending}
            job.barrier()
            print("rank 0 went on")
        """),
    )
    assert run.ends() == code, run.all()
    assert ("rank 0 went on" in run.out) == (code == 0), run.all()


def test_workers_that_wait_in_a_circle_are_told_so_with_what_to_do_and_nothing_else(command, script):
    run = command(
        *("run", "--workers", "2"),
        script(
            """
            import penstock as ps
            with ps.init() as job:
                for name in ("T", "U") if job.rank == 0 else ("U", "T"):
                    job.table(name, rows=4, produce="all" if job.rank == 0 else None)
            """
        ),
    )
    assert run.ends() == 1
    assert "CircularWait: the declaration of table" in run.err
    for rank, name in ((0, "T"), (1, "U")):
        assert f"worker {rank} declares table `{name}` and waits for workers [{1 - rank}]" in run.err
    assert run.err.rstrip().splitlines()[-1].startswith("    hint: "), "the error's own is the last"


def test_a_thread_that_has_not_used_the_job_yet_may_end_a_wait(command, script):
    run = command(
        *("run", "--workers", "2"),
        script(
            """
            import threading, time
            import numpy as np, penstock as ps
            ones = np.ones(3, np.float32)
            with ps.init() as job:
                w = job.tensor("w", shape=3, reduce="sum")
                if job.rank == 0:
                    # Longer than it takes to find a circle: nothing tells that none was found.
                    later = threading.Timer(4, w.push, (ones,))
                    later.start()
                    job.barrier()
                    later.join()
                else:
                    w.push(ones)
                    print(w.pull().tolist())
                    job.barrier()
            """
        ),
    )
    assert run.ends() == 0, run.all()
    assert "[2.0, 2.0, 2.0]" in run.out


def test_a_worker_that_left_its_process_group_is_killed_all_the_same(command, script, nothing_left):
    run = command(
        *("run", "--workers", "2", "--grace", "1"),
        script(
            """
            import os, signal, sys, time
            if os.environ["PENSTOCK_RANK"] == "1":
                sys.exit(7)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setpgid(0, os.getpgid(os.getppid()))
            while True:
                time.sleep(1)
            """
        ),
    )
    assert run.ends() == 7, run.all()
    assert "worker 0 did not end by itself and was killed" in run.err
    nothing_left([])


@pytest.mark.parametrize(
    ("refused", "number", "said", "hint"),
    [
        ("os.fork", "EAGAIN", "the warden, a process that cleans up after the launcher, ", "penstock doctor"),
        ("tempfile.mkdtemp", "ENOSPC", "the run's private directory could not be made: No space", "TMPDIR"),
        (
            "subprocess.Popen",
            "EAGAIN",
            "server 0 could not be started: Resource temporarily",
            "penstock doctor",
        ),
        ("socket.socketpair", "EMFILE", "no signals can be received: Too many open files", "penstock doctor"),
    ],
)
def test_what_the_system_refuses_is_an_error_with_a_hint_and_leaves_nothing_behind(
    script, tmp_path, nothing_left, refused, number, said, hint
):
    """A refused fork was a bare traceback, and the directory stayed."""
    (tmp_path / "t").mkdir(exist_ok=True)
    # In a process of its own. A limit on processes would not bind root.
    program = script(f"""
        import errno, os, socket, subprocess, sys, tempfile
        from penstock.cli.main import main
        def refuse(*_arguments, **_more):
            raise OSError(errno.{number}, os.strerror(errno.{number}))
        {refused} = refuse
        sys.exit(main(["run", "worker.py"]))
    """)
    ended = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "t")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith(f"error: {said}"), ended.stderr
    assert "hint: " in ended.stderr
    assert hint in ended.stderr
    assert "Traceback" not in ended.stderr
    nothing_left([])


def test_a_warden_that_somebody_stopped_is_not_waited_for_without_end(script, tmp_path):
    # In a process of its own: a warden is forked, and a library that another test imported may have threads.
    program = script("""
        import os, signal, sys
        from penstock.launch.warden import Warden
        warden = Warden(sys.argv[1])
        os.kill(warden._pid, signal.SIGSTOP)
        warden.dismiss()
        try:
            os.waitpid(warden._pid, 0)
        except ChildProcessError:
            print("gone")
    """)
    ended = subprocess.run(
        [sys.executable, program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "gone\n", "")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit(3)", 3),
        ("raise ValueError('no')", 1),
        ("os._exit(3)", 3),
    ],
)
def test_how_a_script_ends_says_whether_a_job_that_it_left_open_is_left_well(command, script, ending, code):
    """`sys.exit(3)` was a clean leave: the others trained on with what there was."""
    run = command(
        *("run", "--workers", "2", "--grace", "40"),
        script(f"""
        import os, sys
        import penstock as ps
        job = ps.init(deadline=60)
        job.barrier()
        if job.rank == 1:
            {ending}
        job.barrier()
        print("rank 0 went on")
        """),
    )
    assert run.ends() == code, run.all()
    assert ("rank 0 went on" in run.out) == (code == 0), run.all()
    assert ("WorkerLost: the job has ended: worker 1 was lost" in run.err) == (code != 0), run.all()


def test_a_process_ends_while_a_thread_of_its_own_waits_in_a_call(command, script):
    """
    The interpreter's end stopped that thread for ever in the middle of its wait, which holds what leaving
    needs. The last handler holds the interpreter while the thread wants to look for signals.
    """
    run = command(
        *("run", "--workers", "2", "--deadline", "300"),
        script("""
        import atexit, threading, time
        atexit.register(sum, range(10_000_000))
        import penstock as ps
        job = ps.init()
        if job.rank == 0:
            threading.Thread(target=job.barrier, daemon=True).start()
            time.sleep(0.3)
        else:
            time.sleep(1.5)
            job.barrier()
            print("worker 1 went on")
        """),
    )
    assert run.ends() == 0, run.all()
    assert "worker 1 went on" in run.out, run.all()


def test_a_server_that_fails_is_the_cause_where_workers_may_fail(command, script):
    run = command(
        *("run", "--workers", "2", "--on-worker-loss", "continue", "--grace", "40"),
        script("""
        import os, pathlib, signal, sys
        import penstock as ps
        job = ps.init(deadline=60)
        job.barrier()
        if job.rank == 1:
            sys.exit(1)
        job.barrier()  # worker 1 is gone
        for process in pathlib.Path("/proc").iterdir():
            try:
                parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == os.getppid() and b"launch.server" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
            except (OSError, ValueError):
                pass
        while True:
            job.barrier()
        """),
    )
    assert run.ends() != 0, run.all()
    assert "server 0 was killed by SIGKILL" in run.err, run.all()
    assert "worker 1 ended with exit code 1 (first failure" not in run.err, run.all()


def test_whoever_fails_after_it_has_left_fails_the_others_too(command, script):
    run = command(
        *("run", "--workers", "2", "--grace", "40"),
        script("""
        import sys, time
        import penstock as ps
        with ps.init(deadline=60) as job:
            if job.rank == 1:
                job.close()
                sys.exit("the results cannot be written")
            while True:
                job.clock()
                job.barrier()
                time.sleep(0.01)
        """),
    )
    assert run.ends() == 1, run.all()
    assert "worker 1 was lost: its process ended with exit code 1" in run.err, run.all()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_before_the_workers_join_is_named(
    command, script, tmp_path, nothing_left, transport, number
):
    """They waited for it, and were told to end without a word. One that was told to stop was no failure."""
    run = command(
        *("run", "--workers", "2", "--servers", "2", "--transport", transport, "--grace", "60"),
        script("""
        import pathlib, time
        import penstock as ps
        print("ready", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        try:
            ps.init(deadline=60)
        except ps.ServerLost as error:
            print("lost", error.server, flush=True)
            raise
        """),
    )
    run.until("ready", 2)
    servers = [pid for pid in run.children() if "penstock.launch.server" in command_line(pid)]
    victim = next(pid for pid in servers if "/s1" in command_line(pid))
    descriptor = os.pidfd_open(victim)
    os.kill(victim, number)
    # One that is told to stop may take a worker in before it does.
    assert select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)
    (tmp_path / "go").touch()
    code = run.ends()
    assert code == 128 + number, run.all()
    assert run.out.count("lost 1") == 2, run.all()
    # A server that has not come to its handlers yet is killed by SIGTERM, too.
    how = "killed" if number == signal.SIGKILL else "(stopped|killed)"
    assert re.search(rf"server 1 was {how} by {number.name} \(first failure", run.err), run.all()
    nothing_left([])


@pytest.mark.parametrize(
    "ending", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"], ids=["killed", "ended"]
)
@pytest.mark.parametrize("loss", ["stop", "continue"])
def test_over_tcp_too_the_launcher_says_at_once_that_a_worker_has_ended(command, script, ending, loss):
    """The others waited for the lease: its connections might have come back."""
    run = command(
        *("run", "--workers", "2", "--transport", "tcp", "--on-worker-loss", loss),
        *("--lease", "50", "--deadline", "100", "--grace", "80"),
        script(f"""
        import os, signal, time
        import numpy as np, penstock as ps
        with ps.init() as job:
            w = job.tensor("w", shape=5, reduce="sum", consistency="asp")
            job.barrier()
            if job.rank == 1:
                w.push(np.ones(5, np.float32))
                w.lane()  # what was pushed has been taken
                {ending}
            began = time.monotonic()
            try:
                job.barrier()
                print("went on with", w.pull().tolist(), flush=True)
            except ps.WorkerLost as error:
                print("lost", error.rank, flush=True)
            print("late" if time.monotonic() - began > 25 else "soon", flush=True)
        """),
    )
    run.ends()
    expected = "lost 1" if loss == "stop" else "went on with [1.0, 1.0, 1.0, 1.0, 1.0]"
    assert expected in run.out, run.all()
    assert "soon" in run.out, run.all()
