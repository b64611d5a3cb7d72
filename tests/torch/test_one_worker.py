"""
With one worker, a distributed script ends where the plain one ends: bit for bit where torch fuses nothing,
else close.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as ps

torch = pytest.importorskip("torch")
nn = torch.nn

Make = Callable[[Any], Any]

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
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),  # not a rule of the servers: steps here
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
@pytest.mark.parametrize("name", ["sgd", "nadam"])
def test_the_original_optimizer_cannot_be_stepped_while_the_job_is_open(name: str) -> None:
    model = nn.Linear(6, 2)
    original = OPTIMIZERS[name](model.parameters())
    before = model.weight.detach().clone()
    with ps.init(deadline=20):
        _, optimizer = ps.torch.distribute(model, original)
        model(torch.ones(3, 6)).sum().backward()
        with pytest.raises(ps.exceptions.OptionError, match="steps in this worker alone"):
            original.step()
        assert torch.equal(model.weight, before)
        optimizer.step()
        assert not torch.equal(model.weight, before)
    original.step()


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
    same, optimizer = ps.torch.distribute(model, make(model.parameters()), job=job, overlap=overlap)
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
    _, optimizer = ps.torch.distribute(model, make(model.parameters()), job=job, overlap=overlap)
    assert_close(train(model, optimizer, parts=3, set_to_none=set_to_none), plain)
    assert job.stats()["pushes"] <= 8 * len(list(model.parameters()))


def test_a_script_that_never_zeroes_gradients_goes_on_adding_to_them(job: ps.Job) -> None:
    plain, model = net(), net()

    def run(model: Any, optimizer: Any) -> None:
        for (x,) in batches(5):
            model(x).square().mean().backward()
            optimizer.step()

    run(plain, OPTIMIZERS["sgd"](plain.parameters()))
    run(*ps.torch.distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job))
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
    _, optimizer = ps.torch.distribute(model, original, job=job)
    assert optimizer.param_groups is original.param_groups
    run(model, optimizer)
    assert_close(model, plain)


def test_a_schedule_made_before_works_on_the_distributed_optimizer(job: ps.Job) -> None:
    model = net()
    original = OPTIMIZERS["sgd"](model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(original, 0.5)
    _, optimizer = ps.torch.distribute(model, original, job=job)
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
    _, optimizer = ps.torch.distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
    assert_close(train(model, optimizer, touch=clip), plain)


def test_a_gradient_changed_after_it_left_is_an_error_not_a_different_result(job: ps.Job) -> None:
    model = net()
    _, optimizer = ps.torch.distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
    train(model, optimizer, steps=3)
    model(torch.ones(5, 6)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    with pytest.raises(ps.exceptions.OptionError, match="left") as caught:
        optimizer.step()
    assert "overlap=False" in str(caught.value.hint)


def test_a_gradient_thrown_away_after_it_left_is_an_error(job: ps.Job) -> None:
    model = net()
    _, optimizer = ps.torch.distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job, overlap=1)
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
    run(*ps.torch.distribute(model, OPTIMIZERS["nesterov"](model.parameters()), job=job))
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
    for got, expected in zip(run(lambda m, o: ps.torch.distribute(m, o, job=job)), plain, strict=True):
        assert_close(got, expected)


def test_parts_that_come_after_a_gradient_left_go_with_the_next_iteration(job: ps.Job) -> None:
    """Plain SGD only adds gradients up: a part that is carried over ends in the same sum."""

    class Line(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4))

    def run(line: Any, optimizer: Any, parts: list[int]) -> Any:
        for number, count in enumerate(parts):
            optimizer.zero_grad()
            for part in range(count):
                (line.w * float(10 * number + part + 1)).sum().backward()
            optimizer.step()
        return line.w.detach()

    parts = [1, 1, 1, 3, 3, 3, 3, 1]
    plain, line = Line(), Line()
    expected = run(plain, torch.optim.SGD(plain.parameters(), lr=1.0), parts)
    _, optimizer = ps.torch.distribute(line, torch.optim.SGD(line.parameters(), lr=1.0), job=job)
    with pytest.warns(UserWarning, match="overlap=False") as caught:
        got = run(line, optimizer, parts)
    assert len(caught) == 1
    torch.testing.assert_close(got, expected)
    assert next(iter(optimizer._delivery)).expected == 3, "the count was learned anew"


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
    got = run(*ps.torch.distribute(model, OPTIMIZERS["adam"](model.parameters()), job=job))
    assert got == pytest.approx(expected, rel=1e-5)
    assert_close(model, plain)


def test_shared_parameters_are_one_tensor_and_frozen_ones_none(job: ps.Job) -> None:
    model = net()
    _, optimizer = ps.torch.distribute(model, OPTIMIZERS["sgd"](model.parameters()), job=job)
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
    run(*ps.torch.distribute(model, make(model), job=job))
    assert_close(model, plain)


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
    early, early_optimizer = ps.torch.distribute(early, early_optimizer, job=job)
    late = net(2)
    late, late_optimizer = ps.torch.distribute(late, make(late.parameters()), job=job)
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
    _, optimizer = ps.torch.distribute(model, torch.optim.Adam(model.parameters()), job=job)
    other = torch.optim.Adam(list(model.parameters())[:2]).state_dict()
    with pytest.raises(ValueError, match="groups"):
        optimizer.load_state_dict(other)
    flagged = torch.optim.Adam(model.parameters(), lr=9.0, amsgrad=True).state_dict()
    with pytest.raises(ps.exceptions.SettingsError, match="amsgrad"):
        optimizer.load_state_dict(flagged)
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_a_parameter_changed_by_hand_is_warned_of_and_can_be_published(job: ps.Job) -> None:
    model = net()
    _, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.0), job=job)
    with torch.no_grad():
        model.scale.fill_(7)
    optimizer.publish()
    model(torch.ones(5, 6)).sum().backward()
    optimizer.step()
    assert model.scale.item() == 7
    with torch.no_grad():
        model.scale.fill_(9)
    with pytest.warns(UserWarning, match="publish"):
        optimizer.step()
    assert model.scale.item() == 7


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_dtypes_train_in_their_own_memory_layout(job: ps.Job, dtype: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3).to(getattr(torch, dtype)).to(memory_format=torch.channels_last)
    assert not model.weight.is_contiguous()
    before = model.weight.detach().clone()
    _, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.5), job=job)
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=0)
    model(torch.ones(1, 3, 4, 4, dtype=model.weight.dtype)).sum().backward()
    gradient = model.weight.grad.clone()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.5 * gradient)


def test_a_backward_through_a_replaced_parameter_is_noticed_as_ever(job: ps.Job) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    _, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
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
            ps.torch.distribute(what, rule, job=job)
        assert refused.value.hint


def test_a_sparse_gradient_is_refused_with_what_to_do(job: ps.Job) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    _, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ps.exceptions.DtypeError, match="sparse") as caught:
        optimizer.step()
    assert "sparse=False" in str(caught.value.hint)


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
        (lambda p: list(p), {}),
        (lambda p: torch.optim.LBFGS(p), {}),
    ],
)
def test_what_cannot_be_distributed_is_refused(job: ps.Job, make: Make, options: dict[str, Any]) -> None:
    model = net()
    with pytest.raises(ps.exceptions.OptionError):
        ps.torch.distribute(model, make(model.parameters()), job=job, **options)


@pytest.mark.parametrize("how", ["pickled", "copied"])
def test_a_copy_of_the_model_is_an_ordinary_model(job: ps.Job, how: str) -> None:
    """It could not be pickled, and loading into a deep copy published the original, a collective call."""
    model, optimizer = ps.torch.distribute(
        plain := net(), torch.optim.SGD(plain.parameters(), lr=0.1), job=job
    )
    train(model, optimizer, steps=1)
    if how == "pickled":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
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
    _, optimizer = ps.torch.distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.1), job=job, overlap=overlap
    )
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
    _, optimizer = ps.torch.distribute(model, torch.optim.Adam(model.parameters(), fused=True), job=job)
    train(model, optimizer, steps=2)


def test_without_a_job_the_open_one_is_taken_or_one_is_made() -> None:
    first, second = net(), net()
    _, one = ps.torch.distribute(first, torch.optim.SGD(first.parameters()))
    _, two = ps.torch.distribute(second, torch.optim.SGD(second.parameters()))
    assert one.job is two.job
    assert {s.name for s in one._delivery}.isdisjoint(s.name for s in two._delivery)
    one.job.close()
