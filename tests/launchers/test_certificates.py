"""A job whose workers trust only servers with a certificate of one authority (option `ca`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from groups import LINEAR, Group, learned

PENSTOCK = [sys.executable, "-m", "penstock.cli"]
HOSTS = ("127.0.0.2", "127.0.0.3")


class Certified:
    """Two servers at two addresses, each with a certificate for its own, and what their workers are told."""

    def __init__(self, group: Group, secret: str, port: int) -> None:
        self.group = group
        for index, host in enumerate(HOSTS):
            made = self.certificate(host, host)
            files = ["--certificate", made["certificate"], "--key", made["key"], "--security", "tls"]
            numbers = ["--servers", str(len(HOSTS)), "--index", str(index), "--workers", "2"]
            listen = ["--listen", f"{host}:{port}"]
            command = [str(Path(sys.executable).parent / "penstock-server"), *listen, *numbers, *files]
            group.start(command, PENSTOCK_SECRET=secret)
        self.ca = made["ca"]
        self.told = {
            "PENSTOCK_SERVERS": ",".join(f"tcp://{host}:{port}" for host in HOSTS),
            "PENSTOCK_SECRET": secret,
            "PENSTOCK_SECURITY": "tls",
            "PENSTOCK_SIZE": "2",
        }

    def certificate(self, name: str, *hosts: str, folder: str = "certificates") -> dict[str, str]:
        """Paths of a certificate, its key and the CA, which the first call makes in its folder."""
        out = str(self.group.scratch / folder)
        named = [word for host in hosts for word in ("--host", host)]
        done = self.group.run([*PENSTOCK, "cert", "--out", out, "--name", name, "--json", *named])
        assert done.code == 0, done
        paths: dict[str, str] = json.loads(done.out)
        return paths


@pytest.fixture
def certified(group: Group, secret: str, port: int) -> Certified:
    return Certified(group, secret, port)


def test_workers_that_name_the_servers_authority_train_over_tls(certified: Certified) -> None:
    told = {**certified.told, "PENSTOCK_CA": certified.ca}
    done = certified.group.ranks(LINEAR, 2, lambda rank: {**told, "PENSTOCK_RANK": str(rank)})
    assert [one.code for one in done] == [0, 0], done
    assert learned("".join(one.out for one in done))


def test_servers_of_another_authority_are_refused_though_they_know_the_secret(
    certified: Certified, script
) -> None:
    other = certified.certificate("other", *HOSTS, folder="other")
    name = script("""
        import os
        import penstock as ps
        try:
            ps.init(deadline=60, ca=os.environ["CA"])
        except ps.exceptions.AuthenticationError as error:
            print("refused:", error)
    """)
    done = certified.group.ranks(
        name, 1, lambda rank: {**certified.told, "PENSTOCK_RANK": "0"}, CA=other["ca"]
    )
    assert done[0].code == 0, done
    assert "refused: server 0 at 127.0.0.2:" in done[0].out
    assert "could not be trusted: invalid peer certificate" in done[0].out
