"""What each topology moves, against a count of every single transfer; and what follows for a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.exceptions import OptionError
from penstock.plan.advice import recommend
from penstock.plan.cost import GEAR_25, GEAR_100, Prices, gear_for
from penstock.plan.model import Job, Topology, evaluate, evaluate_all
from penstock.plan.networks import TABLE_3, find
from penstock.plan.racks import judge

GBIT = 10**9
JOB = Job(nbytes=10**8, workers=8, compute=0.1, link=10 * GBIT, server_link=10 * GBIT, servers=8, batch=32)
PRICES = Prices(GEAR_25)


def busiest_by_counting(topology: Topology, workers: int, servers: int) -> float:
    """Model sizes through the busiest host in its busier direction, one transfer after the other."""
    shards = {Topology.CS: workers, Topology.NCS: servers}.get(topology, 1)
    home = [("host", k) if topology.colocated else ("server", k) for k in range(shards)]
    sent: Counter[tuple[str, int]] = Counter()
    received: Counter[tuple[str, int]] = Counter()
    for rank in range(workers):
        worker = ("host", rank)
        for server in home:
            if worker == server:
                continue  # shared memory
            sent[worker] += 1
            received[server] += 1
            sent[server] += 1
            received[worker] += 1
    return max([*sent.values(), *received.values()], default=0) / shards


@given(st.sampled_from(Topology), st.integers(1, 20), st.integers(1, 20))
def test_the_formulas_give_what_counting_each_transfer_gives(
    topology: Topology, workers: int, servers: int
) -> None:
    job = replace(JOB, workers=workers, servers=servers)
    moved = evaluate(job, topology).busiest.nbytes / job.nbytes
    assert moved == pytest.approx(busiest_by_counting(topology, workers, servers))


@given(st.integers(2, 1000))
def test_a_sharded_colocated_link_has_less_to_do_than_twice_that_of_servers_of_their_own(
    workers: int,
) -> None:
    job = replace(JOB, workers=workers, servers=workers)
    ratio = evaluate(job, Topology.CS).each_way / evaluate(job, Topology.NCS).each_way
    assert ratio == pytest.approx(2 * (workers - 1) / workers)


@given(st.sampled_from(Topology), st.integers(2, 64), st.floats(0.001, 10))
def test_the_bandwidth_that_is_said_to_be_needed_is_just_enough(
    topology: Topology, workers: int, compute: float
) -> None:
    job = replace(JOB, workers=workers, servers=workers, compute=compute)
    need = evaluate(job, topology).each_way
    enough, short = int(need * 1.001) + 1, int(need * 0.999)
    assert evaluate(replace(job, link=enough, server_link=enough), topology).hidden
    assert not evaluate(replace(job, link=short, server_link=short), topology).hidden


def test_a_step_is_computation_where_communication_hides_and_communication_where_not() -> None:
    # 100 MB through 10 Gbit take 80 ms.
    hidden, slow = evaluate(JOB, Topology.NCS), evaluate(JOB, Topology.NCC)
    assert hidden.communication == pytest.approx(0.08)
    assert (hidden.hidden, hidden.step, hidden.step_in_turn) == (True, 0.1, pytest.approx(0.18))
    assert hidden.throughput == pytest.approx(8 * 32 / 0.1)
    assert (slow.hidden, slow.step) == (False, pytest.approx(0.64))
    assert slow.throughput == pytest.approx(8 * 32 / 0.64)


def test_a_lone_worker_beside_its_server_needs_no_network() -> None:
    job = replace(JOB, workers=1)
    for topology in (Topology.CC, Topology.CS):
        outcome = evaluate(job, topology)
        assert (outcome.each_way, outcome.step, outcome.hosts) == (0, job.compute, 1)


def test_a_faster_link_of_the_server_moves_the_bottleneck_to_the_workers() -> None:
    outcome = evaluate(replace(JOB, server_link=800 * GBIT), Topology.NCC)
    assert outcome.busiest.host == "a worker's host"
    assert outcome.communication == pytest.approx(0.08)


def test_the_papers_networks_are_found_however_they_are_written() -> None:
    for network in TABLE_3:
        for name in (network.name, network.short, network.name.upper().replace(" ", "-")):
            assert find(name) is network
    with pytest.raises(OptionError, match="no model 'resnet51'") as caught:
        find("resnet51")
    assert "resnet50" in (caught.value.hint or "")


def test_the_papers_megabytes_are_powers_of_1024() -> None:
    # Float32 parameters of the published networks.
    for name, parameters in (("vgg19", 143_667_240), ("resnet50", 25_557_032), ("resnet18", 11_689_512)):
        assert find(name).nbytes == pytest.approx(4 * parameters, rel=0.01)
        assert find(name).mebibytes * 10**6 < 0.97 * 4 * parameters


# Cost


def test_a_cluster_costs_its_hosts_and_their_ports() -> None:
    gear = replace(GEAR_25, nic=10.0, server_nic=20.0, cable=1.0, port=2.0)
    prices = Prices(gear, worker=1000, gpu=100, gpus=4, server=500, oversubscription=2)
    # A = (N + S + C) + F (4 S + 2 C) = N + 3 + 5
    assert prices.worker_host(JOB) == 1000 + 400 + 18
    assert prices.server_host(JOB) == 500 + 28
    assert prices.cluster(JOB, evaluate(JOB, Topology.CS)) == 8 * 1418
    assert prices.cluster(JOB, evaluate(JOB, Topology.NCC)) == 8 * 1418 + 528
    outcome = evaluate(JOB, Topology.NCS)
    assert prices.per_1000(JOB, outcome) == pytest.approx(1000 * 2560 / (8 * 1418 + 8 * 528))


def test_a_link_above_the_fastest_port_takes_several() -> None:
    assert (gear_for(25 * GBIT), gear_for(25 * GBIT + 1)) == (GEAR_25, GEAR_100)
    prices = Prices(GEAR_100)
    assert [prices.ports(link * GBIT) for link in (56, 100, 101, 400)] == [1, 1, 2, 4]


# Advice


def chosen(job: Job, prices: Prices = PRICES, most_servers: int = 64) -> Topology:
    return recommend(job, prices, evaluate_all(job), most_servers).outcome.topology


def test_no_host_is_bought_where_colocated_servers_hide_communication() -> None:
    assert chosen(replace(JOB, link=100 * GBIT, server_link=100 * GBIT, compute=1.0)) is Topology.CS


def test_hosts_for_servers_are_bought_where_they_earn_their_price() -> None:
    slow = replace(JOB, compute=0.08)
    assert chosen(slow) is Topology.CS
    assert chosen(slow, Prices(GEAR_25, gpu=20000)) is Topology.NCS


def test_a_topology_that_cannot_be_started_is_not_recommended() -> None:
    assert chosen(JOB, most_servers=7) in (Topology.CC, Topology.NCC)


def test_throughput_alone_decides_where_everything_is_free() -> None:
    free = replace(GEAR_25, nic=0.0, server_nic=0.0, cable=0.0, port=0.0)
    prices = Prices(free, worker=0, gpu=0, server=0)
    assert prices.per_1000(JOB, evaluate(JOB, Topology.CC)) is None
    assert chosen(replace(JOB, compute=0.08), prices) is Topology.NCS


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 10**11),
    st.floats(1e-4, 100),
    st.integers(10**6, 10**12),
)
def test_what_is_recommended_is_never_beaten_by_more_than_a_percent(
    workers: int, servers: int, nbytes: int, compute: float, link: int
) -> None:
    job = Job(nbytes, workers, compute, link, link, servers)
    prices = Prices(gear_for(link))
    outcomes = evaluate_all(job)
    advice = recommend(job, prices, outcomes, 64)
    worth = [prices.per_1000(job, outcome) or 0 for outcome in outcomes]
    assert (prices.per_1000(job, advice.outcome) or 0) >= 0.99 * max(worth)
    assert advice.reason.endswith(".")
    assert (
        "hides communication" in advice.reason or "nothing goes" in advice.reason or "none" in advice.reason
    )


# Racks


def test_reducing_in_the_rack_pays_by_the_papers_condition() -> None:
    # 8 workers a rack, 2 racks, 100 MB: 8 x 1/2 / core against 8 / 10 Gbit + 1/2 / min(10 Gbit, core).
    job = replace(JOB, workers=16)
    thin, fat = judge(job, 2, 1 * GBIT), judge(job, 2, 10 * GBIT)
    assert (thin.flat, thin.local, thin.between) == tuple(map(pytest.approx, (3.2, 0.64, 0.4)))
    assert thin.pays
    assert (fat.flat, fat.local, fat.between) == tuple(map(pytest.approx, (0.32, 0.64, 0.04)))
    assert not fat.pays


def test_it_never_pays_in_one_rack() -> None:
    assert not judge(JOB, 1, 1).pays


def test_a_server_with_a_faster_link_makes_it_pay_sooner() -> None:
    job = replace(JOB, workers=16)
    assert not judge(job, 2, 5 * GBIT).pays
    assert judge(replace(job, server_link=80 * GBIT), 2, 5 * GBIT).pays


def test_the_fullest_rack_decides() -> None:
    assert judge(replace(JOB, workers=9), 2, GBIT).workers_each == 5


def test_there_are_not_more_racks_than_workers() -> None:
    with pytest.raises(OptionError, match="only 8 workers") as caught:
        judge(JOB, 9, GBIT)
    assert caught.value.hint
