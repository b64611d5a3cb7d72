"""Filters that follow the network: which bound is in force from where on, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import OptionError


@pytest.mark.parametrize(("transport", "sufficient"), [("tcp", "1bit"), ("auto", "1000tbit"), ("auto", None)])
def test_where_the_network_suffices_or_there_is_none_everything_is_sent(
    spawn_job: Any, transport: str, sufficient: str | None
) -> None:
    # What happens where it does not: tests/netns.
    spawn_job(
        1,
        f"""
        import time

        given = ps.DVF(0.0, 2.0, sufficient={sufficient!r})
        with ps.init() as job:
            w = job.tensor("w", shape=50_000, filter=ps.Filters(push=given, broadcast=given))
            draw, whole = np.random.default_rng(1), np.zeros(50_000, np.float32)
            since = time.monotonic()
            # A few looks, which are a tenth of a second apart.
            while time.monotonic() < since + 0.5:
                numbers = draw.integers(-3, 4, w.shape).astype(np.float32)
                w.push(numbers)
                whole += numbers
                np.testing.assert_array_equal(w.pull(), whole)
                job.clock()
            assert w.held_back.elements == 0
            pressure = w.pressure()
            assert pressure.push == [] and not any(pressure.broadcast.values()), pressure
        """,
        options={"transport": transport},
    )


def test_auto_is_everything_where_nothing_presses(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.SGD(0.1, momentum=0.5), filter="auto")
    plain = job.tensor("w without", shape=3, optimizer=ps.SGD(0.1, momentum=0.5))
    for numbers in ([0.5, -0.0, 3], [np.nan, 1e-9, -np.inf]):
        pushed = np.array(numbers, np.float32)
        assert w.pushpull(pushed).tobytes() == plain.pushpull(pushed).tobytes()
        job.clock()
    assert w.held_back.elements == 0
    pressure = w.pressure()
    assert pressure.push == []
    assert pressure.broadcast == {shard: [] for shard in pressure.broadcast}
    assert len(pressure.broadcast) == 1
    assert job.tensor("plain", shape=3).pressure() == ps.filters.Pressure([], {})
    with pytest.raises(OptionError, match="expected an optimizer that accumulates"):
        job.tensor("v", shape=3, optimizer=ps.Replace(), filter="auto")
    with pytest.raises(OptionError, match=r'expected ps\.Filters or "auto" for `filter`, got \'Auto\''):
        job.tensor("v", shape=3, filter="Auto")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ps.DVF(1, 0.5), "a number of 1, which is `low`, or above for `up`, got 0.5"),
        (lambda: ps.DVF(1, float("nan")), "a number of 1, which is `low`, or above for `up`, got nan"),
        (lambda: ps.DVF(1, "2"), "a number of 1, which is `low`, or above for `up`, got '2'"),
        (lambda: ps.DVF(1, sufficient="50mbit"), "`up` beside `sufficient`, got '50mbit' alone"),
        (lambda: ps.DVF(1, 2, sufficient=0), "above 0, for `sufficient`, got 0"),
        (lambda: ps.DVF(1, 2, sufficient=True), "above 0, for `sufficient`, got True"),
        (lambda: ps.DVF(1, 2, sufficient="fast"), "sufficient"),
    ],
)
def test_bounds_and_bandwidths_that_are_none_are_refused(make: Any, said: str) -> None:
    with pytest.raises(OptionError) as refused:
        make()
    assert said in str(refused.value)


def test_a_bandwidth_is_bits_as_text_and_bytes_as_a_number() -> None:
    assert ps.DVF(1, 2, sufficient="8mbit") == ps.DVF(1, 2, sufficient=1e6)
