"""
Two worker processes that train one model by the servers' steps: with what one process would do on both their
batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

SETUP = """
import copy
import functools
import torch

distribute = functools.partial(ps.torch.distribute, where="servers")

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

class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.ways = torch.nn.ModuleList(torch.nn.Linear(8, 3) for _ in range(3))
    def forward(self, x, way):
        h = self.first(x).tanh()
        return h[:, :3] if way is None else self.ways[way](h)

def way(step, rank):
    # Sometimes both take the same, sometimes each its own, in every third step none; nobody ever the last.
    return None if step % 3 == 2 else (step // 2 + rank * (step % 2)) % 2

def loss_of(model, step, rank):
    x, y = batch(step)
    part = slice(4 * rank, 4 * rank + 4)
    return torch.nn.functional.mse_loss(model(x[part], way(step, rank)), y[part])

def branches(job):
    for name, make in MAKERS.items():
        for overlap in ("auto", 1, False):
            torch.manual_seed(0)
            model = Branches()
            plain = copy.deepcopy(model)
            model, optimizer = distribute(model, make(model.parameters()), overlap=overlap)
            alone = make(plain.parameters())
            for step in range(12):
                optimizer.zero_grad()
                loss_of(model, step, job.rank).backward()
                optimizer.step()
                alone.zero_grad()
                ((loss_of(plain, step, 0) + loss_of(plain, step, 1)) / 2).backward()
                alone.step()
            yield f"{name} {overlap}", flat(model)
            yield f"{name} {overlap}/plain", flat(plain)

def two_against_each_other(job):
    # The maker's loss leaves gradients in the judge, which the judge's own loop throws away.
    def run(prepare, parts):
        torch.manual_seed(0)
        maker, judge = torch.nn.Linear(6, 3), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
        maker, make = prepare(maker, torch.optim.Adam(maker.parameters(), lr=0.01))
        judge, judging = prepare(judge, torch.optim.Adam(judge.parameters(), lr=0.01))
        for step in range(8):
            x, y = (part[parts] for part in batch(step))
            judging.zero_grad(set_to_none=step % 2 == 0)
            (judge(maker(x).detach()).mean() - judge(y).mean()).backward()
            judging.step()
            make.zero_grad()
            (-judge(maker(x)).mean()).backward()
            make.step()
        return np.concatenate([flat(maker), flat(judge)])
    yield "shared", run(distribute, slice(4 * job.rank, 4 * job.rank + 4))
    yield "plain", run(lambda model, optimizer: (model, optimizer), slice(None))

SCALED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=1.0),
}

def per_update(job):
    for name, make in SCALED.items():
        for scale in ("per-update", None, "plain"):
            model = net(0)
            optimizer = make(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
            if scale != "plain":
                model, optimizer = distribute(model, optimizer, consistency=ps.SSP(0), lr_scale=scale)
            for step in range(20):
                train(model, optimizer, [step], slice(None))     # the same batches on both
                schedule.step()
                if scale != "plain":
                    job.barrier()                                # none sees the other's next update
            if scale != "plain":
                job.barrier()
                optimizer._pull_all()
            yield f"{name} {scale}", flat(model)
            job.barrier()

torch.set_num_threads(1)
with ps.init() as job:
    parts = (takes_the_steps, with_and_without, stale_synchronous, every_load)
    parts += (branches, two_against_each_other, per_update)
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
    for name in ("sgd", "adamw"):
        np.testing.assert_array_equal(saved[0][name], saved[1][name], err_msg=name)
        np.testing.assert_allclose(
            saved[0][name], saved[0][f"{name}/plain"], rtol=2e-4, atol=2e-5, err_msg=name
        )


def test_workers_with_and_without_a_gradient_and_loads_after_the_start(part: Part) -> None:
    saved = part("with_and_without")
    for name in ("sgd", "adamw"):
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
    assert len(expected) == 6  # two optimizers, three seeds
    for key, value in expected.items():
        np.testing.assert_array_equal(saved[1][key.removesuffix("/rank 0's")], value, err_msg=key)


def test_a_branch_that_some_workers_or_none_take_counts_as_in_one_process(part: Part) -> None:
    saved = part("branches")
    names = [key for key in saved[0] if not key.endswith("/plain")]
    assert len(names) == 6  # two optimizers, three ways of leaving
    for name in names:
        np.testing.assert_array_equal(saved[0][name], saved[1][name], err_msg=name)
        np.testing.assert_allclose(
            saved[0][name], saved[0][f"{name}/plain"], rtol=2e-4, atol=2e-5, err_msg=name
        )


def test_gradients_that_every_worker_throws_away_before_its_own_are_no_change_of_them(part: Part) -> None:
    saved = part("two_against_each_other")
    np.testing.assert_array_equal(saved[0]["shared"], saved[1]["shared"])
    np.testing.assert_allclose(saved[0]["shared"], saved[0]["plain"], rtol=2e-4, atol=2e-5)


def test_out_of_step_an_iteration_comes_to_what_its_settings_say(part: Part) -> None:
    """Each worker's gradient is a step of its own: Adam's were as long as one process's, twice as many."""
    saved = part("per_update")
    for name in ("sgd", "adagrad", "rmsprop", "adam", "adamw"):
        plain = saved[0][f"{name} plain"]
        scaled, as_given = (
            np.linalg.norm(saved[0][f"{name} {scale}"] - plain) for scale in ("per-update", None)
        )
        # Adagrad's first steps are longer than the root of their number says.
        assert scaled < (0.5 if name == "adagrad" else 0.25) * as_given, (name, scaled, as_given)


# Jobs in which a worker is told what is wrong, one after another in the same pair of processes.
TOLD = """
import time

told = {}

def note(part, error):
    told[part] = np.array([str(type(error).mro()), str(error), str(getattr(error, "rank", ""))])
    # All processes of a host have one clock.
    told[part + "/times"] = np.array([begun, time.monotonic()])

def refused(part, change, of=torch.optim.SGD, where="servers"):
    global begun
    try:
        with ps.init() as job:
            model = net(0)
            if job.rank == 1:
                change(model)
            optimizer, distribute = of(model.parameters(), lr=0.1), ps.torch.distribute
            begun = time.monotonic()                             # all is imported
            distribute(model, optimizer, where=where)
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
frozen = lambda model: model.last.requires_grad_(False)
refused("frozen end, stepping here", frozen, torch.optim.NAdam, "gradients")
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
next_job()
import warnings

def says(part, kind, call):
    try:
        call()
    except kind as error:
        note(part, error)

def lone(parameter):
    # One step of the last job may have been left undone: the next model has nothing to do with it.
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.full((4,), parameter))
    return module

with ps.init(deadline=60) as job:
    begun = time.monotonic()
    for overlap in ("auto", False, 2):
        model = lone(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer = distribute(model, optimizer, overlap=overlap)
        def clipped():
            optimizer.zero_grad()
            (model.w * (1.0 + 2 * job.rank)).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        says(f"clips, {overlap}", ps.exceptions.OptionError, clipped)
        told[f"clipped, {overlap}"] = model.w.detach().numpy().copy()
    for overlap in ("auto", False):
        model = lone(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        model, optimizer = distribute(model, optimizer, overlap=overlap)
        def growing():
            for count in (1, 1, 1, 2):
                optimizer.zero_grad()
                for _ in range(count):
                    (model.w * (1.0 + 2 * job.rank)).sum().backward()
                optimizer.step()
        says(f"grows, {overlap}", ps.exceptions.OptionError, growing)
        told[f"grown, {overlap}"] = model.w.detach().numpy().copy()
        job.barrier()
next_job()
# A worker leaves out a batch that it takes to be bad. Its next one counts in its place.
with ps.init(deadline=60) as job:
    model = net(0)
    model, optimizer = distribute(model, MAKERS["sgd"](model.parameters()))
    mine = [0, 1, 2, 3, 4] if job.rank == 0 else [0, 1, 3, 4]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, step in enumerate(mine):
            train(model, optimizer, [step], slice(4 * job.rank, 4 * job.rank + 4))
            if number == 3:
                told["in step"] = flat(model)
            told["in the end"] = flat(model)
    told["warned"] = np.array([str(one.message) for one in caught])
    told["warned of"] = np.array([one.filename for one in caught])
plain = net(0)
alone = MAKERS["sgd"](plain.parameters())
for number, (zero, one) in enumerate(zip([0, 1, 2, 3, 4], [0, 1, 3, 4, None])):
    alone.zero_grad()
    losses = []
    for step, part in ((zero, slice(0, 4)), (one, slice(4, 8))):
        if step is not None:
            x, y = batch(step)
            losses.append(torch.nn.functional.mse_loss(plain(x[part]), y[part]))
    (sum(losses) / len(losses)).backward()
    alone.step()
    if number == 3:
        told["in step/plain"] = flat(plain)
told["in the end/plain"] = flat(plain)
next_job()
try:
    with ps.init(deadline=60) as job:
        begun = time.monotonic()
        models = [distribute(one, MAKERS["sgd"](one.parameters())) for one in (net(0), net(1))]
        for step in range(4):
            for number, (model, optimizer) in enumerate(models):
                if step == 2 and number == 0 and job.rank == 1:
                    continue
                train(model, optimizer, [step], slice(4 * job.rank, 4 * job.rank + 4))
except ps.PenstockError as error:
    note("leaves one out", error)
next_job()
# One pass through two optimizers' models, of which the second's gradients leave early on one worker.
for part, options in (("apart", {"check": False}), ("apart, clipped", {"clip_norm": 1.0})):
    try:
        with ps.init(deadline=60) as job:
            begun = time.monotonic()
            options["overlap"] = job.rank or False
            models = [net(0), net(1)]
            steps = [distribute(one, MAKERS["sgd"](one.parameters()), **options)[1] for one in models]
            for number in range(3):
                x, y = batch(number)
                for optimizer in steps:
                    optimizer.zero_grad()
                torch.nn.functional.mse_loss(models[0](x) + models[1](x), y).backward()
                for optimizer in steps:
                    optimizer.step()
    except ps.PenstockError as error:
        note(part, error)
    next_job()
save(**told)
"""


@pytest.fixture(scope="module")
def told(spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What each worker was told in TOLD: kind, text and rank of each error."""
    saved: list[dict[str, Any]] = spawn_shared_job(2, SETUP + TOLD, jobs=14, fails=True)
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


def test_gradients_that_workers_clip_one_by_one_are_an_error_unless_it_is_meant(
    told: list[dict[str, Any]],
) -> None:
    """Each clipped its own, and the average was neither clipped nor the average."""
    for one in told:
        for overlap in ("auto", "2"):
            kind, text, _ = one[f"clips, {overlap}"]
            assert "OptionError" in kind
            assert "was changed between backward and step()" in text
            np.testing.assert_array_equal(one[f"clipped, {overlap}"], np.zeros(4))
        # Norms of 2 and 6 are both clipped to 1: halves.
        np.testing.assert_allclose(one["clipped, False"], np.full(4, -0.5), rtol=1e-5)


def test_more_backward_passes_than_before_are_an_error_or_all_in_the_step(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert "OptionError" in one["grows, auto"][0]
        assert "was added to after it had left" in one["grows, auto"][1]
        # Steps of 2, with momentum 0.5: 2, 3, 3.5, and at last of 4.
        np.testing.assert_allclose(one["grown, False"], np.full(4, -(2 + 3 + 3.5 + 5.75)))


def test_a_batch_that_one_worker_leaves_out_is_replaced_by_its_next_until_it_leaves(
    told: list[dict[str, Any]],
) -> None:
    for one in told:
        np.testing.assert_array_equal(one["in step"], told[0]["in step"])
        np.testing.assert_allclose(one["in step"], one["in step/plain"], rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(told[0]["in the end"], told[0]["in the end/plain"], rtol=2e-4, atol=2e-5)
    gone = [
        line
        for text, line in zip(told[0]["warned"], told[0]["warned of"], strict=True)
        if "workers [1] have left the job, or were lost, after fewer steps" in text
    ]
    assert gone == ["<string>"], "of the script's line"
    assert not len(told[1]["warned"])


def test_a_step_that_one_worker_leaves_out_for_that_of_another_optimizer_is_an_error(
    told: list[dict[str, Any]],
) -> None:
    """Its gradient of one model was averaged with zeros, in the step of the other."""
    assert any("DeclarationConflict" in one["leaves one out"][0] for one in told), told
    texts = [one["leaves one out"][1] for one in told if "leaves one out" in one]
    # Whichever is first to see it.
    what = r"worker (0|1) took a step of `model(.1)?` in an iteration that workers .[01]. completed"
    assert all(re.search(what, text) for text in texts), texts
    assert soon(told, "leaves one out"), told


def test_a_gradient_that_leaves_in_another_iteration_than_on_another_worker_is_an_error(
    told: list[dict[str, Any]],
) -> None:
    """Two steps were taken, by a half of the mean each."""
    for part in ("apart", "apart, clipped"):
        texts = [one[part][1] for one in told if "DeclarationConflict" in one[part][0]]
        assert texts, told
        assert all("`model.1/first.bias` left in another iteration on worker" in text for text in texts)
        assert soon(told, part), told


@pytest.mark.parametrize("consistency", ["bsp"])
def test_a_publication_that_is_interrupted_and_then_of_earlier_values_is_another(
    spawn_job: Any, consistency: str
) -> None:
    """It was taken for the one that had been made, since the values were those that came last."""
    spawn_job(
        2,
        """
        import signal, sys, torch

        class Stop(Exception):
            pass

        def handler(*_):
            raise Stop

        signal.signal(signal.SIGUSR1, handler)

        def told(frame, event, what):
            # Worker 0 has told the others, and has read nothing.
            if event == "c_return" and getattr(what, "__name__", "") == "end_by_first":
                sys.setprofile(None)
                handler()

        with ps.init(deadline=20) as job:
            model = torch.nn.Linear(2, 1, bias=False)
            torch.nn.init.constant_(model.weight, 5.0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            model, optimizer = ps.torch.distribute(model, optimizer, where="servers")
            for _ in range(6):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            torch.nn.init.constant_(model.weight, 7.0)
            if job.rank == 0:
                sys.setprofile(told)
                try:
                    optimizer.publish()
                    raise AssertionError
                except Stop:
                    torch.nn.init.constant_(model.weight, 5.0)
            else:
                optimizer.publish()
                assert model.weight.tolist() == [[7.0, 7.0]]
            optimizer.publish()
            assert model.weight.tolist() == [[5.0, 5.0]]
        """,
        options={"consistency": consistency},
    )


def test_what_the_script_writes_behind_an_interrupted_publication_is_the_next(spawn_job: Any) -> None:
    """What is written by `.data` is not counted, and without the check nothing was known: it was lost."""
    spawn_job(
        2,
        """
        import itertools, signal, sys, torch

        class Stop(Exception):
            pass

        def handler(*_):
            raise Stop

        signal.signal(signal.SIGUSR1, handler)

        def interrupted(call, behind):
            # As it reads the second parameter.
            left = 2

            def read(frame, event, what):
                nonlocal left
                if event == "c_return" and getattr(what, "__name__", "") == behind:
                    left -= 1
                    if not left:
                        sys.setprofile(None)
                        handler()

            sys.setprofile(read)
            try:
                call()
                raise AssertionError("it was not interrupted")
            except Stop:
                pass

        def fill(value):
            for parameter in model.parameters():
                parameter.data.fill_(value)

        def values():
            return {value for one in model.parameters() for value in one.flatten().tolist()}

        with ps.init(deadline=20) as job:
            for check, behind in itertools.product((True, False), ("pull_into", "copy_")):
                model = torch.nn.Linear(2, 2)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
                model, optimizer = ps.torch.distribute(model, optimizer, where="servers", check=check)
                for changes, expected in (True, {7.0, 3.0}), (False, {7.0}):
                    fill(7.0)
                    if job.rank == 0:
                        interrupted(optimizer.publish, behind)
                        if changes:
                            model.bias.data.fill_(3.0)
                    else:
                        optimizer.publish()
                        assert values() == {7.0}
                    # Unchanged, it is the call that was interrupted, which the other has made.
                    if job.rank == 0 or changes:
                        optimizer.publish()
                    assert values() == expected, (check, behind, values())
                    job.barrier()
                    fill(5.0)
                    optimizer.publish()
                    assert values() == {5.0}
        """,
    )


def test_gradients_that_no_backward_pass_has_made_are_averaged_with_a_warning(spawn_job: Any) -> None:
    """Each worker clipped its own, in silence."""
    saved = spawn_job(
        2,
        """
        import warnings, torch, penstock as ps

        with ps.init() as job, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 1, bias=False)
            before = model.weight.detach().clone()
            sgd = torch.optim.SGD(model.parameters(), lr=1.0)
            model, optimizer = ps.torch.distribute(model, sgd, where="servers")
            # Torch wraps `step` once more.
            schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
            after = []
            for _ in range(2):
                loss = model(torch.full((1, 2), 1.0 + job.rank)).sum()
                model.weight.grad = torch.autograd.grad(loss, model.weight)[0]
                optimizer.step()
                after.append(len(warned))
            save(moved=(before - model.weight.detach()).numpy(), warned=[str(one.message) for one in warned],
                 after=after, here=[one.filename == "<string>" for one in warned])
        """,
    )
    for result in saved:
        np.testing.assert_allclose(result["moved"], [[3.0, 3.0]])
        (warning,) = result["warned"].tolist()
        assert "no backward pass since the last step() has made the gradient of `model/weight`" in warning
        assert result["after"].tolist() == [1, 1], "said in the first step"
        assert result["here"].tolist() == [True], "of the script's line"


def test_a_setting_that_is_refused_holds_up_the_gradients_of_all_groups(spawn_job: Any) -> None:
    """The first group had left, and was stepped; the mended step then told of a changed parameter."""
    saved = spawn_job(
        2,
        """
        import torch, penstock as ps

        def net():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))

        def groups(model):
            parts = [{"params": part.parameters()} for part in model]
            return torch.optim.SGD(parts, lr=0.1, momentum=0.9)

        with ps.init() as job:
            cases = [(False, 1, -1.0), (False, 1, None), (False, 0, -1.0), ("auto", 0, -1.0), (1, 0, "x")]
            for overlap, group, bad in cases:
                model, plain = net(), net()
                reference = groups(plain)
                model, optimizer = ps.torch.distribute(
                    model, groups(model), where="servers", overlap=overlap
                )
                for step in range(6):
                    x = torch.full((2, 3), (step + 1) / 3)
                    if step == 5:
                        optimizer.param_groups[0] = dict(optimizer.param_groups[0])
                    # As a schedule has it, which changes rates before backward.
                    if step == 4 and overlap:
                        optimizer.param_groups[group]["lr"] = bad
                    for one, other in (model, optimizer), (plain, reference):
                        other.zero_grad()
                        one(x).square().mean().backward()
                    if step == 4:
                        optimizer.param_groups[group]["lr"] = bad
                        try:
                            optimizer.step()
                        except ps.exceptions.SettingsError:
                            optimizer.param_groups[group]["lr"] = 0.1
                        # Behind this the servers have taken what had left.
                        job.barrier()
                    optimizer.step()
                    reference.step()
                for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(mine, theirs)
                # What was set right, or replaced, before backward is no reason to overlap no more.
                assert {one.expected for one in optimizer._delivery} == {1 if overlap else None}
        """,
    )
    assert len(saved) == 2
