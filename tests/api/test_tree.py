"""The option `tree`, as scripts give it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock import _core
from penstock.job import as_text


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (ps.Tree(degree=2), "tree:degree=2"),
        (ps.Tree(degree=np.int64(3), depth=4), "tree:degree=3,depth=4"),
        (ps.Tree(degree=2, leaf_penalty=1), "tree:degree=2,leaf_penalty=1.0"),
        (
            ps.Tree(degree=2**32 - 1, depth=1, leaf_penalty=1e-7),
            "tree:degree=4294967295,depth=1,leaf_penalty=1e-07",
        ),
        (ps.Tree(2, leaf_penalty=-0.0), "tree:degree=2"),
        ("striped:8", "striped:8"),
    ],
)
def test_a_tree_reaches_the_core_as_it_was_given(tree: Any, text: str) -> None:
    given = as_text({"tree": tree, "rack": "zone2/r7"})
    assert (given["tree"], given["rack"]) == (text, "zone2/r7")
    _core.check_options(given)


@pytest.mark.parametrize("degree", [0, -1, 1.5, "2", None, True, 2**32])
def test_a_degree_that_cannot_be_is_refused(degree: Any) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="expected a degree of at least 1"):
        ps.Tree(degree=degree)


@pytest.mark.parametrize("depth", [0, -1, 1.5, "2", False, 2**32])
def test_a_depth_that_cannot_be_is_refused_with_what_leaving_it_out_means(depth: Any) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="expected a depth of at least 1") as caught:
        ps.Tree(degree=2, depth=depth)
    assert "the least that reaches all" in str(caught.value.hint)


@pytest.mark.parametrize("penalty", [-0.5, float("nan"), float("inf"), 1e7, "0.5", None, True, 10**400])
def test_a_penalty_on_leaves_that_cannot_be_is_refused(penalty: Any) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="expected a leaf_penalty from 0 to 1e"):
        ps.Tree(degree=2, leaf_penalty=penalty)


def test_a_tree_stays_as_it_is() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ps.Tree(degree=2).degree = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("tree", "ring", "expected star, auto, chain, striped, striped:STRIPES or tree:"),
        ("tree", "striped:0", "expected 1 to 64 stripes"),
        ("tree", "tree:degree=0", "expected a degree of at least 1"),
        ("tree", "tree:degree=2,leaf_penalty=-1", "expected a leaf_penalty from 0"),
        ("tree", ps.Tree, "expected star, auto"),
        ("rack", "a/b/c", "expected a rack"),
        ("rate", "1gb", "expected a rate from 8kbit to 8tbit"),
    ],
)
def test_what_no_job_can_want_is_refused_before_anything_happens(
    option: str, value: Any, expected: str
) -> None:
    with pytest.raises(ps.exceptions.OptionError, match=expected) as caught:
        ps.init(**{option: value})
    assert f"PENSTOCK_{option.upper()}" in str(caught.value.hint)


def test_a_worker_alone_may_want_any_tree() -> None:
    with ps.init(tree=ps.Tree(degree=2)) as job:
        w = job.tensor("w", value=np.zeros(3), optimizer=ps.SGD(1.0))
        assert w.pushpull(np.ones(3)).tolist() == [-1.0] * 3


def test_workers_that_want_different_trees_are_told_so(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        rank = int(os.environ["PENSTOCK_RANK"])
        wanted = ["chain", ps.Tree(degree=2)]
        told = ""
        try:
            job = ps.init(tree=wanted[rank])
        except ps.exceptions.OptionError as error:
            told = f"{error} | {error.hint}"
            # Whoever was second takes what the first has: nothing was kept of what it wanted before.
            job = ps.init(tree=wanted[1 - rank])
        w = job.tensor("w", value=np.zeros(3), optimizer=ps.SGD(1.0), propagation="broadcast")
        save(told=np.array(told), w=w.pushpull(np.ones(3)))
        job.close()
        """,
        options={"transport": "tcp"},
    )
    told = [str(one["told"]) for one in saved]
    second = 0 if told[0] else 1
    assert told[1 - second] == ""
    both = ["chain", "tree:degree=2"]
    wants = (
        f"the job's first worker wants the trees `{both[1 - second]}`, worker {second} wants `{both[second]}`"
    )
    assert told[second].startswith(wants)
    assert "PENSTOCK_TREE" in told[second]
    assert all(one["w"].tolist() == [-1.0] * 3 for one in saved)
