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
sys.path.insert(0, sys.argv.pop(1))
import idioms
idioms.main()
"""
SLOW = ("compiled_before", "compiled_after")
"""Compiled by a C++ compiler in each process: with two workers only."""


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
        # The same sums of the same numbers: three of them may be added in another order.
        np.testing.assert_allclose(mine, found[0][f"{name}/ddp"], rtol=1e-5, atol=1e-6)
    if f"{name}/plain" in found[0]:
        tolerance = float(found[0][f"{name}/tolerance"])
        np.testing.assert_allclose(mine, found[0][f"{name}/plain"], rtol=tolerance, atol=tolerance / 10)
    assert any(f"{name}/{way}" in found[0] for way in ("ddp", "plain"))
