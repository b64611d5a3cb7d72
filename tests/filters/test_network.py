"""Filters that follow the network: which bound is in force from where on, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference

import penstock as ps
from penstock.exceptions import OptionError

PUSHES = """
        import time

        given = ps.DVF({low}, 2.0, sufficient={sufficient!r}, decay={decay!r})
        with ps.init() as job:
            options = {{"shape": 20_000, "optimizer": ps.SGD(1.0), "reduce": "sum"}}
            w = job.tensor("w", filter=ps.Filters(push=given), **options)
            v = job.tensor("v", filter=ps.Filters(broadcast=given), **options)
            draw = np.random.default_rng(job.rank)
            pushed, read, since, after = [], [], time.monotonic(), 0
            # Until both directions have changed, where they will: looks are a tenth of a second apart.
            while len(pushed) < 20 or time.monotonic() < since + {seconds}:
                numbers = draw.integers(-24, 25, w.shape).astype(np.float32) / 8
                w.push(numbers)
                v.push(numbers)
                pushed.append(numbers)
                job.clock()
                read.append((w.pull().copy(), v.pull().copy()))
                pressure = v.pressure()
                if w.pressure().push and pressure.broadcast and all(pressure.broadcast.values()):
                    after += 1
                if after == 5:
                    break
            changed = [change.at for change in w.pressure().push]
            shares = [change.share for change in w.pressure().push]
            values = [change.share for shard in v.pressure().broadcast.values() for change in shard]
            held = w.held_back.elements
            w.flush()
            v.flush()
            job.clock()
            flushed = [np.array(t.pull()) for t in (w, v)] + [v.pull(exact=True)]
            slowest = [change.slowest for change in w.pressure().push]
            save(pushed=pushed, w=[a for a, _ in read], v=[b for _, b in read], changed=changed,
                 shares=shares, values=values, flushed=flushed, held=held, slowest=slowest)
        """


def _run(spawn_job: Any, transport: str, **given: Any) -> dict[str, Any]:
    settings = {
        "low": 0.0,
        "sufficient": "1000tbit",
        "decay": None,
        "seconds": 30,
        **given,
    }
    return spawn_job(1, PUSHES.format(**settings), options={"transport": transport})[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("decay", [None, "sqrt"])
def test_a_bandwidth_that_never_suffices_has_the_upper_bound_hold_from_the_clock_that_is_told(
    spawn_job: Any, decay: str | None
) -> None:
    saved = _run(spawn_job, "tcp", decay=decay)
    assert list(saved["shares"]) == [1.0]
    assert list(saved["values"]) == [1.0] * len(saved["values"]) != []
    assert saved["slowest"][0] > 0
    (changed,) = saved["changed"]
    carry = np.zeros(20_000, np.float32)
    value = np.zeros(20_000, np.float32)
    choose = reference.bounded(2.0, decay, False)
    for clock, numbers in enumerate(saved["pushed"]):
        due = numbers + carry
        sent = np.where(choose(due, clock), due, 0) if clock >= changed else due
        carry = due - sent
        value -= sent
        np.testing.assert_array_equal(saved["w"][clock], value, err_msg=f"{clock}, changed at {changed}")
    assert saved["held"] == np.count_nonzero(carry) > 0
    whole = -np.sum(saved["pushed"], axis=0)
    for flushed in saved["flushed"]:
        np.testing.assert_array_equal(flushed, whole)
    behind = np.abs(saved["v"][-1] - whole)
    assert 0 < behind.max() <= 2.0, "its home holds back as well"


@pytest.mark.parametrize(("transport", "sufficient"), [("tcp", "1bit"), ("auto", "1000tbit"), ("auto", None)])
def test_where_the_network_suffices_or_there_is_none_everything_is_sent(
    spawn_job: Any, transport: str, sufficient: str | None
) -> None:
    saved = _run(spawn_job, transport, sufficient=sufficient, seconds=0.5)
    assert (saved["held"], list(saved["changed"]), list(saved["values"])) == (0, [], [])
    np.testing.assert_array_equal(saved["w"][-1], -np.sum(saved["pushed"], axis=0))
    np.testing.assert_array_equal(saved["v"][-1], saved["w"][-1])


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
