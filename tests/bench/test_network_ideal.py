"""The least time of an exchange, against bytes counted link by link."""

import pytest

from penstock_bench.network import ideal
from penstock_bench.network.places import Layout

MEGABYTE = 10**6
RATE = 8 * MEGABYTE
"""A megabyte a second: then bytes in megabytes are seconds."""


def busiest(layout: Layout) -> float:
    """
    Megabytes over the busiest link, one way, where every worker pushes one megabyte and pulls one, an equal
    part of it to and from each server.
    """
    sent, received = [0.0] * layout.hosts, [0.0] * layout.hosts
    for worker in layout.workers:
        for server in layout.servers:
            if worker != server:
                part = 1 / len(layout.servers)
                sent[worker] += part  # push
                received[server] += part
                sent[server] += part  # pull
                received[worker] += part
    return max(*sent, *received)


@pytest.mark.parametrize("topology", ideal.TOPOLOGIES)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("servers", [1, 2, 3, 8])
def test_the_ideal_is_what_the_busiest_link_carries(topology: str, workers: int, servers: int) -> None:
    layout = Layout.of(topology, workers, servers)
    assert ideal.seconds(topology, MEGABYTE, workers, servers, RATE) == pytest.approx(busiest(layout))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_a_topology_puts_servers_where_its_name_says(workers: int) -> None:
    for topology in ideal.TOPOLOGIES:
        layout = Layout.of(topology, workers, 3)
        beside = set(layout.workers) & set(layout.servers)
        assert bool(beside) == topology.startswith("c")
        assert len(layout.servers) == {"cc": 1, "ncc": 1, "cs": workers, "ncs": 3}[topology]
        assert sorted({*layout.workers, *layout.servers}) == list(range(layout.hosts)), "no host is idle"
