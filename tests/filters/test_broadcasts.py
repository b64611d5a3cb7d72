"""What a filter of broadcasts lets readers see, holds back, and never loses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import DeclarationConflict, OptionError, SettingsError

HERE = Path(__file__).parent


def _broadcast(given: ps.filters.Filter) -> ps.Filters:
    return ps.Filters(broadcast=given)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_each_worker_reads_what_the_papers_equations_let_pass_and_a_flush_lets_pass_the_rest(
    transport: str,
) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "2", "--servers", "2"]
    command += ["--transport", transport, str(HERE / "read.py")]
    environment = {**os.environ, "PENSTOCK_CHUNK_BYTES": "4096"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_a_flush_is_exact_under_every_consistency_whichever_way_values_travel(
    spawn_job: Any, consistency: str
) -> None:
    for transport in ("auto", "tcp"):
        saved = spawn_job(
            3,
            f"""
            given = {{"bounded": ps.DVF(9.0), "top": ps.TopK(0.05), "random": ps.RandomK(0.2, seed=3)}}
            draw = np.random.default_rng(7 + int(os.environ["PENSTOCK_RANK"]))
            with ps.init() as job:
                options = dict(shape=9000, reduce="sum", consistency={consistency!r})
                plain = job.tensor("plain", **options)
                tensors = [
                    job.tensor(name, filter=ps.Filters(broadcast=it), **options) for name, it in given.items()
                ]
                behind, flushed = [], []
                for step in range(12):
                    gradient = np.rint(draw.standard_normal(9000) * 4).astype(np.float32)
                    for tensor in (plain, *tensors):
                        tensor.push(gradient)
                        tensor.pull()
                    job.clock()
                    if step % 5 == 4:
                        job.barrier()
                        now = plain.pull(slack=0).copy()
                        behind.append([np.count_nonzero(it.pull(slack=0) != now) for it in tensors])
                        whole = [it.pull(exact=True, slack=0) for it in tensors]
                        for tensor in tensors:
                            assert tensor.flush() is None
                        flushed.append([now, *whole, *(it.pull(slack=0).copy() for it in tensors)])
                        job.barrier()
                save(behind=behind, flushed=flushed)
            """,
            options={"transport": transport, "chunk_bytes": "4KiB"},
        )
        for result in saved:
            assert np.all(result["behind"] > 0), "the filters hold something back"
            for values in result["flushed"]:
                for value in values[1:]:
                    np.testing.assert_array_equal(value, values[0])
        for at in range(2):
            first = saved[0]["flushed"][at]
            assert all(np.array_equal(result["flushed"][at], first) for result in saved)


@pytest.mark.parametrize("consistency", [ps.BSP(), ps.SSP(2), ps.ASP()])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_filter_of_broadcasts_that_holds_nothing_back_changes_no_bit(
    job: ps.Job, consistency: ps.consistency.Consistency, dtype: str
) -> None:
    given = [None, *map(_broadcast, (ps.DVF(0.0), ps.DVF(0, relative=True), ps.TopK(1.0), ps.RandomK(1.0)))]
    tensors = [
        job.tensor(
            f"w{at}", shape=500, dtype=dtype, optimizer=ps.Adam(lr=0.1), consistency=consistency, filter=it
        )
        for at, it in enumerate(given)
    ]
    draw = np.random.default_rng(5)
    for _ in range(5):
        gradient = draw.standard_normal(500).astype(tensors[0].dtype)
        gradient[::7] = -0.0
        for tensor in tensors:
            tensor.push(gradient)
        job.clock()
        values = [tensor.pull(slack=0).tobytes() for tensor in tensors]
        assert values == [values[0]] * len(values)
    assert tensors[1].flush() is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("given", [ps.DVF(0.5, relative=True), ps.TopK(0.1), ps.RandomK(0.1, seed=2)])
def test_the_rule_goes_on_from_the_value_itself_whatever_readers_see_of_it(
    job: ps.Job, dtype: str, given: ps.filters.Filter
) -> None:
    # An odd number of elements: the last chunk is short, and so is what stands beside it.
    size = 40001
    options: dict[str, Any] = {"shape": size, "dtype": dtype, "optimizer": ps.SGD(0.1, momentum=0.9)}
    plain = job.tensor("plain", **options)
    quiet = job.tensor("quiet", filter=_broadcast(given), **options)
    draw = np.random.default_rng(3)
    seen = np.zeros(size, plain.dtype)
    for _ in range(4):
        gradient = draw.standard_normal(size).astype(plain.dtype)
        plain.push(gradient)
        quiet.push(gradient)
        now, before, seen = plain.pull().copy(), seen, quiet.pull().copy()
        assert quiet.pull(exact=True).tobytes() == now.tobytes()
        # New values, bit for bit, and some of them.
        width = f"u{now.itemsize}"
        passed = seen.view(width) == now.view(width)
        assert np.all(passed | (seen.view(width) == before.view(width)))
        assert 0 < np.count_nonzero(passed) < size
        job.clock()
    for name, array in plain.optimizer_state().items():
        assert quiet.optimizer_state()[name].tobytes() == array.tobytes(), name
    out = np.empty(size, plain.dtype)
    assert quiet.pull(out, exact=True) is out
    quiet.flush()
    assert quiet.pull().tobytes() == out.tobytes() == plain.pull().tobytes()


def test_a_bound_is_for_changes_and_not_for_the_first_value_or_for_one_that_is_loaded(job: ps.Job) -> None:
    first = np.array([1e-3, -0.0, 1e-9], np.float32)
    w = job.tensor("w", value=first, filter=_broadcast(ps.DVF(10.0, decay=None)))
    assert w.pull().tobytes() == first.tobytes()
    w.push([1, 2, 3])
    assert w.pull().tobytes() == first.tobytes()
    loaded = np.array([5, -0.0, 7], np.float32)
    w.load(value=loaded)
    assert w.pull().tobytes() == w.pull(exact=True).tobytes() == loaded.tobytes()
    job.clock()
    # What was held back before is gone with the value that it was of.
    w.push([20, 0, 1])
    np.testing.assert_array_equal(w.pull(), [25, 0, 7])
    # A load of steps alone leaves the value as it is, and not as it is seen.
    w.load(step=5)
    np.testing.assert_array_equal(w.pull(exact=True), [25, 0, 8])


def test_what_is_not_finite_is_seen_at_once_and_so_is_what_follows_it(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, filter=_broadcast(ps.TopK(0.3)))
    w.push([np.nan, np.inf, 1e-3])
    np.testing.assert_array_equal(w.pull(), [np.nan, np.inf, 0])
    w.load(value=np.zeros(3, np.float32))
    np.testing.assert_array_equal(w.pull(), [0, 0, 0])


def test_a_sign_of_zero_is_held_back_like_any_difference_and_not_lost(job: ps.Job) -> None:
    first = np.array([-0.0, 1.0], np.float32)
    w = job.tensor("w", value=first, filter=_broadcast(ps.DVF(0.5, decay=None)))
    w.push([0.0, 0.0])
    assert w.pull().tobytes() == first.tobytes()
    assert not np.signbit(w.pull(exact=True)).any()
    w.flush()
    assert not np.signbit(w.pull()).any()


def test_a_bound_shrinks_with_the_version_so_that_a_still_value_comes_through(job: ps.Job) -> None:
    w = job.tensor("w", shape=1, filter=_broadcast(ps.DVF(4.0)))
    seen = []
    for step in range(17):
        w.push([1.5 if step == 0 else 0.0])
        seen.append(float(w.pull()[0]))
        job.clock()
    # 4 / sqrt(8) is less than 1.5, and 4 / sqrt(7) is not.
    assert seen == [0.0] * 7 + [1.5] * 10


def test_a_filter_of_broadcasts_is_refused_where_values_are_replaced(job: ps.Job) -> None:
    with pytest.raises(SettingsError, match="each contribution replaces the value"):
        job.tensor("w", shape=3, optimizer=ps.Replace(), filter=_broadcast(ps.TopK(0.5)))
    w = job.tensor("w", shape=3, optimizer=ps.Replace(), filter=_broadcast(ps.TopK(1.0)))
    np.testing.assert_array_equal(w.pushpull([1, 2, 3]), [1, 2, 3])


def test_a_filter_of_broadcasts_that_cannot_be_or_that_differs_is_refused(job: ps.Job) -> None:
    with pytest.raises(
        OptionError, match=r"a filter for `broadcast`, such as ps\.DVF\(low=1e-3\), got 'all'"
    ):
        ps.Filters(broadcast="all")  # type: ignore[arg-type]
    job.tensor("w", shape=3, filter=_broadcast(ps.DVF(1.0)))
    for other in (None, _broadcast(ps.DVF(2.0)), ps.Filters(push=ps.DVF(1.0))):
        with pytest.raises(DeclarationConflict, match="filter of values") as refused:
            job.tensor("w", shape=3, filter=other)
        assert "DVF with low 1, decay 1, relative 0" in str(refused.value)


def test_who_comes_late_reads_what_the_others_read(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            given = ps.Filters(broadcast=ps.TopK(0.1))
            declare = lambda: job.tensor("w", shape=5000, consistency="asp", reduce="sum", filter=given)
            if job.rank == 0:
                w = declare()
                for step in range(5):
                    w.push(np.random.default_rng(step).standard_normal(5000).astype(np.float32))
                    w.pull(slack=9)
                    job.clock()
            job.barrier()
            w = declare()
            save(seen=w.pull(slack=9), exact=w.pull(exact=True, slack=9))
            job.barrier()
        """,
        options={"transport": "tcp"},
    )
    assert saved[0]["seen"].tobytes() == saved[1]["seen"].tobytes()
    assert saved[0]["exact"].tobytes() == saved[1]["exact"].tobytes()
    assert saved[0]["seen"].tobytes() != saved[0]["exact"].tobytes()


def test_a_flush_that_not_every_worker_makes_is_told_of_and_changes_nothing(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=2, reduce="sum", filter=ps.Filters(broadcast=ps.DVF(9.0)))
            w.push([1, 2])
            before = w.pull().copy()
            job.clock()
            said = ""
            if job.rank == 0:
                try:
                    w.flush(timeout=0.3)
                except ps.exceptions.BarrierTimeout as error:
                    said = str(error)
            job.barrier()
            between = w.pull().copy()
            w.flush()
            save(before=before, between=between, after=w.pull(), said=said)
            job.barrier()
        """,
    )
    assert "flush of `w`" in str(saved[0]["said"])
    for result in saved:
        np.testing.assert_array_equal(result["before"], [0, 0])
        np.testing.assert_array_equal(result["between"], [0, 0])
        np.testing.assert_array_equal(result["after"], [2, 4])


def test_a_flush_that_was_refused_is_not_taken_for_one_that_was_made(job: ps.Job) -> None:
    """The second said that all was sent, and had sent nothing."""
    both = ps.Filters(push=ps.DVF(10.0), broadcast=ps.DVF(10.0))
    w = job.tensor("w", shape=4, reduce="sum", filter=both)
    w.push([1, 2, 3, 4])
    for _ in range(2):
        with pytest.raises(ps.exceptions.AlreadyPushed):
            w.flush()
        assert w.held_back.elements == 4
    job.clock()
    # In one iteration all behind the first send nothing more.
    assert [w.flush(), w.flush()] == [1, 1]
    assert w.held_back.elements == 0
    np.testing.assert_array_equal(w.pull(), [1, 2, 3, 4])
    with pytest.raises(ps.exceptions.AlreadyPushed):
        w.push([1, 1, 1, 1])
