"""`penstock run`: what is started, with which arguments and names, and how its output is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def test_what_is_executable_and_no_python_script_is_started_as_it_is(command, script, tmp_path):
    shell = tmp_path / "job"
    shell.write_text('#!/bin/sh\necho $PENSTOCK_RANK of $PENSTOCK_SIZE, $1; test -n "$PENSTOCK_SERVERS"\n')
    shell.chmod(0o755)
    run = command("run", "--workers", "2", str(shell), "--given")
    assert run.ends() == 0
    assert sorted(run.out.splitlines()) == [f"[worker {rank}] {rank} of 2, --given" for rank in (0, 1)]
    # A Python script is Python's, executable or not.
    python = tmp_path / "train"
    python.write_text("#!/usr/bin/env python3\nimport penstock as ps\njob = ps.init()\nprint(job.size)\n")
    python.chmod(0o755)
    run = command("run", str(python))
    assert run.ends() == 0
    assert run.out == "[worker 0] 1\n"


def test_what_a_server_has_to_say_that_nobody_asked_for_is_a_line_of_its_own(command, script):
    """Who went on without a worker was to look for the rows that stay zero in a log that there was not."""
    name = script("""
        import os
        import penstock as ps
        job = ps.init()
        if job.rank == 1:
            os._exit(7)
        table = job.table("T", rows=4, produce=[0], consume="all")
        table.get([0, 1, 2, 3], slack=ps.ASP())
        job.close()
    """)
    run = command("run", "--workers", "2", "--on-worker-loss", "continue", name)
    assert run.ends() == 0, run.all()
    said = [line for line in run.err.splitlines() if line.startswith("[server 0] warning: nobody produces")]
    assert len(said) == 1
    assert said[0].endswith("(table: T, rank: 1, rows: 1 to 3)")


def test_rows_of_a_worker_that_left_in_the_middle_of_their_declaration_are_named(command, script):
    name = script("""
        import penstock as ps
        job = ps.init()
        def declare(limit):
            mine = [2 * job.rank]
            return job.table("T", rows=4, produce=mine, consume=[0, 2], slack=0, timeout=limit)
        if job.rank == 1:
            try:
                declare(0.5)
            except ps.exceptions.DeadlineExceeded:
                pass
        else:
            job.barrier()  # worker 1 has left
            table = declare(None)
            table.set([0], [[1]], clock=1)
            assert table.get([0, 2], clock=1, slack=0).tolist() == [[1], [0]]
            assert table.versions([0, 2]).tolist() == [1, 2**63 - 1]
        job.close()
    """)
    run = command("run", "--workers", "2", name)
    assert run.ends() == 0, run.all()
    said = [
        line for line in run.err.splitlines() if line.startswith("[server 0] warning: a worker that has gone")
    ]
    assert len(said) == 1
    assert said[0].endswith("they stay zero (table: T, rank: 1, rows: 2)")


@pytest.mark.parametrize("name", ["PENSTOCK_SERVERS", "PENSTOCK_MANAGER"])
def test_a_run_says_that_it_starts_servers_of_its_own_where_others_are_named(command, script, name):
    run = command("run", script("import penstock as ps\nps.init().close()\n"), **{name: "tcp://127.0.0.1:1"})
    assert run.ends() == 0, run.all()
    assert f"warning: {name} is not used: `penstock run` starts servers of its own" in run.err


def test_a_program_that_may_not_be_executed_is_refused_with_what_to_do(command, tmp_path):
    program = tmp_path / "program"
    program.write_bytes(Path("/bin/true").read_bytes())
    run = command("run", str(program))
    assert run.ends() == 2
    assert "cannot be executed" in run.err
    assert f"hint: `chmod +x {program}`" in run.err


def test_every_line_carries_the_name_of_its_worker(command, script):
    name = script("""
        import os, sys
        print("one\\ntwo")
        print("bad", file=sys.stderr)
    """)
    run = command("run", "--workers", "2", name)
    assert run.ends() == 0
    assert sorted(run.out.splitlines()) == [
        f"[worker {rank}] {word}" for rank in (0, 1) for word in ("one", "two")
    ]
    assert sorted(run.err.splitlines()) == ["[worker 0] bad", "[worker 1] bad"]


def test_what_follows_the_script_is_passed_on_untouched(command, script):
    name = script("import sys; print(sys.argv[1:])")
    run = command("run", "--workers", "1", name, "--workers", "7", "-m", "--", "a b", "--lr=0.1")
    assert run.ends() == 0
    assert run.out == "[worker 0] ['--workers', '7', '-m', '--', 'a b', '--lr=0.1']\n"


def test_a_module_is_run_as_python_runs_it(command, script):
    script("import sys; print(__name__, sys.argv[1:])", "my_training.py")
    run = command("run", "-m", "my_training", "--epochs", "3")
    assert run.ends() == 0
    assert run.out == "[worker 0] __main__ ['--epochs', '3']\n"


def test_a_worker_finds_its_place_under_our_names_and_torchruns(command, script):
    name = script("""
        import os
        names = "PENSTOCK_RANK PENSTOCK_SIZE RANK LOCAL_RANK WORLD_SIZE PENSTOCK_CONSISTENCY OMP_NUM_THREADS"
        print(*(os.environ[name] for name in names.split()))
        print("servers", len(os.environ["PENSTOCK_SERVERS"].split(",")), len(os.environ["PENSTOCK_SECRET"]))
    """)
    run = command("run", "-n", "2", "-s", "2", "-c", "ssp:3", name, OMP_NUM_THREADS="5")
    assert run.ends() == 0
    lines = sorted(run.out.splitlines())
    assert lines[0] == "[worker 0] 0 2 0 0 2 ssp:3 5"
    assert lines[1] == "[worker 0] servers 2 64"
    assert lines[2] == "[worker 1] 1 2 1 1 2 ssp:3 5"


def test_with_the_transport_tcp_everything_goes_by_tcp(command, script):
    name = script("""
        import penstock as ps
        with ps.init() as job:
            rows = slice(job.rank, job.rank + 1)
            table = job.table("t", rows=2, width=1, dtype="f8", produce=rows, consume="all")
            w = job.tensor("w", shape=3)
            table.set(rows, [[job.rank + 1.0]])
            w.push([1.0, 2.0, 3.0])
            job.clock()
            print(table.get(slice(0, 2)).ravel(), table.stats()["bytes_received"] > 0, w.pull())
    """)
    run = command("run", "-n", "2", "-s", "2", "--transport", "tcp", name)
    assert run.ends() == 0, run.err
    assert sorted(run.out.splitlines()) == [f"[worker {rank}] [1. 2.] True [1. 2. 3.]" for rank in (0, 1)]


def test_the_secret_stands_on_no_command_line(command, script):
    name = script("""
        import os, time
        print("secret", os.environ["PENSTOCK_SECRET"], flush=True)
        time.sleep(600)
    """)
    run = command("run", name)
    secret = run.until("secret")[0].split()[-1]
    for pid in run.children():
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    run.send(signal.SIGINT)
    run.ends()


def test_a_last_line_without_its_end_is_shown(command, script):
    run = command("run", script("import sys; sys.stdout.write('half'); sys.stderr.write('other half')"))
    assert run.ends() == 0
    assert (run.out, run.err) == ("[worker 0] half\n", "[worker 0] other half\n")


def test_no_byte_of_binary_output_is_changed(command, script):
    run = command(
        "run", script("import os; os.write(1, bytes(b for b in range(256) if b not in (10, 13)) + b'\\n')")
    )
    assert run.ends() == 0
    assert run.raw == b"[worker 0] " + bytes(b for b in range(256) if b not in (10, 13)) + b"\n"


def test_no_line_is_cut_by_another_workers(command, script):
    name = script("""
        import os, sys
        for _ in range(20):
            os.write(1, os.environ["RANK"].encode() * 100_000 + b"\\n")
    """)
    run = command("run", "--workers", "3", name)
    assert run.ends() == 0
    lines = run.out.splitlines()
    assert len(lines) == 60
    for line in lines:
        head, body = line.split("] ")
        assert body == head[-1] * 100_000


def test_the_private_directory_can_be_entered_by_nobody_else(command, script):
    name = script("import os; print(oct(os.stat(os.environ['PENSTOCK_DIRECTORY']).st_mode)[-3:])")
    run = command("run", name)
    assert run.ends() == 0
    assert run.out == "[worker 0] 700\n"


def test_a_long_name_of_the_temporary_folder_is_no_hindrance(command, script, tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    run = command("run", script("print('up')"), TMPDIR=str(deep))
    assert run.ends() == 0
    assert run.out == "[worker 0] up\n"


def test_a_script_that_tells_how_to_start_it_has_no_option_of_that_name(command, script):
    name = script('"""Start it with `penstock run --workers 2 this.py`."""\nprint("started")')
    run = command("run", name, "--workers", "2")
    assert run.ends() == 0
    assert "--workers comes after" in run.err
    name = script(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('-w', '--workers')\np.parse_args()"
    )
    run = command("run", name, "--workers", "2")
    assert run.ends() == 0
    assert "comes after" not in run.err


def test_an_option_of_ours_behind_the_script_is_pointed_at_and_passed_on(command, script):
    name = script("import sys; print(sys.argv[1:])")
    run = command("run", name, "--workers", "2")
    assert run.ends() == 0
    assert "['--workers', '2']" in run.out
    assert run.err == (
        f"hint: --workers comes after {name} and is passed to it; if it is meant for penstock: "
        f"`penstock run --workers 2 {name}`\n"
    )
    run = command("run", "--workers", "2", name, "--workers=3", "--lr", "0.1")
    assert run.ends() == 0
    assert run.err == ""


ALONE = """
    import sys
    import penstock as ps
    with ps.init() as job:
        job.clock()
    with ps.init() as job:
        print("trained", job.size)
"""


@pytest.mark.parametrize(
    ("arguments", "hints", "said"),
    [
        (["worker.py"], "", "penstock: 1 worker; to start more: penstock run --workers N worker.py\n"),
        (["-m", "worker"], "", "penstock: 1 worker; to start more: penstock run --workers N -m worker\n"),
        (["worker.py"], "off", ""),
        (["-c", "import worker"], "", ""),
    ],
)
def test_a_script_that_trains_alone_says_so_once(tmp_path, script, arguments, hints, said):
    script(ALONE)
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_HINTS": hints},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("trained 1\n", said)
