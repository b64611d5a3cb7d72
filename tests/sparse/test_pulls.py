"""Sparse pulls: some of what a pull brings, as fresh, for less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import three_workers

import penstock as ps
from penstock.exceptions import DtypeError, JobClosed, OptionError, ShapeError, UnknownElement


@pytest.mark.parametrize("transport", ["auto", "tcp", "mixed"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_rows_that_are_pulled_are_those_of_what_a_pull_of_all_brings(
    consistency: str, transport: str
) -> None:
    three_workers.run("gather.py", consistency, transport)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(7,), (5, 4), (3, 4, 5), (20, 3001)])
def test_places_are_those_that_numpy_names(job: ps.Job, dtype: str, shape: tuple[int, ...]) -> None:
    w = job.tensor("w", np.arange(np.prod(shape)).reshape(shape) % 200, dtype=dtype)
    value = w.pull().copy()
    draw = np.random.default_rng(5)
    rows = draw.integers(0, shape[0], 9)
    np.testing.assert_array_equal(w.pull(rows=rows), value[rows])
    np.testing.assert_array_equal(w.pull(rows=[int(row) for row in rows]), value[rows])
    np.testing.assert_array_equal(w.pull(rows=rows.astype(np.uint8)), value[rows])
    flat = draw.integers(0, w.size, 30)
    np.testing.assert_array_equal(w.pull(indices=flat), value.reshape(-1)[flat])
    along = np.stack(np.unravel_index(flat, shape))
    np.testing.assert_array_equal(w.pull(indices=along), value[tuple(along)])
    out = np.empty((9, *shape[1:]), value.dtype)
    assert w.pull(out, rows=rows) is out
    np.testing.assert_array_equal(out, value[rows])
    single = w.pull_async(indices=flat[:3]).result()
    np.testing.assert_array_equal(single, value.reshape(-1)[flat[:3]])


def test_of_no_places_comes_an_empty_array(job: ps.Job) -> None:
    w = job.tensor("w", shape=(4, 3))
    assert w.pull(rows=[]).shape == (0, 3)
    assert w.pull(indices=[]).shape == (0,)
    assert w.pull(indices=np.empty((2, 0), np.int64)).shape == (0,)
    assert w.pull(rows=[], exact=True).dtype == np.float32
    scalar = job.tensor("scalar", np.float32(3))
    assert scalar.pull(indices=[0, 0]).tolist() == [3, 3]


def test_tensors_of_torch_name_places(job: ps.Job) -> None:
    torch = pytest.importorskip("torch")
    w = job.tensor("w", np.arange(12).reshape(4, 3), dtype="float32")
    np.testing.assert_array_equal(w.pull(rows=torch.tensor([2, 0])), [[6, 7, 8], [0, 1, 2]])
    out = torch.empty(2, 3)
    w.pull(out, rows=torch.tensor([2, 0], dtype=torch.int32))
    assert out.tolist() == [[6, 7, 8], [0, 1, 2]]


def test_what_cannot_be_pulled_is_refused_by_name_and_nothing_is_written(job: ps.Job) -> None:
    w = job.tensor("w", shape=(4, 3))
    scalar = job.tensor("scalar", np.float32(3))
    out = np.full((2, 3), 9, np.float32)
    for pull, error, says in (
        (lambda: w.pull(out, rows=[0, 4]), UnknownElement, "expected indices from 0 to 3, got 4 at place 1"),
        (lambda: w.pull(rows=[-1]), UnknownElement, "got -1 at place 0"),
        (lambda: w.pull(indices=[12]), UnknownElement, "expected indices from 0 to 11, got 12"),
        (lambda: w.pull(indices=[[0], [3]]), UnknownElement, "expected indices from 0 to 2, got 3"),
        (lambda: w.pull(indices=[[0], [0], [0]]), ShapeError, "has 2 dimensions, got indices of 3"),
        (lambda: w.pull(rows=[[0], [1]]), ShapeError, "expected rows of shape (n,), got (2, 1)"),
        (lambda: w.pull(rows=1), ShapeError, "expected rows of shape (n,), got ()"),
        (lambda: w.pull(rows=[0.5]), DtypeError, "expected rows as whole numbers, got dtype float64"),
        (lambda: w.pull(rows=[True, False]), DtypeError, "got dtype bool"),
        (lambda: w.pull(rows=[0], indices=[0]), OptionError, "expected `rows` or `indices`, got both"),
        (lambda: w.pull(rows=[0], slack=-1), OptionError, "slack"),
        (lambda: w.pull(out[:, :2], rows=[0, 1]), ShapeError, "has shape (2, 3), got `out`"),
        (lambda: w.pull(out.astype(np.float64), rows=[0, 1]), DtypeError, "float64"),
        (lambda: scalar.pull(rows=[0]), ShapeError, "and no rows"),
    ):
        with pytest.raises(error) as raised:
            pull()
        assert says in str(raised.value), str(raised.value)
    assert np.all(out == 9)
    with pytest.raises(UnknownElement) as unknown:
        w.pull(rows=np.array([1, 2, 9]))
    assert unknown.value.place == 2


def test_bytes_that_were_pulled_are_counted_as_they_are(job: ps.Job) -> None:
    w = job.tensor("w", shape=(1000, 8))
    before = job.stats()["pulled_bytes"]
    w.pull(rows=[1, 1, 7])
    assert job.stats()["pulled_bytes"] - before == 3 * 8 * 4


def test_between_hosts_nothing_comes_but_the_chunks_that_are_touched(spawn_job: Any) -> None:
    """A push asked for all of its result, and before that for all of the first value."""
    spawn_job(
        2,
        """
        CHUNK = 32 * 1024
        with ps.init() as job:
            value = np.ones((10_000, 64), np.float32) if job.rank == 0 else None
            for name, push in (("sparse", True), ("dense", False)):
                w = job.tensor(name, value, shape=(10_000, 64), optimizer=ps.SGD(0.5), reduce="sum")
                job.barrier()
                before = job.stats()["received_bytes"]
                # Rows 0 and 1 are in one chunk, the last in another.
                rows = [0, 1, 9_999]
                assert np.all(w.pull(rows=rows) == 1)
                for step in range(10):
                    if push:
                        w.push(ps.Sparse(rows[job.rank:][:1], np.ones((1, 64), np.float32)))
                    else:
                        w.push(np.ones((10_000, 64), np.float32))
                    w.pull(rows=rows)
                    job.clock()
                    got = w.pull(rows=[0])
                    assert np.all(got == (1 - 0.5 * (step + 1) * (1 if push else 2))), got
                came = job.stats()["received_bytes"] - before
                # The last chunk once more, to know that there is a first value.
                assert came < 24 * CHUNK + 40_000, came / CHUNK
                # All of it is right nevertheless, and from now on the pushes ask for it again.
                assert np.all(w.pull()[2:9_999] == (1 if push else -9))
                job.barrier()
        """,
        options={"transport": "tcp"},
    )


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_sparse_pull_waits_for_others_until_its_time_is_up(spawn_job: Any, transport: str) -> None:
    spawn_job(
        2,
        """
        from penstock.exceptions import PullTimeout
        with ps.init() as job:
            w = job.tensor("w", shape=(5000, 8), reduce="sum")
            assert np.all(w.pull(rows=[3, 4999]) == 0)
            job.barrier()
            if job.rank == 0:
                w.push(ps.Sparse([3], np.ones((1, 8), np.float32)))
                try:
                    w.pull(rows=[3], timeout=0.05)
                except PullTimeout as error:
                    assert error.missing == [1], error.missing
                else:
                    raise AssertionError("it waited for nobody")
            job.barrier()
            if job.rank == 1:
                w.push(ps.Sparse([3], np.ones((1, 8), np.float32)))
            assert np.all(w.pull(rows=[3]) == 2)
            job.clock()
            job.barrier()
        """,
        options={"transport": transport},
    )


@pytest.mark.parametrize("pull", ["w.pull(timeout=0.5)", "w.pull(rows=[700], timeout=0.5)"])
def test_who_has_pushed_and_pulled_nothing_yet_waits_for_who_is_late_and_not_for_a_value(
    spawn_job: Any, pull: str
) -> None:
    # Of the first value a worker elsewhere is sent one chunk of each shard.
    spawn_job(
        3,
        f"""
        from penstock.exceptions import PullTimeout
        with ps.init() as job:
            w = job.tensor("w", shape=(5000, 8), reduce="sum")
            job.barrier()
            if job.rank < 2:
                w.push(ps.Sparse([3], np.ones((1, 8), np.float32)))
            if job.rank == 1:
                try:
                    {pull}
                except PullTimeout as error:
                    assert error.missing == [2], (error.missing, str(error))
                else:
                    raise AssertionError("it waited for nobody")
            job.barrier()
            if job.rank == 2:
                w.push(ps.Sparse([3], np.ones((1, 8), np.float32)))
            job.clock()
            assert w.pull()[3, 0] == 3
            job.barrier()
        """,
        options={"transport": "tcp", "chunk_bytes": "4KiB"},
    )


def test_of_a_closed_job_nothing_is_pulled() -> None:
    with ps.init() as job:
        w = job.tensor("w", shape=(10, 2))
        w.push(np.ones((10, 2), np.float32))
        np.testing.assert_array_equal(w.pull(rows=[9]), np.ones((1, 2)))
    with pytest.raises(JobClosed):
        w.pull(rows=[9])
    with pytest.raises(JobClosed):
        w.pull(rows=[])
