"""
Steps that the servers take. With one worker, a distributed script ends where the plain one ends: bit for bit
where torch fuses nothing, else close. What cannot be as in torch is an error.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import importlib
import io
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as ps
from penstock.optim import ROWS

torch = pytest.importorskip("torch")
nn = torch.nn
kept_by = importlib.import_module("penstock.torch.servers.rules").kept_by

Make = Callable[[Any], Any]
distribute = functools.partial(ps.torch.distribute, where="servers")

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9, dampening=0.2, maximize=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, eps=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, amsgrad=True),
    "adam_decoupled": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.9), maximize=True),
    "tensor_lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
}


class Net(nn.Module):  # type: ignore[misc,name-defined]
    """Shared, frozen, unused and 0-d parameters, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        # No bias: behind it, the norm makes its gradient zero but for rounding, which Adam would blow up.
        self.first = nn.Linear(6, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.twice = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.twice.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        h = self.norm(self.first(x)).relu()
        h = self.again(self.twice(h).tanh()) + self.frozen(h)
        return self.last(h * self.scale)


# A script that threw away what `distribute` returned trained in each worker by itself, without a word.
def test_the_original_optimizer_cannot_be_stepped_while_the_job_is_open() -> None:
    model = nn.Linear(6, 2)
    original = OPTIMIZERS["sgd"](model.parameters())
    before = model.weight.detach().clone()
    with ps.init(deadline=20):
        _, optimizer = distribute(model, original)
        model(torch.ones(3, 6)).sum().backward()
        with pytest.raises(ps.exceptions.OptionError, match="steps in this worker alone"):
            original.step()
        # A checkpoint of it said that nothing was trained.
        for saved in (original.state_dict, lambda: original.load_state_dict(optimizer.state_dict())):
            with pytest.raises(ps.exceptions.OptionError, match="has no state: it is on the servers"):
                saved()
        assert torch.equal(model.weight, before)
        optimizer.step()
        assert not torch.equal(model.weight, before)
    original.step()


# Each worker stepped by its own gradient, and the models came apart without a word.
@pytest.mark.parametrize("given", ["first", "last"])
def test_another_optimizer_of_the_model_cannot_be_stepped(job: ps.Job, given: str) -> None:
    model, other = net(), net()
    parts = {name: OPTIMIZERS["sgd"](getattr(model, name).parameters()) for name in ("first", "last")}
    distribute(model, parts[given], job=job)
    both = [*model.last.parameters(), *other.parameters()]
    for new in (*parts.values(), OPTIMIZERS["adam"](model.parameters()), OPTIMIZERS["adagrad"](both)):
        (model(torch.ones(3, 6)).sum() + other(torch.ones(3, 6)).sum()).backward()
        before = [p.detach().clone() for p in (*model.parameters(), *other.parameters())]
        with pytest.raises(ps.exceptions.OptionError, match="in this worker alone, apart from others"):
            new.step()
        assert all(map(torch.equal, before, (*model.parameters(), *other.parameters())))
    # Those of a model that is not distributed, and of what does not train, step as ever.
    OPTIMIZERS["sgd"](other.parameters()).step()
    OPTIMIZERS["sgd"](model.requires_grad_(False).parameters()).step()


class Beside(nn.Module):  # type: ignore[misc,name-defined]
    """A parameter of the model that its optimizer does not have, and an average of one that it has."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.heat = nn.Parameter(torch.zeros(()), requires_grad=not frozen)
        self.average = torch.optim.swa_utils.AveragedModel(self.last)

    def loss(self) -> Any:
        return self.last(torch.ones(2, 3)).square().mean() * self.heat.exp()


# Only one whose `.grad` was set was looked at.
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("before", [0, 2])
def test_a_parameter_that_is_stepped_by_a_gradient_of_its_own_is_noticed(
    job: ps.Job, before: int, frozen: bool
) -> None:
    model = Beside(frozen)
    _, optimizer = distribute(model, torch.optim.SGD(model.last.parameters(), lr=0.1), job=job)

    def step() -> None:
        optimizer.zero_grad()
        model.loss().backward(inputs=list(model.last.parameters()))
        optimizer.step()
        model.average.update_parameters(model.last)

    def change() -> None:
        (gradient,) = torch.autograd.grad(model.loss(), [model.heat])
        model.heat.data -= 0.1 * gradient

    for _ in range(before):
        step()
    if frozen:
        model.heat.requires_grad_(True)
        # It is looked at from then on.
        step()
    change()
    optimizer.publish()
    step()
    change()
    with pytest.raises(ps.exceptions.OptionError, match="`heat` was changed outside of step") as told:
        step()
    assert "optimizer.publish()" in str(told.value.hint)


class Wrapper(torch.optim.Optimizer):  # type: ignore[misc,name-defined]
    """Forwards what a training loop calls, every second step only, to all that it holds."""

    def __init__(self, *inner: Any) -> None:
        super().__init__([{**group} for one in inner for group in one.param_groups], {})
        self.param_groups = [group for one in inner for group in one.param_groups]
        self.inner = inner
        self.calls = 0

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            for one in self.inner:
                one.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.inner:
            one.zero_grad(set_to_none)


class Stepping(Wrapper):
    """Takes steps by itself."""

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad)


# A wrapper was taken for another optimizer of the model, and its step refused.
@pytest.mark.parametrize("depth", [1, 2])
def test_a_wrapper_of_the_distributed_optimizer_steps_it(job: ps.Job, depth: int) -> None:
    def run(wraps: bool) -> Any:
        model = net()
        optimizer = OPTIMIZERS["adam"](model.parameters())
        if wraps:
            _, optimizer = distribute(model, optimizer, job=job, overlap=2**depth)
        for _ in range(depth):
            optimizer = Wrapper(OPTIMIZERS["sgd"](nn.Linear(2, 2).parameters()), optimizer)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        for step in range(4 * 2**depth):
            torch.manual_seed(step)
            model(torch.randn(3, 6)).square().mean().backward()
            optimizer.step()
            if step % 2**depth == 2**depth - 1:
                optimizer.zero_grad()
                schedule.step()
        return model

    assert_close(run(True), run(False))


def test_a_wrapper_that_steps_in_the_place_of_the_distributed_optimizer_is_an_error(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
    model(torch.ones(3, 6)).sum().backward()
    with pytest.raises(ps.exceptions.OptionError, match=r"was changed outside of step\(\)"):
        Stepping(optimizer).step()


@pytest.mark.parametrize("published", [False, True])
def test_what_no_optimizer_has_cannot_be_stepped_by_hand_but_averaged(job: ps.Job, published: bool) -> None:
    model, target = net(), net().last
    model.target = target
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.first.parameters()), job=job, overlap=False)

    def step() -> None:
        model.zero_grad()
        model(torch.ones(3, 6)).sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
        with torch.no_grad():
            # As of a moving average: the same on every worker.
            target.weight.mul_(0.9).add_(model.last.weight, alpha=0.1)
    model.last.weight.data -= 0.1 * model.last.weight.grad
    if published:
        optimizer.publish()
        step()
    else:
        with pytest.raises(ps.exceptions.OptionError, match=r"`last\.weight` was changed outside of step"):
            step()


def batches(steps: int, parts: int = 1) -> Iterator[list[Any]]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        yield [torch.randn(5, 6, generator=generator) for _ in range(parts)]


def train(
    model: Any,
    optimizer: Any,
    *,
    steps: int = 8,
    parts: int = 1,
    scheduler: bool = True,
    set_to_none: bool = True,
    touch: Callable[[Any], None] = lambda _: None,
) -> Any:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5) if scheduler else None
    for batch in batches(steps, parts):
        optimizer.zero_grad(set_to_none=set_to_none)
        for x in batch:
            (model(x).square().mean() / parts).backward()
        touch(model)
        optimizer.step()
        if schedule:
            schedule.step()
    return model


def net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Net()


def assert_close(got: Any, expected: Any) -> None:
    for (name, mine), theirs in zip(got.state_dict().items(), expected.state_dict().values(), strict=True):
        # Twice torch's own spread between its fused and unfused paths, over a dozen steps.
        torch.testing.assert_close(
            mine, theirs, rtol=2e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_a_distributed_script_ends_where_the_plain_one_ends(job: ps.Job, name: str, overlap: Any) -> None:
    make = OPTIMIZERS[name]
    plain = net()
    train(plain, make(plain.parameters()))
    model = net()
    same, optimizer = distribute(model, make(model.parameters()), job=job, overlap=overlap)
    assert same is model
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert_close(train(model, optimizer), plain)
    leaves_early = [shared.expected for shared in optimizer._delivery if "unused" not in shared.name]
    assert set(leaves_early) == ({None} if overlap is False else {1})


@pytest.mark.parametrize("overlap", ["auto", False, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_every_part_of_an_accumulated_gradient_is_in_the_update(
    job: ps.Job, overlap: Any, set_to_none: bool
) -> None:
    make = OPTIMIZERS["adam"]
    plain, model = net(), net()
    train(plain, make(plain.parameters()), parts=3, set_to_none=set_to_none)
    _, optimizer = distribute(model, make(model.parameters()), job=job, overlap=overlap)
    assert_close(train(model, optimizer, parts=3, set_to_none=set_to_none), plain)
    assert job.stats()["pushes"] <= 8 * len(list(model.parameters()))


def test_a_script_that_never_zeroes_gradients_goes_on_adding_to_them(job: ps.Job) -> None:
    plain, model = net(), net()

    def run(model: Any, optimizer: Any) -> None:
        for (x,) in batches(5):
            model(x).square().mean().backward()
            optimizer.step()

    run(plain, OPTIMIZERS["sgd"](plain.parameters()))
    run(*distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job))
    assert_close(model, plain)


def test_groups_keep_their_own_settings_and_follow_their_own_schedule(job: ps.Job) -> None:
    def make(model: Any) -> Any:
        groups = [
            {"params": model.first.parameters(), "lr": 0.1, "momentum": 0.5},
            {"params": [*model.twice.parameters(), model.scale], "weight_decay": 0.1},
            {"params": model.last.parameters(), "lr": 0.001, "maximize": True},
        ]
        return torch.optim.SGD(groups, lr=0.05)

    def run(model: Any, optimizer: Any) -> None:
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, [lambda _: 1.0, lambda n: 0.9**n, lambda n: 1 + n]
        )
        for (x,) in batches(6):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            schedule.step()

    plain, model = net(), net()
    run(plain, make(plain))
    original = make(model)
    _, optimizer = distribute(model, original, job=job)
    assert optimizer.param_groups is original.param_groups
    run(model, optimizer)
    assert_close(model, plain)


def test_every_optimizer_of_the_servers_is_tried_here() -> None:
    kinds = {type(make([torch.nn.Parameter(torch.zeros(1))])) for make in OPTIMIZERS.values()}
    assert kinds == {getattr(torch.optim, name) for name, row in ROWS.items() if row.settings}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_state_has_to_have_what_torch_keeps(make: Make) -> None:
    """But for SGD, whose momentum may begin later, and which counts no steps."""
    model = nn.Linear(2, 1)
    optimizer = make(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    (group,) = optimizer.param_groups
    kept = set(kept_by(type(optimizer), group))
    for state in optimizer.state.values():
        assert kept == (set() if isinstance(optimizer, torch.optim.SGD) else set(state))
    plain = {**group, "centered": False, "amsgrad": False}
    assert set(kept_by(type(optimizer), plain)) == kept - {"grad_avg", "max_exp_avg_sq"}


def test_a_refused_setting_that_is_taken_back_leaves_none_of_those_set_with_it(job: ps.Job) -> None:
    """The rate that came before it stayed with the servers, while the group showed the old one."""
    plain, model = net(), net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=False)
    group = optimizer.param_groups[0]
    before = {name: group[name] for name in ("lr", "weight_decay")}
    (x,) = next(iter(batches(1)))
    for one, other in ((plain, reference), (model, optimizer)):
        other.zero_grad()
        one(x).square().mean().backward()
    group.update(lr=5.0, weight_decay=-1.0)
    with pytest.raises(ps.exceptions.SettingsError):
        optimizer.step()
    group.update(before)
    optimizer.step()
    reference.step()
    assert_close(model, plain)


def test_a_rate_that_misses_0_by_rounding_is_0(job: ps.Job) -> None:
    """A schedule's last rate, -1e-18, ended a training that was over."""
    plain, model = net(), net()
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
    linear = torch.optim.lr_scheduler.LinearLR
    schedules = [linear(one, end_factor=0.0, total_iters=4) for one in (reference, optimizer)]
    for (x,) in batches(6):
        for one, other in ((plain, reference), (model, optimizer)):
            other.zero_grad()
            one(x).square().mean().backward()
            other.step()
        for schedule in schedules:
            schedule.step()
    assert -1e-12 < optimizer.param_groups[0]["lr"] < 0.0
    assert_close(model, plain)


@pytest.mark.parametrize("overlap", ["auto", 1])
def test_settings_that_change_between_step_and_backward_are_those_of_the_next_step(
    job: ps.Job, overlap: Any
) -> None:
    """One that was refused between two passes cut the second off; those of a new dictionary came too late."""

    def parts() -> Any:
        torch.manual_seed(0)
        return nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)])

    def grouped(model: Any) -> Any:
        return torch.optim.SGD([{"params": part.parameters()} for part in model], lr=0.1, momentum=0.9)

    plain, model = parts(), parts()
    reference, original = grouped(plain), grouped(model)
    _, optimizer = distribute(model, original, job=job, overlap=overlap)
    for step, (x,) in enumerate(batches(10)):
        bad = {3: -1.0, 4: "0.1", 5: None}.get(step)
        old = dict(optimizer.param_groups[1])
        for one, other in ((plain, reference), (model, optimizer)):
            other.zero_grad()
            if step == 7:
                other.param_groups[0] = {**other.param_groups[0], "lr": 0.05}
            one[0](x).square().mean().backward()
            if step in (3, 4, 5) and other is optimizer:
                other.param_groups[1]["lr"] = bad
            if step == 6 and other is optimizer:
                del other.param_groups[1]["lr"]
            if step == 8:
                other.param_groups[1] = {**other.param_groups[1], "lr": 0.03}
            one[1](x).square().mean().backward()
            if step in (3, 4, 5) and other is optimizer:
                with pytest.raises(ps.exceptions.SettingsError):
                    other.step()
                other.param_groups[1]["lr"] = 0.1
            if step == 6 and other is optimizer:
                with pytest.raises(ps.exceptions.SettingsError, match="no `lr`"):
                    other.step()
                other.param_groups[1].update(old)
            other.step()
        assert_close(model, plain)


def test_a_setting_that_is_refused_after_gradients_left_says_so(job: ps.Job) -> None:
    """It was told as another learning rate."""
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=1)
    (x,) = next(iter(batches(1)))
    model(x).square().mean().backward()
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ps.exceptions.SettingsError, match=r"got -1\.0"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()


@pytest.mark.parametrize("overlap", [False, 1])
def test_a_step_that_was_cut_short_cannot_be_taken_again_and_says_so(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, overlap: Any
) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=overlap)
    (x,) = next(iter(batches(1)))
    loss = model(x).square().mean()
    transfer = importlib.import_module("penstock.torch.servers.transfer").HostTransfer
    send, sent = transfer.send, []

    def interrupted(self: Any, *arguments: Any, **options: Any) -> None:
        send(self, *arguments, **options)
        sent.append(self)
        if len(sent) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "send", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
            optimizer.step()
    with pytest.raises(ps.exceptions.OptionError, match=r"(?s)(step|flush)\(\) was cut short.*checkpoint"):
        optimizer.step()
    if not overlap:
        with pytest.raises(ps.exceptions.OptionError, match=r"(?s)cut short.*checkpoint"):
            optimizer.zero_grad()


@pytest.mark.parametrize("options", [{"overlap": False}, {"overlap": 1}, {"overlap": 1, "clip_norm": 1.0}])
def test_a_step_that_was_cut_short_as_it_waited_says_so_whatever_had_left_in_backward(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Advice went in a circle: publish, do it after step(), publish."""
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, **options)
    (x,) = next(iter(batches(1)))
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    saved = optimizer.state_dict()
    transfer = importlib.import_module("penstock.torch.servers.transfer").HostTransfer
    receive = transfer.receive

    def interrupted(self: Any, *arguments: Any, **options: Any) -> None:
        receive(self, *arguments, **options)
        raise KeyboardInterrupt

    optimizer.zero_grad()
    model(x).square().mean().backward()
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    calls = [optimizer.zero_grad, optimizer.publish, lambda: optimizer.load_state_dict(saved), optimizer.step]
    for call in (*calls, lambda: model(x).square().mean().backward()):
        with pytest.raises(ps.exceptions.OptionError, match=r"(?s)a step\(\) was cut short.*checkpoint"):
            call()
    with pytest.warns(UserWarning, match="a step.* was cut short.*may have a part of it"):
        optimizer.state_dict()


@pytest.mark.parametrize("cut", ["without gradients", "in its last lines"])
def test_nor_does_another_step_that_was_cut_short_go_unsaid(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=False)
    (x,) = next(iter(batches(1)))
    if cut == "in its last lines":
        model(x).square().mean().backward()
        where, name = importlib.import_module("penstock.torch.servers.delivery").Shared, "forget"
    else:
        where, name = importlib.import_module("penstock.torch.servers.transfer").HostTransfer, "receive"

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    for call in (optimizer.zero_grad, optimizer.publish, optimizer.step):
        with pytest.raises(ps.exceptions.OptionError, match=r"(?s)a step\(\) was cut short.*checkpoint"):
            call()


@pytest.mark.parametrize("overlap", [False, 1])
@pytest.mark.parametrize("cut", ["before its clock", "behind it", "where nothing was held back"])
def test_a_flush_that_was_cut_short_says_so(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, cut: str, overlap: bool | int
) -> None:
    """
    It said that a parameter had been changed, and to publish: what it had flushed was lost. With `overlap` it
    said nothing, and the next step was by gradients of what stood there before.
    """
    model = net()
    _, optimizer = distribute(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        job=job,
        overlap=overlap,
        filter=ps.Filters(push=ps.TopK(0.1)),
    )
    (x,) = next(iter(batches(1)))
    model(x).square().mean().backward()
    optimizer.step()
    if cut == "where nothing was held back":
        optimizer.flush()
    saved = optimizer.state_dict()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(optimizer, "_complete" if cut == "before its clock" else "_pull_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.flush()
    calls = [
        optimizer.publish,
        lambda: optimizer.load_state_dict(saved),
        optimizer.zero_grad,
        optimizer.flush,
    ]
    for call in (*calls, optimizer.step):
        with pytest.raises(ps.exceptions.OptionError, match=r"(?s)a flush\(\) was cut short.*checkpoint"):
            call()


def test_a_model_that_the_servers_stepped_goes_with_its_job() -> None:
    """Job, memory and model were kept by torch's hooks until the process ended."""
    with ps.init() as job:
        model = net()
        model, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
        (x,) = next(iter(batches(1)))
        model(x).square().mean().backward()
        optimizer.step()
    with pytest.raises(ps.exceptions.JobClosed):
        optimizer.step()
    gone = [weakref.ref(one) for one in (job, model, next(model.parameters()), optimizer)]
    del job, model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None] * 4


# As a cell of a notebook that is run again: the model held each of them.
@pytest.mark.parametrize("beside", [False, True])
def test_a_model_that_is_trained_in_one_job_after_another_lets_go_of_those_that_have_ended(
    beside: bool,
) -> None:
    gone = []
    model = net()
    with ps.init() if beside else contextlib.nullcontext():
        for _ in range(3):
            with ps.init() as job:
                optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)[1]
                (x,) = next(iter(batches(1)))
                model(x).square().mean().backward()
                optimizer.step()
            gone += [weakref.ref(job), weakref.ref(optimizer)]
            del job, optimizer
    gc.collect()
    assert [one() for one in gone] == [None] * 6
    gone = [weakref.ref(model)]
    del model
    gc.collect()
    assert gone[0]() is None


@pytest.mark.parametrize("end", ["it goes on", "the iteration is over"])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), ps.exceptions.LaneTimeout("no room", "try again")],
    ids=["interrupted", "timed out"],
)
# Without overlap parameters are compared with the servers' values, which have a part of the flush by then.
@pytest.mark.parametrize("overlap", [False, 1])
def test_a_flush_that_has_sent_a_part_can_be_called_again_and_nothing_else(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, error: BaseException, end: str, overlap: bool | int
) -> None:
    model = net()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    _, optimizer = distribute(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        job=job,
        filter=ps.Filters(push=ps.TopK(0.1)),
        overlap=overlap,
    )
    (x,) = next(iter(batches(1)))
    model(x).square().mean().backward()
    gradients = [torch.zeros(()) if one.grad is None else one.grad.clone() for one in model.parameters()]
    optimizer.step()
    saved, flush, seen = optimizer.state_dict(), ps.Tensor._send_held_back, []
    stood = next(model.parameters()).detach().clone()

    def second(self: ps.Tensor, *arguments: Any, **options: Any) -> None:
        seen.append(self)
        if isinstance(error, KeyboardInterrupt):
            flush(self, *arguments, **options)
        if len(seen) == 2:
            raise error
        if not isinstance(error, KeyboardInterrupt):
            flush(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ps.Tensor, "_send_held_back", second)
        with pytest.raises(type(error)):
            optimizer.flush()
    # Nothing leaves in it.
    (0 * model(x).sum()).backward()
    calls = [optimizer.publish, lambda: optimizer.load_state_dict(saved), optimizer.zero_grad, optimizer.step]
    for call in calls:
        with pytest.raises(ps.exceptions.OptionError, match=r"(?s)sent a part.*flush\(\) again"):
            call()
    with pytest.warns(UserWarning, match="a flush.* was cut short.*may have a part of it"):
        optimizer.state_dict()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(
        ps.exceptions.OptionError, match=r"(?s)changed outside of step.*put back what it held"
    ):
        optimizer.flush()
    with torch.no_grad():
        next(model.parameters()).sub_(1)
        assert (next(model.parameters()) == stood).all()
    if end == "the iteration is over":
        job.clock()
        for call in (*calls, optimizer.flush):
            with pytest.raises(ps.exceptions.OptionError, match=r"(?s)a flush\(\) was cut short.*checkpoint"):
                call()
        return
    optimizer.flush()
    assert optimizer.held_back.elements == 0
    for parameter, start, gradient in zip(model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), start - 0.1 * gradient)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def test_a_flush_of_which_nothing_left_was_not_cut_short(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    _, optimizer = distribute(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        job=job,
        overlap=False,
        filter=ps.Filters(push=ps.TopK(0.1)),
    )
    (x,) = next(iter(batches(1)))
    model(x).square().mean().backward()
    optimizer.step()

    def full(*_: Any, **__: Any) -> None:
        raise ps.exceptions.LaneTimeout("no room", "try again")

    with monkeypatch.context() as patch:
        patch.setattr(ps.Tensor, "_send_held_back", full)
        with pytest.raises(ps.exceptions.LaneTimeout):
            optimizer.flush()

    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("penstock.torch.servers.optimizer.sum_of", cut)
        with pytest.raises(KeyboardInterrupt):
            optimizer.flush()
    assert not optimizer._delivery.flushes, "from now on gradients would leave no earlier than in step()"
    optimizer.publish()
    optimizer.flush()
    assert optimizer.held_back.elements == 0


@pytest.mark.parametrize("without", [False, True])
def test_a_step_of_which_nothing_left_is_no_step_that_was_cut_short(job: ps.Job, without: bool) -> None:
    model = net()
    if without:
        # A parameter that has no gradient, before those that have.
        model = nn.ModuleList([nn.Linear(2, 2), model])
    forward = model[1] if without else model
    _, optimizer = distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=False, refuse_nonfinite=True
    )
    (x,) = next(iter(batches(1)))
    forward(x).square().mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.fill_(float("nan"))
    with pytest.raises(ps.exceptions.NonFiniteError):
        optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    forward(x).square().mean().backward()
    with pytest.raises(ps.exceptions.OptionError, match="publish"):
        optimizer.step()
    optimizer.publish()
    optimizer.step()


def test_what_ddp_is_to_ignore_is_refused_whatever_lists_it(job: ps.Job) -> None:
    for names in (["bias"], {"bias": 0}.keys(), {"bias"}):
        model = nn.Linear(2, 1)
        model._ddp_params_and_buffers_to_ignore = names
        with pytest.raises(ps.exceptions.OptionError, match="to ignore `bias` of the model"):
            distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)


def test_how_weights_decay_is_as_the_group_says_and_settled_when_it_is_distributed(job: ps.Job) -> None:
    """Torch goes by the group at each step: AdamW's own was not looked at, and Adam's not again."""

    def coupled(model: Any) -> Any:
        group = {"params": list(model.parameters()), "decoupled_weight_decay": False}
        return torch.optim.AdamW([group], lr=0.01, weight_decay=0.5)

    plain, model = net(), net()
    reference = coupled(plain)
    _, optimizer = distribute(model, coupled(model), job=job)
    for (x,) in batches(3):
        for one, other in ((plain, reference), (model, optimizer)):
            other.zero_grad()
            one(x).square().mean().backward()
            other.step()
        with pytest.warns(UserWarning, match="decoupled_weight_decay=False stays as it was saved"):
            optimizer.load_state_dict(optimizer.state_dict())
    assert_close(model, plain)
    model = net()
    _, optimizer = distribute(model, torch.optim.Adam(model.parameters(), weight_decay=0.5), job=job)
    (x,), group = next(iter(batches(1))), optimizer.param_groups[0]
    model(x).square().mean().backward()
    group["decoupled_weight_decay"] = True
    with pytest.raises(ps.exceptions.SettingsError, match=r"decoupled_weight_decay=False .* got True"):
        optimizer.step()
    group["decoupled_weight_decay"] = False
    optimizer.step()


def test_a_setting_that_is_no_number_is_told_by_name(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.Adam(model.parameters(), lr=0.1), job=job)
    group, (x,) = optimizer.param_groups[0], next(iter(batches(1)))

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    two = torch.ones(2)
    for name, wrong in (
        ("lr", None),
        ("lr", "0.1"),
        ("lr", (0.1, 0.2)),
        ("lr", two),
        ("betas", (0.9, "0.99")),
    ):
        before, group[name] = group[name], wrong
        with pytest.raises(ps.exceptions.SettingsError, match=name):
            step()
        group[name] = before
    step()


@pytest.mark.parametrize("name", ["dampened", "rmsprop"])
def test_momentum_may_be_0_for_a_while(job: ps.Job, name: str) -> None:
    """Torch then takes the gradient, undamped, and leaves the buffer, which the servers moved on."""
    plain, model = net(), net()

    def run(model: Any, optimizer: Any) -> Any:
        for step, (x,) in enumerate(batches(6)):
            optimizer.param_groups[0]["momentum"] = 0.0 if step in (2, 3) else 0.9
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return optimizer.state_dict()["state"]

    expected = run(plain, OPTIMIZERS[name](plain.parameters()))
    state = run(*distribute(model, OPTIMIZERS[name](model.parameters()), job=job))
    assert_close(model, plain)
    for index, one in state.items():
        # Of what has no gradient, torch has none.
        if expected.get(index, {}).get("momentum_buffer") is not None:
            torch.testing.assert_close(one["momentum_buffer"], expected[index]["momentum_buffer"])


def test_a_schedule_made_before_works_on_the_distributed_optimizer(job: ps.Job) -> None:
    model = net()
    original = OPTIMIZERS["sgd"](model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(original, 0.5)
    _, optimizer = distribute(model, original, job=job)
    with warnings.catch_warnings():
        # torch looked at the original's steps, and warned that the schedule had gone first.
        warnings.simplefilter("error")
        for _ in range(2):
            model(torch.ones(5, 6)).sum().backward()
            optimizer.step()
            schedule.step()
    assert next(iter(optimizer._delivery)).tensor.optimizer.lr == 0.025


def test_gradients_that_the_script_clips_are_the_ones_that_count(job: ps.Job) -> None:
    def clip(model: Any) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    plain, model = net(), net()
    train(plain, OPTIMIZERS["sgd"](plain.parameters()), touch=clip)
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
    assert_close(train(model, optimizer, touch=clip), plain)


def test_a_gradient_changed_after_it_left_is_an_error_not_a_different_result(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
    train(model, optimizer, steps=3)
    model(torch.ones(5, 6)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    with pytest.raises(ps.exceptions.OptionError, match="left") as caught:
        optimizer.step()
    assert "overlap=False" in str(caught.value.hint)


def test_a_gradient_thrown_away_after_it_left_is_an_error(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job, overlap=1)
    model(torch.ones(5, 6)).sum().backward()
    with pytest.raises(ps.exceptions.OptionError, match="thrown away"):
        optimizer.zero_grad()


def test_a_learning_rate_set_between_backward_and_step_is_the_one_that_counts(job: ps.Job) -> None:
    def run(model: Any, optimizer: Any) -> None:
        for step, (x,) in enumerate(batches(6)):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.param_groups[0]["lr"] = 0.01 * (step + 1)
            optimizer.step()

    plain, model = net(), net()
    run(plain, OPTIMIZERS["nesterov"](plain.parameters()))
    run(*distribute(model, OPTIMIZERS["nesterov"](model.parameters()), job=job))
    assert_close(model, plain)


def test_two_optimizers_whose_losses_reach_into_each_others_models_do_not_mix(job: ps.Job) -> None:
    """The generator's loss leaves gradients in the discriminator, which its own loop then throws away."""

    def run(prepare: Any) -> tuple[Any, Any]:
        torch.manual_seed(0)
        maker, judge = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        maker, make = prepare(maker, torch.optim.Adam(maker.parameters(), lr=0.01))
        judge, judging = prepare(judge, torch.optim.Adam(judge.parameters(), lr=0.01))
        generator = torch.Generator().manual_seed(3)
        for _ in range(8):
            noise, real = torch.randn(4, 3, generator=generator), torch.randn(4, 6, generator=generator)
            judging.zero_grad()
            (judge(maker(noise).detach()).mean() - judge(real).mean()).backward()
            judging.step()
            make.zero_grad()
            (-judge(maker(noise)).mean()).backward()
            make.step()
        return maker, judge

    plain = run(lambda model, optimizer: (model, optimizer))
    for got, expected in zip(run(lambda m, o: distribute(m, o, job=job)), plain, strict=True):
        assert_close(got, expected)


class Line(nn.Module):  # type: ignore[misc,name-defined]
    """One parameter, whose gradient is what it is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))


# Its second part went with the next iteration's, with a warning: with momentum that is another result.
def test_a_part_that_comes_after_a_gradient_left_is_an_error(job: ps.Job) -> None:
    line = Line()
    _, optimizer = distribute(line, torch.optim.SGD(line.parameters(), lr=1.0), job=job)
    for _ in range(3):
        optimizer.zero_grad()
        line.w.sum().backward()
        optimizer.step()
    line.w.sum().backward()
    with pytest.raises(ps.exceptions.OptionError, match="was added to after it had left") as caught:
        line.w.sum().backward()
    assert "overlap=False" in str(caught.value.hint)


@pytest.mark.parametrize("overlap", ["auto", False, 3])
def test_parts_fewer_than_before_are_all_of_the_gradient(job: ps.Job, overlap: Any) -> None:
    def run(line: Any, optimizer: Any) -> Any:
        for number, count in enumerate([3, 3, 3, 2, 1, 3]):
            optimizer.zero_grad()
            for part in range(count):
                (line.w * float(10 * number + part + 1)).sum().backward()
            optimizer.step()
        return line.w.detach()

    plain, line = Line(), Line()
    expected = run(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9))
    _, optimizer = distribute(
        line, torch.optim.SGD(line.parameters(), lr=0.1, momentum=0.9), job=job, overlap=overlap
    )
    torch.testing.assert_close(run(line, optimizer), expected)


# It was taken for a part of the gradient.
@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_what_autograd_grad_returns_between_backward_and_step_is_no_part_of_the_gradient(
    job: ps.Job, overlap: Any
) -> None:
    def run(model: Any, optimizer: Any) -> None:
        for (x,) in batches(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            assert torch.autograd.grad(model(x).sum(), trained, allow_unused=True)
            optimizer.step()

    plain, model = net(), net()
    run(plain, OPTIMIZERS["nesterov"](plain.parameters()))
    run(*distribute(model, OPTIMIZERS["nesterov"](model.parameters()), job=job, overlap=overlap))
    assert_close(model, plain)


def _clamp_by_data(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad.data.clamp_(-0.001, 0.001)


def _halve_through_numpy(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad.numpy()[...] /= 2


def _turn_by_foreach(parameters: list[Any]) -> None:
    torch._foreach_neg_([parameter.grad.data for parameter in parameters])


def _put_another(parameters: list[Any]) -> None:
    for parameter in parameters:
        parameter.grad = parameter.grad * 0.5


def _as_a_scaler_unscales(parameters: list[Any]) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_(
        [parameter.grad for parameter in parameters], torch.zeros(()), torch.tensor(0.5)
    )


TOUCHES = [_clamp_by_data, _halve_through_numpy, _turn_by_foreach, _put_another, _as_a_scaler_unscales]


def with_gradients(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


# torch does not count these as changes.
@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("overlap", ["auto", 1])
def test_no_way_of_changing_a_gradient_that_has_left_goes_unnoticed(
    job: ps.Job, touch: Callable[[list[Any]], None], overlap: Any
) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job, overlap=overlap)
    train(model, optimizer, steps=3, scheduler=False)
    optimizer.zero_grad()
    model(torch.ones(5, 6)).sum().backward()
    touch(with_gradients(model))
    before = model.last.weight.detach().clone()
    with pytest.raises(ps.exceptions.OptionError, match="was changed after it had left"):
        optimizer.step()
    assert torch.equal(model.last.weight, before)


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_script_that_changes_gradients_in_any_way_is_not_overlapped(
    job: ps.Job, touch: Callable[[list[Any]], None]
) -> None:
    def change(model: Any) -> None:
        touch(with_gradients(model))

    plain, model = net(), net()
    train(plain, OPTIMIZERS["nesterov"](plain.parameters()), steps=4, touch=change)
    _, optimizer = distribute(model, OPTIMIZERS["nesterov"](model.parameters()), job=job)
    assert_close(train(model, optimizer, steps=4, touch=change), plain)
    assert {shared.expected for shared in optimizer._delivery} == {None}


# Another parameter's change had ended the watch over this one's, which left as it was before the change.
def test_a_change_of_every_gradient_counts_though_the_first_ends_the_watch(job: ps.Job) -> None:
    lines = nn.ModuleList([Line(), Line()])
    _, optimizer = distribute(lines, torch.optim.SGD(lines.parameters(), lr=1.0), job=job)
    (lines[0].w.sum() + lines[1].w.sum()).backward()
    for line in lines:
        line.w.grad.data.fill_(3.0)
    optimizer.step()
    for line in lines:
        assert line.w.tolist() == [-3.0] * 4


def test_a_nan_that_left_is_not_taken_for_a_change(job: ps.Job) -> None:
    line = Line()
    _, optimizer = distribute(line, torch.optim.SGD(line.parameters(), lr=1.0), job=job, overlap=1)
    for _ in range(2):
        optimizer.zero_grad()
        (line.w * torch.tensor([1.0, torch.nan, torch.inf, -0.0])).sum().backward()
        optimizer.step()
    assert line.w.isnan().tolist() == [False, True, False, False]


def test_a_closure_is_evaluated_and_its_loss_returned(job: ps.Job) -> None:
    plain, model = net(), net()

    def run(model: Any, optimizer: Any) -> list[float]:
        losses = []
        for (x,) in batches(4):

            def closure(x: Any = x) -> Any:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        return losses

    expected = run(plain, OPTIMIZERS["adam"](plain.parameters()))
    got = run(*distribute(model, OPTIMIZERS["adam"](model.parameters()), job=job))
    assert got == pytest.approx(expected, rel=1e-5)
    assert_close(model, plain)


def test_shared_parameters_are_one_tensor_and_frozen_ones_none(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
    names = [shared.name for shared in optimizer._delivery]
    assert len(names) == len(set(names)) == len([p for p in model.parameters() if p.requires_grad])
    assert "model/twice.weight" in names
    assert not [name for name in names if "frozen" in name or name == "model/again.weight"]


def test_a_parameter_unfrozen_later_and_a_group_added_later_are_trained(job: ps.Job) -> None:
    def run(model: Any, optimizer: Any) -> None:
        for number, (x,) in enumerate(batches(6)):
            if number == 2:
                model.frozen.requires_grad_(True)
            if number == 3:
                optimizer.add_param_group({"params": list(model.last.parameters()), "lr": 0.5})
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    def make(model: Any) -> Any:
        kept = [p for name, p in model.named_parameters() if not name.startswith("last")]
        return torch.optim.Adagrad(kept, lr=0.05, initial_accumulator_value=0.2)

    plain, model = net(), net()
    # Plain torch makes Adagrad's state when a parameter is added, for a frozen one too; the servers when
    # it is unfrozen.
    run(plain, make(plain))
    run(*distribute(model, make(model), job=job))
    assert_close(model, plain)


# They were stepped on the servers, and their module's buffers stayed each worker's own.
def test_a_group_of_another_modules_parameters_is_refused(job: ps.Job) -> None:
    model, other, averaged = net(), nn.Linear(2, 2), ps.torch.distribute(nn.Linear(2, 2), job=job)
    model, optimizer = distribute(model, torch.optim.SGD(model.first.parameters(), lr=0.1), job=job)
    for parameters in (other.parameters(), [*model.last.parameters(), other.weight], other.bias):
        with pytest.raises(ps.exceptions.OptionError, match="that the model lacks") as told:
            optimizer.add_param_group({"params": parameters})
        assert "add it to the model first" in str(told.value.hint)
        assert len(optimizer.param_groups) == 1
    model.averaged = averaged
    with pytest.raises(ps.exceptions.OptionError, match=r"`averaged\.weight` is distributed already"):
        optimizer.add_param_group({"params": averaged.parameters()})
    model.other = other
    picture = torch.zeros(2, requires_grad=True)
    optimizer.add_param_group({"params": [*other.parameters(), picture], "lr": 0.5})
    before = other.bias.detach().clone()
    other(picture).sum().backward()
    optimizer.step()
    torch.testing.assert_close(other.bias.detach(), before - 0.5)
    assert picture.any()
    with pytest.raises(ps.exceptions.OptionError, match="in this worker alone, apart from others"):
        torch.optim.SGD(other.parameters(), lr=0.1).step()


def _by_another_optimizer(model: Any, loss: Any) -> None:
    new = torch.optim.SGD(model.late.parameters(), lr=0.1)
    loss().backward()
    new.step()


def _by_hand(model: Any, loss: Any) -> None:
    late = list(model.late.parameters())
    gradients = torch.autograd.grad(loss(), late)
    with torch.no_grad():
        for parameter, gradient in zip(late, gradients, strict=True):
            parameter -= 0.1 * gradient


def _unfrozen(model: Any, loss: Any) -> None:
    model.late.requires_grad_(False)
    loss().backward()
    model.late.requires_grad_(True)
    loss().backward()


def _given_past_torch(model: Any, loss: Any) -> None:
    model.late._modules["more"] = nn.Linear(2, 2)
    model.late.requires_grad_(False)
    model.optimizer[0].step()
    model.late.more.requires_grad_(True)
    model.late.more(torch.ones(1, 2)).sum().backward()


# Each worker stepped them by its own gradient, and the models came apart without a word.
@pytest.mark.parametrize("step", [_by_another_optimizer, _by_hand, _unfrozen, _given_past_torch])
@pytest.mark.parametrize("check", [True, False])
def test_parameters_that_come_later_and_that_the_servers_do_not_step_are_refused(
    job: ps.Job, step: Any, check: bool
) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, check=check)
    model.optimizer = [optimizer]
    model.late = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(
        ps.exceptions.OptionError, match=r"parameter `late\..*` came after `distribute`"
    ) as told:
        step(model, lambda: model.late(model(torch.ones(3, 6))).sum())
    assert "add_param_group" in str(told.value.hint)


def test_parameters_that_come_later_and_that_nobody_else_trains_are_no_reason_to_refuse(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
    model.teacher, model.late, model.gone = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    model.averaged = ps.torch.distribute(nn.Linear(2, 2), job=job)
    gone = model.gone
    del model.gone
    optimizer.add_param_group({"params": model.late.parameters()})
    for _ in range(3):
        optimizer.zero_grad()
        h = model.late(model(torch.ones(3, 6)))
        with torch.no_grad():
            target = model.teacher(h)
        (gone(model.averaged(h)) - target).square().sum().backward()
        optimizer.step()
    # A lazy one too.
    model.lazy = nn.LazyLinear(2)
    with pytest.raises(ps.exceptions.OptionError, match=r"parameter `lazy\..*` came after `distribute`"):
        model.lazy(model(torch.ones(3, 6))).sum().backward()
    model.lazy = nn.LazyLinear(2)
    with pytest.raises(ps.exceptions.OptionError, match="has no shape yet"):
        optimizer.add_param_group({"params": model.lazy.parameters()})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_goes_from_plain_torch_to_the_servers_and_back(job: ps.Job, name: str) -> None:
    make = OPTIMIZERS[name]

    def half(model: Any, optimizer: Any, first: bool) -> None:
        for number, (x,) in enumerate(batches(8)):
            if (number < 4) == first:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    plain = net()
    plain_optimizer = make(plain.parameters())
    half(plain, plain_optimizer, first=True)
    saved = {"model": _copy(plain.state_dict()), "optimizer": _copy(plain_optimizer.state_dict())}
    half(plain, plain_optimizer, first=False)

    # Loaded before `distribute`, and after it.
    early = net(1)
    early_optimizer = make(early.parameters())
    early.load_state_dict(saved["model"])
    early_optimizer.load_state_dict(_copy(saved["optimizer"]))
    early, early_optimizer = distribute(early, early_optimizer, job=job)
    late = net(2)
    late, late_optimizer = distribute(late, make(late.parameters()), job=job)
    late_optimizer.load_state_dict(_copy(saved["optimizer"]))
    late.load_state_dict(saved["model"])
    for model, optimizer in ((early, early_optimizer), (late, late_optimizer)):
        _assert_same_state(optimizer.state_dict(), saved["optimizer"])
        half(model, optimizer, first=False)
        assert_close(model, plain)

    # And back: a fresh plain optimizer goes on as the servers' did.
    back = net(3)
    back_optimizer = make(back.parameters())
    back.load_state_dict(late.state_dict())
    back_optimizer.load_state_dict(_copy(late_optimizer.state_dict()))
    half(late, late_optimizer, first=True)
    half(back, back_optimizer, first=True)
    assert_close(late, back)


def _copy(state: Any) -> Any:
    import copy

    return copy.deepcopy(state)


def _assert_same_state(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got["param_groups"] == expected["param_groups"]
    assert got["state"].keys() == expected["state"].keys()
    for index, state in expected["state"].items():
        assert got["state"][index].keys() == state.keys()
        for name, value in state.items():
            theirs, mine = torch.as_tensor(value), torch.as_tensor(got["state"][index][name])
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape), name
            torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)


def test_a_state_of_other_groups_or_flags_is_refused_and_nothing_is_loaded(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.Adam(model.parameters()), job=job)
    other = torch.optim.Adam(list(model.parameters())[:2]).state_dict()
    with pytest.raises(ValueError, match="groups"):
        optimizer.load_state_dict(other)
    flagged = torch.optim.Adam(model.parameters(), lr=9.0, amsgrad=True).state_dict()
    with pytest.raises(ps.exceptions.SettingsError, match="amsgrad"):
        optimizer.load_state_dict(flagged)
    assert optimizer.param_groups[0]["lr"] == 1e-3


@torch.no_grad()  # type: ignore[untyped-decorator]
def _fill(model: Any) -> None:
    # Of the usual size: with more, gradients are so large that processors differ by more than is allowed.
    model.scale.fill_(0.7)


def _clamp_as_wgan(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


def _shift_through_numpy(model: Any) -> None:
    model.first.weight.detach().numpy()[...] += 1


def _from_a_vector(model: Any) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters()) * 0.5
    nn.utils.vector_to_parameters(vector, model.parameters())


def _begin_anew(model: Any) -> None:
    nn.init.normal_(model.last.weight, generator=torch.Generator().manual_seed(4))
    model.twice.weight.data = torch.zeros(8, 8)


EDITS = [_fill, _clamp_as_wgan, _shift_through_numpy, _from_a_vector, _begin_anew]


# They were overwritten, with a warning if torch counts them as changes.
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("overlap", ["auto", False, 1])
@pytest.mark.parametrize("when", ["after step", "before step"])
def test_no_way_of_changing_a_parameter_goes_unnoticed(
    job: ps.Job, edit: Callable[[Any], None], overlap: Any, when: str
) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job, overlap=overlap)
    train(model, optimizer, steps=3)
    optimizer.zero_grad()
    if when == "after step":
        edit(model)
    model(torch.ones(5, 6)).sum().backward()
    if when == "before step":
        edit(model)
    with pytest.raises(ps.exceptions.OptionError, match="changed outside of step") as caught:
        optimizer.step()
    assert "optimizer.publish()" in str(caught.value.hint)


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_a_parameter_changed_by_hand_and_published_is_trained_on(
    job: ps.Job, edit: Callable[[Any], None], overlap: Any
) -> None:
    def run(model: Any, optimizer: Any, publish: Callable[[], None]) -> None:
        for (x,) in batches(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            edit(model)
            publish()

    plain, model = net(), net()
    run(plain, OPTIMIZERS["sgd"](plain.parameters()), lambda: None)
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job, overlap=overlap)
    run(model, optimizer, optimizer.publish)
    assert_close(model, plain)


# The update of what had left was lost.
@pytest.mark.parametrize("overlap", ["auto", False])
def test_nothing_is_loaded_between_backward_and_step_if_gradients_have_left(
    job: ps.Job, overlap: Any
) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["adam"](model.parameters()), job=job, overlap=overlap)
    train(model, optimizer, steps=3)
    state, saved = _copy(model.state_dict()), _copy(optimizer.state_dict())
    optimizer.zero_grad()
    model(torch.ones(5, 6)).sum().backward()
    if overlap is False:
        model.load_state_dict(state)
        optimizer.load_state_dict(saved)
        optimizer.step()
        return
    for loads, what in ((model, state), (optimizer, saved)):
        with pytest.raises(ps.exceptions.OptionError, match="came between backward and step"):
            loads.load_state_dict(what)
    optimizer.step()


# It joined anew, and waited a whole deadline for servers that had gone with the job.
def test_a_job_that_has_failed_is_not_replaced_by_another_within_its_block() -> None:
    line = Line()
    with pytest.raises(ps.exceptions.JobClosed), ps.init(deadline=20) as job:
        job._core.fail("another worker's error, say")
        assert job.closed
        distribute(line, torch.optim.SGD(line.parameters(), lr=1.0))


@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_a_model_whose_job_has_ended_is_an_ordinary_model(overlap: Any) -> None:
    line = Line()
    original = torch.optim.SGD(line.parameters(), lr=1.0)
    with ps.init(deadline=20) as job:
        _, optimizer = distribute(line, original, job=job, overlap=overlap)
        line.w.sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    for _ in range(2):
        line.w.sum().backward()
    original.step()
    assert line.w.tolist() == [-3.0] * 4
    # It was published, to nobody.
    line.load_state_dict(line.state_dict())
    line.late = nn.Linear(2, 2)
    line.late(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ps.exceptions.JobClosed):
        optimizer.step()


def test_a_parameter_that_was_swapped_and_put_back_is_not_taken_for_a_change(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
    for _ in range(4):
        train(model, optimizer, steps=1, scheduler=False)
        kept = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            for name, parameter in model.named_parameters():
                parameter.copy_(kept[name])
    train(model, optimizer, steps=1)


@pytest.mark.parametrize("check", [True, False])
def test_a_load_into_a_part_is_published_or_an_error(job: ps.Job, check: bool) -> None:
    """Without the check the servers' values replaced it."""
    model = net()
    model, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, check=check)
    state = net(1).twice.state_dict()
    with pytest.raises(ps.exceptions.OptionError, match="the servers do not know of that"):
        model.twice.load_state_dict(state)
        optimizer.step()
    optimizer.publish()
    optimizer.step()
    assert torch.equal(model.twice.weight, state["weight"])
    # A load of the whole publishes by itself; a copy's parts are its own.
    model.load_state_dict(net(2).state_dict())
    copy.deepcopy(model).twice.load_state_dict(state)
    optimizer.step()
    assert torch.equal(model.twice.weight, net(2).twice.weight)


# It was refused, though the servers hold nothing of such a part.
@pytest.mark.parametrize("part", ["norm", "frozen"])
def test_without_the_check_a_load_into_what_the_servers_do_not_hold_is_taken(job: ps.Job, part: str) -> None:
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(3, affine=False), "last": nn.Linear(3, 1)})
    model["frozen"] = nn.Linear(3, 3).requires_grad_(False)
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, check=False)
    for one in model[part].state_dict().values():
        one.fill_(3)
    model[part].load_state_dict(model[part].state_dict())
    model["last"](model["norm"](model["frozen"](torch.ones(2, 3)))).sum().backward()
    optimizer.step()


def test_without_the_check_a_change_that_torch_does_not_count_is_lost(job: ps.Job) -> None:
    line = Line()
    _, optimizer = distribute(
        line, torch.optim.SGD(line.parameters(), lr=1.0), job=job, overlap=1, check=False
    )
    line.w.data.fill_(7)
    line.w.sum().backward()
    line.w.grad.data.fill_(5)
    optimizer.step()
    assert line.w.tolist() == [-1.0] * 4
    optimizer.zero_grad()
    line.w.sum().backward()
    line.w.grad.mul_(2)
    with pytest.raises(ps.exceptions.OptionError, match="was changed after it had left"):
        optimizer.step()


# Weights grew a thousandfold from the third step on.
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_a_gradient_scaler_is_refused_before_it_steps(job: ps.Job, unscale: bool, overlap: Any) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job, overlap=overlap)
    before = copy.deepcopy(model.state_dict())
    scaler = torch.amp.GradScaler("cpu")
    loss = model(torch.ones(5, 6)).sum()
    scaler.scale(loss).backward()
    if unscale:
        scaler.unscale_(optimizer)
    with pytest.raises(ps.exceptions.OptionError, match="GradScaler") as caught:
        scaler.step(optimizer)
    assert 'where="gradients"' in str(caught.value.hint)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    optimizer.job.close()


def test_a_gradient_scaler_that_is_not_enabled_steps(job: ps.Job) -> None:
    line = Line()
    _, optimizer = distribute(line, torch.optim.SGD(line.parameters(), lr=1.0), job=job)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(line.w.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert line.w.tolist() == [-1.0] * 4


# Edits of it did nothing; reading it showed an empty state.
@pytest.mark.parametrize(
    "use",
    [
        lambda o, p: o.state.clear(),
        lambda o, p: o.state.__setitem__(p, {}),
        lambda o, p: o.state[p].update(step=0),
        lambda o, p: o.state.pop(p, None),
        lambda o, p: o.state.update({p: {}}),
        lambda o, p: setattr(o, "state", {}),
        lambda o, p: list(o.state.items()),
        lambda o, p: bool(o.state),
    ],
)
def test_the_state_on_the_servers_is_not_to_be_had_as_a_dictionary(job: ps.Job, use: Any) -> None:
    model = net()
    _, optimizer = distribute(model, OPTIMIZERS["adam"](model.parameters()), job=job)
    train(model, optimizer, steps=1)
    saved = _copy(optimizer.state_dict())
    with pytest.raises(ps.exceptions.OptionError, match="on the servers") as caught:
        use(optimizer, model.last.weight)
    assert "load_state_dict" in str(caught.value.hint)
    _assert_same_state(optimizer.state_dict(), saved)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes_train_in_their_own_memory_layout(job: ps.Job, dtype: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3).to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()
    before = model.weight.detach().clone()
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), job=job)
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=0)
    model(torch.ones(1, 3, 4, 4, dtype=model.weight.dtype)).sum().backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.5 * gradient)


def test_a_backward_through_a_replaced_parameter_is_noticed_as_ever(job: ps.Job) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
    loss = model(torch.ones(1, 3)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_no_model_or_no_optimizer_of_torch_is_refused_with_what_to_do(job: ps.Job) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: list[tuple[Any, Any, str]] = [
        ([model], optimizer, "expected a torch.nn.Module, got builtins.list"),
        (torch.jit.script(model), optimizer, "expected a torch.nn.Module, got torch.jit"),
        (model, ps.SGD(0.1), "expected a plain torch.optim.Optimizer, got penstock"),
    ]
    for what, rule, says in given:
        with pytest.raises(ps.exceptions.OptionError, match=says) as refused:
            distribute(what, rule, job=job)
        assert refused.value.hint


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda p: torch.optim.Adam(p, differentiable=True), {}),
        (lambda p: torch.optim.NAdam(p), {"consistency": ps.SSP(2)}),
        (lambda p: torch.optim.SGD(p), {"overlap": "sometimes"}),
        (lambda p: torch.optim.SGD(p), {"overlap": 0}),
        (lambda p: torch.optim.SGD(p), {"overlap": True}),
        (lambda p: torch.optim.SGD(p), {"overlap": None}),
        (lambda p: torch.optim.SGD(p), {"overlap": 1.5}),
        (lambda p: torch.optim.SGD(p), {"lr_scale": "linear"}),
        (lambda p: torch.optim.SGD(p), {"check_every": -3}),
        (lambda p: torch.optim.SGD(p), {"bucket_bytes": "x"}),
        (lambda p: torch.optim.SGD(p), {"patience": "soon"}),
        (lambda p: list(p), {}),
        (lambda p: torch.optim.LBFGS(p), {}),
    ],
)
def test_what_cannot_be_distributed_is_refused(job: ps.Job, make: Make, options: dict[str, Any]) -> None:
    model = net()
    with pytest.raises(ps.exceptions.OptionError):
        distribute(model, make(model.parameters()), job=job, **options)


def test_every_rule_says_what_of_it_is_divided_among_an_iterations_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_settings = {name for name, row in ps.optim.ROWS.items() if row.settings}
    assert set(ps.optim.DIVIDED) == with_settings
    for name in ps.optim.ROWS:
        assert set(ps.optim.divisors(name, 4)) == set(ps.optim.DIVIDED.get(name, ()))
    # One that is forgotten is an error, never a rule whose settings are not divided.
    monkeypatch.delitem(ps.optim.DIVIDED, "Adam")
    with pytest.raises(KeyError):
        ps.optim.divisors("Adam", 4)


@pytest.mark.parametrize("where", ["servers", "gradients"])
def test_a_model_of_which_each_process_has_a_part_is_refused_with_what_to_do(job: ps.Job, where: str) -> None:
    class DTensor(nn.Parameter):  # type: ignore[misc,name-defined]
        __module__ = "torch.distributed.tensor"

    model = nn.Linear(2, 1)
    model.weight.__class__ = DTensor
    flat = importlib.import_module("torch.distributed.fsdp._flat_param")
    other = nn.Linear(2, 1)
    other.weight = flat.FlatParameter(torch.zeros(3))
    # As the module has it that FSDP has wrapped, with `use_orig_params`.
    inner = nn.Linear(2, 1)
    inner.weight._fsdp_flattened = True
    for part, kind in ((model, "DTensor"), (other, "FlatParameter"), (inner, "part of a FlatParameter")):
        with pytest.raises(ps.exceptions.OptionError, match=f"`weight` is a {kind}") as caught:
            ps.torch.distribute(part, torch.optim.SGD([part.bias], lr=0.1), job=job, where=where)
        assert "ps.torch.hooks.replicate" in str(caught.value.hint)


def test_a_module_that_has_every_attribute_is_a_whole_model(job: ps.Job) -> None:
    """It was taken for a FlatParameter."""

    class Lazy(nn.Linear):  # type: ignore[misc,name-defined]
        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                # Torch asks for other names to find out whether they are free.
                if not name.startswith(("_is_", "_fsdp_", "_ddp_")):
                    raise
                return nn.Identity()

    plain, model = (Lazy(6, 2) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
    train(plain, reference, steps=2)
    train(model, optimizer, steps=2)
    assert_close(model, plain)


def test_an_optimizer_that_the_servers_do_not_have_is_refused_with_the_other_way(job: ps.Job) -> None:
    class Mine(torch.optim.SGD):  # type: ignore[misc,name-defined]
        pass

    model = net()
    for make in (torch.optim.NAdam, torch.optim.LBFGS, Mine):
        with pytest.raises(ps.exceptions.OptionError, match=make.__name__) as caught:
            distribute(model, make(model.parameters()), job=job)
        assert 'where="gradients"' in str(caught.value.hint)


@pytest.mark.parametrize("how", ["pickled", "copied"])
def test_a_copy_of_the_model_is_an_ordinary_model(job: ps.Job, how: str) -> None:
    """It could not be pickled, and loading into a deep copy published the original, a collective call."""
    model, optimizer = distribute(plain := net(), torch.optim.SGD(plain.parameters(), lr=0.1), job=job)
    train(model, optimizer, steps=1)
    if how == "pickled":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        # Nothing of ours is in the file: only what the model itself is made of has to be allowed.
        with torch.serialization.safe_globals([Net, nn.Linear, nn.BatchNorm1d]):
            other = torch.load(file, weights_only=True)
    else:
        other = copy.deepcopy(model)
    assert_close(other, model)
    barriers = []
    optimizer.publish = lambda: barriers.append(1)
    other.load_state_dict(net().state_dict())
    assert not barriers
    model.load_state_dict(model.state_dict())
    assert barriers
    for call in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ps.exceptions.OptionError, match="belongs to the process") as caught:
            call(optimizer)
        assert "state_dict" in str(caught.value.hint)


@pytest.mark.parametrize("overlap", [False, 1])
def test_a_model_converted_after_distribute_is_said_to_be(job: ps.Job, overlap: Any) -> None:
    model = nn.Linear(4, 2)
    _, optimizer = distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=overlap)
    before = model.weight.detach().clone()
    model.double()
    said = "`model/(weight|bias)` was distributed as float32 and is float64 now"
    with pytest.raises(ps.exceptions.DtypeError, match=said) as caught:
        model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
    assert "before `distribute`" in str(caught.value.hint)
    with pytest.raises(ps.exceptions.DtypeError, match=said):
        optimizer.publish()
    assert optimizer.job.stats()["iteration"] == 0
    model.float()
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.1)


def test_fused_and_foreach_are_the_same_steps(job: ps.Job) -> None:
    model = net()
    _, optimizer = distribute(model, torch.optim.Adam(model.parameters(), fused=True), job=job)
    train(model, optimizer, steps=2)


def test_without_a_job_the_open_one_is_taken_or_one_is_made() -> None:
    first, second = net(), net()
    _, one = distribute(first, torch.optim.SGD(first.parameters()))
    _, two = distribute(second, torch.optim.SGD(second.parameters()))
    assert one.job is two.job
    assert {s.name for s in one._delivery}.isdisjoint(s.name for s in two._delivery)
    one.job.close()


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_betas_may_be_changed_in_place(job: ps.Job, kind: Any) -> None:
    """They were read as the same as before, since they are the same object."""
    model, plain = (nn.Linear(2, 1) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    betas = (0.9, 0.99)
    _, optimizer = distribute(model, torch.optim.Adam(model.parameters(), lr=0.1, betas=betas), job=job)
    alone = torch.optim.Adam(plain.parameters(), lr=0.1, betas=betas)
    for step, (one, of) in enumerate([(optimizer, model), (alone, plain)] * 3):
        group = one.param_groups[0]
        if step < 2:
            group["betas"] = list(betas) if kind is list else tuple(torch.tensor(beta) for beta in betas)
        elif kind is list:
            group["betas"][0] = 0.1
        else:
            group["betas"][0].fill_(0.1)
        one.zero_grad()
        (of(torch.tensor([[1.0, step // 2 - 1]])) ** 2).sum().backward()
        one.step()
    torch.testing.assert_close(model.weight, plain.weight)


def test_a_clipped_step_of_one_worker_knows_which_parameters_were_used(job: ps.Job) -> None:
    """Their names are in another order than they have in the optimizer."""

    def trained(distributed: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.ModuleDict({name: nn.Linear(2, 2) for name in "cba"})
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributed:
            _, optimizer = distribute(model, optimizer, job=job, clip_norm=0.5)
        for step in range(3):
            optimizer.zero_grad()
            used = model["c"] if step else model["b"]
            (used(torch.ones(3, 2)) ** 2).sum().backward()
            if not distributed:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(trained(distributed=True), trained(distributed=False))
