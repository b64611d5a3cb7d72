"""Pushes in fewer bits: what arrives, what it takes on the wire, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import DeclarationConflict, OptionError

HERE = Path(__file__).parent
FORMS = ("f16", "bf16", "int8", "2bit", "1bit")


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_each_value_is_what_the_forms_give_and_a_flush_sends_the_rest(transport: str) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "2", "--servers", "2"]
    command += ["--transport", transport, str(HERE / "quantize.py")]
    environment = {**os.environ, "PENSTOCK_CHUNK_BYTES": "4096"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_push_takes_as_many_bytes_between_hosts_as_its_form_has_bits() -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "1", "--transport", "tcp"]
    command += [str(HERE / "sent.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if "taken" in line)
    found = json.loads(line[line.index("{") :])
    bits = {"f16": 16, "bf16": 16, "int8": 8, "2bit": 2, "1bit": 1}
    assert {dtype: len(of) for dtype, of in found["taken"].items()} == {
        "float32": 5,
        "float64": 5,
        "float16": 3,
        "bfloat16": 3,
    }
    # The kernel may not have sent all of it yet.
    assert 0.99 * found["told"] <= found["sent"] <= found["told"]
    assert found["received"] > found["told"], "values come back in full"
    sizes = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
    for dtype, of in found["taken"].items():
        # Of 32 KiB each: a header, the steps or magnitudes, and what worker and server tell each other of it.
        # And signs of life, which are more on a busy machine.
        beside = 300 * found["elements"] * sizes[dtype] / (32 << 10) + 16384
        for form, taken in of.items():
            numbers = found["elements"] * bits[form] / 8
            assert numbers <= taken <= numbers + beside, (dtype, form)


def test_a_number_that_has_no_such_form_goes_as_it_is(job: ps.Job) -> None:
    for form in FORMS:
        w = job.tensor(form, shape=3, optimizer=ps.Replace(), filter=_push(ps.Quantize(form)))
        w.push([np.nan, -np.inf, 0.25])
        value = w.pull().copy()
        assert np.isnan(value[0]), form
        assert value[1] == -np.inf, form
        job.clock()
        w.flush()
        # What was sent of the third, and what is sent of it now.
        rest = w.pull()
        np.testing.assert_allclose([rest[0], rest[1], rest[2] + value[2]], [0, 0, 0.25], rtol=1e-6)


def test_halves_are_left_as_they_are_in_a_model_of_several_dtypes(job: ps.Job) -> None:
    for form in ("f16", "bf16"):
        for dtype in ("float16", "bfloat16"):
            w = job.tensor(
                f"{form} {dtype}",
                shape=3,
                dtype=dtype,
                optimizer=ps.Replace(),
                filter=_push(ps.Quantize(form)),
            )
            w.push(np.array([0.1, 65504, 1e-7]).astype(w.dtype))
            np.testing.assert_array_equal(w.pull(), np.array([0.1, 65504, 1e-7]).astype(w.dtype))
            assert w.held_back == (0.0, 0)


@pytest.mark.parametrize("form", FORMS)
def test_training_ends_where_it_would_without(job: ps.Job, form: str) -> None:
    """Least squares by gradients that are all there in the long run."""
    draw = np.random.default_rng(3)
    a = draw.standard_normal((200, 20))
    best = draw.standard_normal(20)
    y = a @ best
    given = ps.Quantize(form, threshold=1.0 if form == "2bit" else None)
    w = job.tensor("w", shape=20, dtype="float64", optimizer=ps.SGD(0.02), filter=_push(given))
    for _ in range(1500):
        w.push(a.T @ (a @ w.pull() - y) / 200)
        job.clock()
    w.flush()
    assert np.linalg.norm(w.pull() - best) < 0.05 * np.linalg.norm(best)


def _push(given: ps.Quantize) -> ps.Filters:
    return ps.Filters(push=given)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ps.Quantize("int4"), "one of f16, bf16, int8, 2bit, 1bit for `form`, got 'int4'"),
        (lambda: ps.Quantize(8), "for `form`, got 8"),  # type: ignore[arg-type]
        (lambda: ps.Quantize("int8", threshold=1), 'no `threshold` for "int8", got 1'),
        (lambda: ps.Quantize("2bit", threshold=0), "a number above 0 for `threshold`, got 0"),
        (lambda: ps.Quantize("2bit", threshold=float("nan")), "a number above 0 for `threshold`, got nan"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(OptionError) as refused:
        make()
    assert said in str(refused.value)


def test_a_declaration_names_what_the_tensor_cannot_have_and_what_differs(job: ps.Job) -> None:
    with pytest.raises(OptionError) as alone:
        job.tensor("w", shape=3, filter=ps.Quantize("int8"))  # type: ignore[arg-type]
    given = (
        "give filter=ps.Filters(push=ps.Quantize(form='int8', threshold=None)), or the same with `broadcast`"
    )
    assert alone.value.hint == given
    with pytest.raises(OptionError, match="a number above 0 that an element can hold for `threshold`"):
        job.tensor("w", shape=3, dtype="float16", filter=_push(ps.Quantize("2bit", threshold=1e6)))
    job.tensor("w", shape=3, filter=_push(ps.Quantize("2bit")))
    with pytest.raises(DeclarationConflict, match="Quantize 2bit with threshold"):
        job.tensor("w", shape=3, filter=_push(ps.Quantize("1bit")))
