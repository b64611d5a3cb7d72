"""Where a step's time goes: by a clock that moves when the test says so, and in two real workers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import OptionError

torch = pytest.importorskip("torch")
counters = pytest.importorskip("penstock.torch.counters")


class Clock:
    """Seconds that pass only when the test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Slow(torch.autograd.Function):
    """Takes one second to compute, and ten for its gradient."""

    clock = Clock()

    @staticmethod
    def forward(ctx, x):
        Slow.clock.now += 1
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Slow.clock.now += 10
        return gradient * 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x):
        return {"loss": Slow.apply(self.inner(x)).sum()}


class SlowStep(torch.optim.SGD):
    def step(self, closure=None):
        Slow.clock.now += 100
        return super().step(closure)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    Slow.clock = Clock()
    monkeypatch.setattr(counters, "time", Slow.clock)
    return Slow.clock


def test_each_part_of_a_step_is_counted_where_it_happens(job: ps.Job, clock: Clock) -> None:
    model = Net()
    # Once there has been one, its hooks are called within SlowStep's own.
    torch.optim.SGD(Net().parameters(), lr=0.1)
    model, optimizer = ps.torch.distribute(model, SlowStep(model.parameters(), lr=0.1), job=job)
    model(torch.ones(1, 3))
    assert not any(ps.torch.times(model).values()), "the first call begins"
    other = SlowStep(Net().parameters(), lr=0.1)
    for _ in range(2):
        clock.now += 1000  # between the parts
        loss = model(torch.ones(1, 3))["loss"]
        clock.now += 1000
        loss.backward()
        clock.now += 1000
        optimizer.step()
        other.step()
    with torch.no_grad():
        model(torch.ones(1, 3))
    found = ps.torch.times(model)
    expected = {"forward": 3.0, "backward": 20.0, "waiting": 0.0, "copying": 0.0, "stepping": 200.0}
    assert found == {**expected, "passes": 2, "steps": 2}


def test_a_step_that_raises_is_not_counted_and_the_next_one_is(job: ps.Job, clock: Clock) -> None:
    model = Net()
    model, optimizer = ps.torch.distribute(model, SlowStep(model.parameters(), lr=0.1), job=job)
    ps.torch.times(model)

    def fail() -> torch.Tensor:
        raise RuntimeError("by the script")

    with pytest.raises(RuntimeError, match="by the script"):
        optimizer.step(fail)
    clock.now += 1000
    optimizer.step()
    found = ps.torch.times(model)
    assert (found["stepping"], found["steps"]) == (100.0, 1)


def test_gradients_that_leave_while_backward_runs_are_copied_not_computed(job: ps.Job, clock: Clock) -> None:
    model = ps.torch.distribute(Net(), job=job)
    ps.torch.times(model)
    counted = ps.torch._distributed[model].times

    def left(_: torch.Tensor) -> None:
        counted.sending(lambda: setattr(clock, "now", clock.now + 4))

    model.inner.weight.register_post_accumulate_grad_hook(left)
    model(torch.ones(1, 3))["loss"].backward()
    found = ps.torch.times(model)
    assert (found["backward"], found["copying"]) == (10.0, 4.0)


def test_a_pass_that_ends_with_an_error_is_not_counted_and_the_next_one_is(job: ps.Job, clock: Clock) -> None:
    model = ps.torch.distribute(Net(), job=job)
    ps.torch.times(model)

    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError("by the script")

    handle = model.inner.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="by the script"):
        model(torch.ones(1, 3))["loss"].backward()
    handle.remove()
    model(torch.ones(1, 3))["loss"].backward()
    found = ps.torch.times(model)
    assert (found["backward"], found["passes"]) == (10.0, 1)


def test_a_copy_of_the_model_is_not_counted_and_can_be_saved(job: ps.Job) -> None:
    model = ps.torch.distribute(torch.nn.Linear(3, 3), job=job)
    ps.torch.times(model)
    other = copy.deepcopy(model)
    other(torch.ones(1, 3)).sum().backward()
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    with torch.serialization.safe_globals([torch.nn.Linear]):
        torch.load(stream, weights_only=True)(torch.ones(1, 3)).sum().backward()
    assert ps.torch.times(model)["passes"] == 0


def test_a_model_that_is_not_distributed_has_no_times() -> None:
    with pytest.raises(OptionError, match="expected a model distributed"):
        ps.torch.times(torch.nn.Linear(2, 2))


def test_the_parts_of_two_workers_fit_into_the_time_that_went_by(spawn_job: Callable[..., Any]) -> None:
    script = """
    import time
    import torch
    job = ps.init()
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8))
    model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ps.torch.times(model)
    began = time.perf_counter()
    for step in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 8), job.rank + step + 1.0)).sum().backward()
        optimizer.step()
    with ps.torch.no_sync(model):
        model(torch.ones(2, 8)).sum().backward()
    found = ps.torch.times(model)
    save(wall=time.perf_counter() - began, names=list(found), figures=list(found.values()))
    """
    for saved in spawn_job(2, script):
        found = dict(zip(map(str, saved["names"]), saved["figures"], strict=True))
        assert (found.pop("passes"), found.pop("steps")) == (5, 4)
        assert set(found) == set(counters.PARTS)
        # Who comes last of all finds everything done, and has waited for nobody.
        waiting = found["waiting"]
        assert all(seconds > 0 for name, seconds in found.items() if name != "waiting"), found
        assert waiting >= 0
        assert sum(found.values()) <= saved["wall"]
