"""
Filters of what an optimizer pushes: with SGD at a constant rate, what was sent and what is held back are what
was computed. Gradients are whole numbers that do not depend on the parameters, so that sums are exact.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import NonFiniteError, OptionError

torch = pytest.importorskip("torch")
nn = torch.nn

distribute = functools.partial(ps.torch.distribute, where="servers")

FILTERS = {
    "bounded": ps.DVF(12.0),
    "relative": ps.DVF(1.0, decay=None, relative=True),
    "top": ps.TopK(0.2),
    "random": ps.RandomK(0.2, seed=3),
    "thresholds": ps.Quantize("2bit", threshold=3.0),
}
NOTHING_HELD = {
    "bounded": ps.DVF(0.0),
    "relative": ps.DVF(0.0, relative=True),
    "top": ps.TopK(1.0),
    "random": ps.RandomK(1.0),
    # Of whole numbers as small as these gradients' they round nothing.
    "multiples": ps.Quantize("int8"),
    "half": ps.Quantize("f16"),
}
STEPS = 6
OVERLAPS = ("auto", False, 1)


def each_pair(
    first: Iterable[Any], second: Iterable[Any], third: Sequence[Any]
) -> list[tuple[Any, Any, Any]]:
    """Each of the first two with each other, and each of them with each of the third, which takes turns."""
    return [
        (one, other, third[(i + j) % len(third)])
        for (i, one), (j, other) in itertools.product(enumerate(first), enumerate(second))
    ]


def push(given: ps.filters.Filter | None) -> ps.Filters:
    return ps.Filters(push=given)


class Line(nn.Module):  # type: ignore[misc,name-defined]
    """Linear in its parameters, all 0 at first: a 0-d one, one in another order, one that nobody uses."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros((), dtype=dtype))
        self.first = nn.Parameter(torch.zeros(7, 5, dtype=dtype))
        self.turned = nn.Parameter(torch.zeros(4, 3, dtype=dtype).t())
        self.unused = nn.Parameter(torch.ones(3, dtype=dtype))

    def forward(self, seed: int) -> Any:
        draw = torch.Generator().manual_seed(seed)
        return sum(
            (torch.randint(-8, 9, part.shape, generator=draw).to(part.dtype) * part).sum()
            for part in (self.scale, self.first, self.turned)
        )


def values(model: Any) -> list[Any]:
    return [one.detach().clone() for one in model.parameters()]


def trained(
    job: ps.Job,
    given: ps.filters.Filter | None,
    make: Callable[[Any], Any],
    passes: Callable[[int], int] = lambda _: 1,
    dtype: Any = torch.float32,
    **options: Any,
) -> tuple[Any, Any]:
    model = Line(dtype)
    model, optimizer = distribute(model, make(model.parameters()), job=job, filter=push(given), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes(step)):
            model(10 * step + number).backward()
        optimizer.step()
    return model, optimizer


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.25)


@pytest.mark.parametrize(("name", "overlap", "check"), each_pair(NOTHING_HELD, OVERLAPS, (True, False)))
def test_a_filter_that_holds_nothing_back_changes_no_bit(
    job: ps.Job, name: str, overlap: Any, check: bool
) -> None:
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
    ):
        options = {"overlap": overlap, "check": check}
        plain, _ = trained(job, None, make, **options)
        filtered, optimizer = trained(job, NOTHING_HELD[name], make, **options)
        assert optimizer.held_back == (0.0, 0)
        optimizer.flush()
        assert all(map(torch.equal, values(plain), values(filtered)))


@pytest.mark.parametrize(
    ("name", "overlap", "consistency"), each_pair(FILTERS, OVERLAPS, ("bsp", "ssp:2", "asp"))
)
def test_nothing_is_lost(job: ps.Job, name: str, overlap: Any, consistency: str) -> None:
    options: dict[str, Any] = {"overlap": overlap, "consistency": consistency}
    plain, _ = trained(job, None, sgd, **options)
    filtered, optimizer = trained(job, FILTERS[name], sgd, **options)
    each = [shared.tensor.held_back for shared in optimizer._shared.values()]
    assert optimizer.held_back.elements == sum(one.elements for one in each) > 0
    assert optimizer.held_back.norm == pytest.approx(np.linalg.norm([one.norm for one in each]))
    assert not all(map(torch.equal, values(plain), values(filtered)))
    optimizer.flush()
    assert optimizer.held_back == (0.0, 0)
    assert all(map(torch.equal, values(plain), values(filtered)))


@pytest.mark.parametrize(
    ("overlap", "dtype", "check"),
    each_pair(("auto", 3, False), (torch.float64, torch.float16, torch.bfloat16), (True, False)),
)
def test_nothing_is_lost_of_gradients_that_are_accumulated(
    job: ps.Job, overlap: Any, dtype: Any, check: bool
) -> None:
    def count(step: int) -> int:
        return 3 if overlap else 1 + step % 3

    # Sums of whole numbers that fit into bfloat16 as well.
    make = lambda p: torch.optim.SGD(p, lr=2.0)  # noqa: E731
    options: dict[str, Any] = {"overlap": overlap, "check": check, "dtype": dtype}
    plain, _ = trained(job, None, make, count, **options)
    filtered, optimizer = trained(job, ps.TopK(0.3), make, count, **options)
    assert optimizer.held_back.elements > 0
    optimizer.flush()
    assert all(map(torch.equal, values(plain), values(filtered)))


def test_each_step_is_by_what_the_filter_sends_of_gradient_and_carry(job: ps.Job) -> None:
    model = nn.ParameterList([torch.zeros(3)])
    _, optimizer = distribute(model, torch.optim.SGD(model, lr=1.0), job=job, filter=push(ps.DVF(2.0)))
    # The bound is 2 at first, then 2 / sqrt(2), then 2 / sqrt(3).
    for gradient, value, held in (
        ([1.0, 3.0, 2.0], [0.0, -3.0, 0.0], 2),
        ([0.0, 1.0, -1.0], [0.0, -3.0, 0.0], 3),
        ([1.0, 0.0, 0.0], [-2.0, -3.0, 0.0], 2),
    ):
        optimizer.zero_grad()
        (model[0] * torch.tensor(gradient)).sum().backward()
        optimizer.step()
        assert model[0].tolist() == value
        assert optimizer.held_back.elements == held
    assert optimizer.held_back.norm == pytest.approx(2**0.5)
    optimizer.flush()
    assert model[0].tolist() == [-2.0, -4.0, -1.0]


# What is compared with the gradient stood in the lane, where the filter leaves what it sends.
@pytest.mark.parametrize("change", ["nothing", "in place", "data", "thrown away"])
def test_a_gradient_that_was_changed_after_it_had_left_is_noticed(job: ps.Job, change: str) -> None:
    model = Line()
    _, optimizer = distribute(model, sgd(model.parameters()), job=job, overlap=1, filter=push(ps.TopK(0.2)))
    model(0).backward()
    if change == "in place":
        model.first.grad.mul_(2)
    elif change == "data":
        model.first.grad.data.mul_(2)
    elif change == "thrown away":
        model.first.grad = None
    if change == "nothing":
        optimizer.step()
    else:
        with pytest.raises(OptionError, match="after it had left"):
            optimizer.step()


@pytest.mark.parametrize("overlap", ["auto", False, 2])
def test_a_flush_between_backward_passes_leaves_their_gradients_alone(job: ps.Job, overlap: Any) -> None:
    results = []
    for given in (None, ps.TopK(0.2)):
        model, optimizer = trained(job, given, sgd, lambda _: 2, overlap=overlap)
        for step in range(2):
            optimizer.zero_grad()
            model(100 + step).backward()
            optimizer.flush()
            assert optimizer.held_back == (0.0, 0)
            model(200 + step).backward()
            optimizer.step()
        optimizer.flush()
        results.append(values(model))
    assert all(map(torch.equal, *results))


def test_a_flush_after_gradients_have_left_is_refused(job: ps.Job) -> None:
    model, optimizer = trained(job, ps.TopK(0.2), sgd, overlap=1)
    held = optimizer.held_back
    optimizer.zero_grad()
    model(100).backward()
    with pytest.raises(OptionError, match="a flush came between backward and step"):
        optimizer.flush()
    optimizer.step()
    assert optimizer.held_back != held
    optimizer.flush()
    assert optimizer.held_back == (0.0, 0)


def test_a_flush_refuses_what_a_step_refuses(job: ps.Job) -> None:
    model, optimizer = trained(job, ps.TopK(0.2), sgd)
    with torch.no_grad():
        model.first.add_(1)
    with pytest.raises(OptionError, match=r"changed outside of step"):
        optimizer.flush()
    assert optimizer.held_back.elements > 0
    optimizer.publish()
    optimizer.flush()
    assert optimizer.held_back.elements == 0


def test_a_flush_without_a_filter_does_nothing(job: ps.Job) -> None:
    for given in (None, ps.Filters()):
        model = Line()
        _, optimizer = distribute(model, sgd(model.parameters()), job=job, filter=given)
        model(0).backward()
        optimizer.step()
        before = job.iteration
        optimizer.flush()
        assert job.iteration == before
        assert optimizer.held_back == (0.0, 0)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_what_is_held_back_of_a_frozen_parameter_waits_for_its_next_gradient_or_a_flush(
    job: ps.Job, set_to_none: bool
) -> None:
    results = []
    for given in (None, ps.DVF(1e3, decay=None)):
        model, optimizer = trained(job, given, sgd)
        model.first.requires_grad_(False)
        for step in range(2):
            optimizer.zero_grad(set_to_none)
            before = model.first.detach().clone()
            model(50 + step).backward()
            optimizer.step()
            assert torch.equal(model.first, before)
        held = [one.tensor.held_back for one in optimizer._shared.values() if one.parameter is model.first]
        assert (held[0].elements > 0) == (given is not None)
        model.first.requires_grad_(True)
        optimizer.zero_grad()
        model(60).backward()
        optimizer.step()
        model.first.requires_grad_(False)
        optimizer.flush()
        results.append(values(model))
    assert all(map(torch.equal, *results))


def test_a_flush_steps_only_what_had_gradients(job: ps.Job) -> None:
    """A step of zeros would take its weight decay."""

    def make(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)

    model, optimizer = trained(job, ps.TopK(0.2), make)
    optimizer.flush()
    assert torch.equal(model.unused, torch.ones(3))
    steps = {place: int(state["step"]) for place, state in optimizer.state_dict()["state"].items()}
    # The 0-d one has one element, which is always sent.
    assert steps == {0: STEPS, 1: STEPS + 1, 2: STEPS + 1}


def test_a_state_lacks_what_is_held_back_and_a_load_leaves_it(job: ps.Job) -> None:
    def make(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.25, momentum=0.5)

    model, optimizer = trained(job, ps.TopK(0.2), make)
    held = optimizer.held_back
    state, weights = optimizer.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
    assert optimizer.held_back == held
    again = Line()
    again.load_state_dict(weights)
    resumed = make(again.parameters())
    resumed.load_state_dict(state)
    again, resumed = distribute(again, resumed, job=job, filter=push(ps.TopK(0.2)))
    assert resumed.held_back.elements == 0
    optimizer.load_state_dict(state)
    model.load_state_dict(weights)
    assert optimizer.held_back == held
    assert all(map(torch.equal, values(again), values(model)))
    optimizer.flush()
    # With the momentum that the state has.
    assert not all(map(torch.equal, values(again), values(model)))


def test_what_was_held_back_is_stepped_by_at_the_rate_that_the_group_has_then(job: ps.Job) -> None:
    model = nn.ParameterList([torch.zeros(2)])
    given = push(ps.DVF(10.0, decay=None))
    _, optimizer = distribute(model, torch.optim.SGD(model, lr=1.0), job=job, overlap=False, filter=given)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for gradient in ([8.0, 16.0], [8.0, 0.0]):
        optimizer.zero_grad()
        (model[0] * torch.tensor(gradient)).sum().backward()
        optimizer.step()
        schedule.step()
    assert model[0].tolist() == [-8.0, -16.0]
    optimizer.zero_grad()
    (model[0] * 4).sum().backward()
    optimizer.step()
    schedule.step()
    optimizer.flush()
    assert model[0].tolist() == [-8.5, -16.5]


# -- what is not finite, and what is scaled


def test_what_is_not_finite_is_sent_at_once_and_is_not_carried(job: ps.Job) -> None:
    model = nn.ParameterList([torch.zeros(3)])
    given = push(ps.DVF(10.0, decay=None))
    _, optimizer = distribute(model, torch.optim.SGD(model, lr=1.0), job=job, filter=given)
    for gradient in ([1.0, float("nan"), 2.0], [1.0, 1.0, float("-inf")]):
        optimizer.zero_grad()
        (model[0] * torch.tensor(gradient)).nansum().backward()
        model[0].grad = torch.tensor(gradient)
        optimizer.step()
    np.testing.assert_array_equal(model[0].detach(), [0.0, float("nan"), float("inf")])
    assert np.isfinite(optimizer.held_back.norm)
    optimizer.flush()
    np.testing.assert_array_equal(model[0].detach(), [-2.0, float("nan"), float("inf")])


def test_a_gradient_that_is_refused_changes_nothing_of_what_is_held_back(job: ps.Job) -> None:
    model, optimizer = trained(job, ps.TopK(0.2), sgd, overlap=False, refuse_nonfinite=True)
    held, before = optimizer.held_back, values(model)
    optimizer.zero_grad()
    (model.first * float("inf")).sum().backward()
    with pytest.raises(NonFiniteError):
        optimizer.step()
    assert optimizer.held_back == held
    assert all(map(torch.equal, before, values(model)))
    optimizer.zero_grad()
    optimizer.flush()
    plain, _ = trained(job, None, sgd)
    assert all(map(torch.equal, values(plain), values(model)))


def test_gradients_of_a_scaled_loss_are_refused_before_any_is_held_back(job: ps.Job) -> None:
    model = Line()
    given = push(ps.TopK(0.2))
    _, optimizer = distribute(model, sgd(model.parameters()), job=job, overlap=False, filter=given)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(0)).backward()
    with pytest.raises(OptionError, match="a GradScaler does not work"):
        scaler.step(optimizer)
    assert optimizer.held_back == (0.0, 0)
    # Unscaled by hand, it is like any other.
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(1024)
    optimizer.step()
    optimizer.flush()
    plain = Line()
    alone = sgd(plain.parameters())
    plain(0).backward()
    alone.step()
    assert all(map(torch.equal, values(plain), values(model)))


# -- clipping by norm


@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_with_clip_norm_a_filter_that_holds_nothing_back_changes_no_bit(job: ps.Job, overlap: Any) -> None:
    plain, one = trained(job, None, sgd, clip_norm=5.0, overlap=overlap)
    filtered, other = trained(job, ps.TopK(1.0), sgd, clip_norm=5.0, overlap=overlap)
    assert all(map(torch.equal, values(plain), values(filtered)))
    assert one.total_norm == other.total_norm > 5


@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_below_the_norm_nothing_is_lost(job: ps.Job, overlap: Any) -> None:
    plain, _ = trained(job, None, sgd, clip_norm=float("inf"), overlap=overlap)
    filtered, optimizer = trained(job, ps.TopK(0.2), sgd, clip_norm=float("inf"), overlap=overlap)
    assert optimizer.held_back.elements > 0
    norm = optimizer.held_back.norm
    optimizer.flush()
    assert optimizer.total_norm == pytest.approx(norm)
    assert all(map(torch.equal, values(plain), values(filtered)))


def test_what_arrives_is_clipped_whenever_it_was_computed(job: ps.Job) -> None:
    model = nn.ParameterList([torch.zeros(2, dtype=torch.float64)])
    given = push(ps.DVF(4.0, decay=None))
    _, optimizer = distribute(
        model, torch.optim.SGD(model, lr=1.0), job=job, overlap=False, clip_norm=5.0, filter=given
    )
    for gradient, norm in (([6.0, 3.0], 6.0), ([0.0, 3.0], 6.0), ([0.0, 4.0], 0.0)):
        optimizer.zero_grad()
        (model[0] * torch.tensor(gradient)).sum().backward()
        optimizer.step()
        assert optimizer.total_norm == norm
    np.testing.assert_allclose(model[0].detach(), [-5, -5], rtol=1e-6)
    optimizer.flush()
    assert optimizer.total_norm == 4
    np.testing.assert_allclose(model[0].detach(), [-5, -9], rtol=1e-6)


# -- what is refused


@pytest.mark.parametrize("given", [ps.DVF(1.0), "top", 0.1, True, ps.Filters])
@pytest.mark.parametrize("where", ["servers", "gradients"])
def test_what_is_no_filters_is_refused(job: ps.Job, given: Any, where: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(OptionError, match=r"expected (ps\.Filters|which direction)"):
        ps.torch.distribute(model, sgd(model.parameters()), job=job, where=where, filter=given)
    # Nothing was distributed.
    ps.torch.distribute(model, sgd(model.parameters()), job=job, where=where)


@pytest.mark.parametrize("where", ["gradients", None])
def test_averages_of_gradients_take_no_filter(job: ps.Job, where: str | None) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(OptionError, match='pass where="servers"') as refused:
        ps.torch.distribute(model, sgd(model.parameters()), job=job, where=where, filter=push(ps.TopK(0.5)))
    assert "expected no filter" in str(refused.value)
    ps.torch.distribute(model, sgd(model.parameters()), job=job, where=where, filter=ps.Filters())


def test_a_filter_of_the_programs_own_is_refused_before_workers_wait_for_each_other(spawn_job: Any) -> None:
    """Gradients go past the code that would ask it."""
    spawn_job(
        2,
        """
        import torch

        class Whole(ps.OwnFilter):
            def send(self, due, clock):
                return due

        with ps.init() as job:
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            # The other has not called it, and calls it with none.
            if job.rank == 0:
                for where in ("servers", "gradients"):
                    for options in ({}, {"clip_norm": 1.0}):
                        try:
                            own = ps.Filters(push=Whole())
                            ps.torch.distribute(model, optimizer, where=where, filter=own, **options)
                        except ps.exceptions.OptionError as error:
                            said = str(error)
                            assert "filter" in said, said
                            assert where == "gradients" or "a filter that Penstock has" in said, said
                            assert where == "gradients" or "job.tensor" in error.hint, error.hint
                        else:
                            raise AssertionError("it was taken")
            model, optimizer = ps.torch.distribute(model, optimizer, where="servers")
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        """,
    )


# -- several workers, and optimizers

SETUP = """
import torch
torch.set_num_threads(1)

class Line(torch.nn.Module):
    '''Linear in its parameters; a branch, which a worker may leave out.'''
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(40))
        self.branch = torch.nn.Parameter(torch.zeros(20))
    def forward(self, seed, branch=True):
        draw = torch.Generator().manual_seed(seed)
        # Whole numbers whose mean is one.
        numbers = 4 * torch.randint(-4, 5, (60,), generator=draw).float()
        loss = (numbers[:40] * self.first).sum()
        return loss + (numbers[40:] * self.branch).sum() if branch else loss

def values(*models):
    return np.concatenate([one.detach().numpy() for model in models for one in model.parameters()])

def sgd(parameters, lr=0.25):
    return torch.optim.SGD(parameters, lr=lr)

def distribute(model, given, **options):
    return ps.torch.distribute(model, sgd(model.parameters()), where="servers",
                               filter=ps.Filters(push=given), **options)
"""


WORKERS = {
    "learned": {"overlap": "auto"},
    "in step": {"overlap": False},
    "unchecked": {"overlap": "auto", "check": False},
    "clipped": {"clip_norm": float("inf")},
    "ssp": {"consistency": "ssp:1"},
    "asp": {"consistency": "asp", "overlap": False},
    "summed": {"reduce": "sum", "rescale": 0.5},
}


@pytest.fixture(scope="module")
def together(spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What two workers ended with, without a filter and with each."""
    saved: list[dict[str, Any]] = spawn_shared_job(
        2,
        SETUP
        + f"""
inf = float("inf")

def one(job, **options):
    for given in (None, ps.DVF(9.0, decay=None), ps.TopK(0.1), ps.RandomK(0.1, seed=1)):
        model, optimizer = distribute(Line(), given, job=job, **options)
        for step in range(6):
            optimizer.zero_grad()
            # Some steps are without the branch on one worker, or on both.
            model(10 * step + job.rank, branch=step < 3 or (step < 5 and job.rank == 0)).backward()
            optimizer.step()
        held = optimizer.held_back.elements
        optimizer.flush()
        assert optimizer.held_back == (0.0, 0)
        job.barrier()
        # Reads all that was folded by then.
        optimizer._pull_all()
        yield values(model), [held]

def two(job):
    for filters in ((None, None), (ps.TopK(0.1), ps.DVF(9.0, decay=None)), (ps.TopK(0.1), ps.RandomK(0.1))):
        pairs = [distribute(Line(), given, job=job, overlap=False) for given in filters]
        for step in range(8):
            for number, (model, optimizer) in enumerate(pairs[:1 + step % 2]):
                optimizer.zero_grad()
                model(20 * step + 2 * number + job.rank).backward()
                optimizer.step()
        held = [optimizer.held_back.elements for _, optimizer in pairs]
        for _, optimizer in pairs:
            optimizer.flush()
        yield values(*(model for model, _ in pairs)), held

found = {{}}
with ps.init() as job:
    parts = {{name: one(job, **options) for name, options in {WORKERS!r}.items()}}
    for name, part in {{**parts, "two": two(job)}}.items():
        ended, held = zip(*part)
        found[name], found[name + " held"] = np.array(ended), np.array(held)
save(**found)
""",
    )
    return saved


@pytest.mark.parametrize("part", [*WORKERS, "two"])
def test_nothing_that_workers_push_is_lost(together: list[dict[str, Any]], part: str) -> None:
    """With two optimizers, each holds back its own."""
    for one in together:
        assert np.all(one[part + " held"][0] == 0)
        assert np.all(one[part + " held"][1:] > 0)
        for value in one[part]:
            np.testing.assert_array_equal(value, together[0][part][0])


def test_workers_must_give_the_same_filter_and_flush_together(spawn_shared_job: Any) -> None:
    saved = spawn_shared_job(
        2,
        SETUP
        + """
told = {}

def refused(part, act):
    try:
        with ps.init() as job:
            act(job)
            job.barrier()
    except ps.PenstockError as error:
        told[part] = np.array([str(type(error).mro()), str(error)])
    next_job()

def another(job):
    distribute(Line(), ps.TopK(0.1 * (1 + job.rank)), job=job)

def only_one(job):
    distribute(Line(), None if job.rank else ps.TopK(0.1), job=job)

def frozen(job):
    model = Line().requires_grad_(False)
    distribute(model, ps.TopK(0.1 * (1 + job.rank)), job=job)

def apart(job):
    model, optimizer = distribute(Line(), ps.TopK(0.1), job=job, overlap=False)
    for step in range(2):
        optimizer.zero_grad()
        model(step + job.rank).backward()
        if step and job.rank:
            optimizer.flush()
        else:
            optimizer.step()

for act in (another, only_one, frozen, apart):
    refused(act.__name__, act)
save(**told)
""",
        jobs=4,
        fails=True,
    )
    assert [one["code"] for one in saved] == [0, 0], saved
    for part in ("another", "only_one", "frozen"):
        texts = [one[part][1] for one in saved if "DeclarationConflict" in one[part][0]]
        assert texts, saved
        assert all("filter" in text for text in texts), texts
    kinds, texts = zip(*(one["apart"] for one in saved if "apart" in one), strict=True)
    assert any("DeclarationConflict" in kind for kind in kinds), saved
    assert any("where others" in text for text in texts), texts


def test_a_setting_that_is_refused_holds_up_a_flush_of_all_groups(job: ps.Job) -> None:
    """The first group was flushed, and lost with the hint that followed."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    groups = [{"params": part.parameters()} for part in model]
    model, optimizer = ps.torch.distribute(
        model,
        torch.optim.SGD(groups, lr=0.1),
        job=job,
        where="servers",
        overlap=False,
        filter=ps.Filters(push=ps.TopK(0.25)),
    )
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    held = optimizer.held_back.elements
    before = model[0].weight.detach().clone()
    assert held > 0
    optimizer.param_groups[1]["lr"] = -1.0
    with pytest.raises(ps.exceptions.SettingsError):
        optimizer.flush()
    assert optimizer.held_back.elements == held
    optimizer.param_groups[1]["lr"] = 0.1
    optimizer.flush()
    assert optimizer.held_back.elements == 0
    assert not torch.equal(model[0].weight, before)
