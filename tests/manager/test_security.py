"""TLS, certificates, and refusing to do without, in real processes."""

from __future__ import annotations

import json
import socket
import ssl
import stat
from pathlib import Path

import pytest


@pytest.fixture
def certified(empty_site, tmp_path):
    """A manager for every host, with a certificate for this one; `ca` is its CA."""
    made = penstock_cert(empty_site, tmp_path, "--host", "localhost", "--host", "127.0.0.1")
    empty_site.address = "0.0.0.0:0"
    process = empty_site.start("--certificate", made["certificate"], "--key", made["key"])
    assert process.popen.poll() is None
    empty_site.address = empty_site.address.replace("0.0.0.0", "127.0.0.1")
    empty_site.ca = made["ca"]
    return empty_site


def penstock_cert(site, folder: Path, *arguments: str) -> dict[str, str]:
    site.state.mkdir(mode=0o700, exist_ok=True)
    (site.state / "admin.token").touch(mode=0o600)
    done = site.penstock("cert", "--out", str(folder / "certificates"), "--json", *arguments)
    assert done.returncode == 0, done.stderr
    token = site.state / "admin.token"
    if not token.read_text():
        token.unlink()
    return json.loads(done.stdout)


def test_jobs_are_created_over_tls(certified):
    assert certified.penstock("job", "create", "a", "-n", "1").returncode == 0
    assert "a" in certified.penstock("job", "list").stdout


def test_nothing_older_than_tls_1_3_is_spoken(certified):
    context = ssl.create_default_context(cafile=certified.ca)
    host, port = certified.address.split(":")

    def version(**limits: ssl.TLSVersion) -> str | None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = limits.get("most", ssl.TLSVersion.TLSv1_3)
        with (
            socket.create_connection((host, int(port)), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.version()

    assert version() == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        version(most=ssl.TLSVersion.TLSv1_2)


def test_a_manager_of_an_unknown_ca_is_not_trusted(certified, fails, tmp_path):
    other = penstock_cert(certified, tmp_path / "other", "--host", "127.0.0.1")
    error, hint = fails(certified.penstock("job", "list", PENSTOCK_CA=other["ca"]))
    assert "certificate" in error
    assert "--ca" in hint


def test_other_hosts_are_refused_plain_text_loudly(empty_site, fails, tmp_path):
    empty_site.state.mkdir()
    (empty_site.state / "admin.token").touch()
    arguments = ["manager", "--listen", "0.0.0.0:0", "--state", str(tmp_path / "new")]
    error, hint = fails(empty_site.penstock(*arguments), 2)
    assert "needs TLS" in error
    assert "penstock cert" in hint
    assert "--insecure" in hint
    assert not (tmp_path / "new").exists()


def test_insecure_says_what_it_means(empty_site):
    process = empty_site.start("--insecure")
    assert "plain text" in process.seen
    assert "Anyone on the way can read" in process.seen
    assert "Nobody there can change" in process.seen


def test_a_token_is_not_sent_to_another_host_in_plain_text(site, fails):
    error, hint = fails(site.penstock("job", "list", "--manager", "192.0.2.1:7701"), 2)
    assert "needs TLS" in error
    assert "--ca" in hint


def test_keys_are_private_and_nothing_is_replaced_unasked(site, tmp_path, fails):
    made = penstock_cert(site, tmp_path, "--host", "a.example")
    before = Path(made["certificate"]).read_bytes()
    for key in (made["key"], str(Path(made["ca"]).with_suffix(".key"))):
        assert stat.S_IMODE(Path(key).stat().st_mode) == 0o600
    error, _ = fails(site.penstock("cert", "--out", str(tmp_path / "certificates"), "--host", "a.example"), 2)
    assert "--force" in error
    assert Path(made["certificate"]).read_bytes() == before
    again = penstock_cert(site, tmp_path, "--host", "b.example", "--force")
    assert again["ca_kept"]
    assert Path(made["certificate"]).read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no host"),
        (["--host", "a b"], "a b"),
        (["--host", "a", "--days", "0"], "--days"),
        (["--host", "a", "--days", "99999"], "--days"),
        (["--host", "a", "--days", "soon"], "--days"),
        (["--host", "a", "--name", "../a"], "a name of letters"),
        (["--host", "a", "--name", "ca"], "a name of letters"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_certificates_for_nonsense_are_refused(site, fails, arguments, says, tmp_path):
    out = tmp_path / "out"
    error, _ = fails(site.penstock("cert", "--out", str(out), *arguments), 2)
    assert says in error
    assert not out.exists()
