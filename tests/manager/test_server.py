"""`penstock server` under a manager, in real processes."""

from __future__ import annotations

import json
import signal
import time

import pytest

from penstock import _core

PATIENCE = 60.0
"""Seconds that an event may take to come; only a test that hangs takes them."""

pytestmark = pytest.mark.skipif(
    not hasattr(_core, "Service"), reason="the installed core has no Service: rebuild it"
)


@pytest.fixture
def server(site):
    """A server of 64 MiB that is known to the manager, and where it listens."""
    process = site.run(
        "server",
        "--manager",
        site.address,
        "--memory",
        "64MiB",
        "--json",
        PENSTOCK_SERVER_TOKEN=site.token("server"),
    )
    return process, json.loads(process.line("{"))["endpoint"]


def test_a_server_whose_manager_is_not_there_says_so_and_waits_for_it(empty_site):
    """It said where it listens, and nothing more."""
    process = empty_site.run("server", "--manager", "127.0.0.1:1", PENSTOCK_SERVER_TOKEN="5e" * 32)
    said = process.line("warning: the manager does not answer")
    assert "127.0.0.1:1" in said
    assert "Connection refused" in said
    assert process.end(signal.SIGTERM) == 0


def create(site, name: str, *arguments: str) -> str:
    """Creates a job of one worker; its secret."""
    made = site.penstock(
        "job", "create", name, "-n", "1", "--memory", "16MiB", "--print-secret", "--json", *arguments
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)["secret"]


def wait_for_state(site, name: str, state: str) -> None:
    """Waits until the job is in that state."""
    end = time.monotonic() + PATIENCE
    while True:
        job = _core.show_job(site.address, site.token("admin"), name)
        if job["state"] == state:
            return
        assert time.monotonic() < end, job
        time.sleep(0.05)


def test_a_worker_finds_its_server_through_the_manager(site, server):
    secret = create(site, "mnist", "--set", "consistency=ssp:2")
    place = _core.connect(site.address, "mnist", secret, None, 1, "", {})
    assert place == {"servers": [server[1]], "rank": 0, "size": 1, "options": {"consistency": "ssp:2"}}


def test_a_job_survives_its_managers_death(site, server):
    secret = create(site, "mnist")
    place = _core.connect(site.address, "mnist", secret, 0, 1, "", {})
    site.process.end(signal.SIGKILL)
    site.start()
    assert _core.connect(site.address, "mnist", secret, 0, 1, "", {}) == place


def test_a_server_that_ends_in_order_is_not_waited_for(site, server):
    secret = create(site, "mnist")
    _core.connect(site.address, "mnist", secret, 0, 1, "", {})
    assert server[0].end(signal.SIGTERM) == 0
    wait_for_state(site, "mnist", "server-lost")


def test_a_server_with_a_wrong_token_says_so_and_ends(site):
    done = site.penstock("server", "--manager", site.address, PENSTOCK_SERVER_TOKEN="ab" * 32)
    assert done.returncode == 1
    assert "server token is wrong" in done.stderr
    assert "abab" not in done.stderr
