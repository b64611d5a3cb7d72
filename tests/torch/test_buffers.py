"""Buffers of which the script takes some out of the model, or gives it others, after `distribute`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

LATE = """
import torch
import torch.nn.utils.prune as prune
nn = torch.nn
torch.set_num_threads(1)

def train(model, steps, do):
    torch.manual_seed(0)
    model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    # What each worker draws is its own.
    torch.manual_seed(job.rank + 1)
    for step in range(steps):
        do(model, step)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return model

def growing(model, step):
    '''A cache of masks, which one worker makes longer than the other.'''
    model[0].register_buffer("mask", torch.ones(step + job.rank + 1), persistent=False)

def made_permanent(model, step):
    if step == 1:
        prune.remove(model[0], "weight")

found = {}
with ps.init() as job:
    model = train(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), 4, growing)
    found["cache"] = model[0].mask.numpy()
    found["mean"] = model[1].running_mean.numpy()
    torch.manual_seed(job.rank)
    pruned = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    prune.random_unstructured(pruned[0], "weight", amount=0.5)
    model = train(pruned, 3, made_permanent)
    found["kept"] = np.array(sorted(name for name, _ in model.named_buffers()))
    found["mean of the pruned"] = model[1].running_mean.numpy()
save(**found)
"""


@pytest.fixture(scope="module")
def late(spawn_shared_job: Any) -> list[dict[str, Any]]:
    saved: list[dict[str, Any]] = spawn_shared_job(2, LATE)
    assert [one["code"] for one in saved] == [0, 0], saved
    return saved


def test_a_buffer_that_comes_after_distribute_is_each_workers_own(late: list[dict[str, Any]]) -> None:
    assert [len(one["cache"]) for one in late] == [4, 5]
    np.testing.assert_array_equal(late[0]["mean"], late[1]["mean"])


# It ended the pass by a KeyError.
def test_a_buffer_may_be_taken_out(late: list[dict[str, Any]]) -> None:
    for one in late:
        assert list(one["kept"]) == ["1.num_batches_tracked", "1.running_mean", "1.running_var"]
    np.testing.assert_array_equal(late[0]["mean of the pruned"], late[1]["mean of the pruned"])
