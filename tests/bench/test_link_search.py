"""The search for the available bandwidth, against a simulated path whose available bandwidth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_path import HEADERS, PAYLOAD, Path

from penstock_bench.link.control import MOST_COUNTED_SECONDS, MOST_STREAM_SECONDS
from penstock_bench.link.search import (
    DESCENT,
    LEAST,
    MOST_DISCARDED,
    Found,
    Outcome,
    Search,
    Verdict,
)
from penstock_bench.link.streams import (
    BUCKET,
    LEAST_GAP,
    LEAST_MESSAGES,
    MOST_BUCKET,
    SECONDS,
    Heard,
    Sent,
    Stream,
    Trial,
    judged,
)
from penstock_bench.link.trend import Trend


def answered(search: Search, available: float) -> Found:
    """By a path that always says the truth."""
    while (trial := search.next()) is not None:
        search.heard(Outcome(Verdict.ABOVE if trial.rate > available else Verdict.BELOW))
    return search.found()


@given(st.floats(1.5e6, 9.9e9), st.sampled_from([0.01, 0.05, 0.2]))
def test_the_truth_is_in_a_bracket_as_narrow_as_was_asked_for(available: float, resolution: float) -> None:
    found = answered(Search(1e10, resolution), available)
    assert found.low <= available <= found.high
    assert found.high - found.low <= resolution * found.high
    assert found.narrow
    assert found.limited is None
    assert found.grey is None


def test_a_path_that_has_more_than_may_be_tried_is_said_to_have_at_least_that() -> None:
    found = answered(Search(1e9), 2e9)
    assert (found.low, found.limited, found.narrow) == (1e9, Verdict.BELOW, True)


def test_a_path_that_has_nothing_ends_the_search() -> None:
    found = answered(Search(1e9), 0)
    assert found.low == 0
    assert found.high < 1.4e6


@given(st.floats(1e-9, 1e9), st.sampled_from([LEAST, 5e6, 1e10]))
def test_no_stream_is_slower_than_the_least_whatever_the_other_end_says_that_came(
    came: float, most: float
) -> None:
    search, slowest = (
        Search(most),
        Stream.of(Trial(DESCENT * LEAST, ahead=True), 1, PAYLOAD, HEADERS, MOST_BUCKET),
    )
    while (trial := search.next()) is not None:
        assert DESCENT * LEAST <= trial.rate <= most
        search.heard(Outcome(Verdict.ABOVE, came))
    # Which a listener serves, with the largest bucket.
    assert slowest.seconds < MOST_COUNTED_SECONDS
    assert slowest.whole_seconds < MOST_STREAM_SECONDS


def test_a_search_that_ends_before_any_rate_was_too_high_knows_no_upper_end() -> None:
    search = Search(1e9)
    search.heard(Outcome(Verdict.BELOW))
    found = search.found()
    assert (found.limited, found.narrow) == (Verdict.UNCLEAR, False)


@given(st.floats(20e6, 5e9), st.floats(0.03, 0.2))
@settings(deadline=None)
def test_rates_at_which_the_path_says_both_are_all_in_the_grey_region(middle: float, width: float) -> None:
    low, high = middle * (1 - width), middle * (1 + width)
    search, turn = Search(1e10, 0.05), 0
    while (trial := search.next()) is not None:
        turn += 1
        above = trial.rate > high or (trial.rate >= low and turn % 2 == 0)
        search.heard(Outcome(Verdict.ABOVE if above else Verdict.BELOW))
    found = search.found()
    assert found.narrow
    # A fleet near an edge may agree by chance of the turns, never beyond it.
    assert found.low <= high
    assert found.high >= low
    if found.grey is not None:
        assert found.low <= found.grey[0] <= found.grey[1] <= found.high
        assert low <= found.grey[0] <= found.grey[1] <= high


def test_a_host_that_cannot_keep_up_makes_it_at_least_what_it_could() -> None:
    search, able = Search(1e10, 0.05), 700e6
    while (trial := search.next()) is not None:
        search.heard(Outcome(Verdict.SENDER if trial.rate > able else Verdict.BELOW))
    found = search.found()
    assert found.limited is Verdict.SENDER
    assert found.low <= able <= found.high <= 1.06 * found.low
    assert found.discarded["sender late"] >= MOST_DISCARDED


def test_a_rate_that_is_above_is_a_limit_of_the_path_whatever_the_hosts_could_not_do_before() -> None:
    search = Search(1e10, 0.05)
    while (trial := search.next()) is not None:
        above = Verdict.ABOVE if trial.rate > 300e6 else Verdict.BELOW
        search.heard(Outcome(Verdict.SENDER if trial.rate > 400e6 else above))
    found = search.found()
    assert found.limited is None
    assert found.low <= 300e6 <= found.high <= 1.06 * found.low


def test_where_nothing_competes_two_fleets_are_enough() -> None:
    search, available = Search(1e10, 0.05), 700e6
    while (trial := search.next()) is not None:
        above = trial.rate > available
        search.heard(Outcome(Verdict.ABOVE, available) if above else Outcome(Verdict.BELOW))
    found = search.found()
    assert found.low < available < found.high <= found.low / 0.95
    # Six rates that double, twice the one that is above, and three streams on either side.
    assert found.streams == 6 + 2 + 3 + 3


STREAM = Stream.of(Trial(1e9, ahead=True), 1, PAYLOAD, HEADERS)
WHOLE = Sent(STREAM.messages, STREAM.seconds, 0.0, 0.0)
HALF = replace(WHOLE, messages=STREAM.messages // 2 + 1, paused=0.002)
LITTLE = replace(WHOLE, messages=STREAM.messages // 3, paused=0.002)
BLOCKED = replace(WHOLE, messages=STREAM.messages // 3, blocked=0.1)


@pytest.mark.parametrize(
    ("sent", "came", "dropped", "trend", "verdict"),
    [
        (WHOLE, 1.0, 0, Trend.STILL, Verdict.BELOW),
        (WHOLE, 1.0, 0, Trend.GROWS, Verdict.ABOVE),
        (WHOLE, 1.0, 0, Trend.UNCLEAR, Verdict.UNCLEAR),
        (WHOLE, 0.99, 0, Trend.STILL, Verdict.BELOW),
        (WHOLE, 0.97, 0, Trend.STILL, Verdict.ABOVE),
        (WHOLE, 0.0, 0, Trend.UNCLEAR, Verdict.ABOVE),
        (WHOLE, 0.9, 1, Trend.STILL, Verdict.RECEIVER),
        (WHOLE, 1.0, 1, Trend.GROWS, Verdict.RECEIVER),
        (HALF, 1.0, 0, Trend.STILL, Verdict.BELOW),
        (HALF, 1.0, 0, Trend.GROWS, Verdict.ABOVE),
        (HALF, 0.97, 0, Trend.STILL, Verdict.ABOVE),
        (LITTLE, 1.0, 0, Trend.GROWS, Verdict.SENDER),
        (BLOCKED, 1.0, 0, Trend.STILL, Verdict.ABOVE),
    ],
)
def test_what_a_stream_says_of_its_rate(
    sent: Sent, came: float, dropped: int, trend: Trend, verdict: Verdict
) -> None:
    datagrams = round(came * sent.messages * STREAM.together)
    assert judged(STREAM, sent, Heard(datagrams, dropped, trend, 0.0), HEADERS).verdict is verdict


def test_while_the_rate_doubles_less_of_a_stream_is_enough() -> None:
    ramp = Stream.of(Trial(1e9, ahead=False), 1, PAYLOAD, HEADERS)
    heard = Heard(LITTLE.messages * ramp.together, 0, Trend.STILL, 0.0)
    assert judged(ramp, LITTLE, heard, HEADERS).verdict is Verdict.BELOW


def test_discarded_streams_change_nothing_but_their_count() -> None:
    search, turn = Search(1e10, 0.05), 0
    while (trial := search.next()) is not None:
        turn += 1
        late = (Verdict.SENDER, Verdict.RECEIVER, None)[turn % 3]
        search.heard(Outcome(late or (Verdict.ABOVE if trial.rate > 321e6 else Verdict.BELOW)))
    found, alone = search.found(), answered(Search(1e10, 0.05), 321e6)
    assert (found.low, found.high, found.limited) == (alone.low, alone.high, None)
    assert set(found.discarded) == {"sender late", "receiver late"}
    assert found.streams == alone.streams


@pytest.mark.parametrize("wrong", range(3))
def test_one_stream_that_is_wrong_at_each_rate_is_outvoted(wrong: int) -> None:
    search, last, turn = Search(1e10, 0.05), 0.0, 0
    while (trial := search.next()) is not None:
        turn = turn + 1 if trial.rate == last else 0
        last = trial.rate
        above = (trial.rate > 444e6) != (turn == wrong)
        search.heard(Outcome(Verdict.ABOVE if above else Verdict.BELOW))
    assert search.found().low <= 444e6 <= search.found().high


@pytest.mark.parametrize("rate", [1e5, 1e6, 16e6, 1e8, 1e9, 1e10, 1e11])
def test_a_stream_has_the_rate_and_is_longer_than_the_bucket(rate: float) -> None:
    stream = Stream.of(Trial(rate, ahead=True), 1, PAYLOAD, HEADERS)
    bits = 8 * stream.together * (PAYLOAD + HEADERS)
    assert bits / (stream.gap / 1e9) == pytest.approx(rate, rel=1e-4)
    assert stream.messages >= LEAST_MESSAGES
    assert stream.seconds >= 0.99 * SECONDS
    assert stream.gap >= 1e9 * LEAST_GAP or stream.together == 44
    # At twice the rate half of what is ahead is above any available bandwidth that is not above the rate.
    assert stream.ahead * bits / 2 >= 8 * BUCKET
    assert stream.bytes(HEADERS, stream.messages) == (stream.ahead + stream.messages) * bits / 8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bucket", [0, 256 << 10])
@pytest.mark.parametrize(
    ("rate", "cross"), [(10e6, 0), (100e6, 0), (1e9, 0), (1e9, 400e6), (1e9, 900e6), (5e9, 2e9)]
)
def test_a_shaper_and_cross_traffic_lead_to_what_is_left(
    rate: float, cross: float, bucket: int, seed: int
) -> None:
    path = Path(rate, bucket, cross, burstiness=0.1, noise=50e-6, drift=1e-4, seed=seed)
    found = path.searched(Search(1e10, 0.05)).found()
    assert path.near(found), found
    assert found.high - found.low <= 0.05 * found.high or found.grey is not None, found


def test_without_anything_ahead_a_stream_measures_the_bucket() -> None:
    # Why streams have something ahead: a bucket lets 3 % above the rate through for longer than they last.
    outcomes = []
    for bucket in (0, BUCKET):
        stream = Stream.of(Trial(1.03e9, ahead=True), 1, PAYLOAD, HEADERS, bucket)
        outcomes.append(Path(1e9, BUCKET).outcome(stream).verdict)
    assert outcomes == [Verdict.BELOW, Verdict.ABOVE]


@pytest.mark.parametrize("seed", range(4))
def test_disturbed_hosts_only_cost_streams(seed: int) -> None:
    quiet = Path(1e9, BUCKET, 400e6, noise=50e-6, seed=seed)
    busy = Path(1e9, BUCKET, 400e6, noise=50e-6, seed=seed, disturbed=SECONDS, lossy=0.2)
    for path in (quiet, busy):
        found = path.searched(Search(1e10, 0.05)).found()
        assert path.near(found), found
        assert bool(found.discarded) == (path is busy)


@pytest.mark.parametrize("drift", [-1e-4, 1e-4])
def test_clocks_that_drift_are_no_trend(drift: float) -> None:
    path = Path(1e9, 0, drift=drift)
    stream = Stream.of(Trial(1e8, ahead=False), 1, PAYLOAD, HEADERS)
    assert path.outcome(stream).verdict is Verdict.BELOW


@given(
    rate=st.floats(8e6, 9e9),
    share=st.floats(0, 0.8),
    bucket=st.sampled_from([0, 64 << 10, 256 << 10]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_path_is_found(rate: float, share: float, bucket: int, seed: int) -> None:
    path = Path(rate, bucket, share * rate, burstiness=0.1, noise=20e-6, seed=seed)
    found = path.searched(Search(1e10, 0.05)).found()
    assert path.near(found), found
