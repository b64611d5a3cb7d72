"""
PHub's tables 2 and 5 as printed, and what its formulas give.

Table 2 holds to the formulas exactly, but for other sizes or times than table 3 prints. Table 5 cannot be had
from what the paper prints. docs/plan.md says how far off and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.cost import GEAR_25, GEAR_100, GPU, SERVER, WORKER, Prices
from penstock.plan.model import Topology, factor
from penstock.plan.networks import find

# Table 2

TABLE_2_WORKERS = 8
TABLE_2 = {
    "ResNet 269": (122, 31, 140, 17),
    "Inception V3": (44, 11, 50, 6),
    "GoogleNet": (40, 10, 46, 6),
    "AlexNet": (1232, 308, 1408, 176),
}
"""Gbps, in the order of `Topology`. The paper writes "Inception"; its table 3 has only the third."""


@dataclass(frozen=True)
class Cell:
    """A value of table 2 and ours."""

    network: str
    topology: Topology
    paper: int
    fitted: float
    """By the formulas, from the one traffic 2 M/T that explains the whole row."""
    direct: float
    """By the formulas, from M and T of table 3, with MB and Gbps both by powers of 1024."""

    @property
    def rounds(self) -> bool:
        """Whether `fitted` rounds to what is printed."""
        return round(self.fitted) == self.paper

    @property
    def excess(self) -> float:
        """How far `direct` is above what is printed, relative to the exact value behind it (`fitted`)."""
        return self.direct / self.fitted - 1


def table_2_factors() -> tuple[float, ...]:
    """What 2 M/T is multiplied by in each column."""
    return tuple(factor(topology, TABLE_2_WORKERS, TABLE_2_WORKERS) for topology in Topology)


def traffic_range(row: tuple[int, ...]) -> tuple[float, float]:
    """
    The values of 2 M/T, in Gbps, for which every cell of the row rounds to what is printed.

    The first is not below the second where there are none.
    """
    pairs = list(zip(row, table_2_factors(), strict=True))
    return max((cell - 0.5) / f for cell, f in pairs), min((cell + 0.5) / f for cell, f in pairs)


def table_2() -> list[Cell]:
    """All sixteen values."""
    cells = []
    for name, row in TABLE_2.items():
        network = find(name)
        traffic = sum(traffic_range(row)) / 2
        direct = 2 * 8 * network.nbytes / network.compute / (1 << 30)
        for topology, paper, times in zip(Topology, row, table_2_factors(), strict=True):
            cells.append(Cell(name, topology, paper, traffic * times, direct * times))
    return cells


# Table 5

GPUS = 4
SERVER_PORTS = 20
TABLE_5_COLUMNS = ("Future GPUs", "Spendy", "Cheap")


@dataclass(frozen=True)
class Deployment:
    """A row of table 5."""

    name: str
    oversubscription: int
    workers_per_server: int | None
    """None: the sharded baseline, without servers of its own."""
    paper: tuple[float, float, float]

    def worker_cost(self) -> float:
        """
        Dollars for a worker with everything that belongs to it, by the formula as printed.

        W + N + 4 G + A, and K P more with a PHub node, P = H + 20 N + 20 A. Printed is P = W + ..., where the
        text names the PHub node's price H; with W each cell moves by less than 1.2 %.
        """
        gear = GEAR_100 if self.workers_per_server is None else GEAR_25
        prices = Prices(gear, gpus=GPUS, oversubscription=self.oversubscription)
        cost = WORKER + gear.nic + GPUS * GPU + prices.network(gear.nic)
        if self.workers_per_server is None:
            return cost
        node = SERVER + SERVER_PORTS * (gear.server_nic + prices.network(gear.server_nic))
        return cost + node / self.workers_per_server


TABLE_5 = (
    Deployment("100Gb Sharded 1:1", 1, None, (46.11, 14.57, 60.41)),
    Deployment("25Gb PHub 1:1", 1, 44, (55.19, 15.30, 77.21)),
    Deployment("25Gb PHub 2:1", 2, 65, (57.71, 15.49, 82.24)),
    Deployment("25Gb PHub 3:1", 3, 76, (59.03, 15.58, 84.95)),
)


@dataclass(frozen=True)
class Fit:
    """
    What table 5 needs and the paper does not print, each taken from the one cell that fixes it.

    So four of the twelve cells agree by construction, and eight say something.
    """

    sharded: float
    """Samples a second of a worker of the baseline: first row, first column."""
    phub: float
    """The same under PHub: second row, first column."""
    gpu: float
    """Price of the "spendy" GPU: first row, second column."""
    saved: float
    """What cheap processors save in a worker: first row, third column."""


FITTED = frozenset({(0, 0), (1, 0), (0, 1), (0, 2)})
"""Row and column of the cells that `fit` takes."""


def fit() -> Fit:
    """The four numbers."""
    baseline, phub = TABLE_5[0], TABLE_5[1]
    cost = baseline.worker_cost()
    future, spendy, cheap = baseline.paper
    return Fit(
        sharded=future * cost / 1000,
        phub=phub.paper[0] * phub.worker_cost() / 1000,
        gpu=GPU + cost * (future / spendy - 1) / GPUS,
        saved=cost * (1 - future / cheap),
    )


def table_5() -> list[tuple[Deployment, tuple[float, float, float]]]:
    """Each row with our three values."""
    found = fit()
    rows = []
    for row in TABLE_5:
        cost = row.worker_cost()
        rate = 1000 * (found.sharded if row.workers_per_server is None else found.phub)
        ours = (rate / cost, rate / (cost + GPUS * (found.gpu - GPU)), rate / (cost - found.saved))
        rows.append((row, ours))
    return rows


def throughput_ratio_in_table_5(row: Deployment) -> float:
    """
    Throughput of a PHub worker over a baseline worker's, as the table itself demands it, whatever the prices.

    "Cheap" workers are cheaper than "future" ones by the same sum in every row. With throughput X, a cell is
    X / cost, so that sum is X (1 / future - 1 / cheap) in each row, which gives the ratio of the X.
    """

    def sum_per_throughput(cells: tuple[float, float, float]) -> float:
        return 1 / cells[0] - 1 / cells[2]

    return sum_per_throughput(TABLE_5[0].paper) / sum_per_throughput(row.paper)
