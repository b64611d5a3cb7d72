"""
What a script does to the optimizer that it gave to `distribute`, where the servers step in its place: hooks,
methods of its own, other parameter groups. It works as in one process, or it is refused.
"""

from __future__ import annotations

import copy
import functools
import importlib
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import DtypeError, OptionError, SettingsError

torch = pytest.importorskip("torch")


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def optimizer_of(model: Any) -> Any:
    groups = [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[2].parameters()}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def distributed(job: ps.Job, model: Any, optimizer: Any, **options: Any) -> Any:
    return ps.torch.distribute(model, optimizer, job=job, where="servers", **options)[1]


def train(model: Any, optimizer: Any, steps: int = 4) -> Any:
    for step in range(steps):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step), dtype=torch.double)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def alike(job: ps.Job, script: Callable[[Any, Callable[[Any], Any]], Any], **options: Any) -> None:
    """A script, which is given a model and what makes an optimizer of the one it has, does the same alone."""
    model, alone = net(), net()
    found = script(model, lambda optimizer: distributed(job, model, optimizer, **options))
    torch.testing.assert_close(found, script(alone, lambda optimizer: optimizer), rtol=1e-9, atol=0)


def clips(optimizer: Any, *_: Any) -> None:
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(mine, 0.05)


def decays(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_step_hooks_of_the_original_are_called(job: ps.Job, late: bool) -> None:
    def script(model: Any, make: Any) -> Any:
        original = optimizer_of(model)
        optimizer = make(original) if late else None
        original.register_step_pre_hook(clips)
        gone = original.register_step_pre_hook(lambda *_: pytest.fail("was removed"))
        original.register_step_post_hook(decays)
        optimizer = optimizer or make(original)
        gone.remove()
        return train(model, optimizer)

    alike(job, script)


def test_hooks_of_states_are_called(job: ps.Job) -> None:
    def script(model: Any, make: Any) -> Any:
        original = optimizer_of(model)
        calls = []
        original.register_state_dict_pre_hook(lambda _: calls.append(1))
        original.register_state_dict_post_hook(lambda _, state: {**state, "more": 7})

        def takes_lr(_: Any, state: dict[str, Any]) -> dict[str, Any]:
            calls.append(state.pop("more"))
            return {**state, "param_groups": [{**one, "lr": 0.01} for one in state["param_groups"]]}

        original.register_load_state_dict_pre_hook(takes_lr)
        optimizer = make(original)
        optimizer.register_load_state_dict_post_hook(decays)
        train(model, optimizer, 2)
        saved = optimizer.state_dict()
        before = copy.deepcopy(saved)
        optimizer.load_state_dict(saved)
        assert calls == [1, 7]
        assert saved.keys() == before.keys()
        assert saved["param_groups"] == before["param_groups"]
        assert [group["lr"] for group in optimizer.param_groups] == [0.005, 0.005]
        return train(model, optimizer)

    alike(job, script)


def test_a_load_whose_hook_fails_is_over_and_the_next_equal_one_is_another(job: ps.Job) -> None:
    model = net()
    optimizer = distributed(job, model, optimizer_of(model))
    train(model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())

    def fails(_: Any) -> None:
        raise ValueError("no")

    failing = optimizer.register_load_state_dict_post_hook(fails)
    with pytest.raises(ValueError, match="no"):
        optimizer.load_state_dict(saved)
    failing.remove()
    train(model, optimizer, 2)
    optimizer.load_state_dict(saved)
    torch.testing.assert_close(optimizer.state_dict()["state"], saved["state"])


@pytest.mark.parametrize("bias", [False, True])
def test_a_load_that_is_interrupted_as_it_reads_is_not_taken_for_the_next(job: ps.Job, bias: bool) -> None:
    """A parameter with a part of what came counted as what came, whatever the script had written since."""
    model = torch.nn.Linear(2, 1, bias=bias)
    optimizer = distributed(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    loads = [{name: torch.full_like(one, k) for name, one in model.state_dict().items()} for k in (7.0, 5.0)]

    class Stop(Exception):
        pass

    def raises(*_: Any) -> None:
        raise Stop

    def read(frame: Any, event: str, _: Any) -> None:
        if event == "c_return" and frame.f_code.co_name == "pull":
            sys.setprofile(None)
            raises()

    before = signal.signal(signal.SIGUSR1, raises)
    try:
        sys.setprofile(read)
        with pytest.raises(Stop):
            model.load_state_dict(loads[0])
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)
    model.load_state_dict(loads[1])
    assert model.weight.tolist() == [[5.0, 5.0]]


TWO = """
import torch

torch.set_num_threads(1)

def clips(optimizer, *_):
    torch.nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], 0.05)

@torch.no_grad()
def clamps(optimizer, *_):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.clamp_(-0.01, 0.01)

with ps.init() as job:
    for name, hook, said in (
        ("register_step_pre_hook", clips, "changed between backward and step()"),
        ("register_step_post_hook", clamps, "was changed outside of step()"),
    ):
        model = torch.nn.Linear(3, 1)
        torch.nn.init.ones_(model.weight)  # a gradient that is long enough to be clipped
        original = torch.optim.SGD(model.parameters(), lr=0.1)
        getattr(original, name)(hook)
        model, optimizer = ps.torch.distribute(model, original, job=job, where="servers")
        try:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
        except ps.exceptions.OptionError as error:
            assert said in str(error), error
        else:
            raise AssertionError(name)
    job.barrier()
"""


def test_what_a_hook_changes_is_looked_at_with_several_workers(spawn_job: Any) -> None:
    spawn_job(2, TWO)


@pytest.mark.parametrize("name", ["step", "zero_grad", "state_dict"])
def test_a_method_of_its_own_is_refused(job: ps.Job, name: str) -> None:
    model = net()
    original = optimizer_of(model)
    # A scheduler's own is not, but what is around it.
    torch.optim.lr_scheduler.StepLR(original, 1)
    was = getattr(original, name)
    setattr(original, name, functools.wraps(was)(lambda *arguments: was(*arguments)))
    with pytest.raises(OptionError, match=f"`{name}` of the optimizer.*was replaced") as found:
        distributed(job, model, original)
    assert "register_step_pre_hook" in str(found.value.hint)
    delattr(original, name)
    train(model, distributed(job, model, original))


@pytest.mark.parametrize("keeps_name", [False, True])
def test_a_step_that_was_patched_in_its_class_is_refused(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, keeps_name: bool
) -> None:
    was = torch.optim.SGD.step

    def step(self: Any, closure: Any = None) -> Any:
        return was(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", functools.wraps(was)(step) if keeps_name else step)
    model = net()
    with pytest.raises(OptionError, match="`step` of the optimizer"):
        distributed(job, model, optimizer_of(model))


def test_schedulers_of_either_optimizer_go_on(job: ps.Job) -> None:
    def script(model: Any, make: Any) -> Any:
        original = optimizer_of(model)
        first = torch.optim.lr_scheduler.StepLR(original, 1, 0.5)
        optimizer = make(original)
        second = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for _ in range(3):
            train(model, optimizer, 2)
            first.step()
            second.step()
        return train(model, optimizer)

    alike(job, script)


OTHERS: dict[str, Callable[[Any], None]] = {
    "list of others": lambda o: setattr(o, "param_groups", [{**g, "lr": 0.01} for g in o.param_groups]),
    "one in place": lambda o: o.param_groups.__setitem__(0, {**o.param_groups[0], "lr": 0.01}),
    "the original's": lambda o: setattr(
        getattr(o, "_original", o), "param_groups", [{**g, "lr": 0.01} for g in o.param_groups]
    ),
    "another order": lambda o: o.param_groups[0]["params"].reverse(),
}


@pytest.mark.parametrize("overlap", ["auto", False])
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_groups_with_other_settings_are_taken_over(job: ps.Job, change: Any, overlap: Any) -> None:
    def script(model: Any, make: Any) -> Any:
        optimizer = make(optimizer_of(model))
        train(model, optimizer, 1)
        change(optimizer)
        return train(model, optimizer)

    alike(job, script, overlap=overlap)


def test_another_list_of_groups_counts_in_the_next_backward(job: ps.Job) -> None:
    def script(model: Any, make: Any) -> Any:
        optimizer = make(optimizer_of(model))
        train(model, optimizer, 1)
        OTHERS["list of others"](optimizer)
        return train(model, optimizer)

    # Gradients leave there, with the settings that are.
    alike(job, script, overlap=1)


CHANGED: dict[str, Callable[[Any], Any]] = {
    "taken out": lambda o: o.param_groups[0]["params"].pop(),
    "moved": lambda o: o.param_groups[1]["params"].append(o.param_groups[0]["params"].pop()),
    "appended": lambda o: o.param_groups.append({**o.param_groups[0], "params": []}),
    "popped": lambda o: o.param_groups.pop(),
    "exchanged": lambda o: o.param_groups.reverse(),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_groups_that_come_or_go_by_hand_are_refused(job: ps.Job, change: Any) -> None:
    model = net()
    optimizer = distributed(job, model, optimizer_of(model))
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    change(optimizer)
    for call in (lambda: train(model, optimizer, 1), lambda: optimizer.load_state_dict(state)):
        with pytest.raises(OptionError, match=r"param_groups|taken out of its parameter group") as found:
            call()
        assert "freeze it" in str(found.value.hint)


def test_a_group_with_another_flag_is_refused(job: ps.Job) -> None:
    model = net()
    optimizer = distributed(job, model, optimizer_of(model))
    with pytest.raises(SettingsError):
        optimizer.param_groups = [{**group, "nesterov": True} for group in optimizer.param_groups]


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="needs a PyTorch with Tensor.grad_dtype")
@pytest.mark.parametrize("overlap", ["auto", 1, False])
def test_a_gradient_of_another_type_than_its_parameter_is_refused(job: ps.Job, overlap: Any) -> None:
    model = net().bfloat16()
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float16
    optimizer = distributed(job, model, torch.optim.SGD(model.parameters(), lr=0.1), overlap=overlap)
    with pytest.raises(DtypeError, match=r"the gradient of `.*` is float16, expected bfloat16"):
        model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()


AVERAGED = """
import torch

with ps.init() as job:
    model = torch.nn.Linear(3, 1).double()
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    ps.torch.distribute(model, job=job)
    try:
        model(torch.ones(2, 3, dtype=torch.double)).sum().backward()
    except ps.exceptions.DtypeError as error:
        assert "is float32, expected float64 as the parameter is" in str(error), error
    else:
        raise AssertionError
"""


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="needs a PyTorch with Tensor.grad_dtype")
def test_so_is_one_that_is_averaged(spawn_job: Any) -> None:
    spawn_job(2, AVERAGED)


@pytest.mark.parametrize(
    "sent",
    [
        b"none",
        3,
        {"order": 3, "state": {}},
        {"order": [["x"]], "state": {}},
        {"order": [["weight"]], "state": {}},
        {"order": [["weight"]], "state": 3},
        {"order": [["weight"]], "state": {"state": 3, "param_groups": 3}},
        {"order": [["weight"]], "state": {"state": 3, "param_groups": [{"params": [0]}]}},
        {"order": [["weight"]], "state": {"state": {}, "param_groups": [1]}},
        {"order": [["weight"]], "state": {"state": {}, "param_groups": [{"params": []}]}},
    ],
)
def test_what_is_no_state_is_refused_and_says_nothing_unprintable(
    monkeypatch: pytest.MonkeyPatch, sent: Any
) -> None:
    """Worker 0 may send anything: its words came to the terminal as they were, or as a KeyError of ours."""
    import io
    import traceback
    import types
    import zipfile

    from penstock.torch.gradients import script

    stream = io.BytesIO()
    torch.save(sent, stream)
    data = stream.getvalue()
    if isinstance(sent, bytes):
        # An object of a class whose name clears the screen.
        spoilt = io.BytesIO()
        with zipfile.ZipFile(stream) as before, zipfile.ZipFile(spoilt, "w") as after:
            for name in before.namelist():
                pickled = b"\x80\x02cos\nsys\x1b[2Jtem\n."
                after.writestr(name, pickled if name.endswith("data.pkl") else before.read(name))
        data = spoilt.getvalue()
    monkeypatch.setattr(script, "broadcast_bytes", lambda *_: data)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    other: Any = types.SimpleNamespace(size=2, rank=1)
    with pytest.raises((ps.exceptions.OptionError, ps.exceptions.GatherConflict)) as caught:
        script.start_alike(optimizer, {id(parameter): "weight"}, other, "start", None)
    assert str(caught.value).isprintable()
    assert "\x1b" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("held", ["lambda: 1", "types.SimpleNamespace()"])
def test_a_state_that_cannot_be_sent_is_told_to_all(spawn_job: Any, held: str) -> None:
    """What Python cannot write only worker 0 heard of, what may not be read only the others: these waited."""
    results = spawn_job(
        2,
        f"""
        import time, types, torch, penstock as ps

        with ps.init() as job:
            model = torch.nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if job.rank == 0:
                optimizer.state[model.weight]["mine"] = {held}
            since = time.monotonic()
            try:
                ps.torch.distribute(model, optimizer)
                failure = ""
            except ps.exceptions.OptionError as error:
                failure = str(error)
            save(failure=failure, took=time.monotonic() - since)
            optimizer.state.clear()
            ps.torch.distribute(model, optimizer)
        """,
    )
    for result in results:
        assert "the state of SGD on worker 0 holds what cannot be sent" in str(result["failure"])
        assert result["took"] < 10, "the deadline is 60 s"


def test_a_state_of_a_form_of_its_own_goes_to_the_class_that_knows_it(spawn_job: Any) -> None:
    """It was taken for what no worker had sent: wrappers such as Lookahead could not be distributed."""
    spawn_job(
        2,
        """
        import torch, penstock as ps

        class Wrapper(torch.optim.SGD):
            def state_dict(self):
                return {"inner": super().state_dict()}

            def load_state_dict(self, state):
                super().load_state_dict(state["inner"])

        with ps.init() as job:
            model = torch.nn.Linear(2, 1, bias=False)
            optimizer = Wrapper(model.parameters(), lr=0.1, momentum=0.9)
            if job.rank == 0:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            model, optimizer = ps.torch.distribute(model, optimizer, where="gradients")
            assert optimizer.state[model.weight]["momentum_buffer"].tolist() == [[1.0, 1.0]]
        """,
    )


def test_how_weights_decay_is_the_same_on_all_workers_whatever_a_load_makes_of_it(spawn_job: Any) -> None:
    """Torch's AdamW makes its flag True in a load: workers that got worker 0's state had another rule."""
    results = spawn_job(
        2,
        """
        import torch, penstock as ps

        with ps.init() as job:
            model = torch.nn.Linear(2, 1)
            group = {"params": list(model.parameters()), "decoupled_weight_decay": False}
            optimizer = torch.optim.AdamW([group], lr=0.01, weight_decay=0.5)
            if job.rank == 0:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            model, optimizer = ps.torch.distribute(model, optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            flags = [group["decoupled_weight_decay"] for group in optimizer.param_groups]
            save(flag=flags[0], weight=model.weight.detach().numpy())
        """,
    )
    assert [bool(result["flag"]) for result in results] == [False, False]
    assert (results[0]["weight"] == results[1]["weight"]).all()


def test_the_order_in_which_a_group_has_its_settings_is_none_of_them() -> None:
    """A load keeps the saved order: an older torch's checkpoint on worker 0 alone was another optimizer."""
    described = importlib.import_module("penstock.torch.gradients.script").described
    model = torch.nn.Linear(2, 1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters())
    told = described(optimizer, names)
    group = optimizer.param_groups[0]
    for name in sorted(group, reverse=True):
        group[name] = group.pop(name)
    assert described(optimizer, names) == told
    group["lr"] = 0.5
    assert described(optimizer, names) != told


def test_a_rate_that_is_a_tensor_counts_with_all_its_digits_and_wherever_it_is() -> None:
    described = importlib.import_module("penstock.torch.gradients.script").described
    model = torch.nn.Linear(2, 1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    told = [
        described(torch.optim.Adam(model.parameters(), lr=torch.tensor(rate)), names)
        for rate in (0.1, 0.1, 0.10004)
    ]
    assert told[0] == told[1] != told[2]
    assert "device" not in str(told)


def test_tensors_of_any_size_and_kind_among_the_settings_are_compared_and_take_little_text() -> None:
    """Some optimizers keep all parameters' first values in a group: each number of them was spelled out."""
    described = importlib.import_module("penstock.torch.gradients.script").described
    model = torch.nn.Linear(2, 1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def told(setting: Any) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["kept"] = [setting]
        return str(described(optimizer, names))

    large = torch.arange(100_000, dtype=torch.float32).reshape(100, 1000)
    other = large.clone()
    other[7, 7] += 0.01
    assert told(large) == told(large.clone()) == told(large.t().contiguous().t()) != told(other)
    assert len(told(large)) < 1000
    for dtype in (torch.bfloat16, torch.complex64, torch.bool):
        assert told(large[:, 0].to(dtype)) == told(large.to(dtype)[:, 0])
        assert told(torch.ones((), dtype=dtype).expand(10, 10)) == told(torch.ones((10, 10), dtype=dtype))
        assert told(large.to(dtype)) == told(large.to(dtype)) != told(large)
    turned = torch.full((100,), 1 + 2j)
    assert told(turned.conj()) == told(torch.full((100,), 1 - 2j)) != told(turned)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for awkward in (large.to_sparse(), nested, large.to("meta"), torch.empty(0), torch.ones(())):
        assert told(awkward) == told(awkward.clone())


ELSEWHERE = """
import copy
import torch
import penstock as ps

with ps.init() as job:
    for number, options in enumerate(
        ({"where": "gradients"}, {"where": "servers"}, {"where": "servers", "clip_norm": 0.1})
    ):
        made = []
        for default in ("cpu", "meta"):
            torch.manual_seed(7)
            model = torch.nn.Linear(4, 1, device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            if job.rank == 0:
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
            torch.set_default_device(default)
            model, optimizer = ps.torch.distribute(model, optimizer, **options)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.full((1, 4), job.rank + 1.0, device="cpu")).sum().backward()
                optimizer.step()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            torch.set_default_device("cpu")
            made.append(model.weight.detach().clone())
        assert torch.equal(*made), (options, made)
"""


def test_where_new_tensors_go_by_default_changes_nothing(spawn_job: Any) -> None:
    """As behind `torch.set_default_device("cuda")`: what passes through the servers is on the CPU still."""
    spawn_job(2, ELSEWHERE)
