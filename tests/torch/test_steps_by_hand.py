"""
Scripts that step by hand where the servers should: each worker trained alone, without a word. And those that
change parameters for a while and put them back.
"""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps

torch = pytest.importorskip("torch")

SETUP = """
import contextlib, copy, warnings
import torch
from torch import nn

torch.set_num_threads(1)

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

def distributed(job, **options):
    model = net()
    return ps.torch.distribute(
        model, torch.optim.SGD(model.parameters(), lr=0.05), job=job, where="servers", **options
    )

def loss(model, step, rank=None):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step), dtype=torch.double)
    x = x if rank is None else x[rank::2]
    return (model(x) - x.sum(1, keepdim=True)).square().mean()

def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()

@torch.no_grad()
def move(model, by=0.1):
    for parameter in model.parameters():
        parameter -= by * parameter.grad
"""

BY_HAND = """
def in_place(model, optimizer, step, rank):
    model.zero_grad()
    loss(model, step, rank).backward()
    move(model)

def by_data(model, optimizer, step, rank):
    optimizer.zero_grad()
    loss(model, step, rank).backward()
    for parameter in model.parameters():
        parameter.data = parameter.data - 0.1 * parameter.grad

def every_fourth(model, optimizer, step, rank):
    loss(model, step, rank).backward()
    if step % 4 == 3:
        move(model)
        model.zero_grad()

masters = {}

def master_copies(model, optimizer, step, rank):
    if model not in masters:
        copies = [one.detach().clone().requires_grad_() for one in model.parameters()]
        masters[model] = copies, torch.optim.SGD(copies, lr=0.1)
    copies, other = masters[model]
    optimizer.zero_grad()
    loss(model, step, rank).backward()
    for one, copied in zip(model.parameters(), copies):
        copied.grad = one.grad.clone()
    other.step()
    with torch.no_grad():
        for one, copied in zip(model.parameters(), copies):
            one.copy_(copied)

def beside_one_that_stands(model, optimizer, step, rank):
    if step == 0:
        with torch.no_grad():
            model[2].bias.fill_(-2.0)
    model.zero_grad()
    loss(model, step, rank).backward()
    model[2].bias.grad.zero_()
    move(model)

def part_by_part(model, optimizer, step, rank):
    for part, trains in ((model[0], step >= 10), (model[2], step < 10)):
        part.requires_grad_(trains)
    model.zero_grad()
    loss(model, step, rank).backward()
    with torch.no_grad():
        for parameter in model[0 if step >= 10 else 2].parameters():
            parameter -= 0.1 * parameter.grad

with ps.init() as job:
    # One that was changed and is not any more hides no other.
    for way in (beside_one_that_stands, part_by_part):
        model, optimizer = distributed(job)
        try:
            for step in range(60):
                way(model, optimizer, step, job.rank)
        except ps.exceptions.OptionError as error:
            assert "was changed outside of step() again and again" in str(error), error
        else:
            raise AssertionError(way.__name__)
    for options in ({}, {"overlap": False}, {"clip_norm": 1.0}, {"consistency": ps.SSP(1)}):
        for way in (in_place, by_data, every_fourth, master_copies):
            for before in (0, 3):
                # With fewer steps by hand than are looked for there is still a warning in the end.
                model, optimizer = distributed(job, **{"overlap": False, **options} if before else options)
                for step in range(before):
                    optimizer.zero_grad()
                    loss(model, step, job.rank).backward()
                    optimizer.step()
                try:
                    for step in range(40):
                        way(model, optimizer, step, job.rank)
                except ps.exceptions.OptionError as error:
                    assert "was changed outside of step() again and again" in str(error), error
                    assert 'where="gradients"' in error.hint, error.hint
                else:
                    raise AssertionError((options, way.__name__, before))
    job.barrier()
"""


def test_a_worker_that_steps_by_hand_is_told_that_it_trains_alone(spawn_job: Any) -> None:
    spawn_job(2, SETUP + BY_HAND)


SHORT = """
job = ps.init()
model, optimizer = distributed(job)
for step in range(4):
    model.zero_grad()
    loss(model, step, job.rank).backward()
    move(model)
"""


@pytest.mark.parametrize("end", ["job.close()", "pass"])
def test_one_that_ends_before_that_is_noticed_is_warned_in_the_end(spawn_job: Any, end: str) -> None:
    for one in spawn_job(2, SETUP + SHORT + end):
        assert one["output"].count("this worker has trained alone") == 1, one["output"]


ALONE = """
def by_hand(model, step):
    model.zero_grad()
    loss(model, step, job.rank).backward()
    move(model)

def by_grad(model, step):
    gradients = torch.autograd.grad(loss(model, step, job.rank), list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter -= 0.1 * gradient

def by_data(model, step):
    gradients = torch.autograd.grad(loss(model, step, job.rank), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.data.add_(gradient, alpha=-0.1)

def in_copies(model, step):
    copies = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    x = torch.ones(4, 3, dtype=torch.double) * (step + job.rank)
    torch.func.functional_call(model, copies, (x,)).square().mean().backward()
    with torch.no_grad():
        for name, one in model.named_parameters():
            one -= 0.1 * copies[name].grad

with ps.init() as job:
    for way, before, steps in (
        (by_hand, 0, 1),
        (by_hand, 2, 4),
        (by_grad, 0, 30),
        (by_grad, 2, 4),
        (by_data, 0, 2),
        (by_data, 2, 9),
        (in_copies, 0, 2),
    ):
        model, optimizer = distributed(job, overlap=False)
        for step in range(before):
            optimizer.zero_grad()
            loss(model, step, job.rank).backward()
            optimizer.step()
        for step in range(steps):
            way(model, step)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                optimizer.warn_of_no_step()
        assert len(told) == 1, (way.__name__, before)
        assert "has trained alone" in str(told[0].message)
        assert ("after its last step()" in str(told[0].message)) == bool(before)
"""


def test_nor_does_another_way_of_stepping_by_hand_go_unsaid(spawn_job: Any) -> None:
    spawn_job(2, SETUP + ALONE)


CUT_SHORT = """
import importlib

class Over(Exception):
    pass

transfer = importlib.import_module("penstock.torch.servers.transfer").HostTransfer
with ps.init() as job:
    model, optimizer = distributed(job, overlap=False)
    loss(model, 0, job.rank).backward()
    receive, seen = transfer.receive, []
    def interrupted(self, *arguments, **options):
        receive(self, *arguments, **options)
        seen.append(self)
        if len(seen) == 2:
            raise Over
    transfer.receive = interrupted
    try:
        optimizer.step()
    except Over:
        pass
    else:
        raise AssertionError("it was not cut short")
    transfer.receive = receive
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.warn_of_no_step()
    assert not told, told
"""


def test_who_was_cut_short_has_not_trained_alone(spawn_job: Any) -> None:
    spawn_job(2, SETUP + CUT_SHORT)


CONVERTED = """
def by_hand(model):
    for _ in range(2):
        gradients = torch.autograd.grad(model(torch.ones(4, 3)).square().mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter -= 0.1 * gradient

with ps.init() as job:
    for steps in (0, 2):
        for way, trains in (
            (lambda model: model.half(), False),
            (lambda model: model.to(torch.bfloat16), False),
            (lambda model: model.float(), False),
            (lambda model: model.bfloat16().double(), False),
            # To train by hand in another type is to train alone all the same.
            (lambda model: by_hand(model.float()), True),
        ):
            model, optimizer = distributed(job, overlap=False)
            for step in range(steps):
                optimizer.zero_grad()
                loss(model, step, job.rank).backward()
                optimizer.step()
            way(model)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                optimizer.warn_of_no_step()
            assert len(told) == trains, (steps, way, told)

"""


def test_a_model_that_is_only_converted_was_not_trained(spawn_job: Any) -> None:
    """It was said to have been trained alone, as by `model.half()` before it is saved."""
    spawn_job(2, SETUP + CONVERTED)


HONEST = """
warnings.simplefilter("error")

def plain(model, optimizer, step, rank):
    loss(model, step, rank).backward()

def accumulates(model, optimizer, step, rank):
    for part in range(20):
        (loss(model, 20 * step + part, rank) / 20).backward()

def sam(model, optimizer, step, rank):
    # Each worker's own gradient says where to look; the mean of what is found there is stepped by.
    for part in range(12):
        (loss(model, step, 0) / 12).backward()
    kept = [one.detach().clone() for one in model.parameters()]
    move(model, -0.05)
    optimizer.zero_grad()
    for part in range(12):
        (loss(model, step, rank) / 12).backward()
    with torch.no_grad():
        for one, was in zip(model.parameters(), kept):
            one.copy_(was)

def inner_steps(model, optimizer, step, rank):
    kept = [one.detach().clone() for one in model.parameters()]
    for part in range(10):
        model.zero_grad()
        loss(model, 10 * step + part, 0).backward()
        move(model)
    model.zero_grad()
    loss(model, step, rank).backward()
    with torch.no_grad():
        for one, was in zip(model.parameters(), kept):
            one.copy_(was)

def averages(model, optimizer, step, rank):
    loss(model, step, rank).backward()
    if not hasattr(optimizer, "average"):
        optimizer.average = copy.deepcopy(net())
    with torch.no_grad():
        for one, other in zip(optimizer.average.parameters(), model.parameters()):
            one.lerp_(other, 0.5)
        model.eval()(torch.zeros(1, 3, dtype=torch.double))
        optimizer.average(torch.zeros(1, 3, dtype=torch.double))
    model.train()

def loads(model, optimizer, step, rank):
    # On every worker, between steps, where nothing is left of the last pass.
    state = {name: one * 0.9 for name, one in model.state_dict().items()}
    model.load_state_dict(state)
    for part in range(9):
        loss(model, step, rank).backward()

def clamps(model, optimizer, step, rank):
    with torch.no_grad():
        for one in model.parameters():
            one.clamp_(-0.5, 0.5)
    getattr(optimizer, "publish", lambda: None)()
    for part in range(17):
        loss(model, step, rank).backward()

with ps.init() as job:
    for way in (plain, accumulates, sam, inner_steps, averages, loads, clamps):
        model, optimizer = distributed(job)
        alone = net()
        theirs = torch.optim.SGD(alone.parameters(), lr=0.05)
        for step in range(6):
            for one, steps, rank in ((model, optimizer, job.rank), (alone, theirs, None)):
                steps.zero_grad()
                way(one, steps, step, rank)
                steps.step()
        np.testing.assert_allclose(flat(model), flat(alone), rtol=1e-9, err_msg=way.__name__)
    # Passes that are left over, and what is done with the model when it has been trained.
    for last in (lambda one: one.clamp_(-0.1, 0.1), lambda one: one.copy_(0.9 * one)):
        model, optimizer = distributed(job, overlap=False)
        for step in range(3):
            optimizer.zero_grad()
            loss(model, step, job.rank).backward()
            optimizer.step()
        for step in range(3):
            loss(model, step, job.rank).backward()
            torch.autograd.grad(loss(model, step, job.rank), list(model.parameters()))
        with torch.no_grad():
            for one in model.parameters():
                last(one)
        optimizer.warn_of_no_step()
    # Gradients that are only looked at.
    model, optimizer = distributed(job)
    for step in range(3):
        model.zero_grad()
        loss(model, step, job.rank).backward()
    # What was changed by hand is averaged and published now and then.
    model, optimizer = distributed(job, overlap=False)
    for step in range(40):
        model.zero_grad()
        loss(model, step, job.rank).backward()
        move(model)
        if step % 8 == 7:
            with torch.no_grad():
                for one in model.parameters():
                    one.copy_(job.mean(one))
            optimizer.publish()
    # Without the check it is not looked for.
    model, optimizer = distributed(job, check=False)
    for step in range(40):
        model.zero_grad()
        loss(model, step, job.rank).backward()
        move(model)
"""


def test_a_script_that_puts_back_what_it_changes_and_steps_is_left_alone(spawn_job: Any) -> None:
    spawn_job(2, SETUP + HONEST)


@pytest.mark.filterwarnings("error")
def test_a_worker_alone_may_step_by_hand(job: ps.Job) -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, _ = ps.torch.distribute(model, optimizer, job=job, where="servers")
    for _ in range(40):
        model.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    job.close()
