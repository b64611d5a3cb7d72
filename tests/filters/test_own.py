"""Filters of pushes that a program brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import reference
import ways
from hypothesis import given, settings

import penstock as ps
from penstock import own
from penstock.exceptions import (
    AlreadyPushed,
    DeclarationConflict,
    DtypeError,
    NonFiniteError,
    OptionError,
    ShapeError,
)

HERE = Path(__file__).parent
DTYPES = ["float32", "float64", "float16", "bfloat16"]
Array = np.ndarray[Any, np.dtype[Any]]


class Sends(ps.OwnFilter):
    """Sends what a function makes of what is due, and keeps what it was called with."""

    def __init__(self, make: Callable[[Array, int], Any]) -> None:
        self._make = make
        self._seen: list[tuple[Array, int]] = []

    def send(self, due: Array, clock: int) -> Any:
        self._seen.append((due.copy(), clock))
        return self._make(due, clock)


def push(filter: ps.OwnFilter | ps.filters.PushFilter) -> ps.Filters:  # noqa: A002
    return ps.Filters(push=filter)


def beyond(bound: float) -> Sends:
    return Sends(lambda due, _: np.where(np.abs(due) > bound, due, 0))


def choosing(choose: reference.Chooses) -> Sends:
    return Sends(lambda due, clock: np.where(choose(due, clock), due, 0))


def run(workers: int, transport: str, what: str) -> str:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", str(workers)]
    command += ["--transport", transport, str(HERE / "own.py"), what]
    environment = {**os.environ, "PENSTOCK_CHUNK_BYTES": "4096"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_each_value_is_what_the_papers_equations_give_of_the_whole_tensor(transport: str) -> None:
    run(2, transport, "train")


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_workers_that_bring_different_filters_are_told_which(transport: str) -> None:
    run(2, transport, "differs")


def test_what_is_not_sent_takes_hardly_any_bytes_between_hosts() -> None:
    said = run(1, "tcp", "sent")
    found = json.loads(said[said.index("{") :])
    assert found["taken"]["whole"] >= found["whole"]
    assert 0 < found["taken"]["own"] < found["whole"] / 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("has", "mine"),
    [
        (ps.DVF(0.7), reference.bounded(0.7, "sqrt", False)),
        (ps.DVF(0.7, decay=None), reference.bounded(0.7, None, False)),
        (ps.TopK(0.1), lambda due, clock: reference.top(0.1)(np.nan_to_num(due, nan=np.inf), clock)),
    ],
)
def test_one_that_does_as_a_built_in_one_gives_the_same_bits(
    job: ps.Job, dtype: str, has: ps.filters.Filter, mine: reference.Chooses
) -> None:
    """Of one chunk: a filter of a program's own is given the whole tensor."""
    options: dict[str, Any] = {"shape": (10, 30), "dtype": dtype, "optimizer": ps.Adam(lr=0.1)}
    theirs = job.tensor("theirs", filter=push(has), **options)
    ours = job.tensor("ours", filter=push(choosing(mine)), **options)
    draw = np.random.default_rng(11)
    for step in range(12):
        gradient = draw.standard_normal((10, 30)).astype(theirs.dtype)
        gradient[::3] *= 100
        gradient[step % 10, :4] = [-0.0, np.inf, np.nan, 1e-7]
        for tensor in (theirs, ours):
            ways.push(tensor, gradient, step)
        assert ours.pull().tobytes() == theirs.pull().tobytes()
        assert ours.held_back == theirs.held_back
        assert ours.held_back.elements > 0
        job.clock()
    assert ours.flush() == theirs.flush() == 12
    assert ours.pull().tobytes() == theirs.pull().tobytes()
    assert ours.held_back == theirs.held_back


@pytest.mark.parametrize("consistency", [ps.BSP(), ps.SSP(2), ps.ASP()])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_that_sends_everything_changes_no_bit(
    job: ps.Job, consistency: ps.consistency.Consistency, dtype: str
) -> None:
    everything: list[ps.Filters | None] = [None, push(Sends(lambda due, _: due))]
    tensors = [
        job.tensor(
            f"w{at}", shape=500, dtype=dtype, optimizer=ps.Adam(lr=0.1), consistency=consistency, filter=it
        )
        for at, it in enumerate(everything)
    ]
    draw = np.random.default_rng(5)
    for step in range(12):
        gradient = draw.standard_normal(500).astype(tensors[0].dtype)
        gradient[::7] = -0.0
        for tensor in tensors:
            ways.push(tensor, gradient, step)
        job.clock()
    plain, filtered = (tensor.pull(slack=0).tobytes() for tensor in tensors)
    assert plain == filtered
    assert tensors[1].held_back == (0.0, 0)


AWKWARD = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 65504.0, -65504.0, 1e-7, -1e-7, 3e38, -3e38]
PARTS: list[Callable[[Any], Any]] = [
    lambda due: 0.0,
    lambda due: -0.0,
    lambda due: due,
    lambda due: np.float32(0.3) * due,
    lambda due: due + np.float32(0.001),
    lambda due: 1.0,
]
"""What a filter may make of an element."""


@given(
    dtype=st.sampled_from(DTYPES),
    rounds=st.lists(
        st.lists(
            st.tuples(
                st.one_of(st.sampled_from(AWKWARD), st.floats(-8, 8), st.integers(-5, 5).map(float)),
                st.sampled_from(range(len(PARTS))),
            ),
            min_size=6,
            max_size=6,
        ),
        min_size=1,
        max_size=6,
    ),
    wide=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_what_is_sent_and_what_is_held_back_are_what_was_due(
    dtype: str, rounds: list[list[tuple[float, int]]], wide: bool
) -> None:
    """
    Element by element, by NumPy's scalars: the sum of what was pushed and what was held back is due; what the
    filter sends of it arrives, and the difference is held back.
    """
    plan: list[int] = []

    def make(due: Array, _: int) -> Array:
        with np.errstate(all="ignore"):
            made = np.array([PARTS[part](one) for part, one in zip(plan, due, strict=True)])
        return made.astype(np.float64 if wide else due.dtype)

    mine = Sends(make)
    with ps.init(deadline=20) as job:
        w = job.tensor("w", shape=(2, 3), dtype=dtype, optimizer=ps.Replace(), filter=push(mine))
        accumulator = np.float64 if dtype == "float64" else np.float32
        carry = [accumulator(-0.0)] * 6
        for clock, numbers in enumerate(rounds):
            with np.errstate(all="ignore"):
                gradient = np.array([number for number, _ in numbers]).astype(w.dtype)
                plan[:] = [part for _, part in numbers]
                due = [accumulator(one) + held for one, held in zip(gradient, carry, strict=True)]
                sent, carry = parts_of(due, plan, w.dtype)
            value = w.pushpull(gradient.reshape(2, 3))
            seen, at = mine._seen[-1]
            assert (seen.dtype, seen.shape, at) == (np.dtype(accumulator), (6,), clock)
            same(seen, np.array(due, accumulator))
            same(value.reshape(6), sent)
            held = w.held_back
            assert held.elements == sum(one != 0 for one in carry)
            assert held.norm == pytest.approx(float(np.linalg.norm(np.array(carry, np.float64))), rel=1e-6)
            job.clock()
        w.flush()
        with np.errstate(all="ignore"):
            last, _ = parts_of([one + accumulator(0.0) for one in carry], [2] * 6, w.dtype)
        same(w.pull().reshape(6), last)


def parts_of(due: list[Any], plan: list[int], dtype: np.dtype[Any]) -> tuple[Array, list[Any]]:
    """What arrives, and what is held back."""
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    sent, carry = [], []
    for one, part in zip(due, plan, strict=True):
        if not np.isfinite(one):
            sent.append(np.array(one).astype(dtype)[()])
            carry.append(type(one)(-0.0))
            continue
        of_it = type(one)(PARTS[part](one))
        if of_it == 0 and one != 0:
            of_it = type(one)(0.0)
        goes = np.array(of_it).astype(dtype)[()]
        if not np.isfinite(goes):
            goes = np.array(np.copysign(largest, of_it)).astype(dtype)[()]
        left = one - type(one)(goes)
        sent.append(goes)
        carry.append(left if left != 0 else type(one)(-0.0))
    return np.array(sent, dtype), carry


def same(found: Array, expected: Array) -> None:
    """With the signs of zeros; any NaN is like another."""
    # NumPy knows no NaN of bfloat16.
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])


@given(
    dtype=st.sampled_from(DTYPES),
    rounds=st.lists(st.lists(st.integers(-64, 64), min_size=5, max_size=5), min_size=1, max_size=12),
    bound=st.integers(0, 200),
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_and_nothing_counts_twice(dtype: str, rounds: list[list[int]], bound: int) -> None:
    """Whole numbers, so that no sum is rounded, not in bfloat16 either."""
    with ps.init(deadline=20) as job:
        w = job.tensor("w", shape=5, dtype=dtype, optimizer=ps.Replace(), filter=push(beyond(bound)))
        arrived = np.zeros(5)
        for number, numbers in enumerate(rounds):
            ways.push(w, np.array(numbers).astype(w.dtype), number % 5)
            arrived += w.pull().astype(np.float64)
            job.clock()
        for _ in range(3):
            # What bfloat16 does not hold of a sum goes with the next.
            w.flush()
            arrived += w.pull().astype(np.float64)
            job.clock()
        assert w.held_back == (0.0, 0)
        np.testing.assert_array_equal(arrived, np.sum(rounds, axis=0))


def test_the_numbers_that_multiplying_by_a_mask_leaves_are_plain_zeros(job: ps.Job) -> None:
    """Those of negative ones are -0.0, which take bytes between hosts; and what is due as -0.0 is sent so."""
    mine = Sends(lambda due, _: due * (np.abs(due) > 1))
    w = job.tensor("w", shape=4, optimizer=ps.Replace(), filter=push(mine))
    value = w.pushpull(np.array([-0.5, 0.5, -0.0, -2], np.float32))
    same(value, np.array([0.0, 0.0, -0.0, -2], np.float32))


def fails(due: Array, clock: int) -> Array:
    raise ZeroDivisionError("mine")


REFUSED: list[tuple[Callable[[Array, int], Any], type[Exception], str]] = [
    (fails, ZeroDivisionError, "^mine$"),
    (lambda due, _: due[:2], ShapeError, r"return an array of shape \(4,\), got \(2,\)"),
    (lambda due, _: due.reshape(2, 2), ShapeError, r"got \(2, 2\)"),
    (lambda due, _: 0.0, ShapeError, r"got \(\)"),
    (lambda due, _: None, DtypeError, "expected an array of numbers"),
    (lambda due, _: due > 1, DtypeError, "got dtype bool"),
    (lambda due, _: due.astype(np.int32), DtypeError, "got dtype int32"),
    (lambda due, _: due.astype(np.complex64), DtypeError, "got dtype complex64"),
    (lambda due, _: np.ma.masked_array(due, due > 1), DtypeError, "masked"),
    (lambda due, _: due / 0, NonFiniteError, r"the filter of `w` sends inf of 1.0 \(element 0"),
    (lambda due, _: np.where(due == 3, np.nan, 0), NonFiniteError, r"sends nan of 3.0 \(element 2"),
    (lambda due, _: np.negative(due, out=due), ValueError, "read-only"),
]


@pytest.mark.parametrize(("make", "error", "said"), REFUSED)
@pytest.mark.parametrize("way", range(6))
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_push_that_its_filter_fails_changes_nothing(
    job: ps.Job, make: Callable[[Array, int], Any], error: type[Exception], said: str, way: int
) -> None:
    now: list[Callable[[Array, int], Any]] = [lambda due, _: np.zeros_like(due)]
    w = job.tensor("w", shape=4, optimizer=ps.Replace(), filter=push(Sends(lambda *it: now[0](*it))))
    w.push(np.full(4, 0.5, np.float32))
    job.clock()
    held, pushes = w.held_back, job.stats()["pushes"]
    assert held == (1.0, 4)
    now[0] = make
    numbers = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
    with pytest.raises(error, match=said):
        ways.push(w, numbers, way)
    assert w.held_back == held
    assert job.stats()["pushes"] == pushes
    # And it can be made again: with parts, the last of them; of the lane, what stands there.
    now[0] = lambda due, _: due
    if way in (1, 5):
        w.push()
    elif way == 2:
        w.push(np.ones(4, np.float32))
    else:
        ways.push(w, numbers, way)
    if way == 3:
        # `Job.clock` says once what an asynchronous push raised.
        with pytest.raises(error, match=said):
            job.clock()
    np.testing.assert_array_equal(w.pull(), [1, 2, 3, 4])
    assert w.held_back == (0.0, 0)


def test_what_is_far_from_what_is_due_is_refused_where_the_rest_would_not_be_finite(job: ps.Job) -> None:
    w = job.tensor("w", shape=1, filter=push(Sends(lambda due, _: -due)))
    with pytest.raises(NonFiniteError, match="would not be finite"):
        w.push(np.array([3e38], np.float32))
    assert w.push(np.array([1e38], np.float32)) == 0
    assert w.held_back.norm == pytest.approx(2e38)


@pytest.mark.parametrize(("dtype", "arrives"), [("float16", 65504.0), ("bfloat16", float("inf"))])
def test_what_half_precision_cannot_hold_is_sent_in_part_and_the_rest_is_held_back(
    job: ps.Job, dtype: str, arrives: float
) -> None:
    """Unless float32, in which it is held back, cannot hold it either."""
    half = np.dtype(dtype if dtype == "float16" else ml_dtypes.bfloat16)
    largest = float(ml_dtypes.finfo(half).max)  # type: ignore[no-untyped-call]
    most = 0.75 * largest
    options: dict[str, Any] = {"shape": 2, "dtype": dtype, "optimizer": ps.Replace()}
    theirs = job.tensor("theirs", filter=push(ps.DVF(most * 1.01, decay=None)), **options)
    ours = job.tensor("ours", filter=push(beyond(most * 1.01)), **options)
    values = []
    for pushed in (most / 2, most / 2, most / 2, -most / 4):
        for tensor in (theirs, ours):
            tensor.push(np.array([pushed, -pushed]).astype(half))
        values.append(ours.pull().astype(np.float64).tolist())
        assert ours.pull().tobytes() == theirs.pull().tobytes()
        assert ours.held_back == theirs.held_back
        job.clock()
    assert values == [[0, 0], [0, 0], [arrives, -arrives], [0, 0]]
    assert ours.held_back.elements == 2


def test_more_than_is_due_and_than_the_dtype_holds_may_be_sent_at_most_its_largest(job: ps.Job) -> None:
    w = job.tensor(
        "w", shape=1, optimizer=ps.Replace(), filter=push(Sends(lambda due, _: due.astype(np.float64) * 9))
    )
    largest = np.finfo(np.float32).max
    assert w.pushpull(np.array([1e38], np.float32)).tolist() == [largest]
    job.clock()
    w.flush()
    assert w.pull().tolist() == [np.float32(1e38) - largest]


def test_a_push_that_is_refused_for_another_reason_does_not_ask_the_filter(job: ps.Job) -> None:
    mine = beyond(10)
    w = job.tensor("w", shape=4, refuse_nonfinite=True, filter=push(mine))
    w.push([1, 2, 3, 4])
    held = w.held_back
    for wrong in ([1, 2, 3], [1, np.nan, 3, 4], [1, 2, 3, 4]):
        with pytest.raises(ps.PenstockError):
            w.push(wrong)
    with pytest.raises(AlreadyPushed):
        w.flush()
    job.clock()
    with pytest.raises(NonFiniteError, match="refuses them"):
        w.push([1, np.nan, 3, 4])
    with pytest.raises(OptionError, match="timeout"):
        w.push([1, 2, 3, 4], timeout=-1)
    assert w.held_back == held
    assert len(mine._seen) == 1


def test_parts_are_filtered_once_as_their_sum(job: ps.Job) -> None:
    mine = beyond(2.5)
    w = job.tensor("w", shape=2, filter=push(mine))
    w.push([1, 1], more=True)
    w.push([1, 2], more=True)
    assert not mine._seen
    w.push([0, 3])
    assert len(mine._seen) == 1
    assert mine._seen[0][0].tolist() == [2, 6]
    assert w.pull().tolist() == [0, 6]
    job.clock()
    w.push([0.25, 0.25], more=True)
    assert w.flush() == 1
    assert len(mine._seen) == 1, "a flush sends all"
    assert w.pull().tolist() == [2.25, 6.25]
    # Again in the same iteration it pushes nothing more.
    assert w.flush() == 1
    assert w.pull().tolist() == [2.25, 6.25]


def elsewhere(call: Callable[[], Any]) -> None:
    """Another thread makes the call meanwhile."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "call",
    [
        lambda job, w: job.clock(),
        lambda job, w: w.push([1, 1]),
        lambda job, w: w.push(ps.Sparse([1], [1]), more=True),
        lambda job, w: w.pushpull([1, 1]),
        lambda job, w: w.push_async([1, 1], more=True).result(),
        lambda job, w: w.pushpull_async([1, 1]),
        lambda job, w: w.flush(),
        lambda job, w: w.load(value=[1, 1]),
        lambda job, w: job.clock() if w.held_back else None,
    ],
)
@pytest.mark.parametrize("way", ["push", "more", "async"])
def test_what_would_change_what_is_due_is_refused_in_send(job: ps.Job, call: Any, way: str) -> None:
    calls = [call]
    w = job.tensor("w", shape=2, filter=push(Sends(lambda due, _: (calls and calls[0](job, w), due)[1])))
    if way == "more":
        w.push([1, 2], more=True)
    stats = job.stats()
    with pytest.raises(OptionError, match="the filter of `w` called") as error:
        w.push_async([1, 2]).result() if way == "async" else w.push() if way == "more" else w.push([1, 2])
    assert "outside of `send`" in error.value.hint
    assert job.stats()["pushes"] == stats["pushes"]
    assert job.iteration == 0
    assert w.held_back == (0.0, 0)
    # It can be made again, and another tensor may be pushed there.
    other = job.tensor("other", shape=2)
    calls[0] = lambda job, w: other.push([1, 1])
    w.push() if way == "more" else w.push([1, 2])
    assert w.pull().tolist() == [1, 2]
    calls.clear()
    if way == "async":
        with pytest.raises(OptionError):
            job.clock()  # which says once what an asynchronous push raised
    assert job.clock() == 1


def test_filters_that_push_each_others_tensors_are_refused(job: ps.Job) -> None:
    one = job.tensor("one", shape=2, filter=push(Sends(lambda due, _: (other.push([1, 1]), due)[1])))
    other = job.tensor("other", shape=2, filter=push(Sends(lambda due, clock: (one.push([1, 1]), due)[1])))
    for w in (one, other):
        with pytest.raises(OptionError, match=f"the filter of `{w.name}` called push"):
            w.push([1, 2])
    assert job.stats()["pushes"] == 0


def test_one_whose_iteration_ends_meanwhile_begins_again_with_the_next(job: ps.Job) -> None:
    def make(due: Array, clock: int) -> Array:
        if clock == 0:
            elsewhere(job.clock)
        return due / 2

    mine = Sends(make)
    w = job.tensor("w", shape=2, optimizer=ps.Replace(), filter=push(mine))
    assert w.push([2, 4]) == 1
    assert [clock for _, clock in mine._seen] == [0, 1]
    assert w.pull().tolist() == [1, 2]
    assert w.held_back.elements == 2
    job.clock()
    # Parts are those of their iteration, and lost with it.
    mine._make = lambda due, clock: (elsewhere(job.clock), due)[1] if clock == 2 else due
    w.push([1, 1], more=True)
    with pytest.warns(UserWarning, match="more=True"), pytest.raises(OptionError, match="lane"):
        w.push()
    assert w.held_back.elements == 2


def test_a_part_that_comes_meanwhile_is_in_the_sum(job: ps.Job) -> None:
    def make(due: Array, _: int) -> Array:
        if len(mine._seen) == 1:
            elsewhere(lambda: w.push([1, 1], more=True))
        return due

    mine = Sends(make)
    w = job.tensor("w", shape=2, filter=push(mine))
    w.push([2, 4])
    assert [due.tolist() for due, _ in mine._seen] == [[2, 4], [3, 5]]
    assert w.pull().tolist() == [3, 5]


def test_a_flush_that_comes_meanwhile_is_the_iterations_push(job: ps.Job) -> None:
    w = job.tensor(
        "w", shape=2, filter=push(Sends(lambda due, clock: (clock and elsewhere(w.flush), due * 0)[1]))
    )
    w.push([2, 4])
    job.clock()
    with pytest.raises(AlreadyPushed):
        w.push([1, 1])
    assert w.held_back == (0.0, 0)
    assert w.pull().tolist() == [2, 4]


def test_of_threads_that_push_in_one_iteration_one_does(job: ps.Job) -> None:
    w = job.tensor("w", shape=1000, optimizer=ps.Replace(), filter=push(beyond(3)))
    pushed: list[int] = []
    arrived = np.zeros(1000)

    def work(together: threading.Barrier, number: int) -> None:
        together.wait()
        try:
            w.push(np.full(1000, number, np.float32))
        except AlreadyPushed:
            return
        pushed.append(number)

    for _ in range(20):
        together = threading.Barrier(3)
        threads = [threading.Thread(target=work, args=(together, number)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        arrived += w.pull()
        job.clock()
    w.flush()
    arrived += w.pull()
    assert len(pushed) == 20
    assert arrived.tolist() == [sum(pushed)] * 1000


class Interrupted(BaseException):
    """As a signal handler raises it."""


def is_interrupted(push: Callable[[], object], line: int) -> bool:
    """Makes a push; at this line of the code between the caller and the core, if there is one, it ends."""
    ours = (own.push, own.divide, own._correct, ps.Tensor._push)
    code = {function.__code__ for function in ours}
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code not in code:
            return None
        if event in ("line", "return"):
            lines += 1
            if lines == line:
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        push()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_push_that_is_interrupted_anywhere_counts_once_or_not_at_all(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.Replace(), filter=push(Sends(lambda due, _: np.rint(due / 2))))
    gradient = np.array([1, 2, np.inf], np.float32)
    interrupted, counted = 0, 0
    arrived = np.zeros(2)
    pushes, is_over = 0, False
    while not is_over:
        is_over = not is_interrupted(lambda: w.push(gradient), pushes + 1)
        if not is_over:
            interrupted += 1
            try:
                w.push(gradient)
            except AlreadyPushed:
                counted += 1
        pushes += 1
        arrived += w.pull()[:2]
        job.clock()
    w.flush()
    arrived += w.pull()[:2]
    assert interrupted > 20
    assert counted > 0, "behind the core's call too"
    np.testing.assert_array_equal(arrived, gradient[:2] * pushes)


def test_wherever_a_sparse_push_is_interrupted_the_lane_holds_no_contribution(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, filter=push(Sends(lambda due, _: due)))
    sparse = ps.Sparse([0, 2], np.ones(2, np.float32))
    line, counted = 0, 0
    while True:
        line += 1
        if not is_interrupted(lambda: w.push(sparse), line):
            break
        try:
            w.push(sparse)
        except AlreadyPushed:
            counted += 1
        job.clock()
        with pytest.raises(OptionError, match="lane"):
            w.push()
    assert counted > 0, "behind the core's call too"


def test_a_scalar_and_a_large_tensor_of_several_chunks(job: ps.Job) -> None:
    scalar = job.tensor("scalar", shape=(), dtype="bfloat16", filter=push(beyond(1)))
    assert float(scalar.pushpull(np.array(0.5, scalar.dtype))) == 0
    job.clock()
    assert float(scalar.pushpull(np.array(0.75, scalar.dtype))) == 1.25
    size = 300_001
    large = job.tensor("large", shape=size, dtype="float64", filter=push(beyond(size / 2)))
    large.push(np.arange(size) / 2, more=True)
    value = large.pushpull(np.arange(size) / 2)
    expected = np.where(np.arange(size) > size / 2, np.arange(size), 0)
    np.testing.assert_array_equal(value, expected)
    assert large.held_back.elements == np.count_nonzero(expected == 0) - 1


def test_two_directions_may_have_one_each(job: ps.Job) -> None:
    filters = ps.Filters(push=beyond(1), broadcast=ps.DVF(4, decay=None))
    w = job.tensor("w", shape=3, filter=filters)
    assert w.pushpull(np.array([0.5, 2, 8], np.float32)).tolist() == [0, 0, 8]
    assert w.pull(exact=True).tolist() == [0, 2, 8]
    job.clock()
    w.flush()
    assert w.pull().tolist() == [0.5, 2, 8]


class Bounded(ps.OwnFilter):
    def __init__(self, bound: Any) -> None:
        self.bound = bound
        self._random = np.random.default_rng()

    def send(self, due: Array, clock: int) -> Array:
        return due


@dataclass(frozen=True, slots=True)
class Slotted(ps.OwnFilter):
    bound: Any

    def send(self, due: Array, clock: int) -> Array:
        return due


@pytest.mark.parametrize("kind", [Bounded, Slotted])
def test_a_filter_is_told_by_its_class_and_its_settings(kind: Any) -> None:
    alike: list[list[Any]] = [
        [0.5, np.float32(0.5), np.float64(0.5), np.float16(0.5)],
        [1, np.int64(1)],
        [-0.0],
        [None],
        ["0.5"],
        [(1, 2.5), [1, 2.5]],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{1, 2, 3}, frozenset([3, 2, 1])],
        [np.arange(4), np.arange(8)[::2] // 2],
        [np.arange(4.0)],
        [np.arange(4).reshape(2, 2)],
    ]
    numbers = [{own.which(kind(setting)) for setting in settings} for settings in alike]
    assert all(len(of) == 1 for of in numbers)
    assert len(set.union(*numbers)) == len(alike)
    assert all(0 <= number < 2**48 and number.is_integer() for of in numbers for number in of)
    assert own.which(Bounded(0.5)) != own.which(Slotted(0.5))


def test_what_cannot_be_is_refused_where_it_is_made(job: ps.Job) -> None:
    class Without(ps.OwnFilter):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Without()  # type: ignore[abstract]
    with pytest.raises(OptionError, match="a filter for `push`, such as"):
        ps.Filters(push=Bounded)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a filter that Penstock has for `broadcast`") as refused:
        ps.Filters(broadcast=Bounded(1))  # type: ignore[arg-type]
    assert "push" in str(refused.value.hint)
    for setting in (print, object(), np.array([print], object), 1j):
        with pytest.raises(OptionError, match=r"`bound` of Bounded, a filter's setting") as refused:
            ps.Filters(push=Bounded([setting]))
        assert "underscore" in str(refused.value.hint)
    with pytest.raises(OptionError, match="alone") as refused:
        job.tensor("w", shape=3, filter=Bounded(1))  # type: ignore[arg-type]
    assert refused.value.hint == "give filter=ps.Filters(push=...)"


def test_declared_again_it_is_the_same_or_a_conflict(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, filter=push(Bounded(1)))
    assert job.tensor("w", shape=3, filter=push(Bounded(1))) is w
    for other in (push(Bounded(2)), push(Slotted(1)), push(ps.DVF(1)), None):
        with pytest.raises(DeclarationConflict, match="filter of contributions") as refused:
            job.tensor("w", shape=3, filter=other)
        told = [note for note in refused.value.__notes__ if "own filter" in note]
        assert bool(told) == (other is not None and isinstance(other.push, ps.OwnFilter))
        assert not told or "(bound=" in told[0]


def test_an_asynchronous_push_that_its_filter_fails_is_heard_of_by_the_clock(job: ps.Job) -> None:
    w = job.tensor("w", shape=4, filter=push(Sends(fails)))
    w.push_async(np.ones(4, np.float32))
    with pytest.raises(ZeroDivisionError, match="mine"):
        job.clock()
    assert w.held_back == (0.0, 0)


class _Written(ps.OwnFilter):
    """Writes into what it is shown, past NumPy."""

    def send(self, due: Any, clock: int) -> Any:
        due.flags.writeable = True
        due[np.abs(due) < 1] = 0
        return due


def test_what_writes_into_what_is_due_loses_nothing(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, filter=ps.Filters(push=_Written()))
    w.push(np.array([0.5, 0.75, 2.0], np.float32))
    assert w.held_back.elements == 2
    np.testing.assert_array_equal(w.pull(), [0, 0, 2])
    job.clock()
    w.flush()
    np.testing.assert_array_equal(w.pull(), [0.5, 0.75, 2.0])


def test_after_a_sparse_push_the_lane_holds_no_contribution(job: ps.Job) -> None:
    w = job.tensor("w", shape=4, filter=ps.Filters(push=_Written()))
    w.push(ps.Sparse([1], [2.0]))
    job.clock()
    with pytest.raises(OptionError, match="no contribution"):
        w.push()
    assert w.pull()[1] == 2


def test_a_mask_is_no_setting_that_can_be_compared(job: ps.Job) -> None:
    given = _Written()
    given.limits = np.ma.masked_array([1.0, 2.0], [True, False])  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="something that workers can compare"):
        job.tensor("w", shape=4, filter=ps.Filters(push=given))
