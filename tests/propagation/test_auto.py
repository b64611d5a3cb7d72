"""`propagation="auto"`: what it is, the same on every worker, and seen with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import DeclarationConflict

CHOOSES = ps.Filters(broadcast=ps.TopK(0.1))
FOLLOWS = ps.Filters(broadcast=ps.DVF(0.0, 1.0))
PASSES = ps.Filters(push=ps.TopK(0.1), broadcast=ps.DVF(0.0))
"""All of a value."""

RULE: list[tuple[str, ps.Filters | str | None, str, str, str]] = [
    # consistency, filter, without a tree, with one, the reason with one
    ("bsp", None, "pull", "broadcast", "has a tree"),
    ("bsp", CHOOSES, "pull", "broadcast", "has a tree"),
    ("ssp:2", None, "pull", "pull", "own updates"),
    ("ssp:2", PASSES, "pull", "pull", "own updates"),
    ("ssp:2", CHOOSES, "broadcast", "broadcast", "once for each version"),
    ("ssp:2", FOLLOWS, "broadcast", "broadcast", "once for each version"),
    ("ssp:2", "auto", "broadcast", "broadcast", "once for each version"),
    ("ssp:0", CHOOSES, "broadcast", "broadcast", "once for each version"),
    ("asp", None, "pull", "pull", "at each push"),
    ("asp", CHOOSES, "pull", "pull", "at each push"),
]


@pytest.mark.parametrize("tree", ["star", "auto", "chain", "striped:2", ps.Tree(degree=2)])
def test_each_case_is_what_the_rule_says_and_says_why(tree: Any) -> None:
    with ps.init(tree=tree) as job:
        for number, (consistency, given, without, with_tree, why) in enumerate(RULE):
            options: dict[str, Any] = {"consistency": consistency, "filter": given}
            w = job.tensor(f"w{number}", shape=3, propagation="auto", **options)
            assert w.propagation == (without if tree == "star" else with_tree), (consistency, given)
            if tree != "star" or consistency != "bsp":
                assert f"propagation={w.propagation!r}" in repr(w)
                assert '"auto": ' in repr(w)
                assert why in repr(w), repr(w)
            # Asked for by its name it is the same tensor.
            assert job.tensor(f"w{number}", shape=3, propagation=w.propagation, **options) is w
            other = "pull" if w.propagation == "broadcast" else "broadcast"
            with pytest.raises(DeclarationConflict, match="propagation"):
                job.tensor(f"w{number}", shape=3, propagation=other, **options)
            w.pushpull(np.ones(3, np.float32))


def test_the_consistency_of_the_job_counts_where_the_tensor_has_none() -> None:
    with ps.init(consistency="ssp:1") as job:
        assert job.tensor("w", shape=3, filter=CHOOSES, propagation="auto").propagation == "broadcast"
        assert job.tensor("v", shape=3, propagation="auto").propagation == "pull"
        adaptive = ps.SSP("auto", max=8)
        options: dict[str, Any] = {"consistency": adaptive, "filter": CHOOSES}
        assert job.tensor("u", shape=3, propagation="auto", **options).propagation == "broadcast"
        plain = job.tensor("x", shape=3, propagation="broadcast")
        assert repr(plain).endswith("propagation='broadcast')")


def test_workers_that_choose_and_workers_that_name_it_share_a_tensor(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        few = ps.Filters(broadcast=ps.TopK(0.5))
        with ps.init() as job:
            mine = "auto" if job.rank else "broadcast"
            w = job.tensor("w", shape=4, reduce="sum", consistency="ssp:1", filter=few, propagation=mine)
            for _ in range(3):
                w.push(np.ones(4, np.float32))
                job.clock()
            job.barrier()
            w.flush()
            assert w.pull().tolist() == [6, 6, 6, 6]
            try:
                job.tensor("v", shape=4, consistency="ssp:1", propagation="auto" if job.rank else "broadcast")
                job.barrier()
            except ps.exceptions.PenstockError as error:
                save(told=type(error).__name__)
                raise
        """,
        options={"transport": "tcp"},
        fails=True,
    )
