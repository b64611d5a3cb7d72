"""
Parameters that are broadcast, or of which a filter holds something back: training goes on with what is seen,
and whoever saves or judges the model has the value itself.
"""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import OptionError

torch = pytest.importorskip("torch")
nn = torch.nn

distribute = functools.partial(ps.torch.distribute, where="servers")

REFERENCE = '''
import torch
from torch import nn

STEPS, BOUND = 8, 0.02
RULES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.02),
}


def made():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


def loss_of(model, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)
    return (model(x) - y).square().mean()


def alone(name, size, broadcast=True):
    """
    One process on what all workers have: torch's optimizer steps the value, gradients are of what is seen of
    it, into which an element comes when it is further away than the bound.
    """
    seen, value = made(), made()
    optimizer = RULES[name](value.parameters())
    for step in range(STEPS):
        gradients = [torch.zeros_like(one) for one in seen.parameters()]
        for rank in range(size):
            found = torch.autograd.grad(loss_of(seen, step, rank) / size, list(seen.parameters()))
            for total, one in zip(gradients, found):
                total += one
        for parameter, gradient in zip(value.parameters(), gradients):
            parameter.grad = gradient
        optimizer.step()
        with torch.no_grad():
            for shown, parameter in zip(seen.parameters(), value.parameters()):
                due = (parameter - shown).abs() > (BOUND if broadcast else 0)
                shown[due] = parameter[due]
    return seen, value


def close(got, expected):
    for one, other in zip(got, expected):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=2e-5, atol=2e-6)
'''


class Line(nn.Module):  # type: ignore[misc,name-defined]
    """Linear in its parameters, with gradients of whole numbers: sums of steps are exact."""

    def __init__(self, dtype: Any = torch.float32) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros((), dtype=dtype))
        self.first = nn.Parameter(torch.zeros(7, 5, dtype=dtype))
        self.turned = nn.Parameter(torch.zeros(4, 3, dtype=dtype).t())

    def forward(self, seed: int) -> Any:
        draw = torch.Generator().manual_seed(seed)
        return sum(
            (torch.randint(-8, 9, part.shape, generator=draw).to(part.dtype) * part).sum()
            for part in self.parameters()
        )


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.25)


def values(model: Any) -> list[Any]:
    return [one.detach().clone() for one in model.parameters()]


def alike(one: list[Any], other: list[Any]) -> bool:
    return all(map(torch.equal, one, other))


def trained(job: ps.Job, steps: int = 4, make: Any = sgd, dtype: Any = torch.float32, **options: Any) -> Any:
    model = Line(dtype)
    model, optimizer = distribute(model, make(model.parameters()), job=job, **options)
    for step in range(steps):
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    return model, optimizer


QUIET = ps.Filters(broadcast=ps.TopK(0.2))


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_gradients_are_of_what_is_seen_and_the_servers_step_the_value(spawn_job: Any, transport: str) -> None:
    spawn_job(
        2,
        REFERENCE
        + """
few = ps.Filters(broadcast=ps.DVF(BOUND, decay=None))
with ps.init() as job:
    last = []
    for name, rule in RULES.items():
        ways = ("auto", "pull", True), (False, "broadcast", True), (1, "auto", False)
        for overlap, propagation, check in ways:
            model = made()
            model, optimizer = ps.torch.distribute(
                model, rule(model.parameters()), where="servers", filter=few, overlap=overlap,
                propagation=propagation, check=check,
            )
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, step, job.rank).backward()
                optimizer.step()
            seen, value = alone(name, job.size)
            close(model.parameters(), seen.parameters())
            assert not all(map(torch.equal, model.parameters(), value.parameters()))
            # On one worker alone: nobody has to come.
            if job.rank == 0:
                close(model.state_dict().values(), value.parameters())
                close(model[2].state_dict().values(), value[2].parameters())
                with optimizer.exact():
                    close(model.parameters(), value.parameters())
            close(model.parameters(), seen.parameters())
            state = model.state_dict()
            optimizer.flush()
            assert all(map(torch.equal, model.parameters(), state.values()))
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, step, job.rank).backward()
                optimizer.step()
            last.append((model, model.state_dict()))
            job.barrier()
for model, state in last:
    assert all(map(torch.equal, model.parameters(), state.values())), "read before the job was left"
""",
        options={"transport": transport},
    )


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_nothing_is_lost_of_what_is_broadcast(spawn_job: Any, consistency: str, transport: str) -> None:
    spawn_job(
        2,
        f"""
        import torch
        few = ps.Filters(broadcast=ps.DVF(3.0, decay=None))
        both = ps.Filters(push=ps.TopK(0.3), broadcast=ps.TopK(0.2))
        with ps.init() as job:
            for given, propagation in (
                (None, "broadcast"), (few, "broadcast"), (few, "auto"), (both, "broadcast"), (both, "pull")
            ):
                model = torch.nn.ParameterList([torch.zeros(500), torch.zeros(3, 40)])
                rule = torch.optim.SGD(model.parameters(), lr=1.0)
                model, optimizer = ps.torch.distribute(
                    model, rule, where="servers", consistency={consistency!r}, filter=given,
                    propagation=propagation, reduce="sum", check=job.rank == 0,
                )
                total = [torch.zeros(500), torch.zeros(3, 40)]
                for step in range(6):
                    optimizer.zero_grad()
                    for place in range(2):
                        for rank in range(job.size):
                            draw = torch.Generator().manual_seed(10 * step + rank)
                            found = torch.randint(-9, 10, total[place].shape, generator=draw).float()
                            total[place] -= found
                            if rank == job.rank:
                                (model[place] * found).sum().backward()
                    optimizer.step()
                # Everybody has pushed all.
                job.barrier()
                optimizer.flush()
                for got, expected in zip(model, total):
                    assert torch.equal(got, expected), (propagation, given)
                assert optimizer.held_back.elements == 0
                optimizer.publish()
                job.barrier()
        """,
        options={"transport": transport},
    )


def test_a_filter_of_broadcasts_leaves_the_value_alone_in_every_consistency(job: ps.Job) -> None:
    # Gradients do not depend on what is seen.
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5, weight_decay=0.25),
        lambda p: torch.optim.AdamW(p, lr=0.1),
    ):
        for consistency, dtype, overlap in (
            ("bsp", torch.float32, "auto"),
            ("ssp:2", torch.bfloat16, False),
            ("asp", torch.float64, 1),
        ):
            options: dict[str, Any] = {"make": make, "consistency": consistency, "dtype": dtype}
            plain, _ = trained(job, overlap=overlap, **options)
            quiet, optimizer = trained(job, filter=QUIET, overlap=overlap, **options)
            assert not alike(values(plain), values(quiet))
            state = quiet.state_dict()
            assert alike(values(plain), list(state.values()))
            assert [one.stride() for one in state.values()] == [one.stride() for one in plain.parameters()]
            mine = optimizer.state_dict()["state"]
            assert all(mine[place]["step"].item() == 4 for place in mine if "step" in mine[place])
            optimizer.flush()
            assert alike(values(plain), values(quiet))


def test_nothing_is_read_where_parameters_lack_nothing(job: ps.Job) -> None:
    for options in ({}, {"propagation": "broadcast"}, {"filter": ps.Filters(broadcast=ps.DVF(0.0))}):
        model, optimizer = trained(job, **options)
        before = job.stats()["pulled_bytes"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = model.state_dict()
            with optimizer.exact(), torch.no_grad():
                model.eval()(3)
            copy.deepcopy(model)
            optimizer.publish()
        assert state["first"].data_ptr() == model.first.data_ptr()
    assert job.stats()["pulled_bytes"] >= before


def test_keep_vars_gives_the_parameters_themselves(job: ps.Job) -> None:
    model, _ = trained(job, filter=QUIET)
    assert model.state_dict(keep_vars=True)["first"] is model.first
    assert model.state_dict()["first"].data_ptr() != model.first.data_ptr()


def test_whoever_reads_what_lacks_something_is_told_once(job: ps.Job) -> None:
    for look in (
        lambda model: model.eval()(3),
        copy.deepcopy,
    ):
        model, optimizer = trained(job, filter=QUIET)
        with torch.no_grad():
            with pytest.warns(UserWarning, match=r"parameters that may lack what .* optimizer.exact"):
                look(model)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                look(model)
                model.train()(3)
        model, optimizer = trained(job, filter=QUIET)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            with optimizer.exact():
                look(model)
            optimizer.flush()
            look(model)


def test_a_copy_that_is_made_of_exact_parameters_is_the_model(job: ps.Job) -> None:
    plain, _ = trained(job)
    model, optimizer = trained(job, filter=QUIET)
    with optimizer.exact():
        twin = copy.deepcopy(model)
    assert alike(values(twin), values(plain))
    assert not alike(values(model), values(plain))
    # It trains alone, and nobody is asked for what it holds.
    twin(1).backward()
    assert alike(list(twin.state_dict().values()), values(plain))


def test_behind_exact_parameters_are_again_what_they_were_also_where_the_block_raises(job: ps.Job) -> None:
    model, optimizer = trained(job, filter=QUIET)
    before = values(model)
    with pytest.raises(KeyError), optimizer.exact():
        raise KeyError
    assert alike(values(model), before)
    with optimizer.exact():
        inner = values(model)
        with optimizer.exact():
            assert alike(values(model), inner)
        assert alike(values(model), inner)
    assert alike(values(model), before)
    # And the next step does not take it for a change.
    optimizer.step()


@pytest.mark.parametrize("check", [True, False])
def test_a_step_inside_exact_is_refused_where_parameters_would_lack_something_behind_it(
    job: ps.Job, check: bool
) -> None:
    plain, _ = trained(job)
    model, optimizer = trained(job, filter=QUIET, check=check)
    before = values(model)
    with optimizer.exact():
        with optimizer.exact():
            pass
        with pytest.raises(OptionError, match=r"step\(\) was called inside `with optimizer.exact") as error:
            optimizer.step(lambda: pytest.fail("nothing is evaluated"))
        assert "end the block before step()" in error.value.hint
        assert alike(values(model), values(plain))
    assert alike(values(model), before)
    optimizer.step()
    # Once nothing can be lacking the block changes nothing.
    whole, free = trained(job, check=check)
    with free.exact():
        free.step()
        assert alike(values(whole), list(whole.state_dict().values()))


def test_an_evaluation_in_inference_mode_leaves_training_as_it_was(job: ps.Job) -> None:
    plain, _ = trained(job, 6)
    model, optimizer = trained(job, filter=QUIET)
    for step in (4, 5):
        with torch.inference_mode(), optimizer.exact():
            model(3)
            assert not model.state_dict()["first"].is_inference()
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    assert alike(list(model.state_dict().values()), values(plain))


def test_what_the_script_changes_is_noticed_whatever_is_held_back(job: ps.Job) -> None:
    model, optimizer = trained(job, filter=QUIET, propagation="broadcast")
    for change in ("step", "exact", "flush", "in exact"):
        with torch.no_grad():
            if change == "in exact":
                with pytest.raises(OptionError, match="changed outside of step"), optimizer.exact():
                    model.first.add_(1)
                # Put back with all else.
                optimizer.step()
                continue
            kept = model.first.clone()
            model.first.data[2, 2] += 1
        with pytest.raises(OptionError, match="changed outside of step"):
            if change == "exact":
                with optimizer.exact():
                    pass
            else:
                getattr(optimizer, change)()
        with torch.no_grad():
            model.first.copy_(kept)
        optimizer.step()


@pytest.mark.parametrize("check", [True, False])
def test_a_publication_of_what_lacks_something_is_refused_and_one_of_exact_parameters_loses_nothing(
    job: ps.Job, check: bool
) -> None:
    plain, _ = trained(job)
    model, optimizer = trained(job, filter=QUIET, check=check)
    before = values(model)
    with pytest.raises(OptionError, match=r"lacks something of the servers' value"):
        optimizer.publish()
    assert alike(list(model.state_dict().values()), values(plain))
    with optimizer.exact(), torch.no_grad():
        model.scale.fill_(3)
        optimizer.publish()
    assert model.scale.item() == 3
    assert not alike(values(model), before)
    assert alike(values(model)[1:], values(plain)[1:])
    # What is loaded passes whole: nothing is held back of it.
    optimizer.publish()
    for step in range(3):
        optimizer.zero_grad()
        model(step).backward()
        optimizer.step()
    optimizer.flush()
    optimizer.publish()
    assert model.state_dict()["first"].data_ptr() == model.first.data_ptr()


def test_a_load_replaces_what_it_names_and_leaves_the_value_of_all_else(job: ps.Job) -> None:
    plain, _ = trained(job)
    model, _ = trained(job, filter=QUIET)
    model.load_state_dict({"scale": torch.tensor(7.0)}, strict=False)
    assert model.scale.item() == 7
    assert alike(values(model)[1:], values(plain)[1:])
    model, optimizer = trained(job, filter=QUIET)
    seen = {name: one.detach().clone() for name, one in model.named_parameters()}
    # What is seen, loaded as a checkpoint, is the value from then on.
    model.load_state_dict(seen)
    assert alike(list(model.state_dict().values()), list(seen.values()))
    with optimizer.exact():
        assert alike(values(model), list(seen.values()))


def test_between_backward_and_step_what_is_saved_says_what_it_lacks(job: ps.Job) -> None:
    model, optimizer = trained(job, filter=QUIET, overlap=1)
    optimizer.zero_grad()
    model(9).backward()
    with pytest.warns(UserWarning, match="the state that is saved lacks"):
        state = model.state_dict()
    assert alike(list(state.values()), values(model))
    with (
        pytest.raises(OptionError, match="a look at exact parameters came between backward and step"),
        optimizer.exact(),
    ):
        pass
    optimizer.step()


def test_after_the_job_the_model_is_what_the_servers_had() -> None:
    with ps.init() as job:
        plain, _ = trained(job)
        kept, _ = trained(job, filter=QUIET)
        changed, _ = trained(job, filter=QUIET, check=False)
        own = values(changed)
        with torch.no_grad():
            changed.first.fill_(5)
        open_still, optimizer = trained(job, filter=QUIET, overlap=1)
        optimizer.zero_grad()
        open_still(9).backward()
        with (
            pytest.warns(UserWarning, match="the model that is kept lacks"),
            pytest.warns(UserWarning, match=r"the script has written to `\S+first` since"),
        ):
            job.close()
    assert alike(values(kept), values(plain))
    assert alike(list(kept.state_dict().values()), values(plain))
    # What the script has changed last is its own.
    assert torch.all(changed.first == 5)
    assert not alike(own, values(plain))
    with pytest.warns(UserWarning, match=r"lacks what parameters lack .* the job has ended"):
        open_still.state_dict()


def test_what_was_changed_and_put_back_is_read_at_the_end() -> None:
    with ps.init() as job:
        plain, _ = trained(job)
        kept, _ = trained(job, filter=QUIET)
        changed, _ = trained(job, filter=QUIET)
        own = values(kept)
        with torch.no_grad():
            # An evaluation of averaged weights.
            for parameter, mine in zip(kept.parameters(), own, strict=True):
                parameter.zero_()
                parameter.copy_(mine)
            changed.first.data.fill_(5)
        with pytest.warns(UserWarning, match=r"the script has written to `\S+first` since"):
            job.close()
    assert alike(values(kept), values(plain))
    assert not alike(own, values(plain))
    assert torch.all(changed.first == 5)
    assert torch.equal(changed.scale, plain.scale)


def test_a_load_through_a_wrapper_leaves_what_it_does_not_name(job: ps.Job) -> None:
    plain, _ = trained(job)
    model, _ = trained(job, filter=QUIET)
    nn.Sequential(model).load_state_dict({"0.scale": torch.tensor(7.0)}, strict=False)
    assert model.scale.item() == 7
    assert alike(values(model)[1:], values(plain)[1:])


def test_a_job_that_is_left_reads_nothing_of_another() -> None:
    with ps.init() as one, ps.init() as other:
        model, _ = trained(other, filter=QUIET)
        before = values(model)
        one.close()
        assert alike(values(model), before)
        other.close()
        assert not alike(values(model), before)


def test_clipping_by_norm_steps_the_value_by_what_arrives(spawn_job: Any) -> None:
    spawn_job(
        2,
        REFERENCE
        + """
import copy
both = ps.Filters(push=ps.TopK(0.5), broadcast=ps.TopK(0.1))
with ps.init() as job:
    states = []
    for given in (ps.Filters(push=ps.TopK(0.5)), both):
        model = torch.nn.ParameterList([torch.zeros(300), torch.zeros(5, 7)])
        rule = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
        model, optimizer = ps.torch.distribute(
            model, rule, where="servers", filter=given, clip_norm=2.0, propagation="broadcast"
        )
        for step in range(5):
            optimizer.zero_grad()
            for one in model:
                draw = torch.Generator().manual_seed(step + 10 * job.rank)
                (one * torch.randn(one.shape, generator=draw)).sum().backward()
            optimizer.step()
        states.append(copy.deepcopy(model.state_dict()))
        if given is both:
            assert not all(map(torch.equal, model, states[-1].values()))
        optimizer.flush()
        states.append(copy.deepcopy(model.state_dict()))
        assert all(map(torch.equal, model, states[-1].values()))
        assert optimizer.held_back.elements == 0
        job.barrier()
    for one, other in zip(states[:2], states[2:]):
        assert all(map(torch.equal, one.values(), other.values()))
""",
        options={"transport": "tcp"},
    )


def test_a_flush_that_was_interrupted_goes_on_where_it_was(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import torch
        from penstock.exceptions import BarrierTimeout
        with ps.init() as job:
            said = job.tensor("said", shape=1, consistency="asp", reduce="sum")
            top = ps.TopK(0.1)
            for given in (ps.Filters(broadcast=top), ps.Filters(push=top, broadcast=top)):
                model = torch.nn.ParameterList([torch.zeros(50), torch.zeros(40)])
                rule = torch.optim.SGD(model.parameters(), lr=1.0)
                model, optimizer = ps.torch.distribute(model, rule, where="servers", filter=given)
                said.load(torch.zeros(1))
                for step in range(2):
                    optimizer.zero_grad()
                    sum((one * (step + 1)).sum() for one in model).backward()
                    optimizer.step()
                second = [shared for shared in optimizer._everything][1]
                release = type(second.tensor)._release

                def fails(tensor, limit, second=second):
                    if tensor is second.tensor:
                        raise BarrierTimeout("as if the others were late")
                    release(tensor, limit)

                # Worker 1 stands at the second parameter when worker 0 comes again.
                if job.rank == 0:
                    type(second.tensor)._release = fails
                    try:
                        optimizer.flush()
                    except BarrierTimeout:
                        pass
                    else:
                        raise AssertionError
                    type(second.tensor)._release = release
                optimizer.flush()
                for one in model:
                    assert torch.all(one == -3), one
                optimizer.flush()
                optimizer.zero_grad()
                sum(one.sum() for one in model).backward()
                optimizer.step()
                optimizer.flush()
                for one in model:
                    assert torch.all(one == -4), one
                job.barrier()
        """,
    )


def test_own_steps_are_seen_with_the_version_that_has_them(spawn_job: Any) -> None:
    """Worker 0 is ahead: what it has stepped is in no version, and in what it saves."""
    spawn_job(
        2,
        """
        import torch
        with ps.init() as job:
            model = torch.nn.ParameterList([torch.zeros(3)])
            rule = torch.optim.SGD(model.parameters(), lr=1.0)
            model, optimizer = ps.torch.distribute(
                model, rule, consistency="ssp:9", propagation="broadcast", reduce="sum"
            )
            assert optimizer.propagation == "broadcast"
            for turn in range(2):
                if job.rank == turn:
                    for step in range(3):
                        optimizer.zero_grad()
                        model[0].sum().backward()
                        optimizer.step()
                    if turn == 0:
                        assert torch.all(model[0] == 0)
                        assert torch.all(model.state_dict()["0"] == -3)
                        with optimizer.exact():
                            assert torch.all(model[0] == -3)
                job.barrier()
            optimizer.flush()
            assert torch.all(model[0] == -6), model[0]
            job.barrier()
        """,
    )


def test_along_a_tree_parameters_are_those_that_are_pulled(spawn_job: Any) -> None:
    spawn_job(
        3,
        REFERENCE
        + """
with ps.init(tree="chain") as job:
    pairs = []
    for propagation in ("pull", "auto"):
        model = made()
        rule = RULES["adam"](model.parameters())
        pairs.append(ps.torch.distribute(model, rule, where="servers", propagation=propagation))
    assert [optimizer.propagation for _, optimizer in pairs] == ["pull", "broadcast"]
    assert "the job has a tree" in repr(pairs[1][1])
    for step in range(STEPS):
        for model, optimizer in pairs:
            optimizer.zero_grad()
            loss_of(model, step, job.rank).backward()
            optimizer.step()
        assert all(map(torch.equal, *(model.parameters() for model, _ in pairs))), step
    # Under BSP a version is all that there is: nothing more is to be read of it.
    model, optimizer = pairs[1]
    assert model.state_dict()["0.weight"].data_ptr() == model[0].weight.data_ptr()
    optimizer.publish()
    job.barrier()
""",
        options={"transport": "tcp"},
    )


def test_what_was_chosen_is_seen_and_in_one_declaration_for_all(job: ps.Job) -> None:
    for options, chosen, why in (
        ({}, "pull", "the job has no tree"),
        ({"filter": QUIET}, "pull", "the job has no tree"),
        ({"consistency": "ssp:2"}, "pull", "sees its own updates at once"),
        ({"consistency": "ssp:2", "filter": QUIET}, "broadcast", "once for each version"),
        ({"consistency": "ssp:2", "filter": "auto"}, "broadcast", "once for each version"),
        ({"consistency": "ssp:2", "filter": ps.Filters(push=ps.TopK(0.1))}, "pull", "its own updates"),
        ({"consistency": "asp", "filter": QUIET}, "pull", "at each push"),
    ):
        _, optimizer = trained(job, 1, propagation="auto", **options)
        assert optimizer.propagation == chosen
        assert why in repr(optimizer), repr(optimizer)
    _, optimizer = trained(job, 1, propagation="broadcast", filter=QUIET)
    assert "propagation='broadcast'" in repr(optimizer)
    assert "broadcasts filtered by TopK(fraction=0.2)" in repr(optimizer)
    assert '"auto"' not in repr(optimizer)


def test_what_is_no_propagation_is_refused_and_averages_have_none(job: ps.Job) -> None:
    model = Line()
    for given in ("eager", None, 3):
        with pytest.raises(OptionError, match='"pull", "broadcast", "update" or "auto"'):
            distribute(model, sgd(model.parameters()), job=job, propagation=given)
    with pytest.raises(OptionError, match='no propagation with where="gradients"'):
        ps.torch.distribute(model, job=job, propagation="broadcast")
    distribute(model, sgd(model.parameters()), job=job)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('propagation="broadcast"', ""),
        ("filter=few", ""),
        ('filter="auto"', "filter=few"),
    ],
)
def test_workers_that_disagree_are_told(spawn_job: Any, first: str, second: str) -> None:
    saved = spawn_job(
        2,
        f"""
        import torch
        few = ps.Filters(broadcast=ps.TopK(0.1))
        with ps.init() as job:
            model = torch.nn.Linear(3, 2)
            rule = torch.optim.SGD(model.parameters(), lr=1.0)
            try:
                if job.rank == 0:
                    ps.torch.distribute(model, rule, where="servers", prefix="m", {first})
                else:
                    ps.torch.distribute(model, rule, where="servers", prefix="m", {second})
            except ps.exceptions.PenstockError as error:
                save(told=str([type(error).__name__, str(error)]))
                raise
        """,
        fails=True,
    )
    told = [str(one["told"]) for one in saved if "told" in one]
    assert any("DeclarationConflict" in one for one in told), told
