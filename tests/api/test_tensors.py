"""Tensors of one worker: shapes, element types, what comes in and goes out, and whose memory it is."""

from __future__ import annotations

import array
import math
import threading
from concurrent.futures import CancelledError
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import penstock as ps

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# One element, odd, exactly one chunk of 32 KiB, one element more, several chunks, and a scalar.
SHAPES = [(), (1,), (7,), (3, 5, 7), (8192,), (8193,), (101, 1009)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_value_comes_back_as_it_was_given_and_changes_by_what_is_pushed(
    job: ps.Job, shape: tuple[int, ...], dtype: str
) -> None:
    value = (np.arange(math.prod(shape)) % 64).astype(DTYPES[dtype]).reshape(shape)
    w = job.tensor("w", value)
    assert (w.shape, w.dtype, w.nbytes, w.version) == (shape, value.dtype, value.nbytes, 0)
    np.testing.assert_array_equal(w.pull(), value)
    assert w.push(np.ones_like(value)) == 0
    assert job.clock() == 1
    np.testing.assert_array_equal(w.pull(), (value + 1).astype(value.dtype))
    assert (w.version, w.staleness) == (1, 0)


def test_a_tensor_declared_by_shape_alone_is_float32_and_zero(job: ps.Job) -> None:
    w = job.tensor("w", shape=(2, 3))
    assert w.dtype == np.float32
    np.testing.assert_array_equal(w.pull(), np.zeros((2, 3), np.float32))


def test_plain_numbers_are_float32_and_converted_when_pushed(job: ps.Job) -> None:
    w = job.tensor("w", [[1, 2], [3, 4]])
    assert w.dtype == np.float32
    w.push([[1, 1], [1, 0.5]])
    np.testing.assert_array_equal(w.pull(), [[2, 3], [4, 4.5]])


def test_a_list_of_arrays_keeps_their_element_type(job: ps.Job) -> None:
    assert job.tensor("w", [np.zeros(2), np.ones(2)]).dtype == np.float64
    v = job.tensor("v", shape=(2, 2))
    with pytest.raises(ps.exceptions.DtypeError, match="has dtype float32, got float64") as caught:
        v.push([np.zeros(2), np.ones(2)])
    assert caught.value.hint == "convert it: `numpy.array(x, 'float32')`"
    v.push([np.zeros(2, np.float32), np.ones(2, np.float32)])


def test_a_number_that_is_too_large_is_refused_and_does_not_become_infinite(job: ps.Job) -> None:
    with pytest.raises(ps.exceptions.DtypeError, match=r"which cannot hold 1e\+300"):
        job.tensor("w", [1.0, 1e300])
    w = job.tensor("w", shape=2)
    with pytest.raises(ps.exceptions.DtypeError, match=r"which cannot hold 1e\+300"):
        w.push([1.0, 1e300])


@pytest.mark.parametrize("value", [np.zeros(3, "V4"), np.zeros(3, [("a", "f4"), ("b", "f4")])])
def test_what_holds_no_numbers_is_refused_as_a_value(job: ps.Job, value: Any) -> None:
    for dtype in (None, "float32"):
        with pytest.raises(ps.exceptions.DtypeError):
            job.tensor("w", value, dtype=dtype)


def test_a_dtype_that_is_named_converts_the_value(job: ps.Job) -> None:
    assert job.tensor("w", np.arange(3), dtype="float64").dtype == np.float64
    assert job.tensor("v", np.ones(3), dtype=ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


def test_an_array_that_is_not_contiguous_is_pushed_by_its_elements(job: ps.Job) -> None:
    w = job.tensor("w", shape=(3, 4))
    gradient = np.arange(12, dtype=np.float32).reshape(4, 3).T
    w.push(gradient)
    np.testing.assert_array_equal(w.pull(), gradient)


def test_anything_with_a_buffer_comes_in(job: ps.Job) -> None:
    w = job.tensor("w", array.array("f", [1, 2, 3]))
    w.push(memoryview(np.ones(3, np.float32)))
    np.testing.assert_array_equal(w.pull(), [2, 3, 4])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pull_without_out_is_read_only(job: ps.Job, dtype: str) -> None:
    w = job.tensor("w", shape=5, dtype=dtype)
    for view in (
        w.pull(),
        w.pull(slack=0),
        job.tensor("v", shape=5, dtype=dtype, consistency=ps.ASP()).pull(),
    ):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_a_pull_under_bsp_shows_the_servers_own_memory(job: ps.Job) -> None:
    w = job.tensor("w", shape=5)
    before = w.pull()
    address = before.__array_interface__["data"][0]
    w.pushpull(np.ones(5, np.float32))
    assert w.pull().__array_interface__["data"][0] == address
    np.testing.assert_array_equal(before, np.ones(5))


def test_a_pull_under_ssp_stands_still_until_the_next_pull(job: ps.Job) -> None:
    w = job.tensor("w", shape=5, consistency=ps.SSP(2))
    before = w.pull()
    w.push(np.ones(5, np.float32))
    job.clock()
    job.barrier()
    np.testing.assert_array_equal(before, np.zeros(5))
    np.testing.assert_array_equal(w.pull(), np.ones(5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("consistency", ["bsp", "ssp:1", "asp"])
def test_a_pull_fills_the_array_it_is_given(job: ps.Job, dtype: str, consistency: str) -> None:
    value = np.arange(9000).astype(DTYPES[dtype])
    w = job.tensor("w", value, consistency=consistency)
    out = np.zeros_like(value)
    assert w.pull(out=out) is out
    np.testing.assert_array_equal(out, value)


def test_the_lane_is_this_workers_own_memory_and_pushing_it_moves_no_byte(job: ps.Job) -> None:
    w = job.tensor("w", shape=(2, 4))
    lane = w.lane()
    assert lane is w.lane()
    assert lane.flags.writeable
    assert (lane.shape, lane.dtype) == (w.shape, w.dtype)
    lane[:] = 2
    w.push()
    job.clock()
    np.testing.assert_array_equal(w.pull(), np.full((2, 4), 2))
    w.lane()[:] = 3
    w.push(lane)
    job.clock()
    np.testing.assert_array_equal(w.pull(), np.full((2, 4), 5))
    w.lane()[:] = 4
    w.push(lane[...])  # another object over the same memory
    job.clock()
    np.testing.assert_array_equal(w.pull(), np.full((2, 4), 9))


def test_contributions_marked_more_are_added_and_sent_as_one(job: ps.Job) -> None:
    w = job.tensor("w", shape=3)
    for _ in range(3):
        assert w.push(np.ones(3, np.float32), more=True) == 0
    w.push(np.full(3, 10, np.float32))
    np.testing.assert_array_equal(w.pull(), np.full(3, 13))
    assert job.stats()["pushes"] == 1


def test_a_pushpull_reads_its_own_contribution(job: ps.Job) -> None:
    for consistency in ("bsp", "ssp:3", "asp"):
        w = job.tensor(consistency, shape=3, consistency=consistency)
        np.testing.assert_array_equal(w.pushpull(np.ones(3, np.float32)), np.ones(3))
    out = np.empty(3, np.float32)
    v = job.tensor("v", shape=3)
    assert v.pushpull(np.ones(3, np.float32), out) is out
    np.testing.assert_array_equal(out, np.ones(3))


def test_asynchronous_calls_run_in_order_and_carry_the_iteration_they_were_made_in(job: ps.Job) -> None:
    w = job.tensor("w", shape=30_000)
    one = np.ones(30_000, np.float32)
    stamps = []
    for _ in range(20):
        stamps.append(w.push_async(one))
        job.clock()
    assert [stamp.result(10) for stamp in stamps] == list(range(20))
    value = w.pushpull_async(one)
    out = np.empty_like(one)
    assert w.pull_async(out).result(10) is out
    assert value.result(10)[0] == 21 == out[0]


def test_an_asynchronous_push_takes_the_settings_of_its_call_and_lane_and_load_wait_for_it(
    job: ps.Job,
) -> None:
    """They were those of the moment when the job's thread came to it; the next filling was folded instead."""
    go_on = threading.Event()
    w = job.tensor("w", shape=4, optimizer=ps.SGD(1.0))
    job._submit(go_on.wait)  # the calls that follow stand in line
    one = np.ones(4, np.float32)
    first = w.push_async(one)
    w.set_lr(100.0)
    go_on.set()
    job.clock()
    assert first.result(10) == 0
    np.testing.assert_array_equal(w.pull(), -one)

    go_on.clear()
    w.set_lr(1.0)
    job._submit(go_on.wait)
    w.lane()[:] = 1
    w.push_async()
    threading.Timer(0.1, go_on.set).start()
    w.lane()[:] = 100
    job.clock()
    np.testing.assert_array_equal(w.pull(), -2 * one)

    go_on.clear()
    job._submit(go_on.wait)
    w.push_async(one)
    threading.Timer(0.1, go_on.set).start()
    w.load(7 * one)
    job.clock()
    np.testing.assert_array_equal(w.pull(), 7 * one)


def test_a_future_can_be_cancelled_and_its_callback_may_ask_for_the_result(job: ps.Job) -> None:
    go_on, found = threading.Event(), []
    job._submit(go_on.wait)
    sent = job.tensor("w", shape=3).push_async(np.ones(3, np.float32))
    sent.add_done_callback(lambda future: found.append(future.result()))
    cancelled = job.tensor("v", shape=3).push_async(np.ones(3, np.float32))
    assert cancelled.cancel()
    with pytest.raises(TimeoutError):
        sent.result(0.01)
    go_on.set()
    job.clock()
    assert sent.done()
    assert sent.exception() is None
    with pytest.raises(CancelledError):
        cancelled.result()
    assert job.tensor("v", shape=3).pull().tolist() == [0, 0, 0]
    # Behind the callback.
    job._submit(int).result(10)
    assert found == [0]


def test_an_asynchronous_push_that_fails_tells_its_future_and_the_clock(job: ps.Job) -> None:
    w = job.tensor("w", shape=3)
    future = w.push_async(np.ones(4, np.float32))
    with pytest.raises(ps.exceptions.ShapeError):
        job.clock()
    assert isinstance(future.exception(), ps.exceptions.ShapeError)
    assert job.clock() == 1, "the iteration was not completed by the failed call"


def test_the_clock_tells_of_each_asynchronous_push_that_failed(job: ps.Job) -> None:
    """It told of the first. The iteration was then completed without what the others had to contribute."""
    for name in ("a", "b", "c"):
        job.tensor(name, shape=3).push_async(np.ones(3 if name == "b" else 4, np.float32))
    for name in ("a", "c"):
        with pytest.raises(ps.exceptions.ShapeError, match=f"`{name}`"):
            job.clock()
    assert job.clock() == 1


def test_the_learning_rate_of_a_push_is_the_one_it_was_made_with(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.SGD(1.0))
    one = np.ones(3, np.float32)
    for lr, expected in [(1.0, -1), (0.5, -1.5), (2.0, -3.5)]:
        w.set_lr(lr)
        w.push(one)
        w.optimizer.lr = 1000.0  # too late for the push above
        job.clock()
        np.testing.assert_array_equal(w.pull(), np.full(3, expected, np.float32))


def test_a_tensor_keeps_its_own_copy_of_its_optimizer(job: ps.Job) -> None:
    sgd = ps.SGD(0.5)
    a, b = job.tensor("a", shape=3, optimizer=sgd), job.tensor("b", shape=3, optimizer=sgd)
    a.set_lr(0.25)
    assert (a.optimizer.lr, b.optimizer.lr, sgd.lr) == (0.25, 0.5, 0.5)


def test_gradients_are_rescaled_then_clipped(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, rescale=0.5, clip=2.0)
    w.push(np.array([1, -100, 6], np.float32))
    np.testing.assert_array_equal(w.pull(), [0.5, -2, 2])


def test_replace_keeps_the_last_contribution(job: ps.Job) -> None:
    w = job.tensor("w", shape=2, optimizer=ps.Replace())
    for value in ([1, 2], [3, 4]):
        w.push(value)
        job.clock()
    np.testing.assert_array_equal(w.pull(), [3, 4])


def test_an_array_that_another_thread_writes_meanwhile_is_read_and_written_element_by_element(
    job: ps.Job,
) -> None:
    # Every byte of the one differs from the same byte of the others.
    first, second, third = np.array([0x3E8CA53B, 0xC1735AC4, 0x40B1F0D6], np.uint32).view(np.float32)
    shared = np.full(1_000_001, first)
    w = job.tensor("w", value=shared, optimizer=ps.Replace())
    still = job.tensor("still", value=np.full_like(shared, third))
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            shared.fill(second)
            shared.fill(first)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        rounds, mixed = 0, 0
        while (rounds < 20 or mixed == 0) and rounds < 2_000:
            w.push(shared)
            job.clock()
            pushed = w.pull()
            assert np.isin(pushed, [first, second, third]).all()
            mixed += (pushed != pushed[0]).any()
            still.pull(out=shared)
            assert np.isin(shared.copy(), [first, second, third]).all()
            rounds += 1
    finally:
        stop.set()
        thread.join()
    assert mixed > 0, "no push met the other thread inside"


def test_an_optimizers_state_can_be_read_and_put_back(job: ps.Job) -> None:
    rng = np.random.default_rng(0)
    a = job.tensor("a", shape=9000, optimizer=ps.Adam(amsgrad=True))
    for _ in range(3):
        a.push(rng.standard_normal(9000, np.float32))
        job.clock()
    state = a.optimizer_state()
    assert set(state) == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}
    assert int(state["step"]) == 3
    b = job.tensor("b", shape=9000, optimizer=ps.Adam(amsgrad=True))
    b.load(a.pull(), state)
    gradient = rng.standard_normal(9000, np.float32)
    np.testing.assert_array_equal(b.pushpull(gradient), a.pushpull(gradient))
    assert int(b.optimizer_state()["step"]) == 4


# The server was asked before it had heard.
def test_a_workers_own_clock_is_what_it_is_now(job: ps.Job) -> None:
    job.table("rows", rows=2, width=4)
    for _ in range(200):
        assert [job.clock()] == job.clocks()


# Each was taken for something that waits, for good, of which a worker may have 256.
def test_any_number_of_tensors_is_loaded_one_by_one(job: ps.Job) -> None:
    for number in range(600):
        w = job.tensor(f"w{number}", shape=2)
        w.load(value=np.full(2, number, np.float32))
        assert w.pull().tolist() == [number, number]
    assert job.clocks() == [0]
    job.tensor("large", shape=8 << 20)
    job.table("rows", rows=2, width=4)


def test_a_load_of_the_value_alone_leaves_the_state(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.SGD(1.0, momentum=0.5))
    w.pushpull([1, 1, 1])
    job.clock()
    w.load(value=[7, 8, 9])
    np.testing.assert_array_equal(w.pull(), [7, 8, 9])
    state = w.optimizer_state()
    np.testing.assert_array_equal(state["momentum_buffer"], np.ones(3))
    assert int(state["step"]) == 1
    with pytest.raises(ps.exceptions.SettingsError, match="momentum_buffer"):
        w.load(state={"exp_avg": np.zeros(3, np.float32)})


@pytest.mark.parametrize("timeout", [0.0, 0.001, 0.005, 0.01, 0.02, 0.05])
def test_a_load_in_too_little_time_is_whole_or_changes_nothing(job: ps.Job, timeout: float) -> None:
    # It left the new value beside the old state, and said that the servers had not taken what they had.
    n = 2_000_000
    w = job.tensor("w", shape=n, optimizer=ps.Adam())
    w.pushpull(np.ones(n, np.float32))
    state = w.optimizer_state()
    new = {name: np.full(n, 7, np.float32) for name in state if name != "step"}
    try:
        w.load(np.full(n, 5, np.float32), new, step=9, timeout=timeout)
    except ps.exceptions.BarrierTimeout:
        np.testing.assert_equal(w.optimizer_state(), state)
        return
    np.testing.assert_array_equal(w.pull(), np.full(n, 5))
    np.testing.assert_equal(w.optimizer_state(), {**new, "step": np.asarray(9)})


def test_a_tensor_speaks_numpy_and_dlpack(job: ps.Job) -> None:
    w = job.tensor("w", [1.0, 2.0])
    copy = np.asarray(w)
    np.testing.assert_array_equal(copy, [1, 2])
    assert copy.flags.writeable
    np.testing.assert_array_equal(np.from_dlpack(w), [1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_come_in_and_go_out(job: ps.Job, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    w = job.tensor("w", torch.arange(6, dtype=kind).reshape(2, 3))
    assert w.dtype == DTYPES[dtype]
    w.push(torch.ones(3, 2, dtype=kind, requires_grad=True).T)
    out = torch.zeros(2, 3, dtype=kind)
    w.pull(out=out)
    assert torch.equal(out, torch.arange(1, 7, dtype=kind).reshape(2, 3))
    if dtype != "bfloat16":  # NumPy cannot export it
        assert torch.equal(torch.from_dlpack(w), out)
    assert job.tensor("v", shape=2, dtype=kind).dtype == w.dtype
    with pytest.raises(ps.exceptions.ShapeError, match="contiguous"):
        w.pull(out=torch.zeros(3, 2, dtype=kind).T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_arrays_come_in(job: ps.Job, dtype: str) -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    jnp = jax.numpy
    w = job.tensor("w", jnp.ones(3, dtype="float32"), dtype=dtype)
    w.push(jnp.asarray(np.ones(3, np.float32)).astype(dtype))
    np.testing.assert_array_equal(w.pull().astype(np.float32), np.full(3, 2))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_pushed_is_what_is_added_for_any_shape_and_dtype(job: ps.Job, data: Any) -> None:
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.float16]))
    shape = data.draw(arrays.array_shapes(max_dims=4, max_side=16))
    # Whole numbers: every sum is exact, in every order.
    numbers = st.integers(-500, 500).map(float)
    value = data.draw(arrays.arrays(dtype, shape, elements=numbers))
    pushed = data.draw(st.lists(arrays.arrays(dtype, shape, elements=numbers, fill=numbers), max_size=3))
    w = job.tensor(
        f"w{len(job._tensors)}", value, consistency=data.draw(st.sampled_from(["bsp", "ssp:2", "asp"]))
    )
    for contribution in pushed:
        w.push(contribution)
        job.clock()
    np.testing.assert_array_equal(w.pull(), value + sum(pushed, np.zeros(shape, dtype)))


@pytest.mark.parametrize("consistency", ["ssp:0", "ssp:4", "asp"])
def test_a_mean_that_replaces_the_value_needs_all_contributions_together(
    job: ps.Job, consistency: str
) -> None:
    with pytest.raises(
        ps.exceptions.SettingsError, match="expected bsp where contributions replace the value"
    ):
        job.tensor("w", shape=2, optimizer=ps.Replace(), consistency=consistency)
    w = job.tensor("w", shape=2, optimizer=ps.Replace(), consistency=consistency, reduce="sum")
    w.push(np.full(2, 3, np.float32))
    job.clock()
    assert w.pull(slack=0).tolist() == [3, 3]
