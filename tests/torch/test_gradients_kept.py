"""
What is kept from one backward pass to the next: gradients, and nothing of the script's variables. An average
of the last pass must not be averaged once more where that gives something else (`reduce="sum"`, `rescale`,
`clip`); what `no_sync` has collected is none, and stays.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import OptionError

torch = pytest.importorskip("torch")
nn = torch.nn

KEPT = """
import gc, weakref
import torch
nn = torch.nn
torch.set_num_threads(1)
OptionError = ps.exceptions.OptionError
SUM, HALF, CLIPPED = {"reduce": "sum"}, {"rescale": 0.5}, {"clip": 1.5}

def loss_of(model):
    return model(torch.ones(1, 4)).sum()

def run(model):
    loss_of(model).backward()

def linear(bias=False, **options):
    return ps.torch.distribute(nn.Linear(4, 1, bias=bias), **options)

def heads(**options):
    return ps.torch.distribute(nn.ModuleDict({one: nn.Linear(4, 1, bias=False) for one in "ab"}), **options)

def value(model):
    return float(model.weight.grad[0, 0])

def twice(**options):
    model = linear(**options)
    run(model)
    run(model)
    return value(model)

def one_head_twice(**options):
    model = heads(**options)
    run(model["a"])
    run(model["a"])
    return value(model["a"])

def one_head_after_the_other(**options):
    model = heads(**options)
    run(model["a"])
    run(model["b"])
    return value(model["a"])

def replaced(**options):
    model = linear(**options)
    run(model)
    model.weight.grad = model.weight.grad * 0.5
    run(model)
    return value(model)

def kept_into_no_sync(**options):
    model = linear(**options)
    run(model)
    with ps.torch.no_sync(model):
        run(model)
    return value(model)

def collected(**options):
    model = linear(bias=True, **options)
    for _ in range(2):
        with ps.torch.no_sync(model):
            run(model)
        run(model)
        found = value(model)
        model.zero_grad()
    return found

def collected_in_zeros(**options):
    model = linear(bias=True, **options)
    for _ in range(2):
        with ps.torch.no_sync(model):
            run(model)
        run(model)
        found = value(model)
        model.zero_grad(set_to_none=False)
    return found

def one_head_collected(**options):
    model = heads(**options)
    with ps.torch.no_sync(model):
        run(model["a"])
    run(model["b"])
    assert value(model["b"]) == value(model["a"])
    return value(model["a"])

def looked_at_between(**options):
    '''Gradients that are not added to any `grad`, while that holds an average.'''
    model = linear(**options)
    run(model)
    torch.autograd.grad(loss_of(model), list(model.parameters()))
    model.zero_grad(set_to_none=False)
    run(model)
    return value(model)

def checkpointed(**options):
    '''Inner passes that begin when this pass has added to gradients that were there, as zeros.'''
    from torch.utils.checkpoint import checkpoint
    model = ps.torch.distribute(nn.Linear(4, 4, bias=False), **options)
    x = torch.ones(1, 4, requires_grad=True)
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        (model(x).sum() + checkpoint(model, checkpoint(model, x, use_reentrant=True) * 0,
         use_reentrant=True).sum()).backward()
    return value(model)

def compiled(**options):
    model = linear(**options)
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        model.zero_grad()
        run(fast)
    return value(model)

def unfrozen(**options):
    model = linear(**options)
    model.weight.requires_grad_(False)
    model = ps.torch.distribute(ps.torch.unwrap(model), **options)
    model.weight.requires_grad_(True)
    run(model)
    run(model)
    return value(model)

def variables():
    '''What those who call backward have dropped afterwards is gone: activations, say.'''
    def step(model):
        held = torch.zeros(3)
        kept.append(weakref.ref(held))
        loss = loss_of(model)
        loss.backward()
        del held
        return kept[-1]() is None
    kept = []
    model = linear()
    return [step(model) for _ in range(2)]

def in_a_forward():
    '''A Function whose forward runs a pass, which is in no other: the outer one never comes.'''
    class Early(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                loss = model(x).sum()
                loss.backward()
            return loss.detach()
        @staticmethod
        def backward(ctx, gradient):
            return None
    model = linear()
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        optimizer.zero_grad()
        Early.apply(torch.full((1, 4), 1.0 + job.rank, requires_grad=True))
        optimizer.step()
    return model.weight.tolist()[0]

found = {}
def find(part, **options):
    try:
        found[f"{part.__name__} {options}"] = part(**options)
    except OptionError as error:
        found[f"{part.__name__} {options}"] = str(error)

with ps.init() as job:
    for part in (twice, one_head_twice, one_head_after_the_other, replaced, kept_into_no_sync, unfrozen):
        for options in (SUM, HALF, CLIPPED):
            find(part, **options)
    for part in (collected, collected_in_zeros, one_head_collected, looked_at_between, checkpointed):
        for options in (SUM, HALF, CLIPPED, {}):
            find(part, **options)
    find(twice)
    find(kept_into_no_sync)
    find(compiled, **SUM)
    # The hooks know the model, and do not keep it.
    model = linear(**SUM)
    run(model)
    gone = weakref.ref(model.weight)
    del model
    gc.collect()
    found["variables"] = variables()
    found["in a forward"] = in_a_forward()
    found["gone"] = gone() is None
save(**found)
"""
SUM, HALF, CLIPPED = "{'reduce': 'sum'}", "{'rescale': 0.5}", "{'clip': 1.5}"


@pytest.fixture(scope="module")
def kept(spawn_shared_job: Any) -> list[dict[str, Any]]:
    saved: list[dict[str, Any]] = spawn_shared_job(2, KEPT)
    return saved


# The first parameter that the pass reached was left out: with one alone, a sum of 4 was 6.
@pytest.mark.parametrize("options", [SUM, HALF, CLIPPED])
@pytest.mark.parametrize(
    "part",
    ["twice", "one_head_twice", "one_head_after_the_other", "replaced", "kept_into_no_sync", "unfrozen"],
)
def test_an_average_is_never_averaged_twice(kept: list[dict[str, Any]], part: str, options: str) -> None:
    for one in kept:
        assert "weight` still had a gradient" in str(one[f"{part} {options}"])


# What the hint of the error told to do was the same error.
@pytest.mark.parametrize(("options", "expected"), [(SUM, 4.0), (HALF, 1.0), (CLIPPED, 1.5), ("{}", 2.0)])
@pytest.mark.parametrize("part", ["collected", "collected_in_zeros"])
def test_what_no_sync_collected_is_averaged_with_the_pass_outside(
    kept: list[dict[str, Any]], part: str, options: str, expected: float
) -> None:
    for one in kept:
        assert one[f"{part} {options}"] == expected


@pytest.mark.parametrize(("options", "expected"), [(SUM, 2.0), (HALF, 0.5), (CLIPPED, 1.0), ("{}", 1.0)])
@pytest.mark.parametrize("part", ["one_head_collected", "looked_at_between", "checkpointed"])
def test_a_gradient_that_is_no_average_is_no_reason_to_refuse(
    kept: list[dict[str, Any]], part: str, options: str, expected: float
) -> None:
    for one in kept:
        assert one[f"{part} {options}"] == expected


def test_a_mean_of_means_stays(kept: list[dict[str, Any]]) -> None:
    for one in kept:
        assert one["twice {}"] == one["kept_into_no_sync {}"] == 2.0


def test_sums_come_to_a_compiled_model(kept: list[dict[str, Any]]) -> None:
    for one in kept:
        assert one[f"compiled {SUM}"] == 2.0


def test_a_model_whose_gradients_are_watched_goes_when_it_is_dropped(kept: list[dict[str, Any]]) -> None:
    assert all(one["gone"] for one in kept)


# A pass kept all variables of all its callers until the next: a step's peak was a third higher.
def test_a_pass_keeps_nothing_of_its_callers_variables(kept: list[dict[str, Any]]) -> None:
    for one in kept:
        assert list(one["variables"]) == [True, True]


# It was taken for a pass inside another, whose end was awaited: nothing was averaged, without a word.
def test_a_pass_that_the_forward_of_a_function_runs_is_averaged(kept: list[dict[str, Any]]) -> None:
    for one in kept:
        assert list(one["in a forward"]) == [-4.5] * 4


# -- one worker: it changes gradients as many would


# A script that was tried with one worker trained otherwise with two, without a word.
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rescale": 0.5}, 0.5),
        ({"clip": 0.1}, 0.1),
        ({"rescale": 0.5, "clip": 0.2, "reduce": "sum"}, 0.2),
        ({"reduce": "sum"}, 1.0),
    ],
)
def test_one_worker_rescales_and_clips_too(job: ps.Job, options: dict[str, Any], expected: float) -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1, affine=False).eval())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = ps.torch.distribute(model, optimizer, job=job, **options)
    for _ in range(5):
        optimizer.zero_grad()
        # The same batch each time: with one worker that is nobody's mistake.
        model[0](torch.ones(1, 4)).sum().backward()
        assert torch.allclose(model[0].weight.grad, torch.full((1, 4), expected))
        optimizer.step()
    gone = weakref.ref(model[0].weight)
    del model, optimizer
    gc.collect()
    assert gone() is None


# Each had its own, for the rest of the job.
@pytest.mark.parametrize("unwrapped", [False, True])
def test_one_workers_next_model_uses_the_memory_of_the_last_too(job: ps.Job, unwrapped: bool) -> None:
    sizes = []
    for _ in range(3):
        model = ps.torch.distribute(nn.Linear(4, 1), job=job, rescale=0.5)
        model(torch.ones(1, 4)).sum().backward()
        assert model.weight.grad.tolist() == [[0.5] * 4]
        if unwrapped:
            ps.torch.unwrap(model)
        del model
        gc.collect()
        sizes.append(len(job._tensors))
    assert len(set(sizes)) == 1


# What it had begun with held the job, which is what that was found by.
@pytest.mark.parametrize("where", ["at its end", "in the middle"])
def test_a_job_in_which_a_pass_was_cut_short_goes_with_its_memory(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    with ps.init() as job:
        model = ps.torch.distribute(nn.Linear(4, 1), job=job, rescale=0.5)
        x = torch.ones(1, 4, requires_grad=True)
        y = x * 1
        if where == "at its end":
            monkeypatch.setattr("penstock.torch.gradients.bucket.Bucket.take", cut)
        else:
            y.register_hook(cut)
        with pytest.raises(KeyboardInterrupt):
            model(y).sum().backward()
    gone = weakref.ref(job)
    del job, model, x, y
    gc.collect()
    assert gone() is None


# Part of what is there may be an average, to which another pass would be added.
def test_a_pass_of_one_worker_that_was_cut_short_is_followed_by_another_once_gradients_are_cleared(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> None:
        raise KeyboardInterrupt

    model = ps.torch.distribute(nn.Linear(4, 1), job=job, rescale=0.5)
    with monkeypatch.context() as patch:
        patch.setattr("penstock.torch.gradients.roll.Roll.hear", cut)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(OptionError, match="still had a gradient"):
        model(torch.ones(1, 4)).sum().backward()
    model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad.tolist() == [[0.5] * 4]


# It was said once, and then the workers' clocks were apart.
def test_one_worker_is_told_of_a_pass_that_broke_off_for_as_long_as_that_lasts(job: ps.Job) -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
    ps.torch.distribute(model, job=job, rescale=0.5, bucket_bytes=1)
    model(torch.ones(1, 4)).sum().backward()

    def fail(_: Any) -> None:
        raise MemoryError

    model.zero_grad()
    # Behind what adds to the last layer's gradient, which leaves at once.
    hidden = model[0](torch.ones(1, 4)) * 1
    hidden.register_hook(fail)
    with pytest.raises(MemoryError):
        model[1](hidden).sum().backward()
    for _ in range(3):
        model.zero_grad()
        with pytest.raises(OptionError, match="in the middle of an average") as refused:
            model(torch.ones(1, 4)).sum().backward()
        assert "overlap=False" in str(refused.value.hint)


# The outer model's gradients were then no averages, without a word.
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("caught", [True, False])
def test_a_pass_inside_of_which_a_hook_runs_another_is_refused_whatever_the_hook_makes_of_it(
    job: ps.Job, overlap: bool, learned: bool, caught: bool
) -> None:
    outer, inner, last = (nn.Linear(4, 1, bias=False) for _ in range(3))
    for model in (outer, inner, last):
        ps.torch.distribute(model, job=job, rescale=0.5, overlap=overlap)

    @torch.enable_grad()
    def run(_: Any) -> None:
        for _ in range(2):
            try:
                inner(torch.ones(1, 4)).sum().backward()
            except OptionError:
                if not caught:
                    raise

    def clear() -> None:
        for model in (outer, inner, last):
            model.zero_grad()

    if learned:
        (outer(torch.ones(1, 4)) + inner(torch.ones(1, 4)) + last(torch.ones(1, 4))).sum().backward()
        clear()
    # The hook runs behind what adds to the outer model's gradients, and before the last one's.
    y = last(torch.ones(1, 4, requires_grad=True)) + torch.ones(1, 4, requires_grad=True) * 1
    y.register_hook(run)
    with pytest.raises(OptionError, match="was run inside this one" if caught else "inside another one"):
        outer(y).sum().backward()
    clear()
    if overlap and learned:
        # A part of it had left.
        with pytest.raises(OptionError, match="in the middle of an average"):
            inner(torch.ones(1, 4)).sum().backward()
        return
    inner(torch.ones(1, 4)).sum().backward()
    assert inner.weight.grad.tolist() == [[0.5] * 4]


def running(run: Callable[[], None]) -> Callable[[Any], Any]:
    """Gives its argument; its backward runs something first."""

    class Runs(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        @torch.enable_grad()
        def backward(_: Any, gradient: Any) -> Any:
            run()
            return gradient

    return Runs.apply  # type: ignore[no-any-return]


def test_a_pass_that_a_hook_broke_sends_nothing_more(job: ps.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    outer = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    inner = nn.Linear(4, 1, bias=False)
    ps.torch.distribute(outer, job=job, rescale=0.5, bucket_bytes=1)
    ps.torch.distribute(inner, job=job, rescale=0.5)
    (outer(torch.ones(1, 4)).sum() + inner(torch.ones(1, 4)).sum()).backward()
    outer.zero_grad()
    inner.zero_grad()
    bucket_type = pytest.importorskip("penstock.torch.gradients.bucket").Bucket
    sent: list[Any] = []
    send = bucket_type.send

    def counted(bucket: Any) -> None:
        sent.append(bucket)
        send(bucket)

    monkeypatch.setattr(bucket_type, "send", counted)

    @torch.enable_grad()
    def run(_: Any) -> None:
        with contextlib.suppress(OptionError):
            inner(torch.ones(1, 4)).sum().backward()
        sent.clear()

    hidden = outer[1](outer[0](torch.ones(1, 4)))
    hidden.register_hook(run)
    with pytest.raises(OptionError, match="was run inside this one"):
        outer[2](hidden).sum().backward()
    assert not sent


# What it had added stayed, and was averaged.
@pytest.mark.parametrize("then", [True, False])
def test_a_pass_inside_of_which_one_failed_is_refused_though_the_error_was_caught(
    job: ps.Job, then: bool
) -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False)
    model = nn.Sequential(first, second)
    ps.torch.distribute(model, job=job, rescale=0.5, overlap=False)

    def fail(_: Any) -> None:
        raise MemoryError

    def skips() -> None:
        hidden = torch.ones(1, 4, requires_grad=True) * 1
        hidden.register_hook(fail)
        with contextlib.suppress(MemoryError):
            second(hidden).sum().backward()

    around = running(skips)
    x = torch.ones(1, 4, requires_grad=True)
    hidden = around(first(x)) if then else first(around(x * 1))
    with pytest.raises(OptionError, match="was run inside this one"):
        second(hidden).sum().backward()
    model.zero_grad()
    second(first(x)).sum().backward()
    assert second.weight.grad.tolist() == [(0.5 * first(x)).tolist()[0]]


# The second began anew, and all that the first had added was averaged.
@pytest.mark.parametrize("caught", [True, False])
def test_a_pass_inside_of_which_one_failed_and_another_did_not_is_refused_where_it_has_come_to_no_model(
    job: ps.Job, caught: bool
) -> None:
    model = nn.Linear(4, 1, bias=False)
    ps.torch.distribute(model, job=job, rescale=0.5, overlap=False)

    def fail(_: Any) -> None:
        raise MemoryError

    def twice() -> None:
        for error, hook in ((MemoryError, fail), (OptionError if caught else (), None)):
            hidden = torch.ones(1, 4, requires_grad=True) * 1
            if hook is not None:
                hidden.register_hook(hook)
            with contextlib.suppress(error):
                model(hidden).sum().backward()

    for _ in range(2):
        with pytest.raises(OptionError, match="was run inside this one"):
            running(twice)(model(torch.ones(1, 4))).sum().backward()
        model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad.tolist() == [[0.5] * 4]


# While the node was what told that a pass had failed inside of it, no later pass through it was ever taken.
@pytest.mark.parametrize("inside", [True, False])
def test_a_graph_that_is_kept_is_run_again_after_a_pass_through_it_failed(job: ps.Job, inside: bool) -> None:
    model = nn.Linear(4, 1, bias=False)
    ps.torch.distribute(model, job=job, rescale=0.5, overlap=False)
    fails = [True, False, True, False, False]

    def fail(_: Any) -> None:
        if fails.pop(0):
            raise MemoryError

    def run() -> None:
        hidden = torch.ones(1, 4, requires_grad=True) * 1
        if inside:
            hidden.register_hook(fail)
        model(hidden).sum().backward()

    x = torch.ones(1, 4, requires_grad=True) * 1
    if not inside:
        x.register_hook(fail)
    y = running(run)(x).sum()
    while fails:
        failing = fails[0]
        with pytest.raises(MemoryError) if failing else contextlib.nullcontext():
            y.backward(retain_graph=True)
        if not failing:
            assert model.weight.grad.tolist() == [[0.5] * 4]
        model.zero_grad()


def test_one_workers_gradients_that_are_no_numbers_are_refused_too(job: ps.Job) -> None:
    model = ps.torch.distribute(nn.Linear(4, 1), job=job, refuse_nonfinite=True)
    with pytest.raises(ps.PenstockError, match=r"finite|NaN"):
        model(torch.full((1, 4), float("nan"))).sum().backward()
