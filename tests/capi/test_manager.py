"""C programs in a job that a manager keeps, as ps.init() joins it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import EXAMPLES, HERE, Runner

AUTHENTICATION, CONNECT_TIMEOUT, JOB_FULL, BAD_OPTION = 6, 5, 7, 2


class Managed:
    """A manager and a server on this host, and a job of two workers."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._services = runner, list[subprocess.Popen[str]]()
        state = runner.runtime / "state"
        self.address = self._service("manager", "--listen", "127.0.0.1:0", "--state", state, key="address")
        contact = ["--manager", self.address]
        tokens = ["--server-token-file", state / "server.token"]
        memory = ["--memory", "100MiB"]
        self._service("server", *contact, *tokens, "--listen", "127.0.0.1:0", *memory, key="endpoint")
        secret = runner.runtime / "secret"
        words = ["--workers", "2", "--memory", "10MiB", "--secret-file", secret, "--set", "consistency=ssp:3"]
        admin = ["--admin-token-file", state / "admin.token"]
        made = runner.run(["penstock", "job", "create", "j", *words, *contact, *admin])
        assert made.code == 0, made
        self.secret = secret.read_text().strip()

    def environment(self, **more: str) -> dict[str, str]:
        """What a worker is told."""
        told = {"PENSTOCK_MANAGER": self.address, "PENSTOCK_JOB": "j", "PENSTOCK_SECRET": self.secret}
        return {**told, **more}

    def end(self) -> None:
        """Ends server and manager."""
        for process in reversed(self._services):
            process.terminate()
            self._runner.ends(process)

    def _service(self, *words: str | Path, key: str) -> str:
        process = self._runner.start(["penstock", *words, "--json"])
        self._services.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self._runner.ends(process)
        return str(json.loads(line)[key])


@pytest.fixture
def managed(runner: Runner) -> Iterator[Managed]:
    """A manager, a server and a job."""
    one = Managed(runner)
    yield one
    one.end()


def test_workers_get_their_servers_and_ranks_from_the_manager(
    managed: Managed, build: Callable[[Path], Path], runner: Runner
) -> None:
    done = runner.ranks(
        [build(HERE / "joiner.c"), "init", "say", "finish"], 2, lambda _: managed.environment()
    )
    assert sorted(one.out for one in done) == ["rank 0 of 2\n", "rank 1 of 2\n"], done


def test_workers_of_a_launcher_keep_their_ranks(
    managed: Managed, build: Callable[[Path], Path], runner: Runner
) -> None:
    first, second = runner.ranks(
        [build(EXAMPLES / "tensor.c")],
        2,
        # The optimizer of this example wants every step in order: what the program's process says goes first.
        lambda rank: managed.environment(PMI_RANK=str(rank), PMI_SIZE="2", PENSTOCK_CONSISTENCY="bsp"),
    )
    assert (first.code, first.out) == (0, "weights 2.00 -1.00 0.50 3.00\n"), first
    assert (second.code, second.out) == (0, ""), second


@pytest.mark.parametrize(
    ("more", "status", "text"),
    [
        ({"PENSTOCK_SECRET": "0" * 64}, AUTHENTICATION, "there is no such job, or the secret is not its own"),
        ({"PENSTOCK_JOB": "k"}, AUTHENTICATION, "there is no such job, or the secret is not its own"),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, JOB_FULL, "the job `j` is for 2 workers, but 3 were started"),
        ({"PENSTOCK_MANAGER": "nowhere"}, BAD_OPTION, "expected HOST:PORT, got `nowhere`"),
    ],
)
def test_what_the_manager_refuses_is_told(
    more: dict[str, str],
    status: int,
    text: str,
    managed: Managed,
    build: Callable[[Path], Path],
    runner: Runner,
) -> None:
    done = runner.run([build(HERE / "joiner.c"), "init"], **managed.environment(**more))
    assert done.code == status, done
    assert text in done.out
    assert managed.secret not in done.out


def test_a_manager_that_is_not_there_is_waited_for_as_long_as_the_deadline_says(
    build: Callable[[Path], Path], runner: Runner
) -> None:
    told = {"PENSTOCK_MANAGER": "127.0.0.1:9", "PENSTOCK_JOB": "j", "PENSTOCK_SECRET": "ab" * 32}
    done = runner.run([build(HERE / "joiner.c"), "init"], PENSTOCK_DEADLINE="0.3", **told)
    assert done.code == CONNECT_TIMEOUT, done
    assert "127.0.0.1:9" in done.out
