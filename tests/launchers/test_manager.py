"""Workers of a job that a manager keeps: what a pod's environment says is enough to join."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from groups import LINEAR, Group, learned

from penstock import _core

if not all(hasattr(_core, name) for name in ("Manager", "Service", "connect")):
    pytest.skip("this build of the core has no manager", allow_module_level=True)


class Managed:
    """A manager with TLS, a server, and a job of two workers."""

    def __init__(self, group: Group) -> None:
        self._services: list[subprocess.Popen[str]] = []
        self.group, self.folder = group, group.scratch / "m"
        self.folder.mkdir()
        self._penstock("cert", "--host", "localhost", "--name", "manager", "--out", str(self.folder))
        self.ca = str(self.folder / "ca.pem")
        files = ["--certificate", str(self.folder / "manager.pem"), "--key", str(self.folder / "manager.key")]
        state = str(self.folder / "state")
        self.address = self._service(
            "manager", "--listen", "localhost:0", "--state", state, *files, key="address"
        )
        self.address = f"localhost:{self.address.rpartition(':')[2]}"
        contact = ["--manager", self.address, "--ca", self.ca]
        self._service(
            "server", *contact, "--server-token-file", f"{state}/server.token", "--listen", "127.0.0.1:0",
            "--memory", "100MiB", "--security", "tls", key="endpoint",
        )  # fmt: skip
        admin = ["--admin-token-file", f"{state}/admin.token"]
        secret = str(self.folder / "secret")
        self._penstock(
            "job",
            "create",
            "j",
            "--workers",
            "2",
            "--memory",
            "10MiB",
            "--set",
            "deadline=50",
            "--secret-file",
            secret,
            *contact,
            *admin,
        )
        self.secret = Path(secret).read_text().strip()

    def environment(self, **more: str) -> dict[str, str]:
        """What a worker is told."""
        return {
            "PENSTOCK_MANAGER": self.address,
            "PENSTOCK_CA": self.ca,
            "PENSTOCK_JOB": "j",
            "PENSTOCK_SECRET": self.secret,
            **more,
        }

    def end(self) -> None:
        """Ends server and manager, as an orchestrator does."""
        for process in reversed(self._services):
            process.terminate()
            assert self.group.ends(process).code == 0

    def _penstock(self, *arguments: str) -> None:
        done = self.group.run([sys.executable, "-m", "penstock.cli", *arguments])
        assert done.code == 0, done

    def _service(self, *arguments: str, key: str) -> str:
        process = self.group.start([sys.executable, "-m", "penstock.cli", *arguments, "--json"])
        self._services.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self.group.ends(process)
        return str(json.loads(line)[key])


@pytest.fixture
def managed(group: Group) -> Iterator[Managed]:
    one = Managed(group)
    yield one
    one.end()


def test_workers_join_by_the_manager_with_ranks_of_their_own(managed: Managed) -> None:
    done = managed.group.ranks(
        LINEAR, 2, lambda rank: managed.environment(PENSTOCK_RANK=str(rank), PENSTOCK_SIZE="2")
    )
    assert [one.code for one in done] == [0, 0], done
    assert learned("".join(one.out for one in done))


def test_the_manager_gives_ranks_to_workers_that_have_none(managed: Managed) -> None:
    done = managed.group.ranks(LINEAR, 2, lambda _rank: managed.environment())
    assert [one.code for one in done] == [0, 0], done
    assert learned("".join(one.out for one in done))


def test_data_goes_over_tls_with_certificates_that_servers_made_themselves(managed: Managed) -> None:
    told = managed.environment(PENSTOCK_TRANSPORT="tcp", PENSTOCK_SECURITY="tls", PENSTOCK_DEADLINE="20")
    done = managed.group.ranks(
        LINEAR, 2, lambda rank: {**told, "PENSTOCK_RANK": str(rank), "PENSTOCK_SIZE": "2"}
    )
    assert [one.code for one in done] == [0, 0], done


WAITS = """
import sys, time
import penstock as ps

job = ps.init(**dict(word.split("=") for word in sys.argv[1:]))
since = time.monotonic()
try:
    job.barrier()
except ps.exceptions.BarrierTimeout:
    print(round(time.monotonic() - since))
    job.close()
"""


@pytest.mark.parametrize(
    ("variable", "option", "waits"), [("3", None, "3"), ("40", "deadline=5", "5")], ids=["variable", "option"]
)
def test_what_a_worker_sets_counts_before_what_its_job_was_created_with(
    managed: Managed, tmp_path: Path, variable: str, option: str | None, waits: str
) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    command = [sys.executable, str(script), *([option] if option else [])]
    done = managed.group.run(command, **managed.environment(PENSTOCK_DEADLINE=variable))
    assert done.out.strip() == waits, done


def test_a_worker_trusts_the_manager_by_the_ca_of_its_environment_alone(
    managed: Managed, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    managed._penstock("cert", "--host", "localhost", "--name", "manager", "--out", str(other))
    done = managed.group.run(
        [sys.executable, LINEAR], **managed.environment(PENSTOCK_CA=str(other / "ca.pem"))
    )
    assert done.code == 1
    assert "certificate" in done.err
    assert managed.secret not in done.err


def test_the_probe_of_the_manifests_sees_a_manager_that_serves_and_misses_one_that_does_not(
    managed: Managed, port: int
) -> None:
    probe = [sys.executable, "-m", "penstock.rendezvous.probe"]
    assert managed.group.run([*probe, managed.address, managed.ca]).code == 0
    assert managed.group.run([*probe, managed.address]).code == 1  # it speaks TLS only
    assert managed.group.run([*probe, f"localhost:{port}", managed.ca]).code == 1
    assert managed.group.run(probe).code == 2


def test_a_wrong_secret_is_refused_and_not_shown(managed: Managed) -> None:
    done = managed.group.run([sys.executable, LINEAR], **managed.environment(PENSTOCK_SECRET="0" * 64))
    assert done.code == 1
    assert "AuthenticationError" in done.err
    assert managed.secret not in done.err
    assert "0" * 64 not in done.err
