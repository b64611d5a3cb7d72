"""`penstock-server` is one command: in the Python package, and the one that needs no Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock
from penstock import _core
from penstock.job import Job

ROOT = Path(__file__).parents[2]
SECRET = "5e" * 32
WAIT = 60.0
"""Seconds that a process may take. Nothing is judged by time: this only ends a test that hangs."""


def native() -> Path | None:
    """The one without Python, built of the sources that are here."""
    if not shutil.which("cargo"):
        return None
    subprocess.run(
        ["cargo", "build", "--quiet", "--workspace", "--bin", "penstock-server"], cwd=ROOT, check=True
    )
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "penstock-server"


@pytest.fixture(params=["python", "native"], scope="module")
def server(request: pytest.FixtureRequest) -> str:
    """The command."""
    if request.param == "python":
        return str(Path(sys.executable).parent / "penstock-server")
    path = native()
    if path is None:
        pytest.skip("there is no cargo to build the penstock-server without Python")
    return str(path)


def environment(**more: str) -> dict[str, str]:
    """This process's, without a job's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**kept, **more}


def run(server: str, *words: str, **more: str) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    done = subprocess.run(
        [server, *words], env=environment(**more), capture_output=True, text=True, timeout=WAIT
    )
    return done.returncode, done.stdout, done.stderr


def test_it_says_its_version(server: str) -> None:
    assert run(server, "--version") == (0, f"penstock-server {penstock.__version__}\n", "")
    assert run(server, "-V") == (0, f"penstock-server {penstock.__version__}\n", "")


def test_its_help_names_every_option(server: str) -> None:
    code, out, _ = run(server, "--help")
    assert code == 0
    for name in ("socket", "listen", "job", "workers", "servers", "index", "consistency", "lease", "shards"):
        assert f"--{name}" in out


HELP = "`penstock-server --help` lists what it takes"
EXPORT = "`export PENSTOCK_SECRET=$(openssl rand -hex 32)`, the same for servers and workers"
REFUSED: dict[tuple[str, ...], tuple[str, str]] = {
    (): ("expected --socket or --listen", "`penstock-server --help` shows both"),
    ("--socket", "s", "--workers", "0"): (
        "--workers is 0, but has to be at least 1",
        "give a number from 1 to 1024",
    ),
    ("--socket", "s", "--workers", "many"): (
        "--workers 'many' is not a whole number",
        "give a number from 1 to 1024",
    ),
    ("--socket", "s", "--servers", "2", "--index", "2"): (
        "expected --index below 2, the number of servers, got '2'",
        "give a number from 0 to 1",
    ),
    ("--socket", "s", "--index", "-1"): (
        "expected --index below 1, the number of servers, got '-1'",
        "give a number from 0 to 0",
    ),
    ("--listen", "nowhere"): (
        "expected --listen HOST:PORT, got 'nowhere'",
        "such as 10.0.0.1:7700; port 0 lets the system choose",
    ),
    ("--listen", "127.0.0.1:0", "--listen", "127.0.0.1:99999"): (
        "expected --listen HOST:PORT, got '127.0.0.1:99999'",
        "such as 10.0.0.1:7700; port 0 lets the system choose",
    ),
    ("--nonsense-entirely",): ("unknown option --nonsense-entirely", HELP),
    ("--socket", "s", "--worker", "2"): ("unknown option --worker", "did you mean --workers?"),
    ("--socket", "s", "there"): ("unexpected argument 'there'", HELP),
    ("--socket",): ("argument --socket: expected one argument", HELP),
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_a_wrong_command_line_is_refused_in_the_same_words(server: str, words: tuple[str, ...]) -> None:
    message, hint = REFUSED[words]
    got = run(server, *words, PENSTOCK_SECRET=SECRET)
    assert got == (2, "", f"error: {message}\n\nhint: {hint}\n")


def test_a_secret_that_is_none_is_refused(server: str) -> None:
    missing = f"error: PENSTOCK_SECRET is not set\n\nhint: {EXPORT}\n"
    assert run(server, "--socket", "s") == (2, "", missing)
    short = "error: expected 64 hexadecimal digits in PENSTOCK_SECRET, got 4 characters"
    assert run(server, "--socket", "s", PENSTOCK_SECRET="hush") == (2, "", f"{short}\n\nhint: {EXPORT}\n")


def test_a_variable_that_is_nearly_one_of_ours_is_refused(server: str, tmp_path: Path) -> None:
    words = ("--socket", str(tmp_path / "s"), "--index", "1")
    code, out, err = run(server, *words, PENSTOCK_SECRET=SECRET, PENSTOCK_LEASES="2")
    assert (code, out) == (2, "")
    says = "the environment variable PENSTOCK_LEASES sets nothing: Penstock reads no variable of that name"
    hint = "did you mean PENSTOCK_LEASE? If not, unset it, or give it another name"
    assert err == f"error: {says}\n\nhint: {hint}\n"
    # Another one may be another program's: it is reported, and what comes after it is judged.
    code, _, err = run(server, *words, PENSTOCK_SECRET=SECRET, PENSTOCK_WEATHER="wet")
    told, *_, refused, _, _ = err.splitlines()
    assert (code, told[:9], refused[:7]) == (2, "warning: ", "error: ")
    assert "PENSTOCK_WEATHER sets nothing" in told


def test_an_option_that_cannot_be_is_refused_before_anything_is_started(server: str, tmp_path: Path) -> None:
    socket = tmp_path / "s"
    code, out, err = run(server, "--socket", str(socket), "--lease", "soon", PENSTOCK_SECRET=SECRET)
    assert (code, out) == (2, "")
    assert "`lease`" in err
    assert "hint: " in err
    assert not socket.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_is_an_orderly_end(server: str, tmp_path: Path, number: signal.Signals, code: int) -> None:
    socket = tmp_path / "s"
    process = subprocess.Popen(
        [server, "--socket", str(socket)],
        env=environment(PENSTOCK_SECRET=SECRET),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + WAIT
    while not socket.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out, err) == (code, "", "")
    assert not socket.exists()


# The one without Python was killed by SIGXFSZ, without a word; the error of the other did not name the limit.
def test_a_limit_on_the_size_of_files_is_an_error_that_names_it(server: str, tmp_path: Path) -> None:
    socket = tmp_path / "s"
    words = ["sh", "-c", 'ulimit -f 512 && exec "$@"', "sh", server, "--socket", str(socket)]
    process = subprocess.Popen(words, env=environment(PENSTOCK_SECRET=SECRET))
    try:
        until = time.monotonic() + WAIT
        while not socket.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(penstock.PenstockError, match="`ulimit -f`"):
            job = Job(_core.Job.connect([str(socket)], "job", SECRET, 0, 1, {"deadline": "20"}))
            try:
                job.tensor("w", shape=1 << 20)
            finally:
                job.close()
    finally:
        process.kill()
        process.wait()


WARNS = """
import os, sys
from penstock import _core

file = open(sys.argv[2], "w")
_core.warn_on_stderr()
server = _core.Server(sys.argv[1], "job", "5e" * 32, 0, 1, 1, {})
for rank in range(1, 3000):
    server.worker_ended(rank)  # there is no such worker: a line each
server.stop()
print("stopped", file.fileno())
"""


def test_a_server_does_not_stand_still_with_who_reads_its_warnings(tmp_path: Path) -> None:
    # A terminal says that it can be written when a line does not fit any more: the thread that wrote waited.
    reader, terminal = os.openpty()
    try:
        words = [sys.executable, "-c", WARNS, str(tmp_path / "s"), str(tmp_path / "file")]
        done = subprocess.run(
            words, env=environment(), stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=WAIT
        )
        said = os.read(reader, 4096)
    finally:
        os.close(reader)
        os.close(terminal)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["stopped"])
    assert said.startswith(b"warning: a worker ended that this job does not have (rank: 1, ")


def test_warnings_go_to_no_file_that_stands_where_standard_error_was_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    words = [sys.executable, "-c", WARNS, str(tmp_path / "s"), str(file)]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *words]
    done = subprocess.run(closed, env=environment(), stdout=subprocess.PIPE, text=True, timeout=WAIT)
    assert (done.returncode, done.stdout) == (0, "stopped 2\n")
    assert file.read_text() == ""
