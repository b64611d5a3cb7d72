"""Jobs over two hosts, which are network namespaces joined by a wire."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from groups import LINEAR, Group, learned

if os.geteuid() != 0 or shutil.which("ip") is None:
    pytest.skip("two hosts need network namespaces: root, and `ip`", allow_module_level=True)

FIRST = "10.213.7.1"


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two namespaces, by name; their addresses are 10.213.7.1 and .2."""
    names = [f"psl{os.getpid()}-{index}" for index in range(2)]
    made: list[str] = []

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)

    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
            made.append(name)
        ip("link", "add", "w0", "netns", names[0], "type", "veth", "peer", "name", "w1", "netns", names[1])
        for index, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.213.7.{index + 1}/24", "dev", f"w{index}")
            ip("-n", name, "link", "set", f"w{index}", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=20)


def within(host: str, *command: str) -> list[str]:
    """A command on one of the hosts."""
    return ["ip", "netns", "exec", host, *command]


REPORT = """
    import penstock as ps
    from penstock.rendezvous import assemble

    seen = []
    before = assemble.assemble
    assemble.assemble = lambda *rest: seen.append(before(*rest)) or seen[0]
    with ps.init() as job:
        w = job.tensor("w", shape=(100_000,), reduce="sum")
        w.push([1.0] * 100_000)
        job.clock()
        value = w.pull()[[0, -1]].tolist()
        job.barrier()
        own = "" if seen[0].own is None else f"server {seen[0].own.index}"
        print(len(seen[0].servers), own, value, *(one.split("?")[0] for one in seen[0].servers))
"""


def test_a_host_without_a_way_out_has_the_address_of_its_interface(hosts) -> None:
    script = (
        "from penstock.limit import Limit; from penstock.rendezvous.address import reachable; "
        "print(reachable('', Limit(20.0)))"
    )
    for index, host in enumerate(hosts):
        said = subprocess.run(
            within(host, sys.executable, "-c", script), capture_output=True, text=True, check=True, timeout=60
        )
        assert said.stdout.strip() == f"10.213.7.{index + 1}"


@pytest.mark.parametrize(
    ("topology", "servers", "owners"), [("cs", 2, {0: "server 0", 2: "server 1"}), ("cc", 1, {0: "server 0"})]
)
def test_each_host_starts_the_servers_that_the_topology_says(
    group: Group, secret: str, script, hosts, topology: str, servers: int, owners: dict[int, str]
) -> None:
    path = script(REPORT)
    started = [
        group.start(
            within(hosts[rank // 2], sys.executable, path),
            PENSTOCK_RENDEZVOUS=f"{FIRST}:7070",
            PENSTOCK_SECRET=secret,
            PENSTOCK_RANK=str(rank),
            PENSTOCK_SIZE="4",
            PENSTOCK_TOPOLOGY=topology,
        )
        for rank in range(4)
    ]
    for rank, done in enumerate([group.ends(one) for one in started]):
        assert done.code == 0, done
        assert done.out.startswith(f"{servers} {owners.get(rank, '')} [4.0, 4.0] tcp://{FIRST}:"), done


def test_a_step_over_two_nodes_meets_at_the_first(group: Group, secret: str, hosts) -> None:
    started = [
        group.start(
            within(hosts[rank // 2], sys.executable, LINEAR),
            PENSTOCK_SECRET=secret,
            SLURM_JOB_ID="4711",
            SLURM_STEP_ID="0",
            SLURM_STEP_NODELIST=f"{FIRST},10.213.7.2",
            SLURM_STEP_NUM_TASKS="4",
            SLURM_NTASKS="4",
            SLURM_PROCID=str(rank),
        )
        for rank in range(4)
    ]
    done = [group.ends(one) for one in started]
    assert [one.code for one in done] == [0] * 4, done
    assert learned("".join(one.out for one in done))


def test_two_nodes_of_torchrun_become_one_job(group: Group, hosts) -> None:
    pytest.importorskip("torch")
    where = ["--master-addr", FIRST, "--master-port", "29500", "--nproc-per-node", "2"]
    started = [
        group.start(within(host, "torchrun", "--nnodes", "2", "--node-rank", str(index), *where, LINEAR))
        for index, host in enumerate(hosts)
    ]
    done = [group.ends(one) for one in started]
    assert [one.code for one in done] == [0, 0], done
    assert learned("".join(one.out for one in done))


def test_a_host_that_never_comes_is_named_by_its_ranks(group: Group, secret: str, hosts) -> None:
    started = [
        group.start(
            within(hosts[0], sys.executable, LINEAR),
            PENSTOCK_RENDEZVOUS=f"{FIRST}:7070",
            PENSTOCK_SECRET=secret,
            PENSTOCK_RANK=str(rank),
            PENSTOCK_SIZE="4",
            PENSTOCK_DEADLINE="4",
        )
        for rank in range(2)
    ]
    for one in started:
        assert "for ranks 2, 3 of 4 to call penstock.init()" in group.ends(one).err


def test_a_server_that_cannot_listen_is_everyones_error_at_once(group: Group, secret: str, hosts) -> None:
    started = [
        group.start(
            within(hosts[rank // 2], sys.executable, LINEAR),
            PENSTOCK_RENDEZVOUS=f"{FIRST}:7070",
            PENSTOCK_SECRET=secret,
            PENSTOCK_RANK=str(rank),
            PENSTOCK_SIZE="4",
            **({"PENSTOCK_ADDRESS": "198.51.100.1"} if rank == 2 else {}),  # which is not its own
        )
        for rank in range(4)
    ]
    done = [group.ends(one) for one in started]
    assert [one.code for one in done] == [1] * 4, done
    assert "server 1 ended before it listened, with exit code 1" in done[2].err
    for rank in (0, 1, 3):
        assert "JobFailed: rank 2 could not join: server 1 ended before it listened" in done[rank].err
