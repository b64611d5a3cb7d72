"""
The semantics matrix: each idiom of a PyTorch script gives what it gives in one process on the joined batch,
and what DistributedDataParallel gives on the same batches.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent
SCRIPT = """
import torch
sys.path.insert(0, sys.argv.pop(1))
import idioms
idioms.main()
"""
SLOW = ("compiled_before", "compiled_after")
"""Compiled by a C++ compiler in each process: with two workers only."""

ROUNDED = ((3, "parameters_of_several_types"),)
"""Workers and idiom, where half types are summed."""


def names() -> list[str]:
    """The functions of `idioms.py` that are idioms. It is not imported: it imports torch."""
    tree = ast.parse((HERE / "idioms.py").read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Call) and getattr(d.func, "id", "") == "idiom" for d in node.decorator_list)
    ]


@pytest.fixture(scope="module", params=[2, 3])
def found(request: Any, spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What each worker ended with, by idiom and way."""
    run = [name for name in names() if request.param == 2 or name not in SLOW]
    saved: list[dict[str, Any]] = spawn_shared_job(
        request.param, SCRIPT, arguments=(str(HERE), *run), timeout=600
    )
    return saved


@pytest.mark.parametrize("name", names())
def test_averaged_gradients_give_what_one_process_and_ddp_give(
    found: list[dict[str, Any]], name: str
) -> None:
    if f"{name}/gradients" not in found[0]:
        pytest.skip("compiled with two workers only")
    mine = found[0][f"{name}/gradients"]
    for other in found[1:]:
        np.testing.assert_array_equal(other[f"{name}/gradients"], mine)
    if f"{name}/ddp" in found[0]:
        # The same sums of the same numbers: three of them may be added in another order, and Gloo rounds each
        # sum of bfloat16 where the servers round the last.
        rtol = float(found[0][f"{name}/tolerance"]) if (len(found), name) in ROUNDED else 1e-5
        np.testing.assert_allclose(mine, found[0][f"{name}/ddp"], rtol=rtol, atol=rtol / 10)
    if f"{name}/plain" in found[0]:
        tolerance = float(found[0][f"{name}/tolerance"])
        np.testing.assert_allclose(mine, found[0][f"{name}/plain"], rtol=tolerance, atol=tolerance / 10)
    assert any(f"{name}/{way}" in found[0] for way in ("ddp", "plain"))


# -- the same idioms where the servers step


def outcomes() -> dict[str, str]:
    """What each idiom says of itself: "equal", or the class of the error that it ends with."""
    tree = ast.parse((HERE / "idioms.py").read_text())
    found = {}
    for node in tree.body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "idiom":
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                found[node.name] = ast.literal_eval(given["servers"]) if "servers" in given else "equal"
    return {name: outcome for name, outcome in found.items() if name not in SLOW}


@pytest.fixture(scope="module", params=[2, 3])
def stepped(request: Any, spawn_shared_job: Any) -> list[dict[str, Any]]:
    """What each worker ended with where the servers step, and the errors they were told."""
    jobs = 1 + sum(outcome != "equal" for outcome in outcomes().values())
    script = SCRIPT.replace("main()", "on_servers(next_job)")
    saved: list[dict[str, Any]] = spawn_shared_job(
        request.param, script, arguments=(str(HERE), *outcomes()), jobs=jobs, fails=True, timeout=600
    )
    return saved


@pytest.mark.parametrize("name", outcomes())
def test_the_servers_steps_are_equal_or_a_typed_error(stepped: list[dict[str, Any]], name: str) -> None:
    expected = outcomes()[name]
    told = [str(one[f"{name}/error"][0]) for one in stepped if f"{name}/error" in one]
    if expected != "equal":
        # The worker that is told first leaves, and the others hear of that.
        assert expected in told, [one.get(f"{name}/error") for one in stepped]
        assert set(told) <= {expected, "WorkerLost", "JobFailed", "JobClosed"}
        return
    assert not told
    mine = stepped[0][f"{name}/servers"]
    for other in stepped[1:]:
        np.testing.assert_array_equal(other[f"{name}/servers"], mine)
    if f"{name}/plain" in stepped[0]:
        tolerance = float(stepped[0][f"{name}/tolerance"])
        np.testing.assert_allclose(mine, stepped[0][f"{name}/plain"], rtol=tolerance, atol=tolerance / 10)
