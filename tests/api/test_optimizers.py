"""Descriptions of optimizers: what they say to the servers, and what they refuse."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.optim import ROWS, Setting

ALL: list[Callable[..., ps.Optimizer]] = [getattr(ps, name) for name, row in ROWS.items() if row.settings]


def defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """What the arguments are unless they are given; `betas` by its two names in the table."""
    given = {name: argument.default for name, argument in inspect.signature(make).parameters.items()}
    if "betas" in given:
        given["beta1"], given["beta2"] = given.pop("betas")
    return given


@pytest.mark.parametrize("name", ROWS)
def test_a_class_takes_what_its_row_in_the_core_s_table_says_with_the_same_defaults(name: str) -> None:
    row, make = ROWS[name], getattr(ps, name)
    assert name in ps.__all__
    of_table: dict[str, Any] = {setting.name: setting.default for setting in row.settings}
    assert defaults(make) == of_table | dict.fromkeys(row.fixed, False)
    assert make().settings() == (*of_table.values(), 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    assert (make().rule(), make().flags()) == (name.lower(), [])
    with ps.init() as job:
        assert job.tensor("w", shape=3, optimizer=make(), reduce="sum").pull().shape == (3,)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.settings])
def test_the_table_s_defaults_are_torch_s(name: str) -> None:
    torch = pytest.importorskip("torch")
    of_torch = defaults(getattr(torch.optim, name))
    assert defaults(getattr(ps, name)).items() <= of_torch.items()


def every_set_of_flags(name: str) -> list[tuple[str, ...]]:
    """Of those that make sense together."""
    flags = ROWS[name].flags
    sets = [chosen for most in range(len(flags) + 1) for chosen in itertools.combinations(flags, most)]
    names = [({flag.name for flag in chosen}, chosen) for chosen in sets]
    return [
        tuple(flag.name for flag in chosen)
        for set_, chosen in names
        if all(flag.needs is None or flag.needs in set_ for flag in chosen)
    ]


@pytest.mark.parametrize(
    ("name", "flags"),
    [(name, flags) for name, row in ROWS.items() if row.settings for flags in every_set_of_flags(name)],
)
def test_the_state_on_the_servers_has_the_names_that_torch_saves_it_under(
    name: str, flags: tuple[str, ...]
) -> None:
    torch = pytest.importorskip("torch")
    arguments = {flag: True if flag in ROWS[name].fixed else 0.9 for flag in flags}
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    optimizer = getattr(torch.optim, name)([parameter], **arguments)
    optimizer.step()
    of_torch: dict[str, Any] = optimizer.state_dict()["state"].get(0, {})
    with ps.init() as job:
        state = job.tensor("w", shape=3, optimizer=getattr(ps, name)(**arguments)).optimizer_state()
    assert set(state) - {"step"} == {slot for slot, of in of_torch.items() if of is not None} - {"step"}


def declare(job: ps.Job, name: str, flags: list[str], numbers: Any) -> None:
    """Past Python's classes: what the core itself takes."""
    tensor = f"{name}{numbers}".replace(" ", "")
    settings: tuple[float, float, float, float, float] = (*numbers, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    everything: tuple[str, tuple[float, ...]] = ("everything", ())
    rest = ("", "pull", False, 0, "none", True, 1.0, None, False, everything, everything, None)
    job._core.declare(tensor, [1], "float32", name.lower(), flags, settings, *rest).initialize(None, None)


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name, row in ROWS.items() for setting in row.settings]
)
def test_python_and_the_core_take_and_refuse_the_same_numbers(name: str, setting: Setting) -> None:
    row, make = ROWS[name], getattr(ps, name)
    flags = [] if setting.needs is None else [setting.needs]
    place = row.settings.index(setting)
    usual = [1.0 if one.name in flags else one.default for one in row.settings]

    def beside(number: float) -> tuple[list[float], dict[str, Any]]:
        numbers = [*usual[:place], number, *usual[place + 1 :]]
        arguments: dict[str, Any] = {one.name: at for one, at in zip(row.settings, numbers, strict=True)}
        if "beta1" in arguments:
            arguments["betas"] = (arguments.pop("beta1"), arguments.pop("beta2"))
        return numbers, arguments

    with ps.init() as job:
        for number in (0.0, 0.5, math.nextafter(setting.below, 0.0)):
            numbers, arguments = beside(number)
            declare(job, name, flags, numbers)
            # A momentum of 0 means no momentum, and then nothing is dampened.
            if number or setting.name not in flags:
                assert make(**arguments).settings()[: len(numbers)] == tuple(numbers)
        for number in (-math.ulp(0.0), -1.0, setting.below, math.nan, math.inf, -math.inf):
            numbers, arguments = beside(number)
            with pytest.raises(
                ps.exceptions.SettingsError, match=f"{name} needs `{setting.name}` {setting.expected}"
            ):
                declare(job, name, flags, numbers)
            with pytest.raises(
                ps.exceptions.SettingsError, match=f"{name} needs `{setting.name}` {setting.expected}"
            ):
                make(**arguments)


def test_nesterov_needs_momentum_and_no_dampening_in_the_core_too() -> None:
    with ps.init() as job:
        with pytest.raises(ps.exceptions.SettingsError, match="SGD with nesterov needs momentum"):
            declare(job, "SGD", ["nesterov"], (0.1,))
        with pytest.raises(ps.exceptions.SettingsError, match="SGD needs `dampening` 0 with nesterov"):
            declare(job, "SGD", ["momentum", "nesterov"], (0.1, 0.9, 0.5))
    with pytest.raises(
        ps.exceptions.SettingsError, match="SGD with nesterov needs a momentum above 0, got 0"
    ):
        ps.SGD(0.1, nesterov=True)
    with pytest.raises(ps.exceptions.SettingsError, match="SGD needs `dampening` 0 with nesterov"):
        ps.SGD(0.1, momentum=0.9, dampening=0.5, nesterov=True)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "fast", "0.1", None])
def test_a_learning_rate_out_of_range_is_refused_at_once_and_later(
    make: Callable[..., ps.Optimizer], lr: Any
) -> None:
    with pytest.raises(ps.exceptions.SettingsError, match="lr"):
        make(lr)
    optimizer = make(0.5)
    before = optimizer.settings()
    with pytest.raises(ps.exceptions.SettingsError, match="lr"):
        optimizer.lr = lr
    assert optimizer.settings() == before


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (ps.SGD, {"momentum": -1}),
        (ps.SGD, {"weight_decay": -1}),
        (ps.SGD, {"nesterov": True}),
        (ps.SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
        (ps.RMSprop, {"alpha": 1.0}),
        (ps.Adam, {"betas": (0.9, 1.0)}),
        (ps.Adam, {"betas": 0.9}),
        (ps.Adam, {"betas": (-0.1, 0.9)}),
        (ps.Adam, {"eps": -1e-8}),
        (ps.Adagrad, {"lr_decay": -1}),
    ],
)
def test_numbers_out_of_range_are_refused(
    make: Callable[..., ps.Optimizer], arguments: dict[str, Any]
) -> None:
    with pytest.raises(ps.exceptions.SettingsError):
        make(0.1, **arguments)


def test_what_decides_the_state_is_fixed_at_construction() -> None:
    sgd = ps.SGD(0.1)
    for name, value in {"momentum": 0.9, "nesterov": True, "maximize": True, "no_such": 1}.items():
        with pytest.raises(ps.exceptions.SettingsError):
            setattr(sgd, name, value)
    assert sgd == ps.SGD(0.1)


def test_a_changed_number_reaches_the_settings() -> None:
    adam = ps.Adam(0.1)
    adam.betas = (0.5, 0.6)
    adam.eps = 1
    assert adam.settings() == (0.1, 0.5, 0.6, 1.0, 0.0)
    assert "betas=(0.5, 0.6)" in repr(adam)


@pytest.mark.parametrize("text", ["bsp", "ssp:0", "ssp:4", "asp"])
def test_a_consistency_reads_back_as_it_was_written(text: str) -> None:
    from penstock.consistency import parse

    assert str(parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "ssp", "ssp:", "ssp:-1", "ssp:1.5", "bsp:1", "ssp:99999999999", "often"]
)
def test_what_is_no_consistency_is_refused(text: str) -> None:
    from penstock.consistency import parse

    with pytest.raises(ps.exceptions.OptionError):
        parse(text)
