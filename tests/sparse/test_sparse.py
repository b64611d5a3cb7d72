"""Sparse contributions: what the same array would do whole, for less."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import three_workers
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.exceptions import (
    AlreadyPushed,
    DtypeError,
    NonFiniteError,
    OptionError,
    ShapeError,
    UnknownElement,
)


@pytest.mark.parametrize("transport", ["auto", "tcp", "mixed"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_workers_that_push_sparse_train_as_if_they_pushed_all_of_it(consistency: str, transport: str) -> None:
    three_workers.run("train.py", consistency, transport)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rule", [ps.Add(), ps.SGD(0.5), ps.Adagrad(0.1), ps.Adam(0.1)])
def test_what_is_named_twice_is_summed_in_any_order_of_indices(
    job: ps.Job, dtype: str, rule: ps.Optimizer
) -> None:
    tensors = [
        job.tensor(name, shape=(40_000, 3), dtype=dtype, optimizer=rule) for name in ("dense", "sparse")
    ]
    draw = np.random.default_rng(1)
    for _ in range(4):
        rows = draw.integers(0, 40_000, 200)
        rows[50:60] = rows[0]
        values = draw.integers(-2, 3, (200, 3)).astype(tensors[0].dtype)
        whole = np.zeros((40_000, 3), np.float64)
        np.add.at(whole, rows, values.astype(np.float64))
        tensors[0].push(whole.astype(tensors[0].dtype))
        tensors[1].push(ps.Sparse(rows, values))
        assert tensors[0].pull().tobytes() == tensors[1].pull().tobytes()
        job.clock()


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from([(7,), (5, 4), (3, 4, 5), (2, 3000)]),
    draw=st.randoms(use_true_random=False),
    count=st.integers(0, 12),
    along=st.integers(1, 3),
)
def test_indices_along_any_number_of_dimensions_name_what_numpy_names(
    shape: tuple[int, ...], draw: Any, count: int, along: int
) -> None:
    along = min(along, len(shape))
    places = np.array([[draw.randrange(size) for _ in range(count)] for size in shape[:along]], np.int64)
    values = np.array([draw.randrange(-9, 9) for _ in range(count * int(np.prod(shape[along:])))], np.float32)
    values = values.reshape(count, *shape[along:])
    whole = np.zeros(shape, np.float32)
    np.add.at(whole, tuple(places), values)
    with ps.init() as job:
        w = job.tensor("w", shape=shape)
        w.push(ps.Sparse(places if along > 1 or draw.random() < 0.5 else places[0], values))
        np.testing.assert_array_equal(w.pull(), whole)


def test_chunks_that_nobody_touches_get_their_version_and_their_step(job: ps.Job) -> None:
    w = job.tensor("w", shape=1_000_000, optimizer=ps.SGD(1.0))
    for step in range(3):
        w.push(ps.Sparse([step, 999_999], [1.0, 1.0]))
        assert w.pull()[step] == -1
        assert w.version == step + 1
        job.clock()
    assert np.count_nonzero(w.pull()) == 4
    assert w.optimizer_state()["step"] == 3


def test_parts_of_one_contribution_may_be_sparse_or_not(job: ps.Job) -> None:
    w = job.tensor("w", shape=20_000)
    ones = np.ones(20_000, np.float32)
    for first, second in ((ones, ps.Sparse([3], [4.0])), (ps.Sparse([3], [4.0]), ones)):
        before = w.pull().copy()
        w.push(first, more=True)
        w.push(ps.Sparse([19_999, 3], [1.0, 1.0]), more=True)
        w.push(second)
        gained = w.pull() - before
        assert gained[3] == 6
        assert gained[-1] == 2
        assert np.all(gained[4:-1] == 1)
        job.clock()


def test_a_push_that_fails_changes_nothing_and_what_stands_in_the_lane_is_no_contribution(
    job: ps.Job,
) -> None:
    w = job.tensor("w", shape=(4, 3), refuse_nonfinite=True)
    good = np.ones((1, 3), np.float32)
    for wrong, error, says in (
        (lambda: ps.Sparse([4], good), UnknownElement, "expected indices from 0 to 3, got 4 at place 0"),
        (lambda: ps.Sparse([0, -1], [good[0]] * 2), UnknownElement, "got -1 at place 1"),
        (
            lambda: ps.Sparse([[0], [3]], [1.0]),
            UnknownElement,
            "expected indices from 0 to 2, got 3 at place 0",
        ),
        (lambda: ps.Sparse([[0], [0], [0]], [1.0]), ShapeError, "has 2 dimensions, got indices of 3"),
        (
            lambda: ps.Sparse([0], np.ones((1, 2), np.float32)),
            ShapeError,
            "expected values of shape (1, 3), got (1, 2)",
        ),
        (lambda: ps.Sparse([0], np.ones((1, 3), np.float64)), DtypeError, "has dtype float32, got float64"),
        (lambda: ps.Sparse([0.5], good), DtypeError, "expected indices as whole numbers, got dtype float64"),
        (lambda: ps.Sparse([0, 1], good), ShapeError, "expected as many values as indices, 2, got"),
        (lambda: ps.Sparse(0, good), ShapeError, "expected indices of shape"),
        (lambda: ps.Sparse([[[0]]], good), ShapeError, "expected indices of shape"),
        (lambda: ps.Sparse([2], [[1.0, np.nan, 1.0]]), NonFiniteError, "element 7 of the flattened array"),
    ):
        with pytest.raises(error) as raised:
            w.push(wrong())
        assert says in str(raised.value), str(raised.value)
    w.push(ps.Sparse([2], good))
    with pytest.raises(AlreadyPushed):
        w.push(ps.Sparse([2], good))
    np.testing.assert_array_equal(w.pull()[2], good[0])
    assert np.count_nonzero(w.pull()) == 3
    job.clock()
    with pytest.raises(OptionError, match="what stands in the lane is no contribution"):
        w.push()
    lane = w.lane()
    lane[:] = 1
    w.push()
    assert w.pull()[0, 0] == 1
    job.clock()
    with pytest.raises(UnknownElement) as unknown:
        w.push(ps.Sparse([1, 9], [good[0]] * 2))
    assert unknown.value.place == 1


def test_an_empty_contribution_is_one_of_zeros(job: ps.Job) -> None:
    plain = job.tensor("plain", np.ones((4, 3), np.float32), optimizer=ps.SGD(0.5))
    heavy = job.tensor("heavy", np.ones((4, 3), np.float32), optimizer=ps.SGD(0.5, weight_decay=1.0))
    for tensor, value in ((plain, 1.0), (heavy, 0.5)):
        tensor.push(ps.Sparse([], np.empty((0, 3), np.float32)))
        assert np.all(tensor.pull() == value)
        assert tensor.optimizer_state()["step"] == 1


def test_sparse_contributions_go_by_every_way_that_others_do(job: ps.Job) -> None:
    w = job.tensor("w", shape=10)
    assert w.pushpull(ps.Sparse([1], [2.0]))[1] == 2
    job.clock()
    future = w.push_async(ps.Sparse([1], [2.0]))
    job.clock()
    assert future.result() == 1
    assert w.pull()[1] == 4
    both = w.pushpull_async(ps.Sparse([1], [2.0]), out=np.empty(10, np.float32)).result()
    assert both[1] == 6
    assert repr(ps.Sparse([1], [2.0])) == "Sparse(1 places)"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors_of_torch_are_taken(job: ps.Job) -> None:
    torch = pytest.importorskip("torch")
    embedding = torch.nn.Embedding(1000, 8, sparse=True)
    # Whole numbers: torch steps once for each time that a row is named.
    torch.nn.init.constant_(embedding.weight, 3.0)
    w = job.tensor("w", embedding.weight, optimizer=ps.SGD(0.5))
    alone = torch.optim.SGD(embedding.parameters(), lr=0.5)
    for _ in range(3):
        alone.zero_grad()
        embedding(torch.tensor([3, 999, 3, 0])).sum().backward()
        w.push(embedding.weight.grad)
        alone.step()
        np.testing.assert_array_equal(w.pull(), embedding.weight.detach().numpy())
        job.clock()
    for wrong in (torch.zeros(500, 8).to_sparse(), torch.zeros(8, 1000).to_sparse()):
        with pytest.raises(ShapeError, match=r"has shape \(1000, 8\), got"):
            w.push(wrong)
    with pytest.raises(DtypeError, match="to_dense"):
        w.push(torch.zeros(1000, 8).to_sparse().to("meta"))
    with pytest.raises(DtypeError, match="to_sparse_coo"):
        w.push(torch.zeros(1000, 8).to_sparse_csr())


def test_between_hosts_little_travels(tmp_path: Path) -> None:
    script = tmp_path / "sent.py"
    script.write_text(
        """
import numpy as np, sys
import penstock as ps
with ps.init() as job:
    took = []
    for name, options in {"raw": {}, "sparse": {"sparse": True}}.items():
        w = job.tensor(name, shape=(10_000, 64), optimizer=ps.SGD(0.1), **options)
        w.pull()
        draw = np.random.default_rng(job.rank)
        before = dict(job.stats())
        for step in range(10):
            w.push(ps.Sparse(draw.integers(0, 10_000, 8), np.ones((8, 64), np.float32)))
            w.pull()
            job.clock()
        after = job.stats()
        took.append([after[key] - before[key] for key in ("sent_bytes", "received_bytes")])
        job.barrier()
    np.save(f"{sys.argv[1]}/{job.rank}.npy", np.array(took) / 10)
"""
    )
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "2", "--transport", "tcp"]
    ended = subprocess.run(
        [*command, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    chunk, rows = 32 * 1024, 8 * 64 * 4
    for rank in range(2):
        (sent, received), (fewer, less) = np.load(tmp_path / f"{rank}.npy")
        # Of 79 chunks each worker touches some 8: those go, and those that both touch come.
        assert 7 * chunk < sent < 9 * chunk + 8000
        assert 13 * chunk < received < 17 * chunk + 20_000
        # And of these the numbers alone.
        assert rows < fewer < 2 * rows + 8000
        assert 2 * rows < less < 4 * rows + 20_000


class _Half(ps.OwnFilter):
    """Sends what is above a bound."""

    def __init__(self, bound: float) -> None:
        self.bound = bound

    def send(self, due: Any, clock: int) -> Any:
        return np.where(due >= self.bound, due, 0)


def test_a_filter_of_the_programs_own_sees_the_whole_array(job: ps.Job) -> None:
    w = job.tensor("w", shape=(50, 2), filter=ps.Filters(push=_Half(3.0)))
    w.push(ps.Sparse([7, 7, 3], [[1.0, 4.0], [1.0, 0.0], [2.0, 2.0]]))
    expected = np.zeros((50, 2), np.float32)
    expected[7] = (0, 4)
    np.testing.assert_array_equal(w.pull(), expected)
    assert w.held_back.elements == 3
    job.clock()
    w.push(ps.Sparse([7], [[1.0, 0.0]]), more=True)
    w.push(ps.Sparse([3], [[1.0, 0.0]]))
    expected[7, 0], expected[3, 0] = 3, 3
    np.testing.assert_array_equal(w.pull(), expected)
    assert w.held_back.elements == 1


def test_sums_that_are_not_finite_are_refused_where_values_are(job: ps.Job) -> None:
    w = job.tensor("w", shape=(1000, 4), dtype="float16", refuse_nonfinite=True)
    row = np.full((1, 4), 60000, np.float16)
    with pytest.raises(NonFiniteError) as refused:
        w.push(ps.Sparse([700, 3, 700], np.concatenate([row, row, row])))
    assert refused.value.index == 2800
    w.push(ps.Sparse([700], row))
    assert w.pull()[700, 0] == 60000


def test_a_filter_of_broadcasts_chooses_as_after_a_push_of_all_of_it(job: ps.Job) -> None:
    tensors = [
        job.tensor(how, shape=50_000, filter=ps.Filters(broadcast=ps.DVF(4.0))) for how in ("dense", "sparse")
    ]
    draw = np.random.default_rng(3)
    for _ in range(12):
        places = draw.integers(0, 50_000, 300)
        values = draw.integers(-3, 4, 300).astype(np.float32)
        whole = np.zeros(50_000, np.float32)
        np.add.at(whole, places, values)
        tensors[0].push(whole)
        tensors[1].push(ps.Sparse(places, values))
        assert tensors[0].pull().tobytes() == tensors[1].pull().tobytes()
        job.clock()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:9", "asp"])
def test_each_sparse_push_is_a_step_whoever_comes_when(
    spawn_job: Any, consistency: str, transport: str
) -> None:
    """Steps of what was skipped were lost where a worker ran ahead, and told late where another stood."""
    spawn_job(
        2,
        f"""
        import time
        with ps.init() as job:
            w = job.tensor(
                "w",
                shape=30_000,
                optimizer=ps.Adagrad(1.0, lr_decay=1.0),
                reduce="sum",
                consistency={consistency!r},
            )
            job.barrier()
            if job.rank == 0:
                for step in range(40):
                    w.push(ps.Sparse([] if step % 3 else [5], [] if step % 3 else [1.0]))
                    job.clock()
                if {consistency!r} != "bsp":
                    assert w.optimizer_state()["step"] == 40
                job.barrier()
            else:
                for step in range(40):
                    if step % 7 == 0 and {consistency!r} == "bsp":
                        time.sleep(0.01)
                    job.clock()
                job.barrier()
            assert w.optimizer_state()["step"] == 40
            job.barrier()
        """,
        options={"transport": transport, "chunk_bytes": "4KiB"},
    )


def test_the_optimizers_state_after_a_push_is_that_of_a_version(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import time
        with ps.init() as job:
            w = job.tensor("w", shape=30_000, optimizer=ps.Adagrad(1.0), reduce="sum")
            ones = np.ones(1, np.float32)
            for step in range(5):
                if job.rank:
                    time.sleep(0.1)
                    w.push(np.ones(30_000, np.float32))
                else:
                    w.push(ps.Sparse([0], ones))
                state = w.optimizer_state()
                assert state["step"] == step + 1
                assert np.all(state["sum"][1:] == step + 1), (step, state["sum"])
                job.clock()
                job.barrier()
        """,
    )


def test_matrices_of_scipy_are_taken(job: ps.Job) -> None:
    scipy = pytest.importorskip("scipy.sparse")
    whole = np.zeros((30, 7), np.float32)
    whole[[3, 3, 29], [0, 6, 2]] = (1, 2, 3)
    w = job.tensor("w", shape=(30, 7))
    for made in (scipy.csr_matrix, scipy.coo_array, scipy.csc_matrix):
        before = w.pull().copy()
        w.push(made(whole))
        np.testing.assert_array_equal(w.pull() - before, whole)
        job.clock()
    with pytest.raises(ShapeError, match="has shape"):
        w.push(scipy.csr_matrix(whole.T))
    line = job.tensor("line", shape=30)
    line.push(scipy.coo_array(whole[:, 0]))
    np.testing.assert_array_equal(line.pull(), whole[:, 0])
