"""PHub's tables, value by value: what our formulas reproduce, and by how much they miss where they do."""

from __future__ import annotations

import pytest

from penstock.plan.model import Job, Topology, evaluate
from penstock.plan.networks import find
from penstock_bench.paper import tables as paper

CELLS = paper.table_2()


def test_table_2_is_held_as_the_paper_prints_it() -> None:
    assert {(cell.network, cell.topology.value): cell.paper for cell in CELLS} == {
        ("ResNet 269", "cc"): 122,
        ("ResNet 269", "cs"): 31,
        ("ResNet 269", "ncc"): 140,
        ("ResNet 269", "ncs"): 17,
        ("Inception V3", "cc"): 44,
        ("Inception V3", "cs"): 11,
        ("Inception V3", "ncc"): 50,
        ("Inception V3", "ncs"): 6,
        ("GoogleNet", "cc"): 40,
        ("GoogleNet", "cs"): 10,
        ("GoogleNet", "ncc"): 46,
        ("GoogleNet", "ncs"): 6,
        ("AlexNet", "cc"): 1232,
        ("AlexNet", "cs"): 308,
        ("AlexNet", "ncc"): 1408,
        ("AlexNet", "ncs"): 176,
    }


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.network}-{cell.topology.value}")
def test_each_value_of_table_2_is_the_formulas_rounded(cell: paper.Cell) -> None:
    # One number, 2 M/T, is free in each row of four.
    assert round(cell.fitted) == cell.paper


@pytest.mark.parametrize("name", paper.TABLE_2)
def test_one_traffic_explains_a_whole_row_of_table_2_and_no_other_formulas_would(name: str) -> None:
    row = paper.TABLE_2[name]
    low, high = paper.traffic_range(row)
    assert low < high
    # Were both directions not counted, the traffic that a row tells would be half of that of table 3.
    network = find(name)
    one_way = 8 * network.nbytes / network.compute / 1e9
    assert 1.7 < (low + high) / 2 / one_way < 1.9


def test_the_command_and_the_table_use_the_same_formulas() -> None:
    for cell in CELLS:
        network = find(cell.network)
        job = Job(network.nbytes, 8, network.compute, 10**10, 10**10, servers=8)
        assert evaluate(job, cell.topology).both_ways / (1 << 30) == pytest.approx(cell.direct)


@pytest.mark.parametrize(
    ("name", "excess"),
    [("ResNet 269", -0.003), ("Inception V3", 0.009), ("GoogleNet", 0.035), ("AlexNet", 0.076)],
)
def test_table_3_does_not_give_table_2_and_misses_it_by_as_much_as_the_docs_say(
    name: str, excess: float
) -> None:
    for cell in CELLS:
        if cell.network == name:
            assert cell.excess == pytest.approx(excess, abs=0.0005)


@pytest.mark.parametrize(
    ("mega", "giga", "least", "most"),
    [
        (1 << 20, 1 << 30, -0.003, 0.076),
        (10**6, 10**9, 0.021, 0.102),
        (1 << 20, 10**9, 0.070, 0.156),
        (10**6, 1 << 30, -0.050, 0.026),
    ],
)
def test_no_reading_of_mb_and_gbps_makes_the_two_tables_agree(
    mega: int, giga: int, least: float, most: float
) -> None:
    misses = []
    for name, row in paper.TABLE_2.items():
        network = find(name)
        traffic = 2 * 8 * network.mebibytes * mega / network.compute / giga
        low, high = paper.traffic_range(row)
        assert not low <= traffic <= high
        misses.append(traffic / ((low + high) / 2) - 1)
    assert (min(misses), max(misses)) == (pytest.approx(least, abs=0.001), pytest.approx(most, abs=0.001))


# Table 5


def test_a_workers_cost_is_the_printed_formula_with_the_printed_prices() -> None:
    port, nic, cable = 21077 / 32, 795, 94
    network = (nic + port + cable) + (4 * port + 2 * cable)
    assert paper.TABLE_5[0].worker_cost() == pytest.approx(4117 + nic + 4 * 699 + network)

    port, nic, cable = 21077 / 32 / 4, 260, 31.25
    above = (4 * port + 2 * cable) / 2
    node = 8407 + 20 * 162.5 + 20 * (162.5 + port + cable + above)
    cost = 4117 + nic + 4 * 699 + (nic + port + cable + above) + node / 65
    assert paper.TABLE_5[2].worker_cost() == pytest.approx(cost)


OURS = {
    "100Gb Sharded 1:1": ((46.11, 46.11), (14.57, 14.57), (60.41, 60.41)),
    "25Gb PHub 1:1": ((55.19, 55.19), (15.30, 14.26), (77.21, 80.45)),
    "25Gb PHub 2:1": ((57.71, 59.90), (15.49, 14.55), (82.24, 90.86)),
    "25Gb PHub 3:1": ((59.03, 61.43), (15.58, 14.64), (84.95, 94.44)),
}
"""Paper, ours. Four of ours are the paper's by construction: what they fix is not printed."""


def test_table_5_stands_beside_ours_as_the_docs_print_it() -> None:
    for row, ours in paper.table_5():
        for (printed, expected), held, value in zip(OURS[row.name], row.paper, ours, strict=True):
            assert held == printed
            assert value == pytest.approx(expected, abs=0.005)


def test_table_5_is_missed_by_at_most_an_eighth_and_not_by_less_than_three_percent() -> None:
    misses = [
        abs(value / printed - 1)
        for index, (row, ours) in enumerate(paper.table_5())
        for column, (printed, value) in enumerate(zip(row.paper, ours, strict=True))
        if (index, column) not in paper.FITTED
    ]
    assert len(misses) == 8
    assert max(misses) < 0.125
    # Should a reading be found that closes the gap, this test is to go, and the docs are to say so.
    assert min(misses) > 0.03


def test_table_5_contradicts_the_printed_prices_whatever_the_unprinted_numbers_are() -> None:
    # The columns alone give the ratio of PHub's throughput to the baseline's, the same in each row ...
    ratios = [paper.throughput_ratio_in_table_5(row) for row in paper.TABLE_5[1:]]
    assert ratios == pytest.approx([0.9933] * 3, abs=0.0005)
    # ... and the first column with the printed prices gives another.
    found = paper.fit()
    assert found.phub / found.sharded == pytest.approx(0.902, abs=0.0005)


def test_the_papers_claims_about_two_to_one_follow_from_its_own_table() -> None:
    baseline, phub = paper.TABLE_5[0].paper, paper.TABLE_5[2].paper
    gains = [b / a - 1 for a, b in zip(baseline, phub, strict=True)]
    # The text says 26, 6 and 36 %; the caption and the abstract say 25.
    assert gains == pytest.approx([0.2516, 0.0631, 0.3614], abs=0.0005)


def test_the_other_reading_of_the_phub_nodes_price_changes_little() -> None:
    for row in paper.TABLE_5[1:]:
        assert row.workers_per_server is not None
        assert (8407 - 4117) / row.workers_per_server / row.worker_cost() < 0.012


def test_all_four_topologies_are_columns_of_table_2() -> None:
    assert paper.table_2_factors() == (7, 1.75, 8, 1)
    assert len(Topology) == len(paper.table_2_factors())
