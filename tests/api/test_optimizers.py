"""Descriptions of optimizers: what they say to the servers, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps

ALL: list[Callable[..., ps.Optimizer]] = [ps.SGD, ps.AdaGrad, ps.RMSProp, ps.Adam, ps.AdamW]


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "fast", None])
def test_a_learning_rate_out_of_range_is_refused_at_once_and_later(
    make: Callable[..., ps.Optimizer], lr: Any
) -> None:
    with pytest.raises(ps.SettingsError, match="lr"):
        make(lr)
    optimizer = make(0.5)
    before = optimizer.settings()
    with pytest.raises(ps.SettingsError, match="lr"):
        optimizer.lr = lr
    assert optimizer.settings() == before


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (ps.SGD, {"momentum": -1}),
        (ps.SGD, {"weight_decay": -1}),
        (ps.SGD, {"nesterov": True}),
        (ps.SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
        (ps.RMSProp, {"alpha": 1.0}),
        (ps.Adam, {"betas": (0.9, 1.0)}),
        (ps.Adam, {"betas": 0.9}),
        (ps.Adam, {"betas": (-0.1, 0.9)}),
        (ps.Adam, {"eps": -1e-8}),
        (ps.AdaGrad, {"lr_decay": -1}),
    ],
)
def test_numbers_out_of_range_are_refused(
    make: Callable[..., ps.Optimizer], arguments: dict[str, Any]
) -> None:
    with pytest.raises(ps.SettingsError):
        make(0.1, **arguments)


def test_what_decides_the_state_is_fixed_at_construction() -> None:
    sgd = ps.SGD(0.1)
    for name, value in {"momentum": 0.9, "nesterov": True, "maximize": True, "no_such": 1}.items():
        with pytest.raises(ps.SettingsError):
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

    with pytest.raises(ps.OptionError):
        parse(text)
