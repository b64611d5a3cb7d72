"""Workers of a DataLoader, which are forked from the process that trains."""

from __future__ import annotations

import os
import warnings

import pytest

import penstock as ps

torch = pytest.importorskip("torch")


class Rows(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """Items that try to set a row of their parent's table."""

    def __init__(self, table: ps.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> int:
        try:
            self.table.set(0, [float(at)], clock=1)
        except ps.exceptions.JobClosed:
            return at
        return -1


def test_loaders_that_are_forked_leave_the_job_alone(job: ps.Job) -> None:
    table = job.table("U", rows=1, dtype="f8", produce="all")
    table.set(0, [100.0], clock=1)
    w = job.tensor("w", [1.0])
    loader = torch.utils.data.DataLoader(Rows(table), num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        assert [int(batch) for batch in loader] == list(range(8))
        assert w.pushpull([1.0]) is not None
        job.clock()
    assert table.get(0, clock=1) == [100.0]
    assert w.pull() == [3.0]


def test_a_state_in_a_forked_child_says_whose_the_job_is(job: ps.Job) -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    model, _ = ps.torch.distribute(model, rule, where="servers", sparse_pull=True)
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                model.state_dict()
            os.write(write, "\n".join(str(one.message) for one in told).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    assert f"forked from worker 0 (process {os.getpid()}), whose job it is" in said, said
    assert "ended" not in said
