"""Who is told that what filters of pushes hold back is not there, or is lost."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import penstock as ps

NONE = "What filters of pushes hold back is not in"
STAYS = "What filters of pushes hold back stays where values are loaded"
LOST = "What filters of pushes hold back is lost"
TOP = ps.Filters(push=ps.TopK(0.125))


def test_closing_a_job_tells_of_what_is_lost_and_of_nothing_else() -> None:
    job = ps.init()
    for name in "abcde":
        held = job.tensor(name, shape=8, filter=TOP)
        held.push(np.ones(8, np.float32))
    flushed = job.tensor("flushed", shape=8, filter=TOP)
    flushed.push(np.ones(8, np.float32))
    job.clock()
    flushed.flush()
    with pytest.warns(
        UserWarning, match=rf"^{LOST}.*: 35 elements of `a`, `b`, `c`, 2 more \(norm 5.92\); call"
    ):
        job.close()
    assert job.closed


def test_without_anything_held_back_nothing_is_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ps.init() as job:
            w = job.tensor("w", shape=8, filter=TOP)
            w.push(np.ones(8, np.float32))
            job.clock()
            w.flush()
            w.pull(exact=True)


def test_where_warnings_are_errors_the_worker_leaves_as_one_that_failed() -> None:
    job = ps.init()
    job.tensor("w", shape=8, filter=TOP).push(np.ones(8, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=LOST):
            job.close()
    assert job.closed


def test_an_exact_pull_tells_once_and_names_the_caller(job: ps.Job) -> None:
    w = job.tensor("w", shape=8, filter=TOP)
    w.push(np.ones(8, np.float32))
    for exact in ({}, {"rows": [1]}):
        job._told.clear()
        with pytest.warns(UserWarning, match=rf"^{NONE}.*: 7 elements of `w`") as told:
            w.pull(exact=True, **exact)
        assert [one.filename for one in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            w.pull(exact=True)
    job.clock()
    w.flush()


def saves(model: Any, _: Any) -> None:
    model.state_dict()


def enters(_: Any, optimizer: Any) -> None:
    with optimizer.exact():
        pass


def test_states_and_exact_parameters_in_torch_tell_once() -> None:
    torch = pytest.importorskip("torch")
    with ps.init():
        for reads in (
            lambda model, _: model.state_dict(),
            lambda _, optimizer: optimizer.exact().__enter__(),
        ):
            model = torch.nn.Linear(4, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = ps.torch.distribute(model, optimizer, where="servers", filter=TOP)
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            with pytest.warns(UserWarning, match=rf"^{NONE}.* elements of `\S*weight`, `\S*bias`") as told:
                reads(model, optimizer)
            assert [one.filename for one in told] == [__file__]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model.state_dict()
            optimizer.flush()


def test_a_load_and_a_publication_tell_once_what_the_next_pushes_add_to_them(job: ps.Job) -> None:
    torch = pytest.importorskip("torch")
    w = job.tensor("w", shape=8, filter=TOP)
    w.push(np.ones(8, np.float32))
    job.clock()
    with pytest.warns(UserWarning, match=rf"^{STAYS}.*: 7 elements of `w`.*; call flush\(\) on") as told:
        w.load(value=np.zeros(8, np.float32))
    assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w.load(value=np.zeros(8, np.float32))
        v = job.tensor("v", shape=8, filter=TOP, optimizer=ps.Adam())
        v.push(np.ones(8, np.float32))
        # The value stays.
        v.load(step=3)
        job.clock()
        v.flush()
        v.load(value=np.zeros(8, np.float32))
        assert w.flush() is not None
    saved = torch.nn.Linear(4, 3).state_dict()
    for loads in (lambda model, _: model.load_state_dict(saved), lambda _, optimizer: optimizer.publish()):
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = ps.torch.distribute(model, optimizer, where="servers", filter=TOP)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loads(model, optimizer)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        with pytest.warns(UserWarning, match=rf"^{STAYS}.* elements of `\S*weight`, `\S*bias`") as told:
            loads(model, optimizer)
        assert [one.filename for one in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loads(model, optimizer)
        optimizer.flush()


def test_an_exact_pull_in_jax_tells_once() -> None:
    jnp = pytest.importorskip("jax.numpy")
    with ps.init():
        served = ps.jax.distribute(jnp.zeros(8), ps.SGD(0.5), filter=TOP)
        served.push_pull(jnp.ones(8))
        with pytest.warns(UserWarning, match=rf"^{NONE}.*: 7 elements") as told:
            served.pull(exact=True)
        assert [one.filename for one in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            served.pull(exact=True)
        served.flush()
