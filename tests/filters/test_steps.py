"""`ps.Quantize("int8")` of broadcasts: what readers hold follows the value by steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference

import penstock as ps
from penstock.exceptions import OptionError

ELEMENTS = 20_000


def moved(value: reference.Array, held: reference.Array) -> reference.Array:
    """What readers hold next, of float32."""
    after = held.copy()
    for start in range(0, value.size, 256):
        part = slice(start, start + 256)
        difference = value[part] - held[part]
        if (largest := float(np.abs(difference).max())) > 0:
            step = np.float32(2.0 ** (np.floor(np.log2(largest)) - 6))
            steps = np.clip(np.rint(difference / step), -127, 127)
            after[part] = np.where(steps == 0, held[part], held[part] + steps * step)
    return after


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("propagation", ["pull", "broadcast"])
def test_readers_hold_what_a_few_lines_of_numpy_say_and_the_rest_comes_with_a_flush(
    spawn_job: Any, transport: str, propagation: str
) -> None:
    results = spawn_job(
        2,
        f"""
        with ps.init() as job:
            options = dict(shape={ELEMENTS}, optimizer=ps.Adam(0.01))
            few = ps.Filters(broadcast=ps.Quantize("int8"))
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
            before, held = held, moved(value, held)
            np.testing.assert_array_equal(seen, held)
            largest = np.abs(value - before).max()
            assert 0 < np.abs(value - held).max() <= largest / 128 + 1e-6
        assert all(saved["whole"])
        np.testing.assert_array_equal(saved["flushed"], saved["values"][-1])
        if transport == "tcp" and propagation == "pull":
            # Of the first pull the worker has nothing to move from.
            dense, stepped = sum(saved["bytes_of"][2::2]), sum(saved["bytes_of"][3::2])
            assert stepped < 0.4 * dense


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_it_goes_with_every_dtype_and_what_is_not_finite_comes_as_it_is(
    spawn_job: Any, transport: str, dtype: str
) -> None:
    saved = spawn_job(
        2,
        f"""
        with ps.init() as job:
            few = ps.Filters(broadcast=ps.Quantize("int8"))
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
        assert result["near"] < 0.2
        assert np.isnan(result["seen"][5])
        assert result["seen"][2999] == np.inf
        np.testing.assert_array_equal(result["all"], saved[0]["all"])
        finite = np.isfinite(result["all"])
        assert np.count_nonzero(~finite) == 2
        assert np.abs(result["seen"][finite] - result["all"][finite]).max() < 0.2


@pytest.mark.parametrize("form", ["f16", "bf16", "2bit", "1bit"])
def test_other_forms_of_broadcasts_are_refused(form: str) -> None:
    with pytest.raises(OptionError, match=r'ps\.Quantize\("int8"\), for `broadcast`, got Quantize\(form='):
        ps.Filters(broadcast=ps.Quantize(form))
