"""The names of a model's tensors, where the servers step: they are never those of another model."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.first import Firsts

torch = pytest.importorskip("torch")


def made(fill: float = 0.0) -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, fill)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_prefix_that_another_model_had_is_refused(job: ps.Job, is_kept: bool) -> None:
    """The second model silently got the first one's values, and its momentum."""
    first = ps.torch.distribute(*made(1.0), where="servers", prefix="trial")
    if not is_kept:
        del first
    model, optimizer = made(5.0)
    with pytest.raises(ps.exceptions.OptionError, match="`trial` was used before") as caught:
        ps.torch.distribute(model, optimizer, where="servers", prefix="trial")
    assert "another prefix" in str(caught.value.hint)
    ps.torch.distribute(model, optimizer, where="servers", prefix="trial 2")
    assert model.weight.tolist() == [[5.0, 5.0]]


def test_a_prefix_that_we_choose_is_free(job: ps.Job) -> None:
    for fill, prefix in (1.0, "model"), (2.0, None), (3.0, "model.2"), (4.0, None):
        model, _ = ps.torch.distribute(*made(fill), where="servers", prefix=prefix)
        assert model.weight.tolist() == [[fill, fill]]


def test_a_wrong_argument_does_not_take_the_prefix(job: ps.Job) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="clip_norm"):
        ps.torch.distribute(*made(), where="servers", prefix="trial", clip_norm=-1.0)
    ps.torch.distribute(*made(), where="servers", prefix="trial")


def test_an_interrupted_call_is_made_again_with_the_values_of_then(spawn_job: Any) -> None:
    """What the first call had declared kept its value, which the second call's model got."""
    spawn_job(
        2,
        """
        import torch, penstock as ps
        from penstock.torch import DistributedOptimizer

        with ps.init() as job:
            for prefix in ("mine", None):
                model = torch.nn.Linear(2, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                pull = DistributedOptimizer._pull_all

                def interrupted(*_):
                    raise KeyboardInterrupt

                DistributedOptimizer._pull_all = interrupted
                try:
                    ps.torch.distribute(model, optimizer, where="servers", prefix=prefix)
                except KeyboardInterrupt:
                    DistributedOptimizer._pull_all = pull
                torch.nn.init.constant_(model.weight, 3.0 + job.rank)
                torch.nn.init.constant_(model.bias, 5.0 + job.rank)
                frozen = [model.bias] if prefix else []
                for parameter in frozen:
                    parameter.requires_grad_(False)
                _, stepped = ps.torch.distribute(model, optimizer, where="servers", prefix=prefix)
                assert model.weight.tolist() == [[3.0, 3.0]], model.weight
                assert model.bias.tolist() == [5.0], model.bias
                model(torch.ones(1, 2)).sum().backward()
                stepped.step()
                torch.testing.assert_close(model.weight.detach(), torch.full((1, 2), 2.9))
                for parameter in frozen:
                    # Its tensor is the first call's, with the value of then.
                    parameter.requires_grad_(True)
                    stepped.zero_grad()
                    model(torch.ones(1, 2)).sum().backward()
                    stepped.step()
                    torch.testing.assert_close(parameter.detach(), torch.full((1,), 4.9))
        """,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_calls_that_the_others_had_not_begun_are_the_same_again(spawn_job: Any, rank: int) -> None:
    """They took the next prefixes, and waited under those for workers that waited under the first ones."""
    saved = spawn_job(
        2,
        f"""
        import pathlib, time, torch, penstock as ps

        with ps.init(deadline=20) as job:
            for where in ("servers", "gradients"):
                models = [torch.nn.BatchNorm1d(2) for _ in range(2)]
                optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in models]
                pairs = list(zip(models, optimizers))
                for model, optimizer in pairs:
                    if job.rank == {rank}:
                        try:
                            ps.torch.distribute(model, optimizer, where=where, timeout=0.2)
                            raise AssertionError("the other one came")
                        except ps.exceptions.DeadlineExceeded:
                            pass
                # No barrier: one may be what the last of these calls waited at.
                tried = pathlib.Path(os.environ["TEST_OUT"] + where)
                if job.rank == {rank}:
                    tried.touch()
                while not tried.exists():
                    time.sleep(0.01)
                for model, optimizer in pairs:
                    torch.nn.init.constant_(model.weight, 3.0 + job.rank)
                    ps.torch.distribute(model, optimizer, where=where)
                    assert model.weight.tolist() == [3.0, 3.0], model.weight
            save(names=sorted(job._tensors))
        """,
    )
    names = {name.split("/")[0] for name in saved[0]["names"]}
    assert {"model", "model.1", "model.2", "model.3"} <= names
    assert list(saved[1]["names"]) == list(saved[0]["names"])


def an_interrupted_call(model: Any, optimizer: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Of `distribute`, after its tensors have been declared."""
    from penstock.torch import Averaging, DistributedOptimizer

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DistributedOptimizer, "_pull_all", interrupted)
        patched.setattr(Averaging, "hook", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ps.torch.distribute(model, optimizer, **options)


@pytest.mark.parametrize("where", ["servers", "gradients"])
@pytest.mark.parametrize("change", ["lr", "rule", "layer", "frozen", "options", "mode"])
def test_a_call_that_failed_can_be_made_with_something_changed(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, where: str, change: str
) -> None:
    """Each further one without a prefix was told that its tensors had been declared otherwise."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    parameters, options = list(model.parameters()), {"where": where, "rescale": 0.5}
    an_interrupted_call(model, torch.optim.Adam(parameters, lr=0.1), monkeypatch, **options)
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    if change == "lr":
        optimizer = torch.optim.Adam(parameters, lr=0.2)
    elif change == "rule":
        optimizer = torch.optim.SGD(parameters, lr=0.1)
    elif change == "layer":
        model[1] = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    elif change == "frozen":
        model[0].weight.requires_grad_(False)
    elif change == "options":
        options["rescale"] = 0.25
    else:
        options["where"] = "gradients" if where == "servers" else "servers"
    _, optimizer = ps.torch.distribute(model, optimizer, **options)
    before = model[1].bias.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[1].bias, before)


@pytest.mark.parametrize("how", ["unfrozen", "add_param_group"])
def test_what_comes_late_after_a_call_that_failed_has_its_own_value(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It fell back to the value that the failed call had given its tensor."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    late = model[0].weight
    torch.nn.init.constant_(late, 1.0)
    options = {"where": "servers", "prefix": "mine"}
    an_interrupted_call(model, torch.optim.SGD(model.parameters(), lr=0.1), monkeypatch, **options)
    torch.nn.init.constant_(late, 5.0)
    late.requires_grad_(False)
    trained = model if how == "unfrozen" else model[1]
    _, optimizer = ps.torch.distribute(model, torch.optim.SGD(trained.parameters(), lr=0.1), **options)
    late.requires_grad_(True)
    if how == "add_param_group":
        optimizer.add_param_group({"params": [late]})
    (0 * model(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    assert late.tolist() == [[5.0, 5.0], [5.0, 5.0]]


@pytest.mark.parametrize("overlap", ["auto", False, 1])
@pytest.mark.parametrize("place", ["_share", "_load_first_states"])
def test_a_late_group_whose_taking_in_was_interrupted_has_its_first_state_in_the_next_step(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, place: str, overlap: Any
) -> None:
    """The servers began with zeros where torch's optimizer begins with others, without a word."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    late = model[0].weight.requires_grad_(False)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    _, optimizer = ps.torch.distribute(model, adagrad, where="servers", overlap=overlap)
    late.requires_grad_(True)

    def interrupted(self: Any, *arguments: Any) -> None:
        monkeypatch.undo()
        if place == "_share":
            self._share(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(optimizer), place, interrupted)
    (0 * model(torch.ones(1, 2))).sum().backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["sum"].tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("overlap", ["auto", False, 1])
@pytest.mark.parametrize("place", ["_take_in", "_load_first_states"])
def test_the_gradient_of_a_group_that_an_interrupted_call_added_waits_for_its_first_state(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, place: str, overlap: Any, check: bool
) -> None:
    """Where gradients leave in backward it was stepped from zeros, and the state loaded over that step's."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    late = model[0].weight.requires_grad_(False)
    torch.nn.init.constant_(late, 1.0)
    rule = functools.partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.5)
    options = {"where": "servers", "overlap": overlap, "check": check}
    _, optimizer = ps.torch.distribute(model, rule(model[1].parameters()), **options)

    def interrupted(self: Any, *arguments: Any) -> None:
        monkeypatch.undo()
        if place == "_take_in":
            self._declare()
        raise KeyboardInterrupt

    late.requires_grad_(True)
    monkeypatch.setattr(type(optimizer), place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.add_param_group({"params": [late]})
    expected = torch.nn.Parameter(torch.ones_like(late))
    alone = rule([expected])
    for _ in range(3):
        for one, of in (late, optimizer), (expected, alone):
            of.zero_grad()
            one.square().sum().backward()
            of.step()
    torch.testing.assert_close(late.detach(), expected.detach())
    state, wanted = optimizer.state_dict()["state"][1], alone.state_dict()["state"][0]
    torch.testing.assert_close(state["sum"], wanted["sum"])
    assert state["step"] == wanted["step"] == 3


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_a_late_parameter_whose_taking_in_is_interrupted_at_any_line_is_stepped_by_its_gradients(
    job: ps.Job, overlap: Any, goes_on: bool
) -> None:
    """It was noted before it was complete: its gradient never left, and no hook was on it, without a word."""
    for place in itertools.count():
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
        late = model[0].weight.requires_grad_(False)
        sgd = torch.optim.SGD(model.parameters(), lr=0.5)
        _, optimizer = ps.torch.distribute(model, sgd, where="servers", overlap=overlap)
        late.requires_grad_(True)
        codes = {type(optimizer)._share.__code__, type(optimizer._delivery).add.__code__}
        expected, left = late.detach().clone(), place

        def at_a_line(frame: Any, event: str, _: Any, codes: Any = codes) -> Any:
            nonlocal left
            if frame.f_code in codes and event == "line":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return at_a_line

        was_interrupted = False
        for number in range(4):
            optimizer.zero_grad()
            late.sum().backward()
            sys.settrace(at_a_line if number == 0 else None)
            try:
                optimizer.step()
            except KeyboardInterrupt:
                sys.settrace(None)
                was_interrupted = True
                if goes_on:
                    continue
                optimizer.step()
            finally:
                sys.settrace(None)
            expected -= 0.5
            torch.testing.assert_close(late.detach(), expected, rtol=0, atol=1e-5, msg=f"line {place}")
        if not was_interrupted:
            break
    assert place > 20


def test_a_tensor_that_the_script_declares_after_a_call_that_failed_is_not_the_models(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call had the name before it had the tensor: made again, it took the script's, and its momentum."""
    model, optimizer = made(1.0)

    def full(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("penstock.job.initial", full)
        with pytest.raises(MemoryError):
            ps.torch.distribute(model, optimizer, where="servers", prefix="model")
    declaration = {"shape": (1, 2), "optimizer": ps.SGD(0.1, momentum=0.9)}
    own = job.tensor("model/weight", [[6.9, 6.9]], **declaration)
    with pytest.raises(ps.exceptions.OptionError, match="`model/weight` was declared before"):
        ps.torch.distribute(model, optimizer, where="servers", prefix="model")
    np.testing.assert_array_equal(own.pull(), np.full((1, 2), np.float32(6.9)))


@pytest.mark.parametrize("place", ["hook_of_one", "leave_hooks_behind", "_note", "_kinds"])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_call_that_failed_leaves_gradients_as_they_are(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, place: str, is_made_again: bool
) -> None:
    """Its hooks stayed: they averaged the gradients of a script that went on without it."""
    import penstock.torch as front
    from penstock.torch.gradients import averaging

    class Fails(dict[Any, Any]):
        def __call__(self, *_: Any) -> None:
            raise KeyboardInterrupt

        __setitem__ = __call__

    model, optimizer = made(1.0)
    with monkeypatch.context() as patched:
        if place == "hook_of_one":
            plain = averaging.Averaging._hook
            patched.setattr(averaging.Averaging, "_hook", lambda *given: (plain(*given), Fails()())[0])
        else:
            patched.setattr(averaging if place == "leave_hooks_behind" else front, place, Fails())
        with pytest.raises(KeyboardInterrupt):
            ps.torch.distribute(model, optimizer, rescale=3.0)
    if is_made_again:
        ps.torch.distribute(model, optimizer, rescale=3.0)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad.tolist() == [[3.0, 3.0] if is_made_again else [1.0, 1.0]]
        optimizer.step()


def test_a_tensor_that_something_else_declared_is_not_the_models(job: ps.Job) -> None:
    """The model silently started from its value, and its momentum."""
    job.tensor("model/weight", [[6.9, 6.9]], optimizer=ps.SGD(0.1, momentum=0.9))
    model, optimizer = made(1.0)
    for _ in range(2):
        with pytest.raises(ps.exceptions.OptionError, match="`model/weight` was declared before"):
            ps.torch.distribute(model, optimizer, where="servers", prefix="model")
    np.testing.assert_array_equal(
        job.tensor("model/weight", optimizer=ps.SGD(0.1, momentum=0.9), shape=(1, 2)).pull(),
        np.full((1, 2), np.float32(6.9)),
    )
    named = torch.nn.ParameterDict({"b/w": torch.nn.Parameter(torch.ones(2))})
    ps.torch.distribute(named, torch.optim.SGD(named.parameters(), 0.1), where="servers", prefix="a")
    other = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(2))})
    with pytest.raises(ps.exceptions.OptionError, match="`a/b/w` was declared before"):
        ps.torch.distribute(other, torch.optim.SGD(other.parameters(), 0.1), where="servers", prefix="a/b")


@pytest.mark.parametrize("overlap", ["auto", 1])
@pytest.mark.parametrize("place", ["_broadcast_rest", "_hook_parts"])
@pytest.mark.parametrize("then", ["servers", "gradients", "alone"])
def test_a_call_that_failed_has_no_part_in_what_the_script_does_next(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, overlap: Any, place: str, then: str
) -> None:
    """Its hooks stayed on the parameters: they refused the steps of the next call, or of torch alone."""
    from penstock.torch import DistributedOptimizer

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    def trained(model: Any, optimizer: Any) -> Any:
        for number in range(20):
            optimizer.zero_grad()
            model(torch.full((1, 2), float(number % 3))).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    model, optimizer = made(1.0)
    with monkeypatch.context() as patched:
        patched.setattr(DistributedOptimizer, place, fails)
        with pytest.raises(KeyboardInterrupt):
            ps.torch.distribute(model, optimizer, where="servers", overlap=overlap)
    expected, alone = made(1.0)
    expected.load_state_dict(model.state_dict())
    if then == "servers":
        _, optimizer = ps.torch.distribute(model, optimizer, where="servers", overlap=overlap)
    elif then == "gradients":
        _, optimizer = ps.torch.distribute(model, optimizer, where="gradients")
    torch.testing.assert_close(trained(model, optimizer), trained(expected, alone))


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_changed_call_meets_the_others_or_says_what_would(spawn_job: Any, is_behind: bool) -> None:
    """
    A call made again that failed as it waited forgot what had been declared: the changed one had another
    prefix than that of a worker that had not tried, and no error said why they never met.
    """
    spawn_job(
        2,
        f"""
        import pathlib, time, torch, penstock as ps, penstock.torch as front
        from penstock.exceptions import DeadlineExceeded

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        def fails(**options):
            try:
                call(**options)
                raise AssertionError("the other one came")
            except DeadlineExceeded as error:
                return "same new `prefix=`" in "".join(error.__notes__)

        def call(**options):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return ps.torch.distribute(model, optimizer, where="gradients", **options)

        with ps.init(deadline=20) as job:
            tried = pathlib.Path(os.environ["TEST_OUT"] + "tried")
            model = torch.nn.Linear(2, 1)
            if job.rank == 0:
                assert not fails(timeout=0.2, prefix="alone")
                tried.touch()
            while not tried.exists():
                time.sleep(0.01)
            # Behind the declarations, or before them.
            broadcast, hook = front.broadcast, front.Averaging.hook
            if job.rank == 1 and {is_behind}:
                front.broadcast = lambda *given: (broadcast(*given), interrupted())
            front.Averaging.hook = interrupted
            try:
                call(rescale=0.5)
                raise AssertionError("not interrupted")
            except KeyboardInterrupt:
                front.broadcast, front.Averaging.hook = broadcast, hook
            if {is_behind}:
                assert fails(rescale=0.25, timeout=0.5)
                call(rescale=0.25, prefix="another", timeout=10)
            else:
                tried = pathlib.Path(os.environ["TEST_OUT"] + "tried again")
                if job.rank == 0:
                    assert fails(rescale=0.5, timeout=0.3)
                    tried.touch()
                while not tried.exists():
                    time.sleep(0.01)
                call(rescale=0.25, timeout=10)
            model(torch.ones(1, 2)).sum().backward()
            assert model.bias.grad.tolist() == [0.25]
        """,
    )


@pytest.mark.parametrize("has_failed", [True, False])
def test_after_a_call_that_failed_other_models_are_told_too_why_workers_may_not_meet(
    has_failed: bool,
) -> None:
    """A worker whose call had not begun numbers its models otherwise from there on."""
    from penstock.torch.prefixes import Prefixes

    prefixes = Prefixes()
    for model, _ in (made(), made()):
        prefixes.begin(prefixes.choose(model, "kind"), model, None)
        if not has_failed:
            prefixes.end("model" if "model" not in prefixes._used else "model.1")
    with pytest.raises(ps.exceptions.DeadlineExceeded) as caught, prefixes.waiting():
        raise ps.exceptions.DeadlineExceeded("nobody came")
    assert ("same new `prefix=`" in "".join(getattr(caught.value, "__notes__", []))) == has_failed


@pytest.mark.parametrize("overlap", ["auto", 1])
@pytest.mark.parametrize("place", ["_hook_parts", "_take_in", "_pull_all", "_unpack"])
def test_a_worker_whose_group_was_not_added_to_the_end_trains_no_more(
    spawn_job: Any, place: str, overlap: Any
) -> None:
    """Its own first values went into the gradients of all, without a word."""
    spawn_job(
        2,
        f"""
        import importlib
        import pytest, torch, penstock as ps
        from penstock.torch import DistributedOptimizer

        broadcast = importlib.import_module("penstock.torch.broadcast")

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        with ps.init(deadline=20) as job:
            model = torch.nn.Linear(2, 1, bias=False)
            sgd = torch.optim.SGD(model.parameters(), lr=0.5)
            fresh = sgd.state_dict()
            _, optimizer = ps.torch.distribute(
                model, sgd, where="servers", overlap={overlap!r}, timeout=20
            )
            late = torch.nn.Parameter(torch.tensor([1.0 + job.rank]), requires_grad={place != "_unpack"})
            model.late = late
            owner = broadcast if {place!r} == "_unpack" else DistributedOptimizer
            if job.rank == 1:
                kept, _ = getattr(owner, {place!r}), setattr(owner, {place!r}, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    optimizer.add_param_group({{"params": [late]}})
                setattr(owner, {place!r}, kept)
                late.requires_grad_(True)
                (late * model(torch.ones(1, 2))).sum().backward()
                assert not any(shared.left for shared in optimizer._delivery)
                for _ in range(2):
                    for call in (
                        optimizer.step,
                        optimizer.publish,
                        lambda: optimizer.load_state_dict(fresh),
                        lambda: optimizer.add_param_group({{"params": [torch.nn.Parameter(torch.ones(1))]}}),
                    ):
                        with pytest.raises(ps.exceptions.OptionError, match="cut short on worker 1"):
                            call()
            else:
                try:
                    optimizer.add_param_group({{"params": [late]}})
                except ps.exceptions.PenstockError:
                    pass  # the other left
        """,
    )


@pytest.mark.parametrize("overlap", ["auto", False, 1])
def test_what_is_set_behind_a_load_of_the_state_that_took_a_parameter_in_is_refused(
    job: ps.Job, overlap: Any
) -> None:
    """It was read over by the next step, without a word."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    late = model[0].weight.requires_grad_(False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    _, optimizer = ps.torch.distribute(model, sgd, where="servers", overlap=overlap)
    late.requires_grad_(True)
    optimizer.load_state_dict(optimizer.state_dict())
    with torch.no_grad():
        late.fill_(1.0)
    late.sum().backward()
    with pytest.raises(ps.exceptions.OptionError, match="was changed outside of step"):
        optimizer.step()


def test_a_parameter_that_a_load_of_the_state_took_in_is_trained(job: ps.Job) -> None:
    """What its gradient's early leaving made of the servers' value was taken for the script's own change."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
    late = model[0].weight.requires_grad_(False)
    torch.nn.init.constant_(late, 1.0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    _, optimizer = ps.torch.distribute(model, sgd, where="servers", overlap=1)
    late.requires_grad_(True)
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(2):
        optimizer.zero_grad()
        late.sum().backward()
        optimizer.step()
    torch.testing.assert_close(late.detach(), torch.full_like(late, 0.8))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_state_of_another_shape_is_refused_and_changes_nothing(
    job: ps.Job, before: bool, frozen: bool
) -> None:
    """It was repeated to fit, where torch's own step raises."""
    other = torch.nn.Linear(8, 1, bias=False)
    adam = torch.optim.Adam(other.parameters(), lr=0.5)
    other(torch.ones(1, 8)).sum().backward()
    adam.step()
    model = torch.nn.Linear(8, 4, bias=False).requires_grad_(not frozen)
    mine = torch.optim.Adam(model.parameters(), lr=0.1)
    if before:
        mine.load_state_dict(adam.state_dict())
        if not frozen:
            with pytest.raises(ps.exceptions.ShapeError, match=r"`exp_avg` of parameter `weight`"):
                ps.torch.distribute(model, mine, where="servers")
        return
    _, optimizer = ps.torch.distribute(model, mine, where="servers")
    with pytest.raises(ps.exceptions.ShapeError, match=r"`exp_avg` of parameter `weight`"):
        optimizer.load_state_dict(adam.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state_dict()["state"].get(0, {}).get("step")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_first_state_of_another_optimizer_is_told_to_all_where_it_is_the_one_that_counts(
    spawn_job: Any, rank: int
) -> None:
    """Worker 0's does. Who had one raised by itself, and the others waited until their timeout."""
    saved = spawn_job(
        2,
        """
        import time, torch, penstock as ps

        with ps.init() as job:
            model = torch.nn.Linear(2, 1)
            adam = torch.optim.Adam(model.parameters())
            if job.rank == int(sys.argv[1]):
                other = torch.optim.Adamax(model.parameters())
                model(torch.ones(1, 2)).sum().backward()
                other.step()
                adam.state.update(other.state)
            since, told = time.monotonic(), ""
            try:
                ps.torch.distribute(model, adam, where="servers")
            except ps.PenstockError as error:
                told = f"{type(error).__name__}: {error}"
            save(told=told, took=time.monotonic() - since)
        """,
        arguments=(str(rank),),
    )
    told = [str(result["told"]) for result in saved]
    if rank:
        assert told == ["", ""]
        return
    assert told[0].startswith("SettingsError: the state of parameter")
    assert told[1].startswith("FirstFailed: ")
    assert "has no `exp_avg_sq`" in told[1]
    assert all(result["took"] < 10 for result in saved), "the deadline is 60 s"


def test_a_state_that_only_worker_0_cannot_read_is_told_to_the_others(spawn_job: Any) -> None:
    """They waited for it until their timeout, and were told nothing of what it was."""
    saved = spawn_job(
        3,
        """
        import copy, time, torch, penstock as ps

        with ps.init() as job:
            model = torch.nn.Linear(3, 2)
            adam = torch.optim.Adam(model.parameters(), lr=0.1)
            model, optimizer = ps.torch.distribute(model, adam, where="servers")
            for _ in range(2):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
            good = copy.deepcopy(optimizer.state_dict())
            bad = copy.deepcopy(good)
            if job.rank == 0:
                bad["state"][1]["step"] = "two"
            bad["param_groups"][0]["lr"] = 0.7
            since = time.monotonic()
            try:
                optimizer.load_state_dict(bad)
                failure = ""
            except (ValueError, ps.exceptions.FirstFailed) as error:
                failure = f"{type(error).__name__}: {error}"
            took = time.monotonic() - since
            rate = optimizer.param_groups[0]["lr"]
            optimizer.load_state_dict(good)
            steps = [int(state["step"]) for state in optimizer.state_dict()["state"].values()]
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            save(failure=failure, took=took, rate=rate, steps=steps, w=model.weight.detach().numpy())
        """,
    )
    assert str(saved[0]["failure"]).startswith("ValueError: invalid literal")
    for result in saved:
        assert result["took"] < 10, "the deadline is 60 s"
        assert result["rate"] == 0.1, "nothing of it was loaded"
        assert result["steps"].tolist() == [2, 2]
        np.testing.assert_array_equal(result["w"], saved[0]["w"])
    for result in saved[1:]:
        assert str(result["failure"]).startswith("FirstFailed: ")
        assert "worker 0 failed: ValueError: invalid literal" in str(result["failure"])


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_state_that_cannot_be_read_leaves_what_frozen_parameters_start_from(
    job: ps.Job, is_frozen: bool
) -> None:
    """A script that catches the error trained on with the settings, and the states, of what was of no use."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 1, bias=False) for _ in range(2)))
    _, second = model.parameters()
    second.requires_grad_(False)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    _, optimizer = ps.torch.distribute(model, adagrad, where="servers")
    bad = copy.deepcopy(optimizer.state_dict())
    bad["param_groups"][0]["lr"] = 0.7
    bad["state"][0]["step"] = "two"
    bad["state"][1]["sum"].fill_(9)
    second.requires_grad_(not is_frozen)
    with pytest.raises(ValueError, match="invalid literal"):
        optimizer.load_state_dict(bad)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert [state["sum"].tolist() for state in optimizer.state_dict()["state"].values()] == [[[0.5, 0.5]]] * 2
    second.requires_grad_(True)
    optimizer.step()
    assert optimizer.state_dict()["state"][1]["sum"].tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("what", ["publish", "load"])
def test_what_was_interrupted_behind_its_end_is_done_again_after_a_step(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The same values were given again, after training: none was loaded, and the model was overwritten."""
    model = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    _, optimizer = ps.torch.distribute(model, adam, where="servers")
    best = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    do = Firsts._do

    def load() -> None:
        if what == "publish":
            model.load_state_dict(best[0])
        else:
            optimizer.load_state_dict(best[1])

    def interrupted(*arguments: Any) -> None:
        do(*arguments)
        raise KeyboardInterrupt

    def steps(state: dict[str, Any]) -> list[int]:
        return [int(of["step"]) for of in state["state"].values()]

    with monkeypatch.context() as patched:
        patched.setattr(Firsts, "_do", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert steps(optimizer.state_dict()) == [1, 1]
    load()
    if what == "publish":
        assert torch.equal(model.weight, best[0]["weight"])
    else:
        assert steps(optimizer.state_dict()) == steps(best[1])


def test_values_that_were_put_back_are_published_after_publications_that_were_interrupted(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained values passed for those of a publication of long before, and these for published."""
    model = torch.nn.Linear(2, 1)
    _, optimizer = ps.torch.distribute(model, torch.optim.Adam(model.parameters(), lr=0.1), where="servers")
    best = model.weight.detach().clone()
    do = Firsts._do

    def interrupted(*arguments: Any) -> None:
        do(*arguments)
        raise KeyboardInterrupt

    for is_trained in (False, True):
        if is_trained:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        with monkeypatch.context() as patched:
            patched.setattr(Firsts, "_do", interrupted)
            with pytest.raises(KeyboardInterrupt):
                optimizer.publish()
    with torch.no_grad():
        model.weight.copy_(best)
    optimizer.publish()
    assert torch.equal(model.weight, best)


def test_a_loaded_group_has_what_torchs_has(job: ps.Job) -> None:
    """What the checkpoint lacks stayed: with an `initial_lr` from before, a scheduler's rates were others."""

    def loaded(*, distributed: bool) -> list[dict[str, Any]]:
        model = torch.nn.Linear(2, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributed:
            _, optimizer = ps.torch.distribute(model, optimizer, where="servers")
        optimizer.param_groups[0]["mine"] = 1
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        state = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5).state_dict()
        # As a torch saved it that did not have them.
        del state["param_groups"][0]["maximize"], state["param_groups"][0]["nesterov"]
        optimizer.load_state_dict(state)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        optimizer.step()
        rates.step()
        groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
        return groups

    assert loaded(distributed=True) == loaded(distributed=False)
    assert loaded(distributed=True)[0]["lr"] == 0.25


def test_a_state_of_another_optimizer_is_refused_and_changes_nothing(job: ps.Job) -> None:
    """A `KeyError` said so."""
    model = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    _, optimizer = ps.torch.distribute(model, adam, where="servers")
    state = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.5).state_dict()
    with pytest.raises(ps.exceptions.SettingsError, match="betas"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_state_that_lacks_what_the_optimizer_keeps_is_refused(job: ps.Job) -> None:
    """Adam took over Adamax's rate, and began with second moments of zero at its step; torch's raises."""
    adam, adamax = torch.optim.Adam, torch.optim.Adamax
    model = torch.nn.Linear(2, 1)
    _, optimizer = ps.torch.distribute(model, adam(model.parameters(), lr=0.1), where="servers")
    other = torch.nn.Linear(2, 1)
    of_another = adamax(other.parameters())
    other(torch.ones(1, 2)).sum().backward()
    of_another.step()
    state = of_another.state_dict()
    for is_trained in (True, False):
        # Also what is to be trained later.
        model.weight.requires_grad_(is_trained)
        with pytest.raises(ps.exceptions.SettingsError, match="`weight` has no `exp_avg_sq` in it"):
            optimizer.load_state_dict(state)
    state["state"][0] = dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.zeros_like(other.weight))
    with pytest.raises(ps.exceptions.SettingsError, match="`weight` has no `step` in it"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_state_may_have_been_computed_in_another_way(job: ps.Job) -> None:
    """It was refused with the advice to construct the optimizer without what it had been without."""
    model = torch.nn.Linear(2, 1)
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    _, optimizer = ps.torch.distribute(model, adam, where="servers")
    state = optimizer.state_dict()
    state["param_groups"][0] |= {"capturable": True, "differentiable": True, "lr": 0.2}
    optimizer.load_state_dict(state)
    assert [optimizer.param_groups[0][name] for name in ("capturable", "lr")] == [False, 0.2]


def test_a_rate_that_is_a_tensor_is_not_shared_with_the_loaded_state(job: ps.Job) -> None:
    """As in torch: what the script did to it was done to the checkpoint too."""
    model = torch.nn.Linear(2, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    _, optimizer = ps.torch.distribute(model, sgd, where="servers")
    checkpoint = optimizer.state_dict()
    optimizer.load_state_dict(checkpoint)
    optimizer.param_groups[0]["lr"].mul_(0.5)
    assert float(checkpoint["param_groups"][0]["lr"]) == pytest.approx(0.1)


def test_a_load_of_an_empty_state_starts_adagrad_afresh(job: ps.Job) -> None:
    """It began with zeros, where it begins with what was asked for at first."""
    model = torch.nn.Linear(2, 1, bias=False)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    _, optimizer = ps.torch.distribute(model, adagrad, where="servers")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    assert optimizer.state_dict()["state"][0]["sum"].tolist() == [[0.5, 0.5]]


class _Interrupts(dict[int, Any]):
    """Parameters without a state so far, where Ctrl-C comes when they have theirs."""

    def clear(self) -> None:
        raise KeyboardInterrupt


def test_distribute_interrupted_behind_the_first_states_gives_them_again(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers' states were set to zero, and what gives them the first ones was taken for done."""
    kind = ps.torch.DistributedOptimizer
    declare = kind._declare

    def declares(self: Any) -> None:
        declare(self)
        self._fresh = _Interrupts(self._fresh)

    monkeypatch.setattr(kind, "_declare", declares)
    model = torch.nn.Linear(2, 1, bias=False)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    with pytest.raises(KeyboardInterrupt):
        ps.torch.distribute(model, adagrad, where="servers")
    monkeypatch.undo()
    _, optimizer = ps.torch.distribute(model, adagrad, where="servers")
    assert optimizer.state_dict()["state"][0]["sum"].tolist() == [[0.5, 0.5]]


def test_what_is_unfrozen_behind_an_interrupted_load_starts_from_its_own_state(job: ps.Job) -> None:
    """Of the same shape, it was taken for what the interrupted call had given its state."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 1, bias=False) for _ in range(3)))
    _, second, third = model.parameters()
    second.requires_grad_(False)
    third.requires_grad_(False)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    _, optimizer = ps.torch.distribute(model, adagrad, where="servers")
    second.requires_grad_(True)
    optimizer._fresh = _Interrupts()
    with pytest.raises(KeyboardInterrupt):
        optimizer.load_state_dict(optimizer.state_dict())
    optimizer._fresh = {}  # in the middle of which it came
    third.requires_grad_(True)
    optimizer.step()
    assert [state["sum"].tolist() for state in optimizer.state_dict()["state"].values()] == [[[0.5, 0.5]]] * 3


def test_what_the_script_does_to_a_gradient_behind_a_publication_is_noticed(job: ps.Job) -> None:
    """It was looked for by the version alone, which `.data` does not count."""
    model = torch.nn.Linear(2, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    _, optimizer = ps.torch.distribute(model, sgd, where="servers")
    model.weight.sum().backward()
    optimizer.publish()
    shared = next(iter(optimizer._delivery))
    assert shared.held
    assert not shared.gradient_changed()
    gradient = model.weight.grad
    assert gradient is not None
    gradient.data.mul_(0.5)
    assert shared.gradient_changed()


@pytest.mark.parametrize("what", ["publish", "load_state_dict"])
def test_a_gradient_is_stepped_by_that_was_computed_before_values_or_a_state_were_loaded(
    job: ps.Job, what: str
) -> None:
    """It was held in the lane, through which the load went: the step said that it held no contribution."""
    model = torch.nn.Linear(2, 1, bias=False)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    _, optimizer = ps.torch.distribute(model, sgd, where="servers")
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer.publish()
    model.weight.sum().backward()
    optimizer.publish() if what == "publish" else optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert model.weight.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("call", ["step", "load"])
def test_what_is_interrupted_as_all_have_loaded_first_states_is_the_same_call_when_made_again(
    spawn_job: Any, call: str, rank: int, behind: bool
) -> None:
    """It was another one, for which nobody came, or the next was taken for it."""
    spawn_job(
        2,
        f"""
        import torch, penstock as ps

        class Interrupted(dict):
            def clear(self):
                optimizer._fresh = {{}} if {behind} else dict(self)
                raise KeyboardInterrupt

        def built():
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
            return model, torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)

        def trained(model, optimizer):
            optimizer.zero_grad()
            sum(one.square().sum() for one in model.parameters()).backward()
            optimizer.step()

        with ps.init(deadline=20) as job:
            saved, alone = built()
            trained(saved, alone)
            model, given = built()
            late = model[0].weight.requires_grad_(False)
            _, optimizer = ps.torch.distribute(model, given, where="servers")
            late.requires_grad_(True)
            if job.rank == {rank}:
                optimizer._fresh = Interrupted(optimizer._fresh)
            call = lambda: optimizer.load_state_dict(alone.state_dict())
            if {call!r} == "step":
                sum(one.square().sum() for one in model.parameters()).backward()
                call = optimizer.step
            try:
                call()
                assert job.rank != {rank}
            except KeyboardInterrupt:
                call()
            state = optimizer.state_dict()["state"]
            for number in range(2):
                torch.testing.assert_close(state[number]["sum"], alone.state_dict()["state"][number]["sum"])
            # Another one begins.
            model.late = torch.nn.Parameter(torch.ones(1))
            optimizer.add_param_group({{"params": [model.late]}})
            assert optimizer.state_dict()["state"][2]["sum"].tolist() == [0.5]
            job.barrier()
        """,
    )


@pytest.mark.parametrize("when", ["unfrozen", "frozen", "interrupted"])
def test_a_loaded_state_is_also_that_of_what_is_taken_in_later(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """What was unfrozen before the next step, or frozen still, began with another state, without a word."""

    def trained(model: Any, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            sum((one.square().sum() for one in model.parameters() if one.requires_grad), start=0).backward()
            optimizer.step()

    def built() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
        return model, torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)

    saved, optimizer = built()
    trained(saved, optimizer, 3)
    checkpoint = optimizer.state_dict()
    expected, alone = built()
    model, given = built()
    for late in (expected[0].weight, model[0].weight):
        late.requires_grad_(False)
    _, ours = ps.torch.distribute(model, given, where="servers")
    late = model[0].weight
    if when != "frozen":
        late.requires_grad_(True)
        if when == "interrupted":

            def interrupted(*_: Any) -> None:
                monkeypatch.undo()
                raise KeyboardInterrupt

            monkeypatch.setattr(type(ours), "_load_first_states", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ours.step()
    ours.load_state_dict(checkpoint)
    alone.load_state_dict(checkpoint)
    if when == "frozen":
        trained(model, ours, 1)
        trained(expected, alone, 1)
    for one in (late, expected[0].weight):
        one.requires_grad_(True)
    trained(model, ours, 2)
    trained(expected, alone, 2)
    torch.testing.assert_close(late.detach(), expected[0].weight.detach())
    theirs = alone.state_dict()["state"]
    for number, state in ours.state_dict()["state"].items():
        torch.testing.assert_close(state["sum"], theirs[number]["sum"])
