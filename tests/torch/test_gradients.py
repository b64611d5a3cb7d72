"""
`where="gradients"` beyond what scripts usually do: what is refused, with whose name, and what goes on. The
usual is in test_semantics.py.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")
nn = torch.nn
OptionError = ps.exceptions.OptionError


# -- one worker: nothing to average, and the same refusals


def test_one_worker_trains_as_without_us(job: ps.Job) -> None:
    def run(distribute: bool) -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        if distribute:
            model, same = ps.torch.distribute(net, optimizer, job=job)
            assert model is net
            assert same is optimizer
        for step in range(4):
            torch.manual_seed(step)
            optimizer.zero_grad()
            net(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        return net.state_dict()

    for mine, plain in zip(run(True).values(), run(False).values(), strict=True):
        assert torch.equal(mine, plain)
    assert job.iteration == 0


def test_a_model_is_distributed_once(job: ps.Job) -> None:
    net = nn.Linear(3, 2)
    ps.torch.distribute(net, job=job)
    with pytest.raises(OptionError, match="given to `distribute` before"):
        ps.torch.distribute(net, job=job)
    with pytest.raises(OptionError, match=r"`0\.weight` is distributed already"):
        ps.torch.distribute(nn.Sequential(net, nn.Linear(2, 2)), job=job)
    with pytest.raises(OptionError, match="distributed already"):
        ps.torch.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1), job=job, where="servers")
    assert ps.torch.unwrap(net) is net
    assert ps.torch.distribute(net, job=job) is net
    assert ps.torch.unwrap(nn.Linear(1, 1)).weight.numel() == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"where": "here"}, "expected where='gradients' or 'servers', got 'here'"),
        ({"where": "gradients", "consistency": "ssp:2"}, "it needs ps.BSP()"),
        ({"where": "servers"}, "needs the optimizer"),
        ({"buffers": "rank 0"}, "expected buffers 'rank0', 'mean', 'local', got 'rank 0'"),
        ({"refuse_nonfinite": "no"}, "expected refuse_nonfinite as True or False, got 'no'"),
        ({"overlap": 3}, 'expected overlap "auto", True or False'),
        ({"check_every": -1}, "expected check_every as a whole number of 0 or above, got -1"),
        ({"bucket_bytes": 0}, "expected bucket_bytes as a whole number of 1 or above, got 0"),
        ({"patience": "soon"}, "soon"),
        ({"patience": -1.0}, "-1"),
        # What only the servers' mode has.
        ({"check": False}, 'expected no check with where="gradients", got False'),
        ({"lr_scale": None}, 'expected no lr_scale with where="gradients", got None'),
    ],
)
def test_an_option_that_is_wrong_is_named(job: ps.Job, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as raised:
        ps.torch.distribute(nn.Linear(3, 2), job=job, **options)
    assert says in str(raised.value)


def test_models_that_cannot_be_averaged_are_refused(job: ps.Job) -> None:
    with pytest.raises(OptionError, match=r"layer `1` is a SyncBatchNorm"):
        ps.torch.distribute(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), job=job)
    for where in ("gradients", "servers"):
        lazy = nn.LazyLinear(2)
        with pytest.raises(OptionError, match="has no shape yet"):
            ps.torch.distribute(lazy, torch.optim.SGD(lazy.parameters(), lr=0.1), job=job, where=where)
    with pytest.raises(ps.exceptions.DtypeError, match="`weight` is complex64"):
        ps.torch.distribute(nn.Linear(2, 2, dtype=torch.complex64), job=job)
    with pytest.raises(OptionError, match=r"expected a torch\.nn\.Module, got builtins\.list"):
        ps.torch.distribute([nn.Linear(2, 2)], job=job)
    with pytest.raises(OptionError, match=r"expected a plain torch\.optim\.Optimizer"):
        ps.torch.distribute(nn.Linear(2, 2), [], job=job)


# The second model's buffers stayed apart, and giving it to `distribute` too was refused with the advice to do
# what had been done.
@pytest.mark.parametrize("where", ["gradients", "servers"])
def test_parameters_that_only_the_optimizer_has_are_refused_with_what_to_give(
    job: ps.Job, where: str
) -> None:
    encoder, decoder = nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    with pytest.raises(OptionError, match=r"a parameter of shape \(3,\) that the model lacks") as told:
        ps.torch.distribute(encoder, optimizer, job=job, where=where)
    assert "nn.ModuleList([model, other])" in str(told.value.hint)
    _, optimizer = ps.torch.distribute(nn.ModuleList([encoder, decoder]), optimizer, job=job, where=where)
    decoder(encoder(torch.ones(4, 3))).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("where", ["gradients", "servers"])
def test_what_no_module_can_hold_may_be_the_optimizers_alone(job: ps.Job, where: str) -> None:
    net, picture = nn.Linear(3, 3), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([*net.parameters(), picture], lr=1.0)
    _, optimizer = ps.torch.distribute(net, optimizer, job=job, where=where)
    net(picture).sum().backward()
    optimizer.step()
    assert picture.any()


# They were averaged, and the buffers were worker 0's.
@pytest.mark.parametrize("where", ["gradients", "servers"])
@pytest.mark.parametrize("outer", [False, True])
def test_a_model_of_which_ddp_ignores_a_part_is_refused(job: ps.Job, where: str, outer: bool) -> None:
    net = nn.BatchNorm1d(3)
    ignore = nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    model = nn.ModuleList([net]) if outer else net
    ignore(net, ["running_mean", "weight"])
    with pytest.raises(OptionError, match="ignore `running_mean`, `weight`") as told:
        ps.torch.distribute(model, torch.optim.SGD(net.parameters(), lr=0.1), job=job, where=where)
    assert 'buffers="local"' in str(told.value.hint)
    ignore(net, [])
    ps.torch.distribute(model, torch.optim.SGD(net.parameters(), lr=0.1), job=job, where=where)


def test_buffers_that_ddp_ignores_are_each_workers_own_as_all_are(job: ps.Job) -> None:
    net = nn.BatchNorm1d(3)
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["running_mean"])
    ps.torch.distribute(net, job=job, buffers="local")


def test_no_sync_is_for_distributed_models(job: ps.Job) -> None:
    with pytest.raises(OptionError, match="expected models distributed"), ps.torch.no_sync(nn.Linear(2, 2)):
        pass


def test_a_model_that_is_dropped_goes_with_all_that_averaging_kept(job: ps.Job) -> None:
    gone = []
    for _ in range(2):
        net = ps.torch.distribute(nn.Linear(3, 2), job=job)
        gone.append(weakref.ref(net.weight))
        del net
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_model_outlives_its_job_and_joins_the_next(job: ps.Job) -> None:
    net = nn.Linear(3, 2)
    ps.torch.distribute(net, job=job)
    job.close()
    with ps.init(deadline=20) as other:
        assert ps.torch.distribute(net, job=other) is net
        net(torch.ones(1, 3)).sum().backward()


def test_parameters_without_elements_are_no_reason_to_refuse(job: ps.Job) -> None:
    net = nn.Linear(3, 2)
    net.empty = nn.Parameter(torch.zeros(0))
    for _ in range(2):
        net, optimizer = ps.torch.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1), job=job)
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        ps.torch.unwrap(net)


# -- two workers, all in one pair of processes

TOGETHER = """
import copy, io, sys, warnings
import torch
nn = torch.nn
torch.set_num_threads(1)

def net(seed=0, layers=2):
    torch.manual_seed(seed)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(layers)])

def batch(job, step):
    generator = torch.Generator().manual_seed(10 * step + job.rank)
    return torch.randn(4, 6, generator=generator)

def both(step):
    parts = [torch.Generator().manual_seed(10 * step + rank) for rank in range(2)]
    return torch.cat([torch.randn(4, 6, generator=one) for one in parts])

def train(job, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model(batch(job, step)).square().mean().backward()
        optimizer.step()

def flat(model):
    return np.concatenate([t.detach().double().reshape(-1).numpy() for t in model.state_dict().values()])

def starts_alike(job):
    '''Rank 0's parameters, buffers and optimizer state are everybody's.'''
    model = net(job.rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if job.rank == 0:
        train(job, model, optimizer, range(3))
    model, optimizer = ps.torch.distribute(model, optimizer)
    train(job, model, optimizer, range(3, 6))
    yield "model", flat(model)
    yield "state", np.concatenate([s["exp_avg"].numpy().reshape(-1) for s in optimizer.state.values()])
    yield "steps", np.array([float(s["step"]) for s in optimizer.state.values()])

def another_order(job):
    '''Rank 0's state finds its parameters by their names, several of which have one shape.'''
    for how in ("same", "other"):
        model = net(job.rank)
        parameters = list(model.named_parameters())
        if how == "other" and job.rank == 1:
            parameters.reverse()
        groups = [{"params": [one for one in parameters if "weight" in one[0]], "lr": 0.02},
                  {"params": [one for one in parameters if "bias" in one[0]]}]
        optimizer = torch.optim.Adam(groups, lr=0.01)
        if job.rank == 0:
            train(job, model, optimizer, range(3))
        model, optimizer = ps.torch.distribute(model, optimizer)
        train(job, model, optimizer, range(3, 6))
        yield how, flat(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in optimizer.param_groups:
            assert group["param_names"] == [names[id(parameter)] for parameter in group["params"]]

def many_buckets(job):
    '''The same bits whatever shares a bucket, and with or without overlap.'''
    for name, options in {
        "usual": {}, "late": {"overlap": False},
        "one each": {"bucket_bytes": 1}, "small": {"bucket_bytes": 200},
    }.items():
        model = net(layers=5)
        model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
        train(job, model, optimizer, range(4))
        yield name, flat(model)

def buffers(job):
    for kind in ("rank0", "mean", "local"):
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
        model.register_buffer("small_one", torch.full((3,), 1.0 + job.rank, dtype=torch.bfloat16))
        model.register_buffer("flag", torch.tensor([True, False, True]))
        model.register_buffer("byte", torch.tensor([[255, 1], [job.rank, 7]], dtype=torch.uint8).t())
        # What a float64 does not hold.
        model.register_buffer("large", torch.tensor((1 << 60) + 1 + job.rank))
        model.register_buffer("largest", torch.tensor([(1 << 64) - 1 - job.rank], dtype=torch.uint64))
        model.register_buffer("least", torch.tensor([-(1 << 63), -job.rank]))
        complex_one = torch.tensor([[1 + 2j, complex("nan"), 3j]]) * (1 + job.rank)
        model.register_buffer("complex", complex_one.t().conj())
        model.register_buffer("wide", complex_one.to(torch.complex128)[0, 0])
        if kind != "mean":
            model.register_buffer("tiny", (torch.arange(6.0) + job.rank).to(torch.float8_e4m3fn))
        model.register_buffer("minus", torch.tensor([-0.0, float("nan"), float("inf")]))
        model, optimizer = ps.torch.distribute(
            model, torch.optim.SGD(model.parameters(), lr=0.1), buffers=kind
        )
        train(job, model, optimizer, range(3))
        yield kind + " mean", model[1].running_mean.numpy().copy()
        yield kind + " half", model.small_one.float().numpy().copy()
        yield kind + " count", np.array([int(model[1].num_batches_tracked), int(model.large)])
        yield kind + " flag", model.flag.numpy().copy()
        yield kind + " byte", model.byte.numpy().copy()
        yield kind + " largest", model.largest.numpy().copy()
        yield kind + " least", model.least.numpy().copy()
        # What was sent by bits, is what it was on rank 0; then it changes on one worker.
        yield kind + " complex", model.complex.resolve_conj().numpy().copy()
        yield kind + " wide", model.wide.numpy().copy()
        model.complex[0] = model.wide.copy_(torch.tensor(complex(job.rank, 2)))
        if kind != "mean":
            yield kind + " tiny", model.tiny.float().numpy().copy()
            model.tiny.copy_(torch.full((6,), 0.5 * job.rank))
        train(job, model, optimizer, range(3, 4))
        yield kind + " complex then", model.complex.resolve_conj().numpy().copy()
        yield kind + " wide then", model.wide.numpy().copy()
        if kind != "mean":
            yield kind + " tiny then", model.tiny.float().numpy().copy()
        yield kind + " minus", model.minus.numpy().copy()

def buffers_refused(job):
    model = net()
    model.register_buffer("tiny", torch.zeros(6).to(torch.float8_e4m3fn))
    try:
        ps.torch.distribute(model, buffers="mean")
    except ps.exceptions.DtypeError as error:
        yield "error", str(error)

def uneven(job):
    '''Who has fewer batches holds up nobody; the mean is then over those that are left.'''
    model = net()
    model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(job, model, optimizer, range(5 if job.rank else 3))
    yield "model", flat(model)
    alone = net()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(5):
        other = torch.Generator().manual_seed(10 * step)
        parts = [batch(job, step)] + ([torch.randn(4, 6, generator=other)] if step < 3 else [])
        optimizer.zero_grad()
        alone(torch.cat(parts)).square().mean().backward()
        optimizer.step()
    yield "expected", flat(alone)

def unwrapped(job):
    def shared():
        # But for the lists that are compared.
        return sum(one.tensor.nbytes for name, one in job._tensors.items() if not name.endswith("/list"))
    alone = net()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sizes = []
    for cycle in range(4):
        ps.torch.distribute(model)
        mine = ps.torch._owner_of(model).prefix
        for step in range(2 * cycle, 2 * cycle + 2):
            for one, by in ((model, optimizer), (alone, plain)):
                by.zero_grad()
                one(batch(job, step) if one is model else both(step)).square().mean().backward()
                by.step()
        ps.torch.unwrap(model)
        sizes.append(shared())
    yield "model", flat(model)
    yield "alone", flat(alone)
    yield "sizes", sizes
    # Two at once: memory of their own. What a pass inside no_sync collects is in no memory that is shared.
    first, second = ps.torch.distribute(net()), ps.torch.distribute(net())
    yield "prefixes", [mine, *(ps.torch._owner_of(one).prefix for one in (first, second))]
    with ps.torch.no_sync(first):
        first(batch(job, 0)).square().mean().backward()
    ps.torch.unwrap(first)
    yield "then", ps.torch._owner_of(ps.torch.distribute(net())).prefix

def dropped(job):
    '''Without `unwrap`: nothing of it stays in this process, and where all have dropped it, the next model
    uses its shared memory.'''
    import gc, weakref
    class WithBuffer(nn.Sequential):
        pass
    gc.disable()
    gone, prefixes, kept = [], [], []
    for cycle in range(5):
        model = WithBuffer(nn.Linear(6, 6), nn.BatchNorm1d(6))
        model.register_buffer("own", torch.zeros(3))
        model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
        prefixes.append(ps.torch._owner_of(model).prefix)
        train(job, model, optimizer, range(2))
        gone.append(weakref.ref(model[0].weight))
        if cycle == 3 and job.rank == 1:
            kept.append(model)
        del model, optimizer
    gc.enable()
    yield "gone", [one() is None for one in gone]
    yield "prefixes", prefixes

def parts_of_what_was_dropped(job):
    '''A list that only `distribute` was given goes; what was in it is still averaged.'''
    model, lone = net(), nn.Parameter(torch.ones(6))
    ps.torch.distribute(nn.ModuleList([model]))
    ps.torch.distribute(nn.ParameterList([lone]))
    (model(batch(job, 0)) * lone).square().mean().backward()
    yield "model", np.concatenate([one.grad.reshape(-1).numpy() for one in model.parameters()])
    yield "lone", lone.grad.numpy()

def hooks(job):
    model, other = ps.torch.distribute(net()), net()
    ps.torch.times(model)
    ps.torch.distribute(other, torch.optim.SGD(other.parameters(), lr=0.1), where="servers")
    yield "in a job", hooks_of_all()

def of_all(job):
    for part in (hooks, dropped, parts_of_what_was_dropped, starts_alike, another_order, many_buckets,
                 buffers, buffers_refused, unwrapped, uneven):
        for key, value in part(job):
            yield f"{part.__name__}: {key}", value

def hooks_of_all():
    of_modules = sys.modules["torch.nn.modules.module"]
    of_optimizers = sys.modules["torch.optim.optimizer"]
    return [len(hooks) for hooks in (
        of_modules._global_module_registration_hooks, of_modules._global_parameter_registration_hooks,
        of_optimizers._global_optimizer_pre_hooks, of_optimizers._global_optimizer_post_hooks)]

with ps.init() as job:
    found = dict(of_all(job))
save(**found, hooks=hooks_of_all())
"""


@pytest.fixture(scope="module")
def together(spawn_shared_job: Any) -> list[dict[str, Any]]:
    saved: list[dict[str, Any]] = spawn_shared_job(2, TOGETHER, servers=2)
    return saved


def test_all_begin_with_rank_0s_model_and_optimizer_state(together: list[dict[str, Any]]) -> None:
    for key in ("model", "state"):
        np.testing.assert_array_equal(
            together[0][f"starts_alike: {key}"], together[1][f"starts_alike: {key}"]
        )
    assert (together[1]["starts_alike: steps"] == 6).all()


def test_an_optimizer_of_another_order_has_rank_0s_state_too(together: list[dict[str, Any]]) -> None:
    for one in together:
        for how in ("same", "other"):
            np.testing.assert_array_equal(
                one[f"another_order: {how}"], together[0]["another_order: same"], err_msg=how
            )


def test_buckets_and_overlap_change_no_bit(together: list[dict[str, Any]]) -> None:
    usual = together[0]["many_buckets: usual"]
    for one in together:
        for name in ("usual", "one each", "small", "late"):
            np.testing.assert_array_equal(one[f"many_buckets: {name}"], usual, err_msg=name)


def test_buffers_are_rank_0s_or_the_mean_or_each_workers_own(together: list[dict[str, Any]]) -> None:
    def of(key: str) -> list[Any]:
        return [one[f"buffers: {key}"] for one in together]

    for kind in ("rank0", "mean"):
        np.testing.assert_array_equal(*of(f"{kind} mean"))
    local = of("local mean")
    assert (local[0] != local[1]).any()
    np.testing.assert_array_equal(of("rank0 half")[1], np.full(3, 1.0))
    for kind in ("rank0", "mean", "local"):
        np.testing.assert_array_equal(of(f"{kind} count")[1], [3, (1 << 60) + 1])
        np.testing.assert_array_equal(of(f"{kind} flag")[1], [True, False, True])
        np.testing.assert_array_equal(of(f"{kind} byte")[1], [[255, 0], [1, 7]])
        np.testing.assert_array_equal(of(f"{kind} largest")[1], np.array([(1 << 64) - 1], np.uint64))
        np.testing.assert_array_equal(of(f"{kind} least")[1], [-(1 << 63), 0])
        np.testing.assert_array_equal(of(f"{kind} minus")[1], [0.0, np.nan, np.inf])
        np.testing.assert_array_equal(of(f"{kind} complex")[1][0], [1 - 2j])
        np.testing.assert_array_equal(of(f"{kind} wide")[1], 1 + 2j)
        numbers = {"rank0": (2j, 2j), "mean": (0.5 + 2j, 0.5 + 2j), "local": (2j, 1 + 2j)}[kind]
        assert tuple(complex(one[0, 0]) for one in of(f"{kind} complex then")) == numbers
        assert tuple(complex(one) for one in of(f"{kind} wide then")) == numbers
    for kind in ("rank0", "local"):
        np.testing.assert_array_equal(of(f"{kind} tiny")[1], np.arange(6))
        tiny = [0.0, 0.0] if kind == "rank0" else [0.0, 0.5]
        assert [float(one[0]) for one in of(f"{kind} tiny then")] == tiny
    # There is no average of so few bits.
    assert "buffer `tiny` is float8_e4m3fn" in str(together[0]["buffers_refused: error"])


def test_a_model_that_is_distributed_after_an_unwrapped_one_uses_its_memory_again(
    together: list[dict[str, Any]],
) -> None:
    """Each had its own, for the rest of the job."""
    for one in together:
        np.testing.assert_allclose(one["unwrapped: model"], one["unwrapped: alone"], rtol=1e-5, atol=1e-6)
        assert len(set(one["unwrapped: sizes"].tolist())) == 1
        mine, first, second = one["unwrapped: prefixes"].tolist()
        assert mine == first != second
        assert str(one["unwrapped: then"]) == first


def test_nothing_stays_of_a_model_that_is_dropped_but_memory_for_the_next(
    together: list[dict[str, Any]],
) -> None:
    """Hooks on its parameters kept them, and a module with a buffer the whole model."""
    for rank, one in enumerate(together):
        assert one["dropped: gone"].tolist() == [True, True, True, rank == 0, True]
        first, *others, last = one["dropped: prefixes"].tolist()
        # One worker has kept the fourth.
        assert set(others) == {first}
        assert last != first


def test_no_hook_on_all_modules_and_optimizers_outlives_the_last_job(together: list[dict[str, Any]]) -> None:
    for one in together:
        assert all(one["hooks: in a job"])
        assert not any(one["hooks"])


def test_what_was_in_a_dropped_list_is_still_averaged(together: list[dict[str, Any]]) -> None:
    for part in ("model", "lone"):
        mine, other = (one[f"parts_of_what_was_dropped: {part}"] for one in together)
        np.testing.assert_array_equal(mine, other)


def test_a_worker_with_fewer_batches_leaves_and_the_mean_is_over_the_others(
    together: list[dict[str, Any]],
) -> None:
    np.testing.assert_allclose(
        together[1]["uneven: model"], together[1]["uneven: expected"], rtol=1e-5, atol=1e-6
    )


# -- two workers that are told what is wrong, one job after another in the same pair of processes

TOLD = (
    TOGETHER[: TOGETHER.index("def starts_alike")]
    + """
told = {}
OptionError = ps.exceptions.OptionError

def told_of(part, run, **options):
    try:
        with ps.init() as job:
            run(job, **options)
    except (ps.PenstockError, Warning) as error:
        told[part] = np.array([type(error).__name__, str(error)])
    next_job()

def distributed(job, model=None, **options):
    model = net() if model is None else model
    return ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **options)

def other_settings(job):
    model = net()
    ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1 if job.rank == 0 else 0.2))
    job.barrier()

def the_same_options_in_other_words(job):
    distributed(job, **({"buffers": "rank0"} if job.rank else {}))
    job.barrier()

def other_options(job):
    distributed(job, buffers="mean" if job.rank else "rank0")
    job.barrier()

class Own(torch.optim.SGD):
    pass

def another_order(job, of=Own):
    '''Two parameters of one shape: what belongs to which is not seen by anything but their names.'''
    model = net()
    parameters = list(model.parameters())
    if job.rank == 1:
        parameters[0], parameters[2] = parameters[2], parameters[0]
    model, optimizer = ps.torch.distribute(model, of(parameters, lr=0.1))
    job.barrier()
    return model, optimizer

def another_order_of_lbfgs(job):
    another_order(job, torch.optim.LBFGS)

def a_load_in_another_order(job):
    model, optimizer = another_order(job, torch.optim.Adam)
    train(job, model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    job.barrier()

def a_function_in_a_group(job):
    model = net()
    unlike = [object() for _ in range(1000 * job.rank)]
    groups = [{"params": list(model.parameters()), "of": [lambda value: value]}]
    ps.torch.distribute(model, torch.optim.SGD(groups, lr=0.1))
    job.barrier()

def apart(job):
    '''One worker leaves out a step.'''
    model, optimizer = distributed(job, check_every=5)
    for step in range(12):
        optimizer.zero_grad()
        model(batch(job, step)).square().mean().backward()
        if job.rank == 0 or step != 6:
            optimizer.step()

def apart_and_then_another_model(job):
    '''As in a search that goes on with the next trial: all were told.'''
    model, optimizer = distributed(job)
    with torch.no_grad():
        model[0][0].weight.add_(job.rank)
    said = []
    try:
        train(job, model, optimizer, range(3))
    except ps.exceptions.DeclarationConflict as error:
        said.append(str(error))
    optimizer.zero_grad()
    ps.torch.unwrap(model)
    model, optimizer = distributed(job)
    train(job, model, optimizer, range(3))
    told["apart_and_then_another_model"] = np.array([*said, str(flat(model).sum())])

def loaded_on_one(job):
    model, optimizer = distributed(job, check_every=0)
    train(job, model, optimizer, range(2))
    if job.rank == 0:
        model.load_state_dict(net(5).state_dict())
    train(job, model, optimizer, range(2, 5))

def optimizer_loaded_on_one(job):
    model, optimizer = distributed(job, check_every=0)
    train(job, model, optimizer, range(2))
    saved = copy.deepcopy(optimizer.state_dict())
    train(job, model, optimizer, range(2, 4))
    if job.rank == 0:
        optimizer.load_state_dict(saved)
    train(job, model, optimizer, range(4, 7))
def a_part_loaded_on_one(job):
    model, optimizer = distributed(job, check_every=0)
    train(job, model, optimizer, range(2))
    if job.rank == 0:
        model[1].load_state_dict(net(5)[1].state_dict())
    train(job, model, optimizer, range(2, 5))

def two_jobs(job):
    '''One pass through a model of each, whose gradients come in another order on each worker.'''
    next_job()
    with ps.init() as other:
        models = [net(), net(1)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        plain = [copy.deepcopy(model) for model in models]
        for model, of in zip(models, (job, other)):
            ps.torch.distribute(model, job=of, overlap=of is job, patience=5)
        alone = [torch.optim.SGD(model.parameters(), lr=0.1) for model in plain]
        def losses(models, step, rank):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))
            return [model(x).square().mean() for model in (models[::-1] if rank else models)]
        for step in range(4):
            [one.zero_grad() for one in optimizers + alone]
            sum(losses(models, step, job.rank)).backward()
            (sum(losses(plain, step, 0) + losses(plain, step, 1)) / 2).backward()
            [one.step() for one in optimizers + alone]
        told["two_jobs"] = np.concatenate([flat(model) for model in models])
        told["two_jobs/plain"] = np.concatenate([flat(model) for model in plain])

def from_one_job_to_another(job):
    '''What has averaged in a job that has ended is still there, and is told of no layers any more.'''
    held = []
    def given(**options):
        model, part = net(), net(1).requires_grad_(False)
        next_job()
        with ps.init() as first:
            for one in (model, part):
                ps.torch.distribute(one, job=first)
                held.append(ps.torch._owner_of(one))
        ps.torch.distribute(model, job=job, check_every=0)
        return model, part
    def directly(model, part):
        model.append(nn.Linear(6, 6))
    def by_a_part(model, part):
        model.append(part)
        part.append(nn.Linear(6, 6))
    for way in (directly, by_a_part):
        model, part = given()
        way(model, part)
        try:
            model(batch(job, 0)).square().mean().backward()
        except OptionError as error:
            told[f"new: {way.__name__}"] = np.array([str(error)])

def another_model(job):
    '''A pass that reaches the second model on one worker only.'''
    first, one = distributed(job)
    second, two = distributed(job)
    for step in range(3):
        h = first(batch(job, step))
        (second(h) if step != 1 or job.rank == 0 else h).square().mean().backward()

def stepping_inside_no_sync(job):
    model, optimizer = distributed(job)
    with ps.torch.no_sync(model):
        model(batch(job, 0)).square().mean().backward()
    optimizer.step(None)

def a_new_parameter(job):
    model, optimizer = distributed(job)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    train(job, model, optimizer, range(1))

def converted(job):
    model, optimizer = distributed(job)
    model.double()
    model(batch(job, 0).double()).square().mean().backward()

def sums_of_sums(job):
    model, optimizer = distributed(job, reduce="sum")
    for step in range(2):
        model(batch(job, step)).square().mean().backward()

def stepping_without_an_average(job, model=None, optimizer=None):
    if model is None:
        model, optimizer = distributed(job)
    loss = model(batch(job, 0)).square().mean()
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        parameter.grad = gradient
    optimizer.step()

def stepping_by_a_closure_without_an_average(job):
    model, optimizer = distributed(job)
    def closure():
        loss = model(batch(job, 0)).square().mean()
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
            parameter.grad = gradient
        return loss
    optimizer.step(closure)

def a_step_by_zeros(job):
    model, optimizer = distributed(job)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        train(job, model, optimizer, range(1))

def stepping_on_what_came_after_the_average(job):
    model, optimizer = distributed(job)
    train(job, model, optimizer, range(2))
    # The same average once more is as in one process.
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    told["steps without a pass"] = np.array(["taken"])
    job.barrier()
    stepping_without_an_average(job, model, optimizer)

def stepping_on_what_was_put_into_the_average(job):
    model, optimizer = distributed(job)
    train(job, model, optimizer, range(2))
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    loss = model(batch(job, 2)).square().mean()
    for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        parameter.grad.copy_(gradient)
    optimizer.step()

def steps_back(job):
    '''Line search: what a step went too far is taken back, by the average that the script has changed.'''
    model, optimizer = distributed(job)
    lone = nn.Linear(2, 2)
    plain = copy.deepcopy(model)
    alone = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    # Each worker by itself: of no model, nobody else need come.
    if job.rank == 0:
        by = torch.optim.SGD(lone.parameters(), lr=0.1)
        lone(torch.ones(1, 2)).sum().backward()
        by.step()
        lone.weight.grad.mul_(2)
        by.step()
    for step in range(3):
        for one, by in ((model, optimizer), (plain, alone)):
            by.zero_grad()
            one(batch(job, step) if one is model else both(step)).square().mean().backward()
            by.step()
            for parameter in one.parameters():
                parameter.grad.mul_(-0.5)
            by.step()
            for parameter in one.parameters():
                parameter.grad = parameter.grad * 0.5
            by.step()
    told["steps_back"] = np.stack([flat(model), flat(plain)])

def stepping_back_alone(job):
    model, optimizer = distributed(job)
    train(job, model, optimizer, range(2))
    if job.rank == 0:
        for parameter in model.parameters():
            parameter.grad.mul_(-0.5)
        optimizer.step()
    train(job, model, optimizer, range(2, 4))

def stepping_back_together_after_one_did_alone(job):
    model, optimizer = distributed(job)
    def back(by):
        for parameter in model.parameters():
            parameter.grad.mul_(by)
        optimizer.step()
    train(job, model, optimizer, range(2))
    said = []
    for by in (-0.5, 0.5):
        try:
            back(by) if job.rank == 0 else None
        except ps.exceptions.OptionError as error:
            said.append(str(error))
    job.barrier(timeout=60)
    for step in range(2, 5):
        train(job, model, optimizer, [step])
        back(-0.5)
        back(0.5)
    told["alone and then together"] = flat(model)
    told["said alone"] = np.array(said)
    steps_back(job)

def a_step_that_one_takes_late(job):
    model, optimizer = distributed(job)
    train(job, model, optimizer, range(1))
    def back():
        for parameter in model.parameters():
            parameter.grad.mul_(-0.5)
        optimizer.step()
    back()
    for rank in (0, 1):
        if job.rank == rank:
            try:
                back()
            except ps.exceptions.OptionError:
                told["refused at first"] = np.array(rank)
        job.barrier(timeout=60)
    train(job, model, optimizer, range(1, 4))

def a_new_layer(job):
    model, optimizer = distributed(job)
    model.append(nn.Linear(6, 6))
    train(job, model, optimizer, range(3))

def nothing_but_new_parameters(job):
    def assigned(model):
        model.load_state_dict({name: one.clone() for name, one in model.state_dict().items()}, assign=True)
    def another_head(model):
        model.requires_grad_(False)
        model[1] = nn.Linear(6, 6)
    def midway(model):
        nn.utils.parametrizations.weight_norm(model[1][0])
    def into_what_came_without(model):
        model.append(nn.Sequential())
        model(batch(job, 0))
        model[2].append(nn.Linear(6, 6))
    def beside_the_call(model):
        model.append(nn.Linear(6, 6))
        model.forward(batch(job, 0)).square().mean().backward()
    def into_the_dictionary(model):
        model._modules["2"] = nn.Linear(6, 6)
        model[1].requires_grad_(False)
        model.load_state_dict(model.state_dict())
        for step in range(2):
            model(batch(job, step)).square().mean().backward()
    def lazy(model):
        model.append(nn.LazyLinear(6))
    def unfrozen(model):
        model.append(nn.Linear(6, 6).requires_grad_(False))
        model(batch(job, 0)).square().mean().backward()
        model[2].requires_grad_(True)
    def teacher(model):
        model.teacher = copy.deepcopy(model)
        model.lazy = nn.LazyLinear(6)
        plain = model.forward
        def forward(x):
            with torch.no_grad():
                target = nn.Sequential.forward(model.teacher, x)
                model.lazy(x)
            return nn.Sequential.forward(model[:2], x) - target
        model.forward = forward
    def averaged_by_another(model):
        model.append(ps.torch.distribute(nn.Linear(6, 6)))
    def taken_out_again(model):
        head = nn.Linear(6, 6)
        model.append(head)
        del model[2]
        head(model(batch(job, 0))).square().mean().backward()
    def pruned(model):
        import torch.nn.utils.prune as prune
        prune.l1_unstructured(model[0][0], "weight", amount=0.5)
    def in_an_outer_model(model):
        nn.Sequential(model, nn.Linear(6, 6))
    def teacher_without_gradients(model):
        model.teacher = nn.Linear(2, 2).requires_grad_(False)
        model.teacher.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
        with torch.inference_mode():
            model.loaded = nn.Linear(2, 2).requires_grad_(False)
        model.forward = lambda x: nn.Sequential.forward(model[:2], x)
    def a_part_of_another_before(model):
        critic = nn.Sequential(nn.Linear(6, 6))
        model.critic = critic
        critic = ps.torch.distribute(critic, check_every=0)
        del model.critic
        critic.append(nn.Linear(6, 6))
        critic(torch.ones(1, 6)).sum().backward()
    def in_a_list_that_went(_):
        model = net()
        ps.torch.distribute(nn.ModuleList([net(1), model]), check_every=0)
        model[1].requires_grad_(False)
        model.append(nn.Linear(6, 6))
        model(batch(job, 0)).square().mean().backward()
    def in_the_dictionary_of_what_is_left(_):
        model = net()
        ps.torch.distribute(nn.Sequential(nn.ModuleList([model]), nn.Linear(6, 6)), check_every=0)
        model._modules["2"] = nn.Linear(6, 6)
        model[1].requires_grad_(False)
        model.load_state_dict(model.state_dict())
        for step in range(3):
            model(batch(job, step)).square().mean().backward()
    def taken_out_of_what_is_left(_):
        model, head = net(), nn.Linear(6, 6)
        ps.torch.distribute(nn.ModuleList([model]), check_every=0)
        model.append(head)
        del model[2]
        head(model(batch(job, 0))).square().mean().backward()
    for change in (assigned, another_head, midway, into_what_came_without, beside_the_call, lazy, unfrozen,
                   in_a_list_that_went, in_the_dictionary_of_what_is_left, taken_out_of_what_is_left,
                   into_the_dictionary, pruned, in_an_outer_model, teacher, teacher_without_gradients,
                   averaged_by_another, taken_out_again, a_part_of_another_before):
        model = distributed(job, check_every=0)[0]
        for step in range(5):
            model(batch(job, step)).square().mean().backward()
        try:
            change(model)
            model(batch(job, 5)).square().mean().backward()
        except OptionError as error:
            told[f"new: {change.__name__}"] = np.array([str(error)])
    # Nobody looks where nothing was given.
    assert not model._forward_pre_hooks

def unfrozen_of_another_type(job):
    model = net()
    model.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64), requires_grad=False)
    model.count = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    model, optimizer = distributed(job, model, check_every=0)
    for step in range(3):
        (model(batch(job, step)).square().mean() + model.turn.abs().sum()).backward()
        model.turn.requires_grad_(step > 0)

def a_small_step_left_out(job):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0)
    model, optimizer = ps.torch.distribute(model, optimizer, check_every=3)
    for step in range(5):
        optimizer.zero_grad()
        model(batch(job, step)).square().mean().backward()
        if job.rank == 0 or step != 2:
            optimizer.step()

def taken_away(job):
    model, optimizer = distributed(job)
    def step_at_once(parameter):
        parameter.grad = None
    model[0][0].weight.register_post_accumulate_grad_hook(step_at_once)
    model(batch(job, 0)).square().mean().backward()

def broken_off(job):
    '''An error in the middle of backward, which the script catches.'''
    model, optimizer = distributed(job, bucket_bytes=1)
    def fail(_):
        if job.iteration == 1:
            raise FloatingPointError("in backward")
    model[0][0].weight.register_hook(fail)
    refused = False
    for step in range(5):
        try:
            model(batch(job, step)).square().mean().backward()
        except FloatingPointError:
            pass
        except ps.exceptions.OptionError:
            # It is not said once only.
            if refused:
                raise
            refused = True

def broken_off_at_its_end(job):
    '''All has left, and the iteration is not over.'''
    model, optimizer = distributed(job)
    def cut(self, *arguments):
        ps.Job.clock = clock
        raise FloatingPointError("in its last lines")
    clock = ps.Job.clock
    if job.rank == 0:
        ps.Job.clock = cut
    for step in range(2):
        try:
            model(batch(job, step)).square().mean().backward()
        except FloatingPointError:
            assert job.rank == 0

def with_a_frozen_layer(job):
    '''Unfrozen, it comes in a second average: with `late` for `take` that one is cut short.'''
    from penstock.torch.gradients.bucket import Bucket
    model = net()
    model[0].requires_grad_(False)
    take = Bucket.take
    def late(self):
        if "/of " in self.tensor.name:
            raise ps.exceptions.PullTimeout("late", "again")
        take(self)
    return *distributed(job, model), take, late

def broken_off_between_two_averages(job):
    '''Of what the workers did not know of before; a step would have been by this worker's own gradient.'''
    from penstock.torch.gradients.bucket import Bucket
    model, optimizer, take, late = with_a_frozen_layer(job)
    for step in range(2):
        optimizer.zero_grad()
        try:
            model(batch(job, step)).square().mean().backward()
        except ps.exceptions.PullTimeout:
            assert job.rank == 0
        Bucket.take = take
        optimizer.step()
        model[0].requires_grad_(True)
        if job.rank == 0:
            Bucket.take = late

def broken_off_between_two_averages_and_another_pass(job):
    '''Without a step in between, which would be refused.'''
    from penstock.torch.gradients.bucket import Bucket
    model, optimizer, take, late = with_a_frozen_layer(job)
    model(batch(job, 0)).square().mean().backward()
    optimizer.step()
    model[0].requires_grad_(True)
    if job.rank == 0:
        Bucket.take = late
    try:
        model(batch(job, 1)).square().mean().backward()
    except ps.exceptions.PullTimeout:
        assert job.rank == 0
    Bucket.take = take
    said = []
    # It is not said once only.
    for _ in range(2 if job.rank == 0 else 0):
        try:
            model(batch(job, 2)).square().mean().backward()
        except ps.exceptions.OptionError as error:
            said.append(str(error))
    told["broken_off_between_two_averages_and_another_pass"] = np.array(said)

def broken_off_before_its_average(job):
    from penstock.torch.gradients.bucket import Bucket
    model, optimizer = distributed(job)
    def late(self):
        Bucket.take = take
        raise ps.exceptions.PullTimeout("late", "again")
    take = Bucket.take
    refused = False
    for step in range(4 if job.rank == 0 else 3):
        if job.rank == 0 and step == 1:
            Bucket.take = late
        try:
            model(batch(job, step)).square().mean().backward()
        except ps.exceptions.PullTimeout:
            assert job.rank == 0
        except ps.exceptions.OptionError:
            # It is not said once only.
            if refused:
                raise
            refused = True

def of_two_jobs_one_broken_off(job):
    '''The other's average is there: it goes on.'''
    from penstock.torch.gradients.bucket import Bucket
    next_job()
    with ps.init() as other:
        models = [net(), net(1)]
        for model, of in zip(models, (job, other)):
            ps.torch.distribute(model, job=of)
        take, seen = Bucket.take, []
        def late(self):
            seen.append(self.tensor._job)
            if seen[-1] is not seen[0]:
                raise ps.exceptions.PullTimeout("late", "again")
            take(self)
        Bucket.take = late
        try:
            sum(model(batch(job, 0)).square().mean() for model in models).backward()
        except ps.exceptions.PullTimeout:
            pass
        Bucket.take = take
        says = []
        for model in models:
            model.zero_grad()
            try:
                model(batch(job, 1)).square().mean().backward()
                says.append("")
            except ps.exceptions.OptionError as error:
                says.append(str(error))
        told["of_two_jobs_one_broken_off"] = np.array(sorted(says))

def refused_and_made_again(job):
    '''Nothing has left of a gradient that is refused.'''
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = ps.torch.distribute(model, optimizer, overlap=False, refuse_nonfinite=True)
    for step in range(2):
        optimizer.zero_grad()
        if job.rank == 0:
            try:
                (model(torch.ones(1, 2)) * float("nan")).sum().backward()
            except ps.exceptions.NonFiniteError:
                optimizer.zero_grad()
        model(torch.full((1, 2), job.rank + 1.0)).sum().backward()
        optimizer.step()
    told["refused_and_made_again"] = model.weight.detach().numpy()

def stepped_behind_a_refusal(job):
    '''Of the pass another model came first, or no gradient was looked at.'''
    says = []
    def stepping(optimizer):
        try:
            optimizer.step()
            says.append("")
        except ps.exceptions.OptionError as error:
            says.append(str(error))
    torch.manual_seed(0)
    made = [ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1),
                                prefix=name, reduce="sum", overlap=False)
            for name, model in (("first", nn.Linear(2, 1)), ("then", nn.Linear(1, 1)))]
    (first, one), (then, two) = made
    for step in range(2):
        try:
            then(first(torch.full((1, 2), job.rank + 1.0))).sum().backward()
        except ps.exceptions.OptionError:
            assert step == 1
            stepping(one)
        # The first model's gradients stay.
        two.zero_grad()
    model = nn.Linear(2, 1)
    model.turned = nn.Parameter(torch.ones(1, dtype=torch.complex64), requires_grad=False)
    model, optimizer = ps.torch.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), prefix="other")
    model.turned.requires_grad_(True)
    try:
        (model.turned * model(torch.ones(1, 2))).real.sum().backward()
    except ps.exceptions.DtypeError:
        stepping(optimizer)
    told["stepped_behind_a_refusal"] = np.array(says)

def collected_unevenly_and_another_model(job):
    '''As in a cross-validation whose parts are not of one length.'''
    for fold in range(2):
        model, optimizer = distributed(job)
        for step in range(4 + job.rank):
            # Two batches a step, the last of which may be alone.
            if step % 2 == 0:
                with ps.torch.no_sync(model):
                    model(batch(job, step)).square().mean().backward()
            else:
                model(batch(job, step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        ps.torch.unwrap(model)
    told["collected_unevenly_and_another_model"] = flat(model)

def broken_off_before_anything_left(job):
    model, optimizer = distributed(job, overlap=False)
    def fail(_):
        if job.iteration == 1 and not failed:
            failed.append(True)
            raise FloatingPointError("in backward")
    failed = []
    model[0][0].weight.register_hook(fail)
    done = 0
    while done < 3:
        try:
            model(batch(job, done)).square().mean().backward()
            done += 1
        except FloatingPointError:
            pass
    told["broken_off_before_anything_left"] = np.array([str(job.iteration), str(len(failed))])

def broken_off_and_checkpointed(job):
    '''As the last, around and inside a checkpoint that runs a pass of its own.'''
    from torch.utils.checkpoint import checkpoint
    model, optimizer = distributed(job, overlap=False)
    def fail(_):
        if failing:
            raise FloatingPointError("in backward")
    apart = []
    for where in ("below", "inside"):
        for step in range(4):
            failing = step == 1
            optimizer.zero_grad()
            x = batch(job, step).requires_grad_()
            below = x * 1
            if where == "below":
                below.register_hook(fail)
            def part(x):
                h = model[0](x)
                if where == "inside" and torch.is_grad_enabled():
                    h.register_hook(fail)
                return model[1](h)
            # Every gradient comes in the inner pass.
            loss = checkpoint(part, below, use_reentrant=True).square().mean()
            try:
                loss.backward()
            except FloatingPointError:
                continue
            optimizer.step()
            grads = np.concatenate([one.grad.reshape(-1).numpy() for one in model.parameters()])
            apart.append(np.abs(grads - job.mean(grads)).max())
    told["broken_off_and_checkpointed"] = np.array(apart)

def same_batches(job):
    model, optimizer = distributed(job)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            model(torch.full((2, 6), float(step))).square().mean().backward()
    told["same_batches"] = np.array([str(one.message) for one in caught] or ["nothing"])

def compiled_autograd(job):
    from torch._dynamo import compiled_autograd
    model = distributed(job)[0]
    loss = model(batch(job, 0)).square().mean()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()

def a_retained_graph(job):
    '''Its second pass finds what the forward pass saved, or says that it is not there any more.'''
    class Scaled(nn.Module):
        def __init__(self, changing):
            super().__init__()
            self.changing = changing
            self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
            self.register_buffer("scale", torch.tensor([1.0, 2.0, float("nan"), float("inf"), 0.5, -1.0]))
        def forward(self, x):
            if self.changing:
                self.scale = self.scale + x.mean()
            return self.body(x) * self.scale
    for changing in (False, True):
        model, optimizer = distributed(job, Scaled(changing))
        loss = model(batch(job, 0)).nan_to_num(0, 0, 0).square().mean()
        loss.backward(retain_graph=True)
        try:
            loss.backward()
        except RuntimeError as error:
            told[f"a retained graph, {changing}"] = np.array([str(error)])

def statistics_that_a_second_graph_uses(job):
    '''Evaluated between a training forward pass and its backward pass, on this worker's own statistics.'''
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    model, optimizer = distributed(job, model)
    first = model.train()(batch(job, 0)).square().mean()
    second = model.eval()(batch(job, 1)).square().mean()
    first.backward()
    told["statistics"] = np.array(["used"])
    try:
        second.backward()
    except RuntimeError as error:
        told["statistics"] = np.array([str(error)])

def other_batches(job):
    model, optimizer = distributed(job)
    # What looks at batches is no part of what is traced.
    traced = torch.jit.trace(model, torch.ones(4, 6))
    assert torch.equal(traced(batch(job, 0)), model(batch(job, 0)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            model(batch(job, step)).square().mean().backward()
    told["other_batches"] = np.array([str(one.message) for one in caught] or ["nothing"])

def a_look_at_the_data(job):
    '''On one worker only: what it shuffles from then on is not what the others do.'''
    model, optimizer = distributed(job)
    data = torch.utils.data.TensorDataset(torch.randn(8, 6))
    def epochs(batches):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for epoch in range(2):
                batches.sampler.set_epoch(epoch) if told_by_script else None
                for x, in batches:
                    model(x + job.rank).square().mean().backward()
        return np.array([str(one.message) for one in caught] or ["nothing"])
    for told_by_script in (True, False):
        batches = ps.torch.loader(data, batch_size=2, shuffle=True)
        if job.rank == 0:
            next(iter(ps.torch.loader(data)))
        if told_by_script and job.rank == 0:
            next(iter(batches))
        told[f"a look, {told_by_script}"] = epochs(batches)
    if job.rank == 0:
        next(iter(batches))
    told["a look at what shuffles"] = epochs(batches)

def after_the_end(job):
    model, optimizer = distributed(job)
    job.close()
    model(batch(job, 0)).square().mean().backward()

def patient(job):
    '''A worker that comes long after the job's deadline is waited for.'''
    model, optimizer = distributed(job)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if job.rank == 1:
            waiting.wait(2.5 * job.deadline)
        model(batch(job, 0)).square().mean().backward()
    told["patient"] = np.array([str(one.message) for one in caught] or ["nothing"])

import threading
waiting = threading.Event()
PARTS = (the_same_options_in_other_words, a_step_by_zeros, stepping_by_a_closure_without_an_average,
         other_settings, other_options, another_order, another_order_of_lbfgs, a_load_in_another_order,
         stepping_on_what_was_put_into_the_average,
         a_function_in_a_group, apart, loaded_on_one, a_part_loaded_on_one, optimizer_loaded_on_one,
         two_jobs, from_one_job_to_another, another_model, stepping_inside_no_sync,
         a_new_parameter, converted, sums_of_sums, stepping_without_an_average,
         stepping_on_what_came_after_the_average, steps_back, a_new_layer, nothing_but_new_parameters,
         unfrozen_of_another_type, a_small_step_left_out, taken_away, broken_off, broken_off_at_its_end,
         broken_off_between_two_averages, broken_off_between_two_averages_and_another_pass,
         apart_and_then_another_model,
         broken_off_before_its_average, of_two_jobs_one_broken_off,
         refused_and_made_again, stepped_behind_a_refusal, collected_unevenly_and_another_model,
         broken_off_before_anything_left,
         broken_off_and_checkpointed,
         same_batches, a_retained_graph, statistics_that_a_second_graph_uses, compiled_autograd,
         other_batches, a_look_at_the_data, after_the_end)
for part in PARTS:
    told_of(part.__name__, part)
os.environ["PENSTOCK_DEADLINE"] = "1"
told_of("patient", patient)
told_of("stepping_back_alone", stepping_back_alone)
told_of("together", stepping_back_together_after_one_did_alone)
told_of("a_step_that_one_takes_late", a_step_that_one_takes_late)
save(**told)
"""
)


@pytest.fixture(scope="module")
def told(spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What each worker was told: the kind of each error, and its text."""
    saved: list[dict[str, Any]] = spawn_shared_job(2, TOLD, jobs=56, fails=True, timeout=300)
    assert [one["code"] for one in saved] == [0, 0], saved
    return saved


@pytest.mark.parametrize(
    ("part", "kind", "says"),
    [
        ("other_settings", "DeclarationConflict", "'lr': 0.2"),
        ("other_options", "DeclarationConflict", "buffers=mean"),
        ("another_order", "DeclarationConflict", "group 0, place 0: `1.0.weight`"),
        ("another_order_of_lbfgs", "DeclarationConflict", "group 0, place 0: `1.0.weight`"),
        ("a_load_in_another_order", "OptionError", "parameters in another order than worker 0's"),
        ("apart", "DeclarationConflict", "is not the same on all workers any more"),
        ("loaded_on_one", "DeclarationConflict", "parameter `0.0.weight` is not the same on all workers"),
        ("optimizer_loaded_on_one", "DeclarationConflict", "is not the same on all workers any more"),
        (
            "a_part_loaded_on_one",
            "DeclarationConflict",
            "parameter `1.0.weight` is not the same on all workers",
        ),
        ("another_model", "DeclarationConflict", "did not reach this model on workers [1]"),
        ("stepping_inside_no_sync", "OptionError", "ran inside no_sync()"),
        ("a_new_parameter", "OptionError", "came after `distribute`"),
        ("converted", "DtypeError", "was distributed as float32 and is float64 now"),
        ("sums_of_sums", "OptionError", "what was summed before would be summed again"),
        (
            "stepping_by_a_closure_without_an_average",
            "OptionError",
            "no backward pass has averaged gradients",
        ),
        ("stepping_without_an_average", "OptionError", "no backward pass has averaged gradients yet"),
        ("stepping_on_what_came_after_the_average", "OptionError", "averaged gradients since the last step"),
        (
            "stepping_on_what_was_put_into_the_average",
            "OptionError",
            "averaged gradients since the last step",
        ),
        ("stepping_back_alone", "OptionError", "worker 1 took no such step within 1 s"),
        ("a_step_that_one_takes_late", "DeclarationConflict", "is not the same on all workers any more"),
        ("a_new_layer", "OptionError", "` came after `distribute`"),
        ("unfrozen_of_another_type", "DtypeError", "parameter `turn` is complex64"),
        ("a_small_step_left_out", "DeclarationConflict", "is not the same on all workers any more"),
        ("taken_away", "OptionError", "`0.0.weight` was taken away during backward"),
        ("broken_off", "OptionError", "ended with an error after some of its gradients had left"),
        ("broken_off_at_its_end", "OptionError", "ended with an error after some of its gradients had left"),
        ("broken_off_between_two_averages", "OptionError", "did not end well"),
        ("broken_off_before_its_average", "OptionError", "before this worker had its average"),
        ("compiled_autograd", "OptionError", "compiled autograd runs this backward pass"),
        ("after_the_end", "JobClosed", "this model's gradients are averaged by it"),
    ],
)
def test_what_cannot_be_averaged_is_a_typed_error(
    told: list[dict[str, Any]], part: str, kind: str, says: str
) -> None:
    found = [tuple(one[part]) for one in told if part in one]
    # The worker that is told first leaves, and the others hear of that.
    assert any(name == kind and says in text for name, text in found), found
    assert all(name in (kind, "WorkerLost", "JobFailed", "JobClosed") for name, _ in found), found


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("assigned", "1.0."),
        ("another_head", "1."),
        ("midway", "1.0.parametrizations.weight.original"),
        ("into_what_came_without", "2.0."),
        ("beside_the_call", "2."),
        ("into_the_dictionary", "2."),
        ("lazy", "2."),
        ("unfrozen", "2."),
        # The outer model, of which it had been a part, was told of its layers still.
        ("a_part_of_another_before", "1."),
        # Once the list was gone, each worker trained such layers by itself.
        ("in_a_list_that_went", "1.2."),
        ("in_the_dictionary_of_what_is_left", "0.0.2."),
        ("directly", "2."),
        # A part that had been averaged in a job before.
        ("by_a_part", "2.2."),
    ],
)
def test_parameters_that_come_after_distribute_are_refused_by_their_first_gradient(
    told: list[dict[str, Any]], change: str, name: str
) -> None:
    for one in told:
        said = str(one[f"new: {change}"][0])
        assert said.startswith(f"parameter `{name}")
        assert "` came after `distribute`: its gradient is not averaged" in said


@pytest.mark.parametrize(
    "change",
    [
        "pruned",
        "in_an_outer_model",
        "teacher",
        "teacher_without_gradients",
        "averaged_by_another",
        "taken_out_again",
        "taken_out_of_what_is_left",
    ],
)
def test_what_is_known_elsewhere_or_never_trained_here_is_no_reason_to_refuse(
    told: list[dict[str, Any]], change: str
) -> None:
    for one in told:
        assert f"new: {change}" not in one


def test_a_second_step_on_the_same_average_is_taken(told: list[dict[str, Any]]) -> None:
    assert all("steps without a pass" in one for one in told)


# It was refused as this worker's own.
def test_a_step_on_an_average_that_all_have_changed_in_the_same_way_is_taken(
    told: list[dict[str, Any]],
) -> None:
    for one in told:
        mine, plain = one["steps_back"]
        np.testing.assert_array_equal(mine, told[0]["steps_back"][0])
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)


# From the refusal on, every such step of the job was refused, of whatever model.
def test_a_step_that_one_worker_tried_alone_is_forgotten_in_the_next_pass(
    told: list[dict[str, Any]],
) -> None:
    alone, begun = told[0]["said alone"]
    assert "worker 1 took no such step" in alone
    assert "has begun" in begun
    assert [int(one["refused at first"]) for one in told if "refused at first" in one] == [0]
    for one in told:
        assert "together" not in one
        np.testing.assert_array_equal(one["alone and then together"], told[0]["alone and then together"])


def test_a_pass_through_the_models_of_two_jobs_averages_each_in_whatever_order(
    told: list[dict[str, Any]],
) -> None:
    """Each worker waited in another job for the other, until their patience ended."""
    for one in told:
        np.testing.assert_array_equal(one["two_jobs"], told[0]["two_jobs"])
        np.testing.assert_allclose(one["two_jobs"], one["two_jobs/plain"], rtol=1e-5, atol=1e-6)


def test_a_pass_that_broke_off_before_anything_left_is_taken_again(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert list(one["broken_off_before_anything_left"]) == ["3", "1"]


def test_of_two_jobs_in_a_pass_that_broke_off_the_one_whose_average_was_there_goes_on(
    told: list[dict[str, Any]],
) -> None:
    for one in told:
        first, second = one["of_two_jobs_one_broken_off"]
        assert not first
        assert "before this worker had its average" in second


def test_a_pass_that_broke_off_between_two_averages_is_told_by_the_next_ones(
    told: list[dict[str, Any]],
) -> None:
    said = told[0]["broken_off_between_two_averages_and_another_pass"]
    assert len(said) == 2
    assert all("before this worker had its average" in one for one in said)


def test_a_model_that_came_apart_leaves_the_next_one_alone(told: list[dict[str, Any]]) -> None:
    """Its first pass was refused, on all workers."""
    said = [list(one["apart_and_then_another_model"]) for one in told]
    assert all(len(one) == 2 and "is not the same on all workers any more" in one[0] for one in said)
    assert said[0][1] == said[1][1]


# It was told that the models differ, by where their memory is: one worker's last gradients were its own.
def test_a_model_that_ends_with_gradients_of_one_worker_is_followed_by_another(
    told: list[dict[str, Any]],
) -> None:
    first, second = (one["collected_unevenly_and_another_model"] for one in told)
    assert np.array_equal(first, second)


# Each stepped by what this worker had of it.
def test_no_model_is_stepped_behind_a_pass_in_which_it_was_refused(told: list[dict[str, Any]]) -> None:
    for one in told:
        says = [str(said) for said in one["stepped_behind_a_refusal"]]
        assert len(says) == 2, says
        assert all("did not end well" in said for said in says), says


def test_a_gradient_that_is_refused_may_be_made_again(told: list[dict[str, Any]]) -> None:
    first, second = (one["refused_and_made_again"] for one in told)
    assert np.array_equal(first, second)


def test_passes_after_one_that_broke_off_around_a_checkpoint_are_averaged(told: list[dict[str, Any]]) -> None:
    for one in told:
        np.testing.assert_array_equal(one["broken_off_and_checkpointed"], np.zeros(6))


def test_a_default_that_one_worker_spells_out_is_no_difference(told: list[dict[str, Any]]) -> None:
    assert not any("the_same_options_in_other_words" in one for one in told)


def test_a_step_by_zeros_is_nobodys_own(told: list[dict[str, Any]]) -> None:
    """A checkpoint has an optimizer's state made so."""
    assert not any("a_step_by_zeros" in one for one in told)


def test_a_retained_graph_is_not_run_again_on_another_workers_buffers(told: list[dict[str, Any]]) -> None:
    assert not any("a retained graph, False" in one for one in told)
    assert "modified by an inplace operation" in told[1]["a retained graph, True"][0]


def test_a_batch_norm_that_evaluates_never_goes_back_on_statistics_it_did_not_use(
    told: list[dict[str, Any]],
) -> None:
    """Rank 0 goes on with its own."""
    assert "modified by an inplace operation" in told[1]["statistics"][0]


def test_a_function_among_an_optimizers_settings_is_no_difference(told: list[dict[str, Any]]) -> None:
    assert not any("a_function_in_a_group" in one for one in told)


def test_workers_that_are_all_given_the_same_batches_are_warned_once(told: list[dict[str, Any]]) -> None:
    assert len(told[0]["same_batches"]) == 1
    assert "all 2 workers were given the same batch 3 times" in told[0]["same_batches"][0]
    assert list(told[1]["same_batches"]) == ["nothing"]
    for one in told:
        assert list(one["other_batches"]) == ["nothing"]


def test_a_worker_that_went_through_its_data_once_more_is_warned_once(told: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(told):
        (said,) = one["a look at what shuffles"]
        assert f"worker {rank} has begun {5 - rank} epochs of data" in said
        # Where nothing is shuffled, or the script says which epoch it is, a look does no harm.
        assert list(one["a look, True"]) == list(one["a look, False"]) == ["nothing"]


def test_a_worker_that_is_late_is_waited_for_beyond_the_deadline_with_a_warning(
    told: list[dict[str, Any]],
) -> None:
    assert "backward has waited 1 s for the gradients of workers [1]" in told[0]["patient"][0]
    assert list(told[1]["patient"]) == ["nothing"]


# It was told that its own job had ended, and to unwrap the model: to train alone.
def test_a_backward_pass_behind_another_workers_failure_names_that_worker(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import threading
        from pathlib import Path
        import torch
        job = ps.init()
        model = ps.torch.distribute(torch.nn.Linear(2, 1), job=job)
        model(torch.ones(1, 2)).sum().backward()
        # Behind its pass, and before its next.
        between = Path(os.environ["TEST_OUT"]).with_name("between")
        if job.rank == 0:
            while not between.exists():
                threading.Event().wait(0.01)
            with job:
                raise ValueError("disk full")
        between.touch()
        said = ""
        while not job.closed:
            threading.Event().wait(0.01)
        try:
            model(torch.ones(1, 2)).sum().backward()
        except ps.PenstockError as error:
            said = f"{type(error).__name__}: {error}"
        save(said=said)
        """,
        fails=True,
    )
    said = str(saved[1]["said"])
    assert said.startswith("WorkerLost: the job has ended: worker 0 was lost: it failed: "), said
    assert "disk full" in said
