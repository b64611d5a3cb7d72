"""
Buffers that a model is given after `distribute`, or loses again: they travel as the others do, as under
DistributedDataParallel, which collects a model's buffers anew whenever it sends them.
"""

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

class Lazy(nn.Module):
    '''Makes its buffers in its first forward pass.'''
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("count", None)
    def forward(self, x):
        y = self.layer(x)
        if self.count is None:
            self.register_buffer("ema", y.detach().mean(0).clone())
            self.count = torch.zeros(1, dtype=torch.int64)
        self.ema = self.ema * 0.9 + y.detach().mean(0) * 0.1
        self.count = self.count + 1 + job.rank
        return y + self.ema

def train(model, steps, do=lambda model, step: None, seed=0, **options):
    torch.manual_seed(seed)
    model.to(torch.float32)
    model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    # What each worker draws is its own.
    torch.manual_seed(10 * seed + job.rank + 1)
    for step in range(steps):
        do(model, step)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return model

def state(model):
    return np.concatenate([one.double().reshape(-1).numpy() for one in model.buffers()])

def in_forward(**options):
    return train(Lazy(), 4, **options)

def pruned(**options):
    def do(model, step):
        if step == 2:
            prune.random_unstructured(model[0], "weight", amount=0.5)
    return train(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), 4, do, **options)

def pruned_and_made_permanent(**options):
    def do(model, step):
        if step % 4 == 1:
            prune.random_unstructured(model[0], "weight", amount=0.5)
        if step % 4 == 3:
            # From now on `weight` is the parameter again.
            prune.remove(model[0], "weight")
    return train(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), 7, do, **options)

def a_layer_of_buffers(**options):
    def do(model, step):
        if step == 1:
            model.append(nn.Sequential(nn.BatchNorm1d(3, affine=False)))
    return train(nn.Sequential(nn.Linear(3, 3)), 3, do, **options)

def into_the_dictionary(**options):
    def do(model, step):
        if step == 1:
            model._buffers["late"] = torch.rand(3)
    return train(nn.Sequential(nn.Linear(3, 3)), 3, do, check_every=1, **options)

def shared(**options):
    def do(model, step):
        if step == 1:
            model[0].register_buffer("one", torch.rand(3))
            model[1].register_buffer("same", model[0].one)
        if step == 2:
            assert model[0].one is model[1].same
    return train(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), 3, do, **options)

def of_a_model_in_its_memory(**options):
    '''Each has other late buffers than the last one, whose memory it uses.'''
    for size in (5, 6, 7):
        def do(model, step):
            if step == 1:
                model.register_buffer("late", torch.rand(size))
        model = train(nn.Sequential(nn.Linear(3, 3)), 3, do, **options)
        ps.torch.unwrap(model)
    return model

def compiled():
    class Kept(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            self.mean = self.mean * 0.5 + y.detach().mean(0)
            return y
    torch.manual_seed(job.rank)
    model = Kept(3, 3)
    model.register_buffer("mean", torch.zeros(3))
    model = ps.torch.distribute(model)
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        fast(torch.randn(4, 3)).square().mean().backward()
    return model

def on_one_worker():
    def do(model, step):
        if step == 1 and job.rank == 1:
            prune.random_unstructured(model[0], "weight", amount=0.5)
    train(nn.Sequential(nn.Linear(3, 3)), 4, do)

found = {}
with ps.init() as job:
    for part in (in_forward, pruned, pruned_and_made_permanent, a_layer_of_buffers, into_the_dictionary,
                 shared, of_a_model_in_its_memory):
        for kind in ("rank0", "mean", "local"):
            found[f"{part.__name__} {kind}"] = state(part(buffers=kind))
    found["compiled"] = state(compiled())
next_job()
try:
    with ps.init() as job:
        on_one_worker()
except ps.PenstockError as error:
    found["on one"] = np.array([type(error).__name__, str(error)])
save(**found)
"""


@pytest.fixture(scope="module")
def late(spawn_shared_job: Any) -> list[dict[str, Any]]:
    saved: list[dict[str, Any]] = spawn_shared_job(2, LATE, jobs=2, fails=True)
    assert [one["code"] for one in saved] == [0, 0], saved
    return saved


PARTS = [
    "in_forward",
    "pruned",
    "pruned_and_made_permanent",
    "a_layer_of_buffers",
    "into_the_dictionary",
    "shared",
    "of_a_model_in_its_memory",
]


# A pruning mask that each worker drew for itself stayed its own: each trained another model.
@pytest.mark.parametrize("part", PARTS)
def test_buffers_that_come_after_distribute_travel_too(late: list[dict[str, Any]], part: str) -> None:
    rank0, mean, local = ([one[f"{part} {kind}"] for one in late] for kind in ("rank0", "mean", "local"))
    assert rank0[0].size
    np.testing.assert_array_equal(rank0[1], rank0[0])
    np.testing.assert_array_equal(mean[1], mean[0])
    assert (local[0] != local[1]).any()
    assert (mean[0] != rank0[0]).any()


def test_a_compiled_model_may_assign_its_buffers(late: list[dict[str, Any]]) -> None:
    np.testing.assert_array_equal(late[0]["compiled"], late[1]["compiled"])


def test_a_buffer_that_only_one_worker_has_got_is_a_typed_error(late: list[dict[str, Any]]) -> None:
    found = [tuple(one["on one"]) for one in late]
    # The worker that is told first leaves, and the other may hear only of that.
    assert any(kind == "DeclarationConflict" and "not given the same buffers" in text for kind, text in found)
    assert all(kind in ("DeclarationConflict", "WorkerLost", "JobFailed") for kind, _ in found), found
    for (kind, text), mine in zip(found, ("worker 0's: none", "worker 1's: `0.weight_mask`"), strict=True):
        assert kind != "DeclarationConflict" or mine in text
