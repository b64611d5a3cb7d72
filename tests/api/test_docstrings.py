"""The examples in the documentation of every public function, run; and no public function without one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from typing import Any

import numpy as np
import pytest

import penstock as ps

MODULES = ["job", "tensor", "table", "optim", "consistency", "filters", "arrays", "tree"]
if importlib.util.find_spec("torch"):
    MODULES += ["torch", "torch.data"]

CORE_CALLS = ("set", "add", "get")
"""Methods of `Table` that are written in Rust."""
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples() -> list[doctest.DocTest]:
    found = []
    for name in MODULES:
        module = importlib.import_module(f"penstock.{name}")
        found += [test for test in FINDER.find(module, f"penstock.{name}") if test.examples]
    # What is written in Rust belongs to another module, where doctest does not look for it.
    for name in CORE_CALLS:
        found += FINDER.find(getattr(ps.Table, name), f"penstock.table.Table.{name}")
    return found


def table_of_the_examples(job: ps.Job, calls: str) -> dict[str, Any]:
    """What the examples of `Table` call theirs: `U`, with two rows that are set, and a table of sums."""
    U = job.table("U", rows=4, width=2, dtype="f8", produce="all", consume="all")
    if calls != "set":
        U.set([0, 1], [[1.0, 2.0], [3.0, 4.0]], clock=1)
    sums = job.table("sums", rows=8, width=2, dtype="f8", produce="all", consume="all", fold="sum")
    return {"U": U, "gradient_sums": sums, "gradients": np.ones((2, 2))}


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_the_example_in_a_docstring_runs_as_it_is_written(example: doctest.DocTest) -> None:
    """Each starts in a fresh job, with a tensor `w` of three zeros, or a table `U`."""
    module = sys.modules[".".join(example.name.split(".")[:2])]
    report: list[str] = []
    with ps.init() as job:
        example.globs = {**vars(module), "ps": ps, "np": np, "job": job}
        if 'job.tensor("w"' not in (example.docstring or ""):
            optimizer = ps.SGD(0.1) if "set_lr" in example.name else None
            example.globs["w"] = job.tensor("w", shape=3, optimizer=optimizer)
        if example.name.startswith("penstock.table.Table."):
            example.globs |= table_of_the_examples(job, example.name.rsplit(".", 1)[1])
        if "torch" in example.name:
            example.globs["torch"] = importlib.import_module("torch")
        failures, _ = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert failures == 0, "".join(report)


def public() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("init", ps.init)]
    for kind in (ps.Job, ps.Tensor, ps.Table):
        for name, member in vars(kind).items():
            if not name.startswith("_") and inspect.isfunction(member):
                found.append((f"{kind.__name__}.{name}", member))
    return found + [(f"Table.{name}", getattr(ps.Table, name)) for name in CORE_CALLS]


@pytest.mark.parametrize(("name", "function"), public())
def test_every_public_function_documents_its_errors_and_shows_an_example(name: str, function: Any) -> None:
    text = inspect.getdoc(function) or ""
    assert "Raises\n------" in text
    assert "Examples\n--------" in text
    if "are those of `set`" in text:
        text += inspect.getdoc(ps.Table.set) or ""
    named = [
        parameter
        for parameter in inspect.signature(function).parameters
        if parameter not in ("self", "options")
    ]
    for parameter in named:
        assert parameter in text, f"{name} does not say what `{parameter}` is"


def test_every_public_name_is_there_and_typed() -> None:
    for name in ps.__all__:
        assert getattr(ps, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        ps.nothing_of_the_kind  # noqa: B018
