"""Every optimizer, every flag, every dtype: step by step what torch.optim does, with 1, 2 and 4 workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trajectory as t

import penstock as ps
from penstock.optim import ROWS

torch = pytest.importorskip("torch")

# Neither side fuses a multiplication with an addition in the same places, so each step may differ in the last
# bits; the differences of twenty steps add up. Values are near 1, so that the absolute part is what counts
# for small ones.
#
# Half types store a rounded value after each step: a difference in the last bit before rounding can come out
# as one unit in the last place (2^-10, 2^-7 of the value), and twenty steps carry it along. A wrong rule is
# off by whole steps: the learning rates here are 0.1 and 0.01.
TOLERANCE = {
    "float64": {"rtol": 1e-12, "atol": 1e-12},
    "float32": {"rtol": 2e-5, "atol": 4e-6},
    "float16": {"rtol": 2 * 2**-10, "atol": 1e-4},
    "bfloat16": {"rtol": 2 * 2**-7, "atol": 1e-3},
}


def torch_trajectory(case: str, dtype: str, workers: int, reduce: str) -> Any:
    """The shown elements after each step, by torch.optim; half types in float32 between two roundings."""
    kind, arguments = t.CASES[case]
    wide = np.float64 if dtype == "float64" else np.float32
    parameter = torch.nn.Parameter(torch.from_numpy(t.start(dtype).astype(wide)))
    optimizer = getattr(torch.optim, kind)([parameter], **arguments, foreach=False)
    shown = []
    for step in range(t.STEPS):
        total = np.zeros(t.ELEMENTS, dtype=wide)
        for rank in range(workers):
            total += t.gradient(dtype, rank, step).astype(wide)
        if reduce == "mean":
            total *= wide(1 / workers)
        optimizer.param_groups[0]["lr"] = t.rate(arguments["lr"], step)
        parameter.grad = torch.from_numpy(total)
        optimizer.step()
        with torch.no_grad():
            rounded = parameter.numpy().astype(t.DTYPES[dtype]).astype(wide)
            parameter.copy_(torch.from_numpy(rounded))
        shown.append(rounded[t.SHOWN].astype(np.float64))
    return np.array(shown)


def compare(result: dict[str, Any], workers: int, reduce: str) -> None:
    for case in t.CASES:
        for dtype in t.DTYPES:
            expected = torch_trajectory(case, dtype, workers, reduce)
            got = result[f"{case}/{dtype}"]
            np.testing.assert_allclose(got, expected, **TOLERANCE[dtype], err_msg=f"{case} {dtype}")


def everything() -> dict[str, list[str]]:
    return {case: list(t.DTYPES) for case in t.CASES}


def test_every_optimizer_of_the_table_is_compared_with_torch_s() -> None:
    having_numbers = {name for name, row in ROWS.items() if row.settings}
    assert {name for name, _ in t.CASES.values()} == having_numbers


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """One worker, in each consistency."""
    results = {}
    for consistency in ("bsp", "ssp:3", "asp"):
        with ps.init() as job:
            results[consistency] = t.train(job, everything(), "mean", consistency)
    return results


def test_one_worker_takes_torchs_steps_with_every_optimizer_and_dtype(alone: Any) -> None:
    compare(alone["bsp"], workers=1, reduce="mean")


@pytest.mark.parametrize("consistency", ["ssp:3", "asp"])
def test_with_one_worker_any_mode_gives_the_single_process_result(
    alone: dict[str, dict[str, Any]], consistency: str
) -> None:
    digests = {name: str(value) for name, value in alone["bsp"].items() if name.endswith("/digest")}
    assert {name: str(value) for name, value in alone[consistency].items() if name in digests} == digests


@pytest.mark.parametrize(("workers", "servers", "reduce"), [(2, 2, "mean"), (4, 1, "sum")])
def test_several_workers_take_the_steps_of_their_sum_or_mean(
    spawn_job: Any, workers: int, servers: int, reduce: str
) -> None:
    script = "sys.path.insert(0, sys.argv.pop(1)); import trajectory; trajectory.main()"
    saved = spawn_job(
        workers,
        "sys.argv.append(os.environ['TEST_OUT'])\n" + script,
        servers=servers,
        arguments=(str(Path(t.__file__).parent), "all", reduce, "bsp"),
    )
    compare(saved[0], workers, reduce)
    for other in saved[1:]:
        for name in (name for name in saved[0] if name.endswith("/digest")):
            assert str(other[name]) == str(saved[0][name]), f"{name}: workers saw different bits"
