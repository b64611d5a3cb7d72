"""The launcher's clock, by which processes have their time to end."""

from __future__ import annotations

import pytest

from penstock.launch.awake import LOOKS, Awake

SPAN = 8.0


class Host:
    """A host's clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("late", [3.0, 1e6])
def test_time_in_which_the_launcher_was_suspended_does_not_count(late: float) -> None:
    host = Host()
    awake = Awake(SPAN, host)
    due = awake.after(SPAN)
    for _ in range(LOOKS - 1):
        host.now += awake.interval
        assert awake.look() < due
    host.now += late
    # Whoever was suspended too has until the next look at least.
    assert awake.look() < due
    host.now += 0.01
    assert awake.look() >= due


def test_a_clock_that_nobody_needed_for_long_gives_the_whole_time() -> None:
    host = Host()
    awake = Awake(SPAN, host)
    host.now += 1e6
    due = awake.after(SPAN)
    host.now += 0.01
    assert due - awake.look() == pytest.approx(SPAN - 0.01)


def test_a_launcher_that_is_always_late_comes_to_an_end() -> None:
    host = Host()
    awake = Awake(SPAN, host)
    due, looks = awake.after(SPAN), 0
    while awake.look() < due:
        host.now += 100.0
        looks += 1
        assert looks < 3 * LOOKS
