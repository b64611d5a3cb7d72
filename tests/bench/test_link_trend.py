"""Whether the delays of a stream grow."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_bench.link.trend import LEAST_GROWTH, Trend, medians, pct, pdt, trend

SECONDS = 0.06
ORIGIN = 1.7e9
"""Two clocks differ by anything."""


def delays(growth: float, noise: float = 0.0, count: int = 800, seed: int = 0) -> list[float]:
    """Of a stream whose delays grow by so many seconds."""
    chance = random.Random(seed)
    return [growth * index / count + chance.uniform(0, noise) for index in range(count)]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=2000))
@settings(deadline=None)
def test_medians_are_of_consecutive_groups_that_leave_nothing_out(values: list[float]) -> None:
    found = medians(values)
    assert 1 <= len(found) <= 32
    assert all(min(values) <= one <= max(values) for one in found)
    # In order, so that what rises stays risen.
    assert medians(sorted(values)) == sorted(medians(sorted(values)))


def test_a_bump_of_fewer_messages_than_half_a_group_is_not_seen() -> None:
    plain = delays(0)
    bumped = [*plain]
    bumped[400:412] = [0.005] * 12
    assert medians(bumped) == medians(plain)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=40, unique=True))
def test_both_tests_say_most_for_what_only_grows_and_least_for_what_only_falls(values: list[float]) -> None:
    grows, falls = sorted(values), sorted(values, reverse=True)
    assert (pct(grows), pct(falls)) == (1, 0)
    assert pdt(grows) == pytest.approx(1)
    assert pdt(falls) == pytest.approx(-1)
    assert -1 <= round(pdt(values), 9) <= 1


def test_what_does_not_change_at_all_has_no_trend() -> None:
    assert (pct([3.0] * 9), pdt([3.0] * 9)) == (0.5, 0)
    assert trend([ORIGIN] * 500, SECONDS) is Trend.STILL


@pytest.mark.parametrize("growth", [0.001, 0.005, 0.06])
@pytest.mark.parametrize("noise", [0, 50e-6, 400e-6])
def test_delays_that_grow_are_found_through_noise(growth: float, noise: float) -> None:
    said = [trend(delays(growth, noise, seed=seed), SECONDS) for seed in range(20)]
    assert said.count(Trend.GROWS) >= (20 if noise < growth / 2 else 14)
    assert Trend.STILL not in said or noise >= growth / 4


@pytest.mark.parametrize("noise", [0, 50e-6, 2e-3])
@pytest.mark.parametrize("growth", [0, -0.001, -0.06])
def test_delays_that_do_not_grow_are_hardly_ever_taken_for_growing(growth: float, noise: float) -> None:
    said = [trend(delays(growth, noise, seed=seed), SECONDS) for seed in range(50)]
    assert said.count(Trend.GROWS) <= 2


@pytest.mark.parametrize(
    ("share", "said"), [(0.5 * LEAST_GROWTH, Trend.STILL), (1.5 * LEAST_GROWTH, Trend.GROWS)]
)
def test_a_perfect_trend_counts_only_if_it_is_more_than_clocks_drift(share: float, said: Trend) -> None:
    assert trend(delays(share * SECONDS), SECONDS) is said


def test_a_stream_of_too_few_messages_says_nothing() -> None:
    assert trend([], 0) is Trend.UNCLEAR
    assert trend(delays(0.01, count=24), SECONDS) is Trend.UNCLEAR
    assert trend(delays(0.01, count=25), SECONDS) is Trend.GROWS


@given(st.floats(-1e6, 1e6), st.integers(0, 99))
@settings(deadline=None)
def test_the_clocks_offset_does_not_matter(offset: float, seed: int) -> None:
    values = delays(0.002, 100e-6, seed=seed)
    moved = [value + offset for value in values]
    assert trend(moved, SECONDS) is trend(values, SECONDS)
    assert statistics.median(medians(moved)) == pytest.approx(statistics.median(medians(values)) + offset)
