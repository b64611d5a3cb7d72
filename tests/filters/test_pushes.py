"""What a filter of pushes holds back, sends, and never loses."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import penstock as ps
from penstock.exceptions import AlreadyPushed, DeclarationConflict, OptionError

HERE = Path(__file__).parent


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_each_value_is_what_the_papers_equations_give_and_a_flush_sends_the_rest(transport: str) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "2", "--servers", "2"]
    command += ["--transport", transport, str(HERE / "train.py")]
    environment = {**os.environ, "PENSTOCK_CHUNK_BYTES": "4096"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("consistency", ["ssp:2", "asp"])
def test_nothing_is_lost_where_pushes_are_folded_one_by_one(spawn_job: Any, consistency: str) -> None:
    saved = spawn_job(
        3,
        f"""
        class Own(ps.OwnFilter):
            def send(self, due, clock):
                # More than is due of some, and less of others.
                return np.rint(due * np.where(np.arange(due.size) % 3 == clock % 3, 1.5, 0.25))

        given = {{"bounded": ps.DVF(5.0), "top": ps.TopK(0.05), "random": ps.RandomK(0.2, seed=3)}}
        given |= {{"two bits": ps.Quantize("2bit", threshold=4.0), "own": Own()}}
        draw = np.random.default_rng(7 + int(os.environ["PENSTOCK_RANK"]))
        with ps.init() as job:
            options = dict(shape=9000, reduce="sum", consistency={consistency!r})
            plain = job.tensor("plain", **options)
            tensors = [job.tensor(name, filter=ps.Filters(push=it), **options) for name, it in given.items()]
            for step in range(20):
                gradient = np.rint(draw.standard_normal(9000) * 4).astype(np.float32)
                for tensor in (plain, *tensors):
                    tensor.push(gradient)
                    tensor.pull()
                job.clock()
            held = [tensor.held_back.elements for tensor in tensors]
            for tensor in tensors:
                tensor.flush()
            job.barrier()
            values = [tensor.pull(slack=0).copy() for tensor in (plain, *tensors)]
            save(values=values, held=held)
        """,
    )
    for result in saved:
        assert all(result["held"] > 0)
        for value in result["values"][1:]:
            np.testing.assert_array_equal(value, result["values"][0])


@pytest.mark.parametrize("consistency", [ps.BSP(), ps.SSP(2), ps.ASP()])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_filter_that_holds_nothing_back_changes_no_bit(
    job: ps.Job, consistency: ps.consistency.Consistency, dtype: str
) -> None:
    given = [None, *map(_push, (ps.DVF(0.0), ps.DVF(0.0, relative=True), ps.TopK(1.0), ps.RandomK(1.0)))]
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
    assert tensors[1].held_back == (0.0, 0)
    assert tensors[1].flush() is None


def _push(given: ps.filters.Filter) -> ps.Filters:
    return ps.Filters(push=given)


@given(
    seed=st.integers(0, 2**32 - 1),
    low=st.floats(1e-3, 4.0),
    decay=st.sampled_from([None, "sqrt"]),
    steps=st.integers(1, 12),
)
@settings(max_examples=40, deadline=None)
def test_lemma_1_holds_with_a_constant_rate_and_a_rule_that_is_linear(
    seed: int, low: float, decay: str | None, steps: int
) -> None:
    """
    After the push of clock c the value is within rate x low_c x sqrt(d) of what it would be: what a worker
    holds back then is under that clock's bound, and all else has arrived.
    """
    rate, size = 0.25, 300
    draw = np.random.default_rng(seed)
    with ps.init(deadline=20) as job:
        options: dict[str, Any] = {"shape": size, "dtype": "float64"}
        plain = job.tensor("plain", optimizer=ps.SGD(rate), **options)
        filtered = job.tensor(
            "filtered",
            optimizer=ps.SGD(rate),
            filter=_push(ps.DVF(low, decay=decay)),
            **options,
        )
        for clock in range(steps):
            gradient = draw.standard_normal(size)
            plain.push(gradient)
            filtered.push(gradient)
            distance = np.linalg.norm(plain.pull() - filtered.pull())
            bound = low / np.sqrt(clock + 1) if decay else low
            assert distance <= rate * bound * np.sqrt(size) * (1 + 1e-9)
            job.clock()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_lemma_1_holds_for_several_workers_and_filters_of_both_directions(
    spawn_job: Any, transport: str
) -> None:
    """
    n workers that each hold back less than a bound of their pushes, and a home that holds back less than
    another of its value: rate x n x push x sqrt(d) + broadcast x sqrt(d).
    """
    results = spawn_job(
        3,
        """
        rate, size, steps = 0.25, 300, 10
        draw = np.random.default_rng(11)
        with ps.init() as job:
            within = []
            for number in range(12):
                push, broadcast = draw.uniform(1e-3, 3), draw.uniform(1e-3, 1)
                decay = "sqrt" if number % 2 else None
                options = {"shape": size, "dtype": "float64", "reduce": "sum", "optimizer": ps.SGD(rate)}
                both = ps.Filters(push=ps.DVF(push, decay=decay), broadcast=ps.DVF(broadcast, decay=decay))
                plain = job.tensor(f"plain {number}", **options)
                filtered = job.tensor(f"filtered {number}", filter=both, **options)
                own = np.random.default_rng([number, job.rank])
                for step in range(steps):
                    gradient = own.standard_normal(size)
                    plain.push(gradient)
                    filtered.push(gradient)
                    distance = np.linalg.norm(plain.pull() - filtered.pull())
                    clock = number * steps + step
                    shrinks = np.sqrt(clock + 1) if decay else 1.0
                    bound = (rate * job.size * push + broadcast) / shrinks * np.sqrt(size)
                    within.append((distance, bound))
                    job.clock()
            save(within=within)
        """,
        options={"transport": transport},
    )
    for saved in results:
        distances, bounds = np.array(saved["within"]).T
        assert (distances <= bounds * (1 + 1e-9)).all()
        # It is a bound that could be broken.
        assert distances.max() > 1


def test_a_rate_that_falls_at_the_home_breaks_the_bound(job: ps.Job) -> None:
    """As docs/filters.md says: what was computed at the high rate arrives at the low one."""
    options: dict[str, Any] = {"shape": 4, "dtype": "float64"}
    plain = job.tensor("plain", optimizer=ps.SGD(1.0), **options)
    filtered = job.tensor("filtered", optimizer=ps.SGD(1.0), filter=_push(ps.DVF(1.0, decay=None)), **options)
    for rate in (1.0, 0.1):
        for tensor in (plain, filtered):
            tensor.set_lr(rate)
            tensor.push(np.full(4, 0.75))
        job.clock()
    assert filtered.held_back.elements == 0
    np.testing.assert_allclose(plain.pull(), -0.825)
    np.testing.assert_allclose(filtered.pull(), -0.15)
    assert np.linalg.norm(plain.pull() - filtered.pull()) > 0.1 * 1.0 * np.sqrt(4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_rounding_cuts_off_of_half_precision_is_carried_too(job: ps.Job, dtype: str) -> None:
    w = job.tensor("w", shape=1, dtype=dtype, optimizer=ps.Replace(), filter=_push(ps.DVF(100.0, decay=None)))
    small = np.full(1, 0.1).astype(w.dtype)
    sent = 0.0
    for _ in range(5000):
        w.push(small)
        sent += float(w.pull()[0])
        job.clock()
    w.flush()
    sent += float(w.pull()[0])
    # Whatever a sum in the dtype itself would have come to: 0.1 is below the step of numbers near 100.
    assert sent == pytest.approx(5000 * float(small[0]), rel=2e-3)


def test_what_is_not_finite_is_sent_at_once(job: ps.Job) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.Replace(), filter=_push(ps.TopK(0.3)))
    w.push([np.nan, np.inf, 1e-3])
    np.testing.assert_array_equal(w.pull(), [np.nan, np.inf, 0])
    assert w.held_back.elements == 1


def test_a_push_that_is_refused_leaves_what_is_held_back_as_it_was(job: ps.Job) -> None:
    w = job.tensor("w", shape=4, refuse_nonfinite=True, filter=_push(ps.DVF(10.0)))
    w.push([1, 2, 3, 4])
    held = w.held_back
    for wrong in ([1, 2, 3], [1, np.nan, 3, 4], [1, 2, 3, 4]):
        with pytest.raises(ps.PenstockError):
            w.push(wrong)
        assert w.held_back == held
    with pytest.raises(AlreadyPushed):
        w.flush()
    assert w.held_back == held


def test_a_flush_sends_what_stands_in_the_lane_of_an_unfinished_contribution(job: ps.Job) -> None:
    w = job.tensor("w", shape=2, filter=_push(ps.DVF(10.0)))
    w.push([1, 1])
    job.clock()
    w.push([2, 0], more=True)
    assert w.flush() == 1
    np.testing.assert_array_equal(w.pull(), [3, 1])
    job.clock()
    assert w.flush() == 2
    np.testing.assert_array_equal(w.pull(), [3, 1])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ps.DVF(-1e-9), "a number of 0 or above for `low`, got -1e-09"),
        (lambda: ps.DVF(float("nan")), "a number of 0 or above for `low`, got nan"),
        (lambda: ps.DVF(10**400), "a number of 0 or above for `low`, got 1000"),
        (lambda: ps.DVF("1"), "a number of 0 or above for `low`, got '1'"),  # type: ignore[arg-type]
        (lambda: ps.DVF(1.0, decay="linear"), "\"sqrt\" or None for `decay`, got 'linear'"),
        (lambda: ps.TopK(0), "a number above 0 and at most 1 for `fraction`, got 0"),
        (lambda: ps.TopK(1.5), "a number above 0 and at most 1 for `fraction`, got 1.5"),
        (lambda: ps.RandomK(True), "a number above 0 and at most 1 for `fraction`, got True"),
        (lambda: ps.RandomK(0.5, -1), "a whole number from 0 to 2**53 - 1 for `seed`, got -1"),
        (lambda: ps.RandomK(0.5, 0.5), "2**53 - 1 for `seed`, got 0.5"),  # type: ignore[arg-type]
        (lambda: ps.Filters(push=0.1), "a filter for `push`, such as ps.DVF(low=1e-3), got 0.1"),  # type: ignore[arg-type]
    ],
)
def test_a_filter_that_cannot_be_is_refused_where_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(OptionError) as refused:
        make()
    assert said in str(refused.value)


def test_a_declaration_says_which_filter_it_cannot_have(job: ps.Job) -> None:
    with pytest.raises(OptionError, match="expected which direction is filtered") as refused:
        job.tensor("w", shape=3, filter=ps.TopK(0.5))  # type: ignore[arg-type]
    assert (
        refused.value.hint
        == "give filter=ps.Filters(push=ps.TopK(fraction=0.5)), or the same with `broadcast`"
    )
    with pytest.raises(OptionError, match=r"expected ps\.Filters or \"auto\" for `filter`, got 'dvf'"):
        job.tensor("w", shape=3, filter="dvf")  # type: ignore[arg-type]
    job.tensor("w", shape=3, filter=_push(ps.DVF(1.0)))
    with pytest.raises(DeclarationConflict, match="filter of contributions"):
        job.tensor("w", shape=3, filter=_push(ps.DVF(2.0)))


def test_workers_that_set_different_filters_are_told_what_differs(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        given = [ps.DVF(1.0), ps.TopK(0.5)]
        with ps.init() as job:
            ours = ps.Filters(push=given[job.rank])
            if job.rank == 1:
                job.barrier()
            try:
                job.tensor("w", shape=3, filter=ours)
                said = ""
            except ps.exceptions.DeclarationConflict as error:
                said = str(error)
            if job.rank == 0:
                job.barrier()
            save(said=said)
        """,
    )
    assert str(saved[0]["said"]) == ""
    said = str(saved[1]["said"])
    assert "DVF with low 1, decay 1, relative 0" in said, said
    assert "TopK with fraction 0.5" in said, said


@pytest.mark.parametrize("rounding", [0, 0x400, 0x800, 0xC00])
@pytest.mark.parametrize("given", [ps.TopK(0.35), ps.RandomK(0.35)])
def test_how_many_elements_are_sent_does_not_depend_on_the_processes_rounding(
    job: ps.Job, given: ps.TopK | ps.RandomK, rounding: int
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of the rounding modes are x86-64's")
    libm = ctypes.CDLL("libm.so.6")
    w = job.tensor("w", shape=10, optimizer=ps.Replace(), filter=_push(given))
    libm.fesetround(rounding)
    try:
        w.push(np.arange(1, 11, dtype=np.float32))
    finally:
        libm.fesetround(0)
    # 3.5 is 4, as everywhere.
    assert np.count_nonzero(w.pull()) == 4


# The process was aborted, after all servers had declared the tensor.
def test_a_carry_that_gets_no_memory_is_an_error_and_the_job_goes_on() -> None:
    code = """
    import resource
    import numpy as np
    import penstock as ps

    with ps.init() as job:
        w = job.tensor("w", shape=4)
        taken = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        # The tensor's memory fits, and not what is carried of it, which is twice as large.
        resource.setrlimit(resource.RLIMIT_AS, (int(taken.split()[1]) * 1024 + (300 << 20), hard))
        given = ps.Filters(push=ps.TopK(0.1))
        declare = lambda: job.tensor("x", shape=64 << 20, dtype="float16", filter=given)
        for _ in range(2):
            try:
                declare()
            except ps.PenstockError as error:
                assert "carries" in str(error), error
            else:
                raise AssertionError("it fits")
        w.push(np.ones(4, np.float32))
        assert w.pull().tolist() == [1, 1, 1, 1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        declare()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
