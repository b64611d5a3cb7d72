"""`penstock run` whose output nobody reads, or somebody reads no more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import PATIENCE


def test_a_run_ends_when_nobody_reads_its_output(tmp_path, script):
    name = script("""
        import time
        while True:
            print("line", flush=True)
            time.sleep(0.01)
    """)
    run = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -m penstock.cli run "$1" | head -1', sys.executable, name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "[worker 0] line\n"
    assert run.returncode == 141


FILLS = """
    import os, select
    from pathlib import Path
    def fill():
        ready = select.poll()
        ready.register(1, select.POLLOUT)
        lines = 0
        while ready.poll(1000):
            os.write(1, b"%9d" % lines + 90 * b"x" + b"\\n")
            lines += 1
        Path("lines.part").write_text(str(lines))
        Path("lines.part").rename("lines")
"""
"""A worker that writes until nobody takes it, and notes how many lines of 100 bytes it has written."""


@pytest.fixture
def unread(tmp_path):
    """Starts `penstock run` with an output that nobody reads as yet: both its ends, and the launcher."""
    started = []
    held = []
    (tmp_path / "t").mkdir(exist_ok=True)

    def start(kind, *arguments):
        if kind == "socket":
            reading, writing = (one.detach() for one in socket.socketpair())
        else:
            reading, writing = os.openpty() if kind == "terminal" else os.pipe()
        ends = os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)
        held.extend(ends)
        run = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "run", *arguments],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "t")},
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT if kind == "pipe for both" else subprocess.PIPE,
        )
        started.append(run)
        return *ends, run

    yield start
    for one in held:
        one.close()
    for run in started:
        run.kill()
        run.communicate()


def appears(path):
    """Waits until a file is there."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["pipe", "pipe for both", "terminal", "socket"])
def test_a_run_whose_output_nobody_reads_is_ended_by_a_signal(
    unread, script, tmp_path, nothing_left, kind, number
):
    """The launcher waited in its write, and no signal reached it."""
    name = script(FILLS + "    fill()\n    os.write(1, b'never taken' * 100_000)\n")
    _, writing, run = unread(kind, "--grace", "1", name)
    appears(tmp_path / "lines")
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    assert os.get_blocking(writing.fileno()), "others write there too, and expect to wait"
    run.send_signal(number)
    _, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 128 + number
    assert kind == "pipe for both" or b"error: stopped by " in err
    nothing_left([int(pid) for pid in children])


def test_who_died_is_told_though_nobody_reads_the_output_and_no_line_is_lost(
    unread, script, tmp_path, nothing_left
):
    name = script(
        FILLS
        + """
    import signal
    import penstock as ps
    if os.environ["PENSTOCK_RANK"] == "1":
        fill()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ps.init(deadline=60).barrier()
    except ps.WorkerLost as error:
        Path("heard").write_text(str(error.rank))
        raise
"""
    )
    reading, writing, run = unread("pipe", "--workers", "2", name)
    writing.close()
    lines = int(appears(tmp_path / "lines").read_text())
    assert lines * 100 < 4 << 20, "what is kept is bounded"
    appears(tmp_path / "heard")
    appears(next((tmp_path / "t").iterdir()) / "s0.lost")
    shown = reading.read().splitlines()
    _, err = run.communicate(timeout=PATIENCE)
    assert run.returncode == 128 + signal.SIGKILL
    assert b"worker 1 was killed by SIGKILL (first failure" in err
    assert shown == [b"[worker 1] %9d" % line + 90 * b"x" for line in range(lines)]
    nothing_left([])


@pytest.mark.parametrize(
    ("then", "code", "said"),
    [("read", 0, b""), ("signal", 143, b"error: stopped by SIGTERM\n"), ("close", 141, b"")],
)
def test_what_waits_for_its_reader_at_the_end_is_written_until_it_goes_or_a_signal_comes(
    unread, script, tmp_path, nothing_left, gone, then, code, said
):
    name = script("""
        import os
        from pathlib import Path
        os.write(1, 5_000 * (99 * b"x" + b"\\n"))
        Path("pid.part").write_text(str(os.getpid()))
        Path("pid.part").rename("pid")
    """)
    reading, writing, run = unread("pipe", name)
    writing.close()
    gone(int(appears(tmp_path / "pid").read_text()))
    if then == "read":
        assert reading.read() == 5_000 * (b"[worker 0] " + 99 * b"x" + b"\n")
    elif then == "signal":
        run.send_signal(signal.SIGTERM)
    else:
        reading.close()
    _, err = run.communicate(timeout=PATIENCE)
    assert (run.returncode, err) == (code, said)
    nothing_left([])


def test_a_run_ends_when_a_reader_that_took_nothing_goes(unread, script, tmp_path, nothing_left):
    reading, writing, run = unread("pipe", script(FILLS + "    fill()\n    os.write(1, b'x' * 10_000_000)\n"))
    writing.close()
    appears(tmp_path / "lines")
    reading.close()
    run.communicate(timeout=PATIENCE)
    assert run.returncode == 141
    nothing_left([])


def test_a_child_of_a_worker_that_never_stops_writing_does_not_keep_its_end_from_being_seen(
    command, script, nothing_left
):
    """The launcher read on as long as there was something to read."""
    run = command("run", script("import subprocess, sys; subprocess.Popen(['yes']); sys.exit(7)"))
    assert run.ends() == 7
    nothing_left([])
