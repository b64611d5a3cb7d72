"""Models in torch's own wrappers, whose gradients go through the job: what torch's own exchange gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import OptionError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch was built without Gloo, which DistributedDataParallel needs on the CPU",
)

START = """
import contextlib
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
rank, size = int(os.environ["PENSTOCK_RANK"]), int(os.environ["PENSTOCK_SIZE"])
meeting = f"file://{os.environ['TEST_OUT']}.gloo"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
job = ps.init()

def flat(model):
    return np.concatenate([p.detach().double().reshape(-1).numpy() for p in model.parameters()])

def batch(step, size=8):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(size, 6, generator=generator), torch.randn(size, 3, generator=generator)
"""

REPLICATED = (
    START
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 50)
        self.middle = torch.nn.ModuleList(torch.nn.Linear(50, 50) for _ in range(4))
        self.norm = torch.nn.BatchNorm1d(50)
        self.sometimes = torch.nn.Linear(50, 50)
        self.last = torch.nn.Linear(50, 3)
    def forward(self, x, sometimes=True):
        h = self.first(x).tanh()
        for layer in self.middle:
            h = layer(h).tanh()
        h = self.norm(h)
        return self.last(self.sometimes(h) if sometimes else h)

def train(share, *, unused=False, accumulate=False, dtype=torch.float32):
    torch.manual_seed(0)
    net = Net().to(dtype)
    # Small buckets, in another order than gradients come: they are made anew after the first pass.
    model = DistributedDataParallel(net, bucket_cap_mb=0.01, find_unused_parameters=unused)
    share(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        x, y = (t.to(dtype) for t in batch(step))
        alone = accumulate and step % 2 == 0
        if not accumulate or step % 2 == 0:
            optimizer.zero_grad()
        with model.no_sync() if alone else contextlib.nullcontext():
            sometimes = not unused or (step + rank) % 2 == 0
            torch.nn.functional.mse_loss(model(x, sometimes), y).backward()
        if not alone:
            optimizer.step()
    return flat(net)

states = []
def by_penstock(model):
    states.append(ps.torch.hooks.State())
    model.register_comm_hook(states[-1], ps.torch.hooks.average)

found = {}
CASES = {"plain": {}, "unused": {"unused": True}, "accumulate": {"accumulate": True},
         "half": {"dtype": torch.bfloat16}}
for name, options in CASES.items():
    before = job.iteration
    found[name] = train(by_penstock, **options)
    found[name + "/iterations"] = job.iteration - before
    found[name + "/torch"] = train(lambda model: None, **options)
# The first pass's buckets, and of those made anew the ones of another size.
found["made"] = states[0]._made

# Two models in turns, as of a GAN.
def two(share):
    torch.manual_seed(1)
    nets = [torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)]
    models = [DistributedDataParallel(net) for net in nets]
    for model in models:
        share(model)
    for step in range(3):
        x, y = batch(step)
        for model, other, target in ((models[0], models[1], y), (models[1], models[0], y + 1)):
            for net in nets:
                net.zero_grad()
            torch.nn.functional.mse_loss(models[1](models[0](x)), target).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
    return np.concatenate([flat(net) for net in nets])

found["two"] = two(by_penstock)
found["two/torch"] = two(lambda model: None)

# What would average with others than torch does, or what torch refuses by an error of its own.
def refused(model):
    try:
        ps.torch.hooks.register(model)
    except ps.exceptions.OptionError as error:
        return str(error)

groups = [dist.new_group([one]) for one in range(size)]
apart = DistributedDataParallel(torch.nn.Linear(6, 3), process_group=groups[rank])
found["apart"] = refused(apart)
twice = DistributedDataParallel(torch.nn.Linear(6, 3))
ps.torch.hooks.register(twice)
found["twice"] = refused(twice)
save(**found)
dist.destroy_process_group()
"""
)

SHARDED = (
    START
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))

def thaw(model, step):
    # A group's gradients are fewer at first, then more.
    model[2].weight.requires_grad_(step >= 2)

def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(5):
        thaw(model, step)
        x, y = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model

def whole(model):
    return np.concatenate([p.full_tensor().detach().double().reshape(-1).numpy() for p in model.parameters()])

def sharded(mesh):
    model = net()
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)

ours = sharded(mesh["shards"])
ps.torch.hooks.replicate(ours, mesh["shards"])
before = job.iteration
mine = whole(train(ours))
groups = (job.iteration - before) / 5
theirs = whole(train(sharded(mesh)))
alone = net()
optimizer = torch.optim.AdamW(alone.parameters(), lr=0.05)
for step in range(5):
    thaw(alone, step)
    optimizer.zero_grad()
    for rank in range(size):
        x, y = batch(step)
        (torch.nn.functional.mse_loss(alone(x), y) / size).backward()
    optimizer.step()
save(mine=mine, theirs=theirs, alone=flat(alone), groups=groups)
dist.destroy_process_group()
"""
)


@pytest.fixture(scope="module")
def replicated(spawn_shared_job: Callable[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spawn_shared_job(2, REPLICATED)
    return found


@pytest.mark.parametrize("case", ["plain", "unused", "accumulate", "two"])
def test_a_wrapped_model_trains_as_with_gloo(case: str, replicated: list[dict[str, Any]]) -> None:
    for saved in replicated:
        np.testing.assert_allclose(saved[case], saved[f"{case}/torch"], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(saved[case], replicated[0][case])


def test_parameters_of_half_the_width_are_averaged_too(replicated: list[dict[str, Any]]) -> None:
    for saved in replicated:
        np.testing.assert_allclose(saved["half"], saved["half/torch"], rtol=0, atol=0.05)
        np.testing.assert_array_equal(saved["half"], replicated[0]["half"])


def test_a_pass_is_one_iteration_of_the_job_and_one_within_no_sync_is_none(
    replicated: list[dict[str, Any]],
) -> None:
    for saved in replicated:
        assert (saved["plain/iterations"], saved["accumulate/iterations"]) == (6, 3)


def test_buckets_that_are_made_anew_use_the_tensors_of_their_size_again(
    replicated: list[dict[str, Any]],
) -> None:
    # Six passes of several buckets: without using them again, there would be as many as that.
    for saved in replicated:
        assert 2 <= saved["made"] <= 12


def test_a_model_of_a_smaller_process_group_and_a_second_hook_are_refused(
    replicated: list[dict[str, Any]],
) -> None:
    """Models that differ, as under tensor parallelism, were averaged with each other."""
    for saved in replicated:
        assert str(saved["apart"]) == "the model's process group has 1 processes, the job has 2 workers"
        assert "has a communication hook already" in str(saved["twice"])


def test_a_sharded_model_is_averaged_over_its_replicas_also_after_unfreezing(
    spawn_job: Callable[..., Any],
) -> None:
    for saved in spawn_job(4, SHARDED):
        np.testing.assert_allclose(saved["mine"], saved["theirs"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(saved["mine"], saved["alone"], rtol=0, atol=1e-5)
        assert saved["groups"] == 2


def test_what_is_not_wrapped_is_refused_with_what_to_do(job: ps.Job) -> None:
    with pytest.raises(OptionError, match="expected a DistributedDataParallel, got Linear") as raised:
        ps.torch.hooks.register(torch.nn.Linear(2, 2), job)
    assert "ps.torch.distribute(model)" in raised.value.hint

    class Mesh:
        ndim = 1

        def size(self) -> int:
            return 1

    with pytest.raises(OptionError, match="expected a model that torch's fully_shard has sharded"):
        ps.torch.hooks.replicate(torch.nn.Linear(2, 2), Mesh(), job)
