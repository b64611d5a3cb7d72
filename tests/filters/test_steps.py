"""`ps.Quantize` of broadcasts: what readers hold follows the value by numbers that take few bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference

import penstock as ps

ELEMENTS = 20_000
FORMS: dict[str, tuple[str, reference.Rounds]] = {
    "f16": ('"f16"', reference.half(np.float16)),
    "bf16": ('"bf16"', reference.half(ml_dtypes.bfloat16)),
    "int8": ('"int8"', reference.multiples),
    "2bit": ('"2bit", threshold=0.004', reference.thirds(float(np.float32(0.004)))),
    "1bit": ('"1bit"', reference.signs),
}
BYTES = {"f16": 0.65, "bf16": 0.65, "int8": 0.4, "2bit": 0.2, "1bit": 0.2}
"""Of what travels without a filter, pushes' acknowledgements and all, at most."""


def moved(rounds: reference.Rounds, value: reference.Array, held: reference.Array) -> reference.Array:
    """What readers hold next, of float32."""
    by = rounds(value - held)
    return np.where(by == 0, held, held + by)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("propagation", ["pull", "broadcast"])
def test_readers_hold_what_a_few_lines_of_numpy_say_and_the_rest_comes_with_a_flush(
    spawn_job: Any, transport: str, propagation: str, form: str
) -> None:
    given, rounds = FORMS[form]
    results = spawn_job(
        2,
        f"""
        with ps.init() as job:
            options = dict(shape={ELEMENTS}, optimizer=ps.Adam(0.01))
            few = ps.Filters(broadcast=ps.Quantize({given}))
            plain = job.tensor("plain", **options)
            stepped = job.tensor("stepped", filter=few, propagation={propagation!r}, **options)
            draw = np.random.default_rng(job.rank)
            seen, values, whole, bytes_of = [], [], [], []
            received = lambda: job.stats()["received_bytes"]
            for step in range(8):
                gradient = draw.standard_normal({ELEMENTS}).astype(np.float32)
                for tensor, into in ((plain, values), (stepped, seen)):
                    before = received()
                    tensor.push(gradient)
                    into.append(tensor.pull().copy())
                    bytes_of.append(received() - before)
                if step % 3 == 2:
                    whole.append(stepped.pull(exact=True).tobytes() == values[-1].tobytes())
                job.clock()
            stepped.flush()
            save(seen=seen, values=values, whole=whole, bytes_of=bytes_of, flushed=stepped.pull())
        """,
        options={"transport": transport, "chunk_bytes": "4KiB"},
    )
    for saved in results:
        held = np.zeros(ELEMENTS, np.float32)
        for value, seen in zip(saved["values"], saved["seen"], strict=True):
            before, held = held, moved(rounds, value, held)
            np.testing.assert_array_equal(seen, held)
            if form == "int8":
                largest = np.abs(value - before).max()
                assert 0 < np.abs(value - held).max() <= largest / 128 + 1e-6
        assert all(saved["whole"])
        np.testing.assert_array_equal(saved["flushed"], saved["values"][-1])
        if transport == "tcp" and propagation == "pull":
            # Of the first pull the worker has nothing to move from.
            dense, stepped = sum(saved["bytes_of"][2::2]), sum(saved["bytes_of"][3::2])
            assert stepped < BYTES[form] * dense


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("form", ["f16", "int8", "2bit"])
def test_it_goes_with_every_dtype_and_what_is_not_finite_comes_as_it_is(
    spawn_job: Any, transport: str, dtype: str, form: str
) -> None:
    # By thresholds of 2bit what is read may be off by one, and by what has come since.
    given, near = {"f16": ('"f16"', 0.2), "int8": ('"int8"', 0.2), "2bit": ('"2bit", threshold=2', 9)}[form]
    saved = spawn_job(
        2,
        f"""
        with ps.init() as job:
            few = ps.Filters(broadcast=ps.Quantize({given}))
            w = job.tensor("w", shape=3000, dtype={dtype!r}, reduce="sum", consistency="ssp:1", filter=few)
            draw = np.random.default_rng(job.rank)
            for step in range(6):
                w.push(draw.standard_normal(3000).astype(w.dtype))
                job.clock()
                w.pull()
            job.barrier()
            near = np.abs(w.pull(slack=0).astype(np.float64) - w.pull(exact=True, slack=0).astype(np.float64))
            job.barrier()
            if job.rank == 0:
                strange = np.zeros(3000, w.dtype)
                strange[[5, 2999]] = np.nan, np.inf
                w.push(strange)
            else:
                w.push(np.zeros(3000, w.dtype))
            job.clock()
            job.barrier()
            seen = np.array(w.pull(slack=0), np.float64)
            w.flush()
            save(near=near.max(), seen=seen, all=np.array(w.pull(slack=0), np.float64))
        """,
        options={"transport": transport, "chunk_bytes": "4KiB"},
    )
    for result in saved:
        assert result["near"] < near
        assert np.isnan(result["seen"][5])
        assert result["seen"][2999] == np.inf
        np.testing.assert_array_equal(result["all"], saved[0]["all"])
        finite = np.isfinite(result["all"])
        assert np.count_nonzero(~finite) == 2
        assert np.abs(result["seen"][finite] - result["all"][finite]).max() < near


def test_1bit_leaves_what_rests_as_a_whole_and_a_flush_brings_the_value(job: ps.Job) -> None:
    first = np.linspace(-1, 1, 3000, dtype=np.float32)
    w = job.tensor("w", value=first, filter=ps.Filters(broadcast=ps.Quantize("1bit")))
    w.push(np.zeros(3000, np.float32))
    np.testing.assert_array_equal(w.pull(), first)
    job.clock()
    change = np.zeros(3000, np.float32)
    change[7] = 10.24
    w.push(change)
    # Of the 1024 among which one has changed all move by the mean, and of the others none.
    by = np.abs(w.pull() - first)
    np.testing.assert_allclose(by[:1024], 0.01, rtol=1e-4)
    np.testing.assert_array_equal(by[1024:], 0)
    job.clock()
    w.flush()
    np.testing.assert_array_equal(w.pull(), first + change)
    job.clock()


def test_a_threshold_is_of_the_declaration_and_one_that_no_element_holds_is_refused(job: ps.Job) -> None:
    declare = lambda threshold: job.tensor(  # noqa: E731
        "w",
        shape=3,
        dtype="float16",
        filter=ps.Filters(broadcast=ps.Quantize("2bit", threshold=threshold)),
    )
    with pytest.raises(ps.exceptions.OptionError, match="a number above 0 that an element can hold"):
        declare(1e-30)
    declare(0.5)
    with pytest.raises(ps.exceptions.DeclarationConflict, match=r"Quantize 2bit with threshold 0\.5"):
        declare(0.25)
