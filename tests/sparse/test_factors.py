"""Contributions of low rank: what their product would do whole, for less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import three_workers

import penstock as ps
from penstock.exceptions import AlreadyPushed, DtypeError, NonFiniteError, OptionError, ShapeError


@pytest.mark.parametrize("transport", ["auto", "tcp", "mixed"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_workers_that_push_factors_train_as_if_they_pushed_the_product(
    consistency: str, transport: str
) -> None:
    three_workers.run("factors.py", consistency, transport)


def test_factors_are_u_at_v_and_the_transposed_one_is_named(job: ps.Job) -> None:
    w = job.tensor("w", shape=(5, 3), optimizer=ps.Add())
    p, q = np.arange(10.0).reshape(5, 2), np.arange(6.0).reshape(3, 2)
    w.push_factors(p.astype(np.float32), q.T.astype(np.float32))
    np.testing.assert_array_equal(w.pull(), p @ q.T)
    job.clock()
    with pytest.raises(ShapeError, match=r"expected factors of shapes \(5, r\) and \(r, 3\)") as caught:
        w.push_factors(p.astype(np.float32), q.astype(np.float32))
    assert any("give v.T" in note for note in caught.value.__notes__)
    # Lists are converted, and what torch has is taken as a push takes it.
    torch = pytest.importorskip("torch")
    w.push_factors(torch.ones(5, 1), [[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(w.pull(), p @ q.T + [1, 2, 3])


def test_no_rank_is_zeros_and_what_is_not_finite_spreads_as_in_a_product(job: ps.Job) -> None:
    w = job.tensor("w", shape=(4, 3), optimizer=ps.SGD(1.0))
    w.push_factors(np.zeros((4, 0), np.float32), np.zeros((0, 3), np.float32))
    np.testing.assert_array_equal(w.pull(), np.zeros((4, 3)))
    assert w.optimizer_state()["step"] == 1
    job.clock()
    u, v = np.ones((4, 2), np.float32), np.ones((2, 3), np.float32)
    u[1, 1], v[0, 2] = np.inf, 0.0
    v[1, 2] = 0.0
    w.push_factors(u, v)
    seen = w.pull()
    assert np.isinf(seen[1, :2]).all()
    assert np.isnan(seen[1, 2])
    assert np.isfinite(np.delete(seen, 1, axis=0)).all()


def test_parts_of_one_contribution_may_be_factors(job: ps.Job) -> None:
    w = job.tensor("w", shape=(4, 3), low_rank=2)
    ones = np.ones((4, 3), np.float32)
    u, v = ones[:, :1], ones[:1]
    w.push(ones, more=True)
    w.push_factors(u, v, more=True)
    w.push(ps.Sparse([0], ones[:1]), more=True)
    w.push_factors_async(u, v).result()
    assert np.all(w.pull()[0] == 4)
    assert np.all(w.pull()[1:] == 3)
    job.clock()
    w.push_factors(u, v, more=True)
    w.push(ones)
    assert np.all(w.pull()[0] == 6)


def test_a_push_that_fails_changes_nothing_and_what_stands_in_the_lane_is_no_contribution(
    job: ps.Job,
) -> None:
    w = job.tensor("w", shape=(4, 3), refuse_nonfinite=True, low_rank=2)
    u, v = np.ones((4, 1), np.float32), np.ones((1, 3), np.float32)
    bad = np.array([[1.0, np.inf, 1.0]], np.float32)
    wrong: list[tuple[Any, Any, Any, str]] = [
        (u[:3], v, ShapeError, r"got \(3, 1\) and \(1, 3\)"),
        (u, v[0], ShapeError, r"got \(4, 1\) and \(3,\)"),
        (u, np.ones((2, 3), np.float32), ShapeError, r"got \(4, 1\) and \(2, 3\)"),
        (u.astype(np.float64), v, DtypeError, "float64"),
        (u, bad, NonFiniteError, "element 1"),
    ]
    for left, right, error, says in wrong:
        with pytest.raises(error, match=says):
            w.push_factors(left, right)
    w.push_factors(u, v)
    assert np.all(w.pull() == 1)
    with pytest.raises(AlreadyPushed):
        w.push_factors(u, v)
    job.clock()
    with pytest.raises(OptionError, match="what stands in the lane is no contribution"):
        w.push()
    flat = job.tensor("flat", shape=12)
    with pytest.raises(ShapeError, match="expected a tensor of two dimensions"):
        flat.push_factors(u, v)


def test_an_own_filter_is_given_the_product(job: ps.Job) -> None:
    class Half(ps.OwnFilter):
        def send(self, due: Any, clock: int) -> Any:
            return due / 2

    w = job.tensor("w", shape=(4, 3), filter=ps.Filters(push=Half()))
    w.push_factors(np.ones((4, 2), np.float32), np.ones((2, 3), np.float32))
    assert np.all(w.pull() == 1)


@pytest.mark.parametrize(
    ("shape", "low_rank", "says"),
    [
        ((4, 3), 1025, "expected 0 to 1024 for `low_rank`, got 1025"),
        (12, 2, "expected a matrix"),
        ((2, 3, 4), 2, "expected a matrix"),
        ((4, 3), True, "expected low_rank as a whole number"),
        ((4, 3), -1, "expected low_rank as a whole number"),
        ((4, 3), 1.5, "expected low_rank as a whole number"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(
    job: ps.Job, shape: Any, low_rank: Any, says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        job.tensor("w", shape=shape, low_rank=low_rank)


def test_who_declares_another_rank_is_told(job: ps.Job) -> None:
    job.tensor("w", shape=(4, 3), low_rank=2)
    with pytest.raises(ps.exceptions.DeclarationConflict, match="low_rank"):
        job.tensor("w", shape=(4, 3), low_rank=3)
