"""
`clip_norm`: the servers' step is by the average, clipped by the norm of all of it, as one process clips the
gradients of the joined batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")

SETUP = """
import copy
import functools
import signal
import torch
from torch import nn
from torch.nn.functional import mse_loss

torch.set_num_threads(1)
distribute = functools.partial(ps.torch.distribute, where="servers")
STEPS = 6

class Net(nn.Module):
    '''Tied, frozen and 0-d parameters, one that nobody uses, and a branch.'''
    def __init__(self):
        super().__init__()
        self.first, self.twice, self.again = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.again.weight = self.twice.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.last, self.branch = nn.Linear(8, 3), nn.Linear(8, 3)
    def forward(self, x, branch=False):
        h = self.again(self.twice(self.first(x).tanh()).tanh())
        h = (h + self.frozen(h)) * self.scale
        return self.branch(h) if branch else self.last(h)

def net(dtype=torch.float64):
    torch.manual_seed(0)
    return Net().to(dtype)

MAKERS = {
    "momentum": lambda p, lr=0.1: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p, lr=0.01: torch.optim.AdamW(p, lr=lr),
}

def batch(step, rank, dtype=torch.float64):
    generator = torch.Generator().manual_seed(100 * step + rank)
    size = 1 + 3 * (step % 2)                                    # norms above the limit, and below
    pair = torch.randn(4, 6, generator=generator), torch.randn(4, 3, generator=generator)
    return tuple((size * one).to(dtype) for one in pair)

def flat(model):
    return np.concatenate([t.detach().double().reshape(-1).numpy() for t in model.state_dict().values()])

def loss_of(model, step, rank, branches, dtype):
    x, y = batch(step, rank, dtype)
    # In one step only worker 0 takes the branch, in another all, mostly nobody.
    return mse_loss(model(x, branches and (step == 4 or (step == 2 and rank == 0))), y)

def both(job, make, limit, *, dtype=torch.float64, branches=False, touch=None, before=None, **options):
    '''The model that the job trains, and that of one process; the norms that both saw, and the states.'''
    model, plain = net(dtype), net(dtype)
    if before:
        before(model), before(plain)
    alone = make(plain)
    model, optimizer = distribute(model, make(model), clip_norm=limit, job=job, **options)
    norms, expected = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, job.rank, branches, dtype)
        loss.backward() if touch is None else touch(loss, step, job.rank).backward()
        optimizer.step()
        norms.append(optimizer.total_norm)
        alone.zero_grad()
        losses = [loss_of(plain, step, rank, branches, dtype) for rank in range(job.size)]
        if touch is not None:
            losses = [touch(loss, step, rank) for rank, loss in enumerate(losses)]
        (sum(losses) / job.size).backward()
        if "rescale" in options:
            for parameter in plain.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(options["rescale"])
        if "clip" in options:
            nn.utils.clip_grad_value_(plain.parameters(), options["clip"])
        expected.append(float(nn.utils.clip_grad_norm_(plain.parameters(), limit)))
        alone.step()
    yield "model", flat(model)
    yield "model/plain", flat(plain)
    yield "norms", np.array(norms)
    yield "norms/plain", np.array(expected)
    states = [one.state_dict()["state"] for one in (optimizer, alone)]
    for name, state in zip(("state", "state/plain"), states):
        rows = [torch.as_tensor(v).double().reshape(-1).numpy()
                for _, one in sorted(state.items()) for _, v in sorted(one.items()) if v is not None]
        yield name, np.concatenate(rows or [np.zeros(1)])

def in_groups(make):
    def make_groups(model):
        few = [model.first.weight, model.scale]
        rest = [p for p in model.parameters() if p.requires_grad and not any(p is one for one in few)]
        return make([{"params": few, "lr": 0.02}, {"params": rest}])
    return make_groups

def golden(job):
    for name, make in MAKERS.items():
        for overlap in ("auto", False, 1):
            for key, value in both(job, in_groups(make), 1.0, overlap=overlap):
                yield f"{name} {overlap} {key}", value
        for key, value in both(job, in_groups(make), 1.0, branches=True, check=False):
            yield f"{name} branches {key}", value
    sgd = lambda model: MAKERS["momentum"](model.parameters())
    for key, value in both(job, sgd, 1.0, dtype=torch.float32):
        yield f"float32 {key}", value
    for key, value in both(job, sgd, 0.5, rescale=2.0, clip=0.1):
        yield f"each element first {key}", value
    for key, value in both(job, sgd, float("inf")):
        yield f"only measured {key}", value
    def turned(model):
        parameters = list(model.parameters())
        return MAKERS["momentum"](parameters[::-1] if job.rank else parameters)
    for key, value in both(job, turned, 1.0, branches=True, check=False):
        if "state" not in key:                                   # which is in that order
            yield f"another order on each worker {key}", value
    def mixed(model):
        model.first.float()
        model.first.register_forward_pre_hook(lambda _, x: x[0].float())
        model.first.register_forward_hook(lambda _, __, h: h.double())
    for key, value in both(job, sgd, 1.0, before=mixed):
        yield f"two types {key}", value
    def overflows(number):
        return lambda loss, step, rank: loss * number if step == 3 and rank == job.size - 1 else loss
    for number in ("inf", "nan", "1e200"):
        for key, value in both(job, sgd, 1.0, touch=overflows(float(number))):
            yield f"{number} {key}", value

def loaded(job):
    '''A state that is loaded on the way, a layer that is unfrozen, a group that is added.'''
    torch.manual_seed(1)
    parts = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 3)]).double()
    plain = copy.deepcopy(parts)
    def run(parts, optimizer, ranks, clip):
        states = []
        for step in range(STEPS):
            if step == 2:
                parts[1].requires_grad_(True)
            if step == 3:
                optimizer.load_state_dict(states[0])
            if step == 4:
                if parts is not plain:
                    outer.append(parts[2])
                optimizer.add_param_group({"params": list(parts[2].parameters())})
            optimizer.zero_grad()
            losses = []
            for rank in ranks:
                x, y = batch(step, rank)
                losses.append(mse_loss(parts[2](parts[1](parts[0](x).tanh()).tanh()), y))
            (sum(losses) / len(losses)).backward()
            clip([p for group in optimizer.param_groups for p in group["params"]])
            optimizer.step()
            states.append(copy.deepcopy(optimizer.state_dict()))
        return flat(parts)
    make = lambda parts: torch.optim.Adam([p for part in parts[:2] for p in part.parameters()], lr=0.01)
    outer = nn.ModuleList(parts[:2])
    _, optimizer = distribute(outer, make(parts), clip_norm=0.3, overlap=False, job=job)
    parts[2].requires_grad_(True)
    yield "model", run(parts, optimizer, [job.rank], lambda _: None)
    clip = lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.3)
    yield "model/plain", run(plain, make(plain), range(job.size), clip)

def leaves(job):
    '''The last worker has fewer batches: what it owned is taken over.'''
    model, plain = net(), net()
    make = MAKERS["adamw"]
    model, optimizer = distribute(model, make(model.parameters()), clip_norm=1.0, job=job)
    for step in range(5 if job.rank < job.size - 1 else 3):
        optimizer.zero_grad()
        loss_of(model, step, job.rank, False, torch.float64).backward()
        optimizer.step()
    yield "model", flat(model)
    alone = make(plain.parameters())
    for step in range(5 if job.rank < job.size - 1 else 3):
        ranks = range(job.size if step < 3 else job.size - 1)
        alone.zero_grad()
        (sum(loss_of(plain, step, rank, False, torch.float64) for rank in ranks) / len(ranks)).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        alone.step()
    yield "model/plain", flat(plain)

def everything(job):
    return {f"{part.__name__} {key}": value for part in (golden, loaded, leaves) for key, value in part(job)}
"""

IN_MEMORY = """
with ps.init() as job:
    found = everything(job)
save(**found)
"""

OVER_TCP = """
# Worker 0 shares the servers' memory, the others do not.
with ps.init(**({"transport": "auto"} if os.environ["PENSTOCK_RANK"] == "0" else {})) as job:
    found = everything(job)
    with open(f"{sys.argv[1]}/{job.rank}.npz", "wb") as file:
        np.savez(file, **found)
"""


@pytest.fixture(scope="module", params=[2, 3])
def found(
    request: Any, spawn_shared_job: Any, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each worker ended with: two in shared memory, three with two of them over TCP."""
    if request.param == 2:
        saved: list[dict[str, Any]] = spawn_shared_job(2, SETUP + IN_MEMORY, servers=2)
        return saved
    folder = tmp_path_factory.mktemp("clipping")
    script = folder / "script.py"
    script.write_text("import os, sys\nimport numpy as np\nimport penstock as ps\n" + SETUP + OVER_TCP)
    run = ["run", "--workers", "3", "--servers", "2", "--transport", "tcp", str(script), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *run],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [_load(folder / f"{rank}.npz") for rank in range(3)]


def _load(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


def pairs(found: list[dict[str, Any]], part: str) -> list[tuple[str, Any, Any, list[Any]]]:
    """What the job gave and one process, by name, and what the other workers have."""
    head = f"{part} "
    names = [name for name in found[0] if name.startswith(head) and f"{name}/plain" in found[0]]
    return [
        (name, found[0][name], found[0][f"{name}/plain"], [one[name] for one in found[1:]]) for name in names
    ]


def test_a_clipped_step_is_that_of_one_process_on_the_joined_batch(found: list[dict[str, Any]]) -> None:
    compared = pairs(found, "golden")
    assert len(compared) == 3 * 15 + 2
    for name, mine, plain, others in compared:
        np.testing.assert_allclose(mine, plain, rtol=1e-6, atol=1e-6, err_msg=name)
        for other in others:
            np.testing.assert_array_equal(other, mine, err_msg=name)
    # The limit was reached in some steps and not in others; what is not finite came to where torch has it.
    norms = found[0]["golden momentum auto norms"]
    assert (norms > 1).any()
    assert (norms < 1).any()
    assert np.isnan(found[0]["golden inf model"]).any()
    assert np.isnan(found[0]["golden nan norms"]).any()
    assert np.isinf(found[0]["golden 1e200 norms"]).any()
    assert not np.isnan(found[0]["golden 1e200 model"]).any()


def test_what_is_loaded_unfrozen_or_added_on_the_way_is_clipped_with_the_rest(
    found: list[dict[str, Any]],
) -> None:
    ((name, mine, plain, others),) = pairs(found, "loaded")
    np.testing.assert_allclose(mine, plain, rtol=1e-6, atol=1e-6, err_msg=name)
    for other in others:
        np.testing.assert_array_equal(other, mine)


def test_what_a_worker_owned_that_leaves_is_stepped_by_the_others(found: list[dict[str, Any]]) -> None:
    ((name, mine, plain, others),) = pairs(found, "leaves")
    np.testing.assert_allclose(mine, plain, rtol=1e-6, atol=1e-6, err_msg=name)
    for other in others[:-1]:
        np.testing.assert_array_equal(other, mine)
    np.testing.assert_allclose(others[-1], found[-1]["leaves model/plain"], rtol=1e-6, atol=1e-6)


TOLD = """
import contextlib

with contextlib.suppress(ps.PenstockError), ps.init() as job:
    model = net()
    try:
        distribute(model, MAKERS["momentum"](model.parameters()), clip_norm=1.0 + job.rank)
    except ps.PenstockError as error:
        save(others=np.array([type(error).__name__, str(error)]))
    # Nobody leaves before the others are told: they would hear of that. Worker 0 may wait for them meanwhile.
    with contextlib.suppress(ps.PenstockError):
        job.barrier(timeout=10)
next_job()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def train(job, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, job.rank, False, torch.float64).backward()
        optimizer.step()

def distributed():
    model = net()
    return distribute(model, MAKERS["momentum"](model.parameters()), clip_norm=1.0)

def lost_in(job, where, rank):
    model, optimizer = distributed()
    train(job, model, optimizer, range(1))
    if job.rank == rank:
        setattr(optimizer._clipping, where, lambda *_: die())
    try:
        train(job, model, optimizer, range(1, 4))
    except ps.WorkerLost as error:
        return np.array([str(error), str(error.rank)])

with ps.init() as job:
    model, optimizer = distributed()
    train(job, model, optimizer, range(2))
    if job.rank == 3:
        die()
    train(job, model, optimizer, range(2, 4))
    # Gone before it has given its norms; gone with all that it owns.
    told = {"gone on": flat(model), "norms": lost_in(job, "_owners_among", 2)}
    told["pushes"] = lost_in(job, "_factor", 1)
save(**told)
"""


@pytest.fixture(scope="module")
def told(spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What four workers were told, of which one after another dies."""
    saved: list[dict[str, Any]] = spawn_shared_job(
        4, SETUP + TOLD, jobs=2, options={"on_worker_loss": "continue"}, fails=True
    )
    assert [one["code"] for one in saved] == [0, -9, -9, -9], saved
    return saved


def test_workers_that_clip_to_other_norms_are_told(told: list[dict[str, Any]]) -> None:
    assert told[1]["others"][0] == "DeclarationConflict"
    assert "worker 1 has clip_norm=2.0, worker 0 has clip_norm=1.0" in told[1]["others"][1]


def test_a_worker_lost_between_steps_is_done_without_and_within_one_ends_it(
    told: list[dict[str, Any]],
) -> None:
    """What it owned was left without its step, in silence, where the job goes on without it."""
    assert np.isfinite(told[0]["gone on"]).all()
    for part, rank in (("norms", "2"), ("pushes", "1")):
        text, lost = told[0][part]
        assert lost == rank
        assert f"worker {rank} was lost within a step of `model" in text


DIFFERENT = """
import contextlib
import time

def two_layers(rates, branch=False, split=False, **settings):
    '''With a group for each layer, or each parameter; in a step the second or third layer is not used.'''
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(3, 2)])
    groups = [{"params": list(part.parameters()), "lr": lr} for part, lr in zip(model, rates)]
    if split:
        groups = [{**group, "params": [one]} for group in groups for one in group["params"]]
    optimizer = torch.optim.SGD(groups, momentum=0.9, **settings)
    model, optimizer = distribute(model, optimizer, clip_norm=1.0)
    def train(seed=0, branch=branch):
        optimizer.zero_grad()
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        (model[2 if branch else 1](model[0](x)) ** 2).mean().backward()
        optimizer.step()
    return model, optimizer, train

def outcome(function):
    '''What it raised, and after how long.'''
    began = time.monotonic()
    try:
        function()
        error = None
    except ps.PenstockError as caught:
        error = caught
    return np.array([type(error).__name__, str(error), str(time.monotonic() - began)])

def by_own_loss(job):
    '''Equal for two steps; then a scheduler lowers one rate on the last worker, whose loss stands still.'''
    model, optimizer, train = two_layers([0.1, 0.1, 0.1])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for step in range(2):
        train(step)
        plateau.step(1.0 if step and job.rank == job.size - 1 else 1.0 - step)
    return outcome(train)

def from_the_start(job):
    '''In one group of several, by a tensor, and on a worker that has no gradient.'''
    _, optimizer, train = two_layers([0.1, torch.tensor(0.1 if job.rank else 0.01), 0.1], branch=job.rank)
    return outcome(train)

def by_lengths(job):
    '''The same rates in the same order, of other layers.'''
    _, optimizer, train = two_layers([0.1, 0.2 if job.rank else 0.1, 0.2], branch=job.rank)
    return outcome(train)

def alike(job):
    '''Rates that change on all workers; what is written otherwise, and is no other step.'''
    sign = -1.0 if job.rank else 1.0
    model, optimizer, train = two_layers([0.1, 0.05, 0.1], split=job.rank == 1, weight_decay=sign * 0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    for step in range(6):
        # One that has no gradient of a layer knows its rate all the same.
        train(step, branch=job.rank == 2)
        schedule.step()
    # Nobody has a gradient of the last layer.
    optimizer.param_groups[-1]["lr"] = 1.0 + job.rank
    for step in range(6, 9):
        train(step)
    return flat(model)
"""

STOPPED = """
told = {}
for test in (by_own_loss, from_the_start, by_lengths, alike):
    with contextlib.suppress(ps.PenstockError), ps.init() as job:
        told[test.__name__] = test(job)
    if test is not alike:
        next_job()
save(**told)
"""

LOST = """
with ps.init() as job:
    model, optimizer, train = two_layers([0.1 if job.rank < 2 else 0.2] * 3)
    if job.rank == 2:
        optimizer._clipping._refuse = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    def values():
        return np.concatenate([shared.tensor.pull().ravel() for shared in optimizer._shared.values()])
    before = values()
    told = outcome(train)
    after = values()
save(told=told, before=before, after=after)
"""


@pytest.fixture(scope="module")
def different(spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What three workers were told whose settings differ, and where only those do that no step is by."""
    saved: list[dict[str, Any]] = spawn_shared_job(3, SETUP + DIFFERENT + STOPPED, jobs=4, fails=True)
    assert all(len(one) >= 4 for one in saved), saved
    return saved


@pytest.mark.parametrize(
    ("part", "ranks"), [("by_own_loss", "02 12"), ("from_the_start", "01 02"), ("by_lengths", "01 02")]
)
def test_workers_whose_settings_differ_are_all_told_at_once(
    different: list[dict[str, Any]], part: str, ranks: str
) -> None:
    """Each layer was stepped with the rate of whichever worker owned it, in silence."""
    for one in different:
        kind, text, seconds = one[part]
        assert kind == "SettingsConflict", text
        said = [f"workers {pair[0]} and {pair[1]} disagree about the optimizer's" for pair in ranks.split()]
        assert any(words in text for words in said), text
        assert float(seconds) < 20


def test_settings_may_change_alike_and_differ_where_no_step_is_by_them(
    different: list[dict[str, Any]],
) -> None:
    first = different[0]["alike"]
    assert np.isfinite(first).all()
    for one in different[1:]:
        np.testing.assert_array_equal(one["alike"], first)


def test_where_the_one_with_other_settings_is_lost_nobody_goes_on_with_half_a_step(
    spawn_job: Any,
) -> None:
    saved = spawn_job(3, SETUP + DIFFERENT + LOST, options={"on_worker_loss": "continue"}, fails=True)
    for rank in range(2):
        kind, text, seconds = saved[rank]["told"]
        assert kind == "SettingsConflict", text
        assert f"worker {rank} and workers [2] disagree about the optimizer's settings in a step" in text
        assert float(seconds) < 20
        np.testing.assert_array_equal(saved[rank]["after"], saved[rank]["before"], "the step was by zeros")


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_setting_that_is_refused_is_put_right_by_the_worker_that_has_it(
    spawn_job: Any, is_frozen: bool
) -> None:
    """It had taken half of the step: the others were told that it was lost."""
    saved = spawn_job(
        2,
        SETUP
        + DIFFERENT
        + """
with ps.init() as job:
    model, optimizer, train = two_layers([0.1] * 3, branch=job.rank)
    if job.rank:
        # Of a layer that only the other worker uses.
        model[1].requires_grad_(sys.argv[1] == "False")
        optimizer.param_groups[1]["lr"] = -1.0
        try:
            train()
        except ps.exceptions.SettingsError:
            optimizer.param_groups[1]["lr"] = 0.1
            optimizer.step()
    else:
        train()
    save(model=flat(model))
""",
        arguments=(str(is_frozen),),
    )
    np.testing.assert_array_equal(saved[0]["model"], saved[1]["model"])


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (0, "got 0"),
        (-1.0, "got -1.0"),
        (float("nan"), "got nan"),
        (True, "got True"),
        (np.True_, "got "),
        ("1", "got '1'"),
        (1j, "got 1j"),
        ([1.0], r"got \[1.0\]"),
    ],
)
def test_a_limit_that_is_none_is_refused(job: ps.Job, limit: Any, says: str) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ps.exceptions.OptionError, match=f"expected clip_norm as a number above 0, {says}"):
        ps.torch.distribute(model, optimizer, where="servers", clip_norm=limit)


@pytest.mark.parametrize("consistency", [ps.SSP(2), ps.ASP()])
def test_where_no_average_ever_stands_its_norm_is_refused(job: ps.Job, consistency: Any) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ps.exceptions.OptionError, match="each worker's gradient is a step of its own"):
        ps.torch.distribute(model, optimizer, consistency=consistency, clip_norm=1.0)


def test_with_averaged_gradients_the_script_clips_them_itself(job: ps.Job) -> None:
    with pytest.raises(ps.exceptions.OptionError) as caught:
        ps.torch.distribute(torch.nn.Linear(3, 2), clip_norm=1.0)
    assert "torch.nn.utils.clip_grad_norm_(model.parameters(), ...)" in str(caught.value.hint)


def test_a_rate_set_after_gradients_have_left_is_that_of_the_clipped_step(job: ps.Job) -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0)
    model, optimizer = ps.torch.distribute(model, optimizer, where="servers", clip_norm=3**0.5, overlap=1)
    model(torch.full((1, 3), 7.0)).sum().backward()
    optimizer.param_groups[0]["lr"] = 2.0
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.full((1, 3), -2.0))
    assert optimizer.total_norm == pytest.approx(7 * 3**0.5)


def test_a_step_without_gradients_changes_nothing(job: ps.Job) -> None:
    model = torch.nn.Linear(3, 1)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    model, optimizer = ps.torch.distribute(model, optimizer, where="servers", clip_norm=1.0)
    optimizer.step()
    assert torch.equal(model.weight, before)
    assert optimizer.total_norm == 0
    assert optimizer.state_dict()["state"] == {}
