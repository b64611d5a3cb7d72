"""The work of the items benchmark is verified, and figures are held against the right thing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.items import report
from penstock_bench.items.runner import Measured
from penstock_bench.items.work import MOST_BYTES, Rows, Verifier, Work, WrongRowsError, fill, stamp

WORKS = st.builds(
    Work,
    row_bytes=st.sampled_from([8, 16, 64, 1000, 1024, 8192, 65536]),
    consumers=st.integers(1, 4),
    batch=st.integers(1, 600),
    transport=st.sampled_from(["shm", "tcp"]),
)


def made(work: Work, iteration: int) -> Rows:
    rows = np.empty((work.rows, work.width))
    fill(rows)
    stamp(rows, iteration)
    return rows


@given(WORKS)
def test_every_call_moves_a_whole_batch_and_small_rows_stay_in_a_cache(work: Work) -> None:
    assert work.calls * work.batch == work.rows
    assert work.nbytes <= max(MOST_BYTES, 256 * work.row_bytes) + work.batch * work.row_bytes


@pytest.mark.parametrize("row_bytes", [8, 64, 8192])
@pytest.mark.parametrize("iteration", [1, 2, 1_000_000])
def test_rows_that_arrived_whole_are_accepted(row_bytes: int, iteration: int) -> None:
    work = Work(row_bytes, 1, 4, "shm")
    for check in (Verifier(work).check, Verifier(work).check_each):
        check(made(work, iteration), iteration, 0)
        check(made(work, iteration + 1), iteration, 1)


@pytest.mark.parametrize("row_bytes", [8, 64])
def test_one_row_of_an_older_iteration_is_noticed(row_bytes: int) -> None:
    work = Work(row_bytes, 1, 4, "shm")
    rows = made(work, 7)
    rows[work.rows // 2, 0] = 6
    for check in (Verifier(work).check, Verifier(work).check_each):
        with pytest.raises(WrongRowsError, match="iteration 7"):
            check(rows, 7, 1)


def test_a_row_that_is_newer_than_the_work_allows_is_noticed() -> None:
    work = Work(64, 1, 4, "shm")
    with pytest.raises(WrongRowsError):
        Verifier(work).check(made(work, 9), 7, 1)


def test_a_row_in_another_rows_place_is_named() -> None:
    work = Work(64, 1, 4, "shm")
    rows = made(work, 3)
    rows[[10, 20]] = rows[[20, 10]]
    with pytest.raises(WrongRowsError, match="row 10 of iteration 3"):
        Verifier(work).check_each(rows, 3, 0)


def measured() -> Measured:
    found = Measured(Work(1024, 1, 256, "shm"), latency_too=True)
    iteration = found.work.rows * 1e-6
    found.rates = {
        "penstock eager": [iteration] * 3,
        "mpi put": [2 * iteration] * 3,
        "limit": [iteration / 4] * 3,
    }
    found.latencies = {"penstock eager": [1e-6], "mpi put": [4e-6], "limit": [1e-7]}
    found.fresh = {"penstock eager": [3e-7], "mpi put": []}
    return found


def test_rates_above_one_and_latencies_below_one_mean_that_we_are_faster() -> None:
    rates = report.rates([measured()]).splitlines()
    latencies = report.latencies([measured()]).splitlines()
    assert rates[0].endswith("of mpi put  of limit")
    assert rates[1].split()[-2:] == ["2.00x", "0.25x"]
    assert "0.25x" in latencies[1]
    assert "10.0x" in latencies[1]
    assert len(rates) == len(latencies) == 2, "peers and the limit are columns"


def test_a_line_without_a_counterpart_has_no_ratio() -> None:
    found = measured()
    del found.rates["limit"]
    entries = {entry["system"]: entry for entry in report.document([found], {})["cases"]}
    assert entries["penstock eager"]["of"] == {"mpi put": pytest.approx(2.0)}
    assert entries["penstock eager"]["rows_per_second"] == pytest.approx(1e6)
    assert entries["mpi put"]["get_fresh"] is None


def test_who_failed_is_named_with_what_it_said_last() -> None:
    found = measured()
    found.absent["mpi"] = "failed: mpi: rank 1 has gone"
    found.failed["mpi"] = "Segmentation fault"
    said = report.troubles([found, found])
    assert said.count("rank 1 has gone") == 1
    assert "Segmentation fault" in said
