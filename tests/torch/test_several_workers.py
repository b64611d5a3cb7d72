"""Two worker processes that train one model: with what one process would do on both their batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

SETUP = """
import copy
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 16)
        self.last = torch.nn.Linear(16, 3)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.register_buffer("mean", torch.rand(4))
        self.register_buffer("count", torch.tensor(torch.randint(1 << 40, ()).item()))
    def forward(self, x):
        h = self.first(x).tanh()
        return self.last(h + self.frozen(h))

def net(seed):
    torch.manual_seed(seed)
    return Net()

def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)

def flat(model):
    return np.concatenate([t.detach().double().reshape(-1).numpy() for t in model.state_dict().values()])

def train(model, optimizer, steps, part):
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[part]), y[part]).backward()
        optimizer.step()

MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
"""


# What the first tests look at. One pair of processes does all of it: each would import torch, for seconds.
TOGETHER = """
def takes_the_steps(job):
    for name, make in MAKERS.items():
        model = net(job.rank)                                    # rank 0's parameters and buffers count
        model, optimizer = distribute(model, make(model.parameters()))
        train(model, optimizer, range(8), slice(4 * job.rank, 4 * job.rank + 4))
        # A checkpoint that rank 0 alone saves, and that everyone goes on from.
        state = copy.deepcopy(optimizer.state_dict()) if job.rank == 0 else None
        job.barrier()
        train(model, optimizer, range(8, 10), slice(4 * job.rank, 4 * job.rank + 4))
        yield name, flat(model)
        plain = net(0)
        alone = make(plain.parameters())
        train(plain, alone, range(8), slice(None))
        if state:
            alone.load_state_dict(state)
        train(plain, alone, range(8, 10), slice(None))
        yield name + "/plain", flat(plain)

def with_and_without(job):
    for name, make in MAKERS.items():
        model = net(0)
        model, optimizer = distribute(model, make(model.parameters()))
        for step in range(4):
            x, y = batch(step)
            optimizer.zero_grad()
            if step != 2 or job.rank == 0:                       # once, worker 1 has nothing to contribute
                torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        yield name, flat(model.first)
        model.load_state_dict(net(5 + job.rank).state_dict())
        yield name + "/loaded", flat(model.first)
    yield "expected", flat(net(5).first)

def stale_synchronous(job):
    model = net(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = distribute(model, optimizer, consistency=ps.SSP(3))
    def loss():
        with torch.no_grad():
            return float(sum(torch.nn.functional.mse_loss(model(x), y) for x, y in map(batch, range(20))))
    yield "before", loss()
    train(model, optimizer, [step % 20 for step in range(60)], slice(4 * job.rank, 4 * job.rank + 4))
    yield "stale", max(shared.tensor.staleness for shared in optimizer._delivery)
    job.barrier()
    for shared in optimizer._delivery:
        shared.tensor.pull(out=shared.parameter, slack=0)
    yield "after", loss()
    yield "model", flat(model)

def every_load(job):
    for name, make in MAKERS.items():
        model = net(0)
        model, optimizer = distribute(model, make(model.parameters()))
        for seed in (5, 7, 7, 9):
            model.load_state_dict(net(seed + 10 * job.rank).state_dict())
            yield f"{name} {seed}", flat(model.first)
            yield f"{name} {seed}/rank 0's", flat(net(seed).first)
        job.barrier()

torch.set_num_threads(1)
with ps.init() as job:
    parts = (takes_the_steps, with_and_without, stale_synchronous, every_load)
    save(**{f"{part.__name__}: {key}": value for part in parts for key, value in part(job)})
"""

Part = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def part(spawn_shared_job: Any) -> Part:
    """What each worker saved in one function of TOGETHER."""
    saved = spawn_shared_job(2, SETUP + TOGETHER, servers=2)

    def part(name: str) -> list[dict[str, Any]]:
        head = f"{name}: "
        return [
            {key.removeprefix(head): value for key, value in one.items() if key.startswith(head)}
            for one in saved
        ]

    return part


def test_two_workers_take_the_steps_of_one_process_on_both_batches(part: Part) -> None:
    saved = part("takes_the_steps")
    for name in ("sgd", "adamw", "nadam"):
        np.testing.assert_array_equal(saved[0][name], saved[1][name], err_msg=name)
        np.testing.assert_allclose(
            saved[0][name], saved[0][f"{name}/plain"], rtol=2e-4, atol=2e-5, err_msg=name
        )


def test_workers_with_and_without_a_gradient_and_loads_after_the_start(part: Part) -> None:
    saved = part("with_and_without")
    for name in ("sgd", "adamw", "nadam"):
        np.testing.assert_array_equal(saved[0][name], saved[1][name], err_msg=name)
        for result in saved:
            np.testing.assert_array_equal(result[f"{name}/loaded"], result["expected"], err_msg=name)


def test_a_stale_synchronous_job_learns_and_ends_with_all_updates_everywhere(part: Part) -> None:
    saved = part("stale_synchronous")
    np.testing.assert_array_equal(saved[0]["model"], saved[1]["model"])
    for result in saved:
        assert result["after"] < 0.9 * result["before"]
        assert result["stale"] <= 3


def test_every_load_after_the_start_gives_all_workers_rank_0s_values(part: Part) -> None:
    saved = part("every_load")
    expected = {key: value for key, value in saved[1].items() if key.endswith("/rank 0's")}
    assert len(expected) == 9  # three optimizers, three seeds
    for key, value in expected.items():
        np.testing.assert_array_equal(saved[1][key.removesuffix("/rank 0's")], value, err_msg=key)


# Jobs in which a worker is told what is wrong, one after another in the same pair of processes.
TOLD = """
import time

told = {}

def note(part, error):
    told[part] = np.array([str(type(error).mro()), str(error), str(getattr(error, "rank", ""))])
    # All processes of a host have one clock.
    told[part + "/times"] = np.array([begun, time.monotonic()])

def refused(part, change, of=torch.optim.SGD):
    global begun
    try:
        with ps.init() as job:
            model = net(0)
            if job.rank == 1:
                change(model)
            optimizer, distribute = of(model.parameters(), lr=0.1), ps.torch.distribute
            begun = time.monotonic()                             # all is imported
            distribute(model, optimizer)
            job.barrier()                                        # rank 0 has all that it needs: it hears here
    except ps.PenstockError as error:
        note(part, error)

def without_three(model):
    del model.count, model.mean, model.frozen

def with_one_more(model):
    model.more = torch.nn.Linear(3, 3)

def with_another_last(model):
    model.last = torch.nn.Linear(16, 4)

def with_one_less(model):
    model.last.register_parameter("bias", None)

torch.set_num_threads(1)
# The same bytes, which would be read as each other.
refused("another buffer", lambda model: model.register_buffer("count", torch.rand(2)))
next_job()
refused("three less", without_three)
next_job()
refused("one more", with_one_more)
next_job()
refused("another shape", with_another_last)
next_job()
refused("one less", with_one_less)
next_job()
refused("frozen end", lambda model: model.last.requires_grad_(False))
next_job()
refused("frozen end, stepping here", lambda model: model.last.requires_grad_(False), torch.optim.NAdam)
next_job()
with ps.init() as job:
    model = torch.nn.Linear(6, 3)
    begun = time.monotonic()
    if job.rank == 0:
        try:
            distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
        except ps.WorkerLost as error:
            note("leaves", error)
next_job()
with ps.init(deadline=60) as job:
    model = net(0)
    model, optimizer = distribute(model, MAKERS["sgd"](model.parameters()), job=job)
    begun = time.monotonic()
    try:
        if job.rank == 0:
            model.load_state_dict(net(5).state_dict())
        train(model, optimizer, range(3), slice(None))
    except ps.exceptions.DeadlineExceeded as error:
        note("loads alone", error)
save(**told)
"""


@pytest.fixture(scope="module")
def told(spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What each worker was told in TOLD: kind, text and rank of each error."""
    saved: list[dict[str, Any]] = spawn_shared_job(2, SETUP + TOLD, jobs=9, fails=True)
    assert [one["code"] for one in saved] == [0, 0], saved
    return saved


def soon(told: list[dict[str, Any]], part: str) -> bool:
    """Whether all that were told were told long before the deadline of a minute, once all had begun."""
    times = [one[f"{part}/times"] for one in told if part in one]
    return bool(max(ended for _, ended in times) - max(begun for begun, _ in times) < 10)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("another buffer", "worker 1 has count: float32 (2,), worker 0 has count: int64 ()"),
        ("three less", "worker 0 has frozen.weight: float32 (16, 16)"),
    ],
)
def test_models_that_differ_in_what_is_not_trained_are_refused_by_the_first_difference(
    told: list[dict[str, Any]], part: str, says: str
) -> None:
    assert "DeclarationConflict" in told[1][part][0]
    for one in told:
        assert says in one[part][1]
    assert soon(told, part), told


def test_models_that_differ_in_what_is_trained_are_refused_with_what_differs(
    told: list[dict[str, Any]],
) -> None:
    for one in told:
        assert "worker 1 has more.bias: float32 (3,), trained" in one["one more"][1]
        assert "`model/last.weight` was declared before with shape [" in one["another shape"][1]
    assert "DeclarationConflict" in told[1]["one more"][0]
    assert any("DeclarationConflict" in one["another shape"][0] for one in told), told
    assert soon(told, "one more"), told
    assert soon(told, "another shape"), told
    # Rank 0 trained it alone, and it was not noticed.
    assert "DeclarationConflict" in told[1]["one less"][0]
    assert "worker 0 has last.bias: float32 (" in told[1]["one less"][1]
    assert soon(told, "one less"), told
    # The same tensors in the same order: only where those that are trained end differs.
    for part in ("frozen end", "frozen end, stepping here"):
        assert "DeclarationConflict" in told[1][part][0]
        assert "worker 0 has last.bias: float32 (3,), trained" in told[1][part][1]
        assert soon(told, part), told


def test_a_worker_that_leaves_without_distributing_is_named_by_the_others(told: list[dict[str, Any]]) -> None:
    """They waited until it was done with training apart, and went on without it as if that were right."""
    _, text, rank = told[0]["leaves"]
    assert rank == "1"
    assert "left the job without distributing" in text
    assert soon(told, "leaves"), told


def test_a_load_on_one_worker_alone_says_that_every_worker_must(told: list[dict[str, Any]]) -> None:
    # The worker that is told first leaves, and the other may then go on alone.
    texts = [one["loads alone"][1] for one in told if "loads alone" in one]
    said = "publish (every worker calls it, or model.load_state_dict)` and waits for workers [1]"
    assert any(said in text for text in texts)
    assert soon(told, "loads alone"), told
