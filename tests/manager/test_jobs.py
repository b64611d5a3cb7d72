"""`penstock manager` and `penstock job` in real processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock import _core
from penstock.cli.jobs import SecretFile
from penstock.exceptions import PenstockError

SECRET = "0" * 64


def test_a_job_is_created_listed_shown_and_deleted(site):
    made = site.penstock(
        "job", "create", "mnist", "--workers", "4", "--memory", "4MiB", "--share", "0.5", "--json"
    )
    assert made.returncode == 0, made.stderr
    created = json.loads(made.stdout)
    assert created["memory"] == 4 << 20
    assert created["state"] == "waiting"
    listed = json.loads(site.penstock("job", "list", "--json").stdout)
    assert [job["name"] for job in listed["jobs"]] == ["mnist"]
    shown = json.loads(site.penstock("job", "show", "mnist", "--json").stdout)
    assert (shown["workers"], shown["share"]) == (4, 0.5)
    assert site.penstock("job", "delete", "mnist").stdout == "deleted mnist\n"
    assert json.loads(site.penstock("job", "list", "--json").stdout)["jobs"] == []


def test_a_new_job_says_how_to_start_its_workers_and_its_secret_goes_to_a_private_file(site, tmp_path):
    path = tmp_path / "mnist.secret"
    made = site.penstock("job", "create", "mnist", "-n", "2", "--secret-file", str(path))
    assert made.returncode == 0, made.stderr
    secret = path.read_text().strip()
    assert len(secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret not in made.stdout + made.stderr
    assert f"export PENSTOCK_MANAGER={site.address}" in made.stdout
    assert f'export PENSTOCK_SECRET=$(cat "{path}")' in made.stdout
    assert "balance: " in made.stdout
    # Workers would wait for servers in vain, and nothing had said so.
    more = f"start more with `penstock server --manager {site.address}`"
    waits = f"it is waiting: too few servers have room for it (it needs 1); 0 are registered; {more}\n"
    assert waits in made.stdout


@pytest.mark.parametrize(
    "words", [["create", "b", "-n", "1"], ["show", "a"], ["list"]], ids=lambda words: words[0]
)
def test_a_secret_is_printed_only_when_asked_for(site, words):
    made = site.penstock("job", "create", "a", "-n", "1", "--print-secret", "--json")
    secret = json.loads(made.stdout)["secret"]
    for form in ([], ["--json"]):
        # A second job of the name is refused: that says no secret either.
        done = site.penstock("job", *words, *form)
        assert secret not in done.stdout + done.stderr
        assert '"secret"' not in done.stdout
    asked = json.loads(site.penstock("job", "show", "a", "--print-secret", "--json").stdout)
    assert asked["secret"] == secret


def test_a_secret_file_that_exists_is_left_alone_and_no_job_is_created(site, tmp_path, fails):
    path = tmp_path / "precious"
    path.write_text("mine")
    error, hint = fails(site.penstock("job", "create", "mnist", "-n", "2", "--secret-file", str(path)))
    assert "precious" in error
    assert "does not exist yet" in hint
    assert path.read_text() == "mine"
    assert json.loads(site.penstock("job", "list", "--json").stdout)["jobs"] == []


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_secret_is_not_written_to_a_file_that_was_removed_or_replaced_meanwhile(tmp_path, is_replaced):
    path = tmp_path / "secret"
    with SecretFile(str(path)) as file:
        path.unlink()
        if is_replaced:
            path.write_text("")
        with pytest.raises(PenstockError, match="removed or replaced meanwhile"):
            file.write("s3cret")
    assert path.exists() == is_replaced
    if is_replaced:
        assert path.read_text() == ""


def test_a_secret_file_of_a_job_that_was_refused_is_not_left_behind(site, tmp_path, fails):
    path = tmp_path / "secret"
    fails(site.penstock("job", "create", "no/name", "-n", "2", "--secret-file", str(path)), 2)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "j"], "--workers"),
        (["create", "j", "-n", "0"], "at least 1"),
        (["create", "j", "-n", "2", "--servers", "x"], "--servers"),
        (["create", "j", "-n", "2", "--memory", "much"], "--memory"),
        (["create", "j", "-n", "2", "--share", "1.5"], "--share"),
        (["create", "j", "-n", "2", "--set", "chunks"], "--set"),
        (["create", "j", "-n", "2", "--set", "chunks=1"], "chunks"),
        (["create", "j", "-n", "2", "--set", "consistency=never"], "never"),
        (["create", "j", "-n", "2", "--set", "certificate=/etc/passwd"], "certificate"),
        (["create", "../up", "-n", "2"], "name"),
        (["lst"], "lst"),
        ([], "no command"),
        (["list", "--manager", "nowhere"], "HOST:PORT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nonsense_is_refused(site, fails, arguments, says):
    error, _ = fails(site.penstock("job", *arguments), 2)
    assert says in error


def test_every_refusal_is_an_exception_of_its_own(site):
    token = site.token("admin")

    def create(name: str) -> str:
        return _core.create_job(site.address, token, name, 2, 1, 4096, 1.0, {})["secret"]

    secret = create("a")
    with pytest.raises(ps.exceptions.JobExists, match="a") as exists:
        create("a")
    assert "delete" in str(exists.value.hint)
    with pytest.raises(ps.exceptions.NoSuchJob):
        _core.show_job(site.address, token, "b")
    with pytest.raises(ps.exceptions.AuthenticationError):
        _core.list_jobs(site.address, SECRET)
    with pytest.raises(ps.exceptions.AuthenticationError) as wrong:
        _core.connect(site.address, "a", SECRET, None, None, "", {})
    with pytest.raises(ps.exceptions.AuthenticationError) as unknown:
        _core.connect(site.address, "b", secret, None, None, "", {})
    assert str(wrong.value) == str(unknown.value)
    with pytest.raises(ps.exceptions.JobFull, match="2 workers"):
        _core.connect(site.address, "a", secret, 0, 3, "", {})
    with pytest.raises(ps.exceptions.ConnectTimeout, match="servers") as late:
        _core.connect(site.address, "a", secret, 0, 2, "", {"deadline": "0.1"})
    assert late.value.waited >= 0.1
    assert _core.health(site.address)
    with pytest.raises(ps.exceptions.ManagerUnavailable, match="cannot be reached"):
        _core.health("127.0.0.1:9")


def test_ctrl_c_ends_a_wait_for_servers(site):
    code = (
        "import sys\n"
        "from penstock import _core\n"
        "print('waits', flush=True)\n"
        "_core.connect(*sys.argv[1:3], sys.stdin.readline().strip(), None, None, '', {})\n"
    )
    secret = json.loads(site.penstock("job", "create", "a", "-n", "1", "--print-secret", "--json").stdout)[
        "secret"
    ]
    worker = subprocess.Popen(
        [sys.executable, "-c", code, site.address, "a"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout.readline() == "waits\n"
    worker.stdin.write(secret + "\n")
    worker.stdin.flush()
    worker.send_signal(signal.SIGINT)
    _, errors = worker.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert worker.returncode == -signal.SIGINT


def test_a_manager_killed_and_started_again_goes_on_where_it_was(site):
    secret = json.loads(site.penstock("job", "create", "a", "-n", "1", "--print-secret", "--json").stdout)[
        "secret"
    ]
    admin = site.token("admin")
    assert site.process.end(signal.SIGKILL) == -signal.SIGKILL
    site.start()
    assert site.token("admin") == admin
    shown = json.loads(site.penstock("job", "show", "a", "--print-secret", "--json").stdout)
    assert shown["secret"] == secret


def test_a_manager_ends_in_order_when_it_is_told_to(site):
    assert site.process.end(signal.SIGTERM) == 0
    site.start()
    assert site.process.end(signal.SIGINT) == 130


def test_two_managers_never_share_a_state(site, fails):
    error, hint = fails(site.penstock("manager", "--listen", "127.0.0.1:0", "--state", str(site.state)))
    assert "another manager" in error
    assert "--state" in hint


def test_a_port_that_is_taken_is_named(site, tmp_path, fails):
    done = site.penstock("manager", "--listen", site.address, "--state", str(tmp_path / "other"))
    error, hint = fails(done)
    assert site.address in error
    assert "port" in hint


def test_a_missing_token_says_where_tokens_are(site, fails):
    error, hint = fails(site.penstock("job", "list", PENSTOCK_ADMIN_TOKEN=""), 2)
    assert "admin token" in error
    assert "admin.token" in hint


def test_a_wrong_token_is_refused_and_not_repeated(site, fails, tmp_path):
    error, hint = fails(site.penstock("job", "list", PENSTOCK_ADMIN_TOKEN="ab" * 32))
    assert "admin token is wrong" in error
    assert "abab" not in error + hint
    path = tmp_path / "token"
    path.write_text("hunter2")
    error, hint = fails(site.penstock("job", "list", "--admin-token-file", str(path)))
    assert "64 hexadecimal digits" in error
    assert "hunter2" not in error + hint
    path.write_text(site.token("admin"))
    assert (
        site.penstock("job", "list", "--admin-token-file", str(path), PENSTOCK_ADMIN_TOKEN="").returncode == 0
    )


def test_the_state_is_its_owners_alone_and_no_secret_is_in_a_command_line_or_in_what_is_printed(site):
    made = site.penstock("job", "create", "a", "-n", "1", "--print-secret", "--json")
    secrets = [json.loads(made.stdout)["secret"], site.token("admin"), site.token("server")]
    for path in [site.state, *site.state.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    # Clients and servers prove tokens too, among them wrong ones, before the manager's words are looked at.
    site.penstock("job", "list", PENSTOCK_ADMIN_TOKEN=secrets[2])
    line = Path(f"/proc/{site.process.popen.pid}/cmdline").read_bytes().decode()
    site.process.end(signal.SIGTERM)
    said = site.process.seen + line
    assert not [secret for secret in secrets if secret in said]


def test_no_command_takes_a_token_or_a_secret_as_an_argument(site):
    for command in (["manager"], ["server"], ["job", "create"], ["job", "show"], ["job", "list"], ["cert"]):
        text = site.penstock(*command, "--help").stdout
        assert "--help" in text
        assert not [
            flag for flag in ("--token ", "--admin-token ", "--server-token ", "--secret ") if flag in text
        ]


def test_the_manager_needs_a_state(fails, site):
    error, _ = fails(site.penstock("manager"), 2)
    assert "--state" in error
    assert os.environ.get("PENSTOCK_SECRET") is None
