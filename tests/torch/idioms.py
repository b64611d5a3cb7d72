"""
What PyTorch scripts do between two steps, each as a small training loop that runs in four ways: in one
process on the joined batch, under DistributedDataParallel, and under both modes of `ps.torch.distribute`.

A module of its own, so that the processes that run it need no pytest.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import penstock as ps
import penstock.torch

STEPS = 5
EACH = 4
"""Rows of a batch for each worker."""

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class World:
    """One way to run a loop, as one of its workers sees it."""

    way: str
    rank: int
    size: int
    unused: bool = False
    """Whether DistributedDataParallel is told to look for unused parameters."""
    buffers: dict[str, Any] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        return self.way == "plain"

    def wrap(self, model: Any, *optimizers: Any, **options: Any) -> Any:
        """The model, and its optimizers, as this way needs them."""
        if self.way == "ddp":
            model = DistributedDataParallel(model, find_unused_parameters=self.unused)
        if self.way in ("gradients", "servers"):
            if not optimizers:
                return ps.torch.distribute(model, where=self.way, **options)
            assert len(optimizers) == 1
            return ps.torch.distribute(model, optimizers[0], where=self.way, **options)
        return (model, *optimizers) if optimizers else model

    def no_sync(self, model: Any) -> Any:
        if self.way == "ddp":
            return model.no_sync()
        return ps.torch.no_sync(model) if self.way == "gradients" else nullcontext()

    def batch(self, step: int, *, width: int = 6) -> Batch:
        """This worker's part of a batch; all of it, if it is alone."""
        generator = torch.Generator().manual_seed(100 + step)
        rows = EACH * self.size
        x = torch.randn(rows, width, generator=generator)
        y = torch.randn(rows, 3, generator=generator)
        mine = slice(None) if self.alone else slice(EACH * self.rank, EACH * (self.rank + 1))
        return x[mine], y[mine]


class Net(nn.Module):
    """Two layers, and one that is frozen."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(6, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        result: torch.Tensor = self.last(h + self.frozen(h))
        return result


def sgd(model: nn.Module, lr: float = 0.1) -> Any:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def adam(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def bare(model: Any) -> Any:
    """What is in the wrappers."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


@dataclass(frozen=True)
class Idiom:
    """A loop, and what it is compared with."""

    run: Callable[[World], Any]
    plain: bool
    ddp: bool
    unused: bool
    servers: str
    """What `where="servers"` gives: "equal", or the error's class."""
    tolerance: float


IDIOMS: dict[str, Idiom] = {}


def idiom(
    *,
    plain: bool = True,
    ddp: bool = True,
    unused: bool = False,
    servers: str = "equal",
    tolerance: float = 2e-4,
) -> Callable[[Callable[[World], Any]], Callable[[World], Any]]:
    def note(run: Callable[[World], Any]) -> Callable[[World], Any]:
        IDIOMS[run.__name__] = Idiom(run, plain, ddp, unused, servers, tolerance)
        return run

    return note


def loop(
    world: World,
    model: Any,
    optimizer: Any,
    *,
    before_step: Callable[[Any, Any], None] = lambda *_: None,
    after_step: Callable[[Any, Any, int], None] = lambda *_: None,
    steps: int = STEPS,
    **options: Any,
) -> Any:
    """The usual loop, with something between backward and step, or behind it."""
    model, optimizer = world.wrap(model, optimizer, **options)
    for step in range(steps):
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        before_step(model, optimizer)
        optimizer.step()
        after_step(model, optimizer, step)
    return model


@idiom()
def plain_sgd(world: World) -> Any:
    return loop(world, net := Net(), sgd(net))


@idiom()
def adamw(world: World) -> Any:
    return loop(world, net := Net(), adam(net))


@idiom(servers="OptionError")
def an_optimizer_that_the_servers_have_not(world: World) -> Any:
    net = Net()
    return loop(world, net, torch.optim.NAdam(net.parameters(), lr=0.01))


@idiom(servers="OptionError")
def muon(world: World) -> Any:
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))
    torch.manual_seed(1)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    return loop(world, net, torch.optim.Muon(net.parameters(), lr=0.01), steps=3)


@idiom(servers="OptionError")
def clipping_by_norm(world: World) -> Any:
    def clip(model: Any, _: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    return loop(world, net := Net(), sgd(net), before_step=clip)


@idiom()
def clipping_by_norm_where_the_steps_are_taken(world: World) -> Any:
    """By the script, or by the servers' own option."""

    def clip(model: Any, _: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    if world.way == "servers":
        return loop(world, net := Net(), adam(net), clip_norm=0.05)
    return loop(world, net := Net(), adam(net), before_step=clip)


@idiom(servers="OptionError")
def clipping_by_value(world: World) -> Any:
    def clip(model: Any, _: Any) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 0.01)

    return loop(world, net := Net(), sgd(net), before_step=clip)


@idiom(servers="OptionError")
def clamping_the_data_of_gradients(world: World) -> Any:
    def clamp(model: Any, _: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.clamp_(-0.01, 0.01)

    return loop(world, net := Net(), sgd(net), before_step=clamp)


@idiom(servers="OptionError")
def changing_gradients_through_numpy(world: World) -> Any:
    def change(model: Any, _: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                array = parameter.grad.numpy()
                np.clip(array, -0.01, 0.01, out=array)

    return loop(world, net := Net(), sgd(net), before_step=change)


@idiom(servers="OptionError")
def clamping_the_data_of_parameters(world: World) -> Any:
    """As Wasserstein GANs do."""

    def clamp(model: Any, _: Any, __: int) -> None:
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    return loop(world, net := Net(), sgd(net), after_step=clamp)


@idiom(servers="OptionError")
def initializing_a_layer_anew(world: World) -> Any:
    def anew(model: Any, _: Any, step: int) -> None:
        if step == 2:
            torch.manual_seed(11)
            bare(model).last.reset_parameters()

    return loop(world, net := Net(), sgd(net), after_step=anew)


@idiom(servers="OptionError")
def a_vector_to_parameters(world: World) -> Any:
    def write(model: Any, _: Any, __: int) -> None:
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector * 0.9, model.parameters())

    return loop(world, net := Net(), sgd(net), after_step=write)


@idiom(servers="OptionError")
def clearing_the_optimizers_state(world: World) -> Any:
    def clear(_: Any, optimizer: Any, step: int) -> None:
        if step == 2:
            optimizer.state.clear()

    return loop(world, net := Net(), sgd(net), after_step=clear)


@idiom()
def a_gradient_by_itself_between_backward_and_step(world: World) -> Any:
    def look(model: Any, _: Any) -> None:
        x = torch.ones(2, 6, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x)
        if world.way != "ddp":  # which takes a forward pass for the begin of a reduction
            torch.autograd.grad(model(x).sum(), bare(model).first.weight)

    return loop(world, net := Net(), sgd(net), before_step=look)


@idiom(servers="OptionError")
def a_gradient_scaler_with_an_overflow_on_one_worker(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        if step == 2 and (world.alone or world.rank == world.size - 1):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 1024.0 * 2 * 0.5 * 2, scaler.get_scale()
    return model


@idiom(servers="OptionError")
def a_gradient_scaler_with_clipping(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, adam(net))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        scaler.scale(mse_loss(model(x), y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return model


def accumulate(world: World, counts: list[int], *, sync_each: bool, **options: Any) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net), **options)
    number = 0
    for count in counts:
        optimizer.zero_grad()
        for part in range(count):
            x, y = world.batch(number)
            number += 1
            with nullcontext() if sync_each or part == count - 1 else world.no_sync(model):
                (mse_loss(model(x), y) / count).backward()
        optimizer.step()
    return model


@idiom()
def accumulating_without_exchange(world: World) -> Any:
    return accumulate(world, [3, 3, 3, 3], sync_each=False)


@idiom()
def accumulating_with_an_exchange_each(world: World) -> Any:
    return accumulate(world, [2, 2, 2, 2], sync_each=True)


@idiom(servers="OptionError")
def accumulating_ever_more(world: World) -> Any:
    return accumulate(world, [1, 1, 2, 3], sync_each=True)


class Branches(nn.Module):
    """One of two branches, and a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Linear(6, 8)
        self.left, self.right, self.unused = nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, right: bool = False) -> torch.Tensor:
        h = self.stem(x).tanh()
        result: torch.Tensor = self.right(h) if right else self.left(h)
        return result


@idiom(plain=False, unused=True)
def a_branch_that_one_worker_does_not_use(world: World) -> Any:
    net = Branches()
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x, right=step in (1, 3) and world.rank == 0), y).backward()
        optimizer.step()
    assert bare(model).unused.weight.grad is None
    return model


@idiom(ddp=False)
def a_layer_that_is_unfrozen_on_the_way(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        if step == 2:
            net.frozen.requires_grad_(True)
        if step == 4:
            net.first.requires_grad_(False)
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


class Tied(nn.Module):
    """A weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.second(self.first(x).tanh()).tanh())
        return result


@idiom()
def tied_parameters(world: World) -> Any:
    return loop(world, net := Tied(), sgd(net))


@idiom(plain=False)
def batch_norm(world: World) -> Any:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = loop(world, net, sgd(net))
    if world.way == "ddp":
        # It sends buffers before the next forward pass.
        model.eval()
        model(world.batch(0)[0])
    if world.way == "servers":
        return nn.ParameterList(model.parameters())  # buffers stay each worker's own
    return model


@idiom()
def two_optimizers_of_a_gan(world: World) -> Any:
    torch.manual_seed(6)
    maker, judge = nn.Linear(6, 3), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    makers, judges = sgd(maker, 0.05), sgd(judge, 0.05)
    maker_, makers = world.wrap(maker, makers)
    judge_, judges = world.wrap(judge, judges)
    for step in range(STEPS):
        x, real = world.batch(step)
        judges.zero_grad()
        (judge_(maker_(x).detach()).square().mean() + (judge_(real) - 1).square().mean()).backward()
        judges.step()
        makers.zero_grad()
        (judge_(maker_(x)) - 1).square().mean().backward()
        makers.step()
    return nn.ModuleList([maker, judge])


@idiom()
def a_gradient_penalty(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net, 0.02))
    for step in range(STEPS):
        x, y = world.batch(step)
        x.requires_grad_(True)
        optimizer.zero_grad()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (mse_loss(out, y) + slope.square().sum(1).mean()).backward()
        optimizer.step()
    return model


class Deep(nn.Module):
    """Blocks whose activations are computed again."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = checkpoint(lambda h, block=block: block(h).tanh(), h, use_reentrant=self.reentrant)
        result: torch.Tensor = self.last(h)
        return result


@idiom()
def activation_checkpointing(world: World) -> Any:
    return loop(world, net := Deep(False), sgd(net))


@idiom()
def activation_checkpointing_by_a_pass_within_the_pass(world: World) -> Any:
    return loop(world, net := Deep(True), sgd(net))


@idiom()
def activation_checkpointing_of_the_whole_model(world: World) -> Any:
    """All parameters are inside the inner pass: none tells when the outer one ends."""

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = checkpoint(self.inner, x.requires_grad_(True), use_reentrant=True)
            return result

    return loop(world, net := Whole(), sgd(net))


@idiom(plain=False, servers="OptionError")
def hooks_that_are_registered_afterwards(world: World) -> Any:
    """What they do to a gradient comes before the average."""

    def clamp(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(-0.02, 0.02)

    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(clamp)
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@idiom(plain=False)
def two_losses_through_a_batch_norm(world: World) -> Any:
    """The second pass finds the buffers as the forward pass has left them."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        out = model(x)
        mse_loss(out, y).backward(retain_graph=True)
        if world.way != "ddp":  # which reduces once a forward pass
            (0.0 * out.square().mean()).backward()
        optimizer.step()
    return nn.ParameterList(net.parameters())


@idiom()
def an_average_of_the_weights(world: World) -> Any:
    net = Net()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )

    def update(model: Any, _: Any, __: int) -> None:
        average.update_parameters(bare(model))

    loop(world, net, sgd(net), after_step=update)
    return average.module


@idiom()
def channels_last(world: World) -> Any:
    torch.manual_seed(8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 2), nn.Flatten(), nn.Linear(18, 3))
    net = net.to(memory_format=torch.channels_last)
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step, width=108)
        x = x.reshape(-1, 3, 6, 6).to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


class Mixed(nn.Module):
    """Parameters of three types."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first = nn.Linear(6, 8)
        self.middle = nn.Linear(8, 8).double()
        self.last = nn.Linear(8, 3).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.middle(self.first(x).tanh().double()).tanh()
        result: torch.Tensor = self.last(h.bfloat16()).float()
        return result


class WithNothing(nn.Module):
    """A parameter and buffers of no elements, as quantization has before it has seen data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.layer = nn.Linear(6, 3)
        self.none = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("least", torch.empty(0))
        self.register_buffer("counts", torch.empty(0, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.none.sum()
        return result


@idiom()
def a_parameter_and_buffers_without_elements(world: World) -> Any:
    return loop(world, net := WithNothing(), sgd(net))


@idiom(tolerance=0.03)
def parameters_of_several_types(world: World) -> Any:
    return loop(world, net := Mixed(), sgd(net))


@idiom(tolerance=0.03)
def autocast_to_bfloat16(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
    return model


@idiom()
def a_schedule_of_one_cycle(world: World) -> Any:
    net = Net()
    optimizer = sgd(net)
    model, optimizer = world.wrap(net, optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS + 1)
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        schedule.step()
    return model


@idiom(ddp=False, servers="OptionError", tolerance=2e-3)
def lbfgs(world: World) -> Any:
    """Which decides by the loss: under DistributedDataParallel each worker by its own."""
    net = nn.Linear(6, 3)
    nn.init.constant_(net.weight, 0.1), nn.init.zeros_(net.bias)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    model, optimizer = world.wrap(net, optimizer)
    for step in range(3):
        x, y = world.batch(step)

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


@idiom()
def weight_norm(world: World) -> Any:
    net = Net()
    nn.utils.parametrizations.weight_norm(net.last)
    return loop(world, net, sgd(net))


@idiom(servers="OptionError")
def skipping_steps_that_all_agree_on(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        if step != 2:
            optimizer.step()
    return model


@idiom(ddp=False)
def keeping_gradients_of_old_steps(world: World) -> Any:
    """What a script keeps is its own: nobody writes to it later."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(model: Any, _: Any) -> None:
        gradient = bare(model).first.weight.grad
        kept.append((gradient, gradient.clone()))

    model = loop(world, net := Net(), sgd(net), before_step=keep)
    assert all(torch.equal(one, before) for one, before in kept)
    return model


@idiom()
def zeroing_gradients_in_place(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad(set_to_none=False)
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@idiom(ddp=False)
def a_copy_and_a_saved_model_train_alone(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    twin = copy.deepcopy(bare(model))
    with tempfile.TemporaryFile() as file:
        torch.save(bare(model), file)
        file.seek(0)
        with torch.serialization.safe_globals([Net, nn.Linear]):
            third = torch.load(file, weights_only=True)
    for step in range(STEPS):
        x, y = world.batch(step)
        for other in (twin, third):
            mse_loss(other(x), y).backward()
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@idiom(ddp=False)
def two_losses_of_one_graph(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        out = model(x)
        mse_loss(out, y).backward(retain_graph=True)
        (0.1 * out.square().mean()).backward()
        optimizer.step()
    return model


COMPILED = ("compiled_before", "compiled_after")


@idiom()
def compiled_before(world: World) -> Any:
    net = Net()
    return loop(world, torch.compile(net), sgd(net))


@idiom(ddp=False)
def compiled_after(world: World) -> Any:
    net = Net()
    model, optimizer = world.wrap(net, sgd(net))
    model = torch.compile(model)
    for step in range(STEPS):
        x, y = world.batch(step)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def flat(model: Any) -> np.ndarray[Any, Any]:
    values = bare(model).state_dict().values()
    return np.concatenate([value.detach().double().reshape(-1).numpy() for value in values])


def results(ways: Iterator[str] | list[str], names: list[str], rank: int, size: int) -> Iterator[Any]:
    """What each idiom gives by each way, with its name and the way's."""
    for name in names:
        one = IDIOMS[name]
        yield f"{name}/tolerance", np.asarray(one.tolerance)
        for way in ways:
            if (way == "ddp" and not one.ddp) or (way == "plain" and not one.plain):
                continue
            torch._dynamo.reset() if name in COMPILED else None
            yield f"{name}/{way}", flat(one.run(World(way, rank, size, one.unused)))


def main() -> None:
    """Runs the idioms named in the arguments by each way but the servers'; saves what they give."""
    torch.set_num_threads(1)
    with ps.init() as job:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{os.environ['TEST_OUT']}.meet", rank=job.rank, world_size=job.size
        )
        found = dict(results(["plain", "ddp", "gradients"], sys.argv[1:], job.rank, job.size))
        torch.distributed.destroy_process_group()
    _save(found, job.rank)


def on_servers(next_job: Callable[[], None]) -> None:
    """
    Runs the idioms named in the arguments with the servers' steps, each that ends in an error in a job of its
    own; saves what they give, or the error's class and text.
    """
    torch.set_num_threads(1)
    equal = [name for name in sys.argv[1:] if IDIOMS[name].servers == "equal"]
    others = [name for name in sys.argv[1:] if IDIOMS[name].servers != "equal"]
    found: dict[str, Any] = {}
    for names in (equal, *([name] for name in others)):
        name = names[0]  # of which an error before it begins is told
        try:
            with ps.init() as job:
                job.barrier()  # a worker that fails at once would end the job before the other has joined
                for name in names:
                    found.update(results(["plain", "servers"], [name], job.rank, job.size))
        except ps.PenstockError as error:
            found[f"{name}/error"] = np.asarray([type(error).__name__, str(error)])
        next_job()
    _save(found, int(os.environ["PENSTOCK_RANK"]))


def _save(found: dict[str, Any], rank: int) -> None:
    with Path(f"{os.environ['TEST_OUT']}.{rank}.npz").open("wb") as file:
        np.savez(file, **found)
