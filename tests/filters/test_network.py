"""Filters that follow the network: which bound is in force from where on, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import OptionError

PUSHES = """
        import time

        size, up, decay = 300_000, 2.0, {decay!r}
        given = ps.DVF(0.0, up, sufficient={sufficient!r}, decay=decay)
        with ps.init() as job:
            options = {{"shape": size, "optimizer": ps.SGD(1.0), "reduce": "sum"}}
            w = job.tensor("w", filter=ps.Filters(push=given), **options)
            v = job.tensor("v", filter=ps.Filters(broadcast=given), **options)
            draw = np.random.default_rng(job.rank)
            # Eighths, so that sums are exact.
            numbers = [draw.integers(-24, 25, size).astype(np.float32) / 8 for _ in range(4)]
            seen, read, since, after = [], [], time.monotonic(), 0
            # A few steps beyond the change of both directions, where there is one.
            while after < 5 and len(seen) < 100 or time.monotonic() < since + {seconds}:
                w.push(numbers[len(seen) % 4])
                v.push(numbers[len(seen) % 4])
                job.clock()
                seen.append(w.pull().copy())
                read.append(v.pull().copy())
                pressure = v.pressure()
                both = w.pressure().push and pressure.broadcast and all(pressure.broadcast.values())
                after += bool(both)
            changes = w.pressure().push
            values = [change for shard in v.pressure().broadcast.values() for change in shard]

            # Equations 6 and 10, in a few lines.
            shares = {{change.at: change.share for change in changes}}
            carry, value, whole = (np.zeros(size, np.float32) for _ in range(3))
            share = 0.0
            for clock, now in enumerate(seen):
                share = shares.get(clock, share)
                bound = np.float32(up * share / (np.sqrt(clock + 1) if decay else 1))
                due = numbers[clock % 4] + carry
                sent = np.where(np.abs(due) > bound, due, 0) if share else due
                carry = due - sent
                value -= sent
                whole -= numbers[clock % 4]
                np.testing.assert_array_equal(now, value, err_msg=f"{{clock}}, changed {{shares}}")
                assert np.abs(read[clock] - whole).max() <= up
                lags = bool((read[clock] != whole).any())
            assert w.held_back.elements == np.count_nonzero(carry)
            held = w.held_back.elements
            w.flush()
            v.flush()
            job.clock()
            for flushed in (w.pull(), v.pull(), v.pull(exact=True)):
                np.testing.assert_array_equal(flushed, whole)
            save(
                pushes=[change.share for change in changes],
                values=[change.share for change in values],
                slowest=[change.slowest for change in changes],
                held=held,
                lags=lags,
            )
        """


def _run(spawn_job: Any, transport: str, **given: Any) -> dict[str, Any]:
    settings = {"sufficient": None, "decay": None, "seconds": 0, **given}
    return spawn_job(1, PUSHES.format(**settings), options={"transport": transport})[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("decay", [None, "sqrt"])
def test_where_all_time_goes_to_sending_the_bound_rises_from_the_clock_that_is_told(
    spawn_job: Any, decay: str | None
) -> None:
    saved = _run(spawn_job, "tcp", decay=decay, seconds=1)
    assert max(saved["pushes"]) > 0
    assert max(saved["values"]) > 0
    assert saved["slowest"][0] > 0


@pytest.mark.parametrize(("transport", "sufficient"), [("tcp", "1bit"), ("auto", "1000tbit"), ("auto", None)])
def test_where_the_network_suffices_or_there_is_none_everything_is_sent(
    spawn_job: Any, transport: str, sufficient: str | None
) -> None:
    saved = _run(spawn_job, transport, sufficient=sufficient, seconds=0.5)
    assert (saved["held"], list(saved["pushes"]), list(saved["values"])) == (0, [], [])
    assert not saved["lags"]


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
