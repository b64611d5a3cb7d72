"""Tables as a user meets them: what comes in and out, in every form, and what is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps


@pytest.fixture
def job() -> Iterator[ps.Job]:
    with ps.init(deadline=5) as one:
        yield one


@pytest.fixture
def table(job: ps.Job) -> ps.Table:
    return job.table("U", rows=6, width=3, dtype="f8", produce="all", consume="all")


def test_rows_start_as_zeros_at_version_0(table: ps.Table) -> None:
    assert (table.get(slice(None)) == np.zeros((6, 3))).all()
    assert table.versions([0, 5]).tolist() == [0, 0]


@pytest.mark.parametrize(
    "rows", [[1, 4], (1, 4), np.array([1, 4]), np.array([1, 4], np.uint8), slice(1, 5, 3), range(1, 5, 3)]
)
def test_rows_may_be_named_in_every_way(table: ps.Table, rows: object) -> None:
    table.set(rows, [[1, 1, 1], [4, 4, 4]], clock=1)
    assert table.get(rows)[:, 0].tolist() == [1, 4]
    mask = np.array([False, True, False, False, True, False])
    assert table.get(mask)[:, 0].tolist() == [1, 4]
    assert table.get(1).tolist() == [1, 1, 1]
    assert table.get(np.int64(4)).shape == table.get(np.array(4)).shape == (3,)


def test_rows_may_be_declared_in_any_order_and_twice(job: ps.Job) -> None:
    table = job.table("declared", rows=5, width=1, produce=[3, 1, 1, 2, 3], consume=[3, 1, 3])
    for row in (3, 1, 2):
        table.set(row, [row], clock=1)
    assert table.get([1, 2, 3]).ravel().tolist() == [1, 2, 3]
    for row in (0, 4):
        with pytest.raises(ps.exceptions.NotProducer):
            table.set(row, [0])
    with pytest.raises(ps.exceptions.UnknownRow, match="from 0 to 4 as"):
        job.table("outside", rows=5, produce=np.array([5, 1], np.uint64))


def test_order_and_repetition_are_the_callers(table: ps.Table) -> None:
    table.set([3, 1], [[3, 3, 3], [2, 2, 2]])
    assert table.get([1, 3, 1])[:, 0].tolist() == [2, 3, 2]


def test_a_set_in_an_iteration_is_what_the_next_reads(job: ps.Job, table: ps.Table) -> None:
    for iteration in range(3):
        table.set(0, np.full(3, iteration + 1.0))
        assert table.versions(0).tolist() == [iteration + 1]
        job.clock()
        assert table.get(0)[0] == iteration + 1
    assert table.versions([0, 1]).tolist() == [3, 3], "a row that was not set is unchanged"


def test_out_is_written_and_returned(table: ps.Table) -> None:
    table.set(2, np.array([1.0, 2.0, 3.0]))
    one, two = np.empty(3), np.empty((2, 3))
    assert table.get(2, out=one) is one
    assert table.get([2, 0], out=two) is two
    assert one.tolist() == two[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "c16", "bfloat16", np.float16])
def test_every_element_type_of_a_fixed_size_comes_back(job: ps.Job, dtype: object) -> None:
    table = job.table("any", rows=2, width=5, dtype=dtype, produce="all", consume="all")
    value = np.arange(10).reshape(2, 5).astype(table.dtype)
    table.set([0, 1], value, clock=1)
    got = table.get([0, 1])
    assert got.dtype == table.dtype
    assert (got == value).all()
    assert (table.get(1) == value[1]).all()


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("i4", [1.7]),
        ("i4", [1.0]),
        ("i4", [2**31]),
        ("i4", [2**40]),
        ("i4", [True]),
        ("i8", [2**63]),
        ("u1", [-1]),
        ("u1", [256]),
        ("u8", [-1]),
        ("?", [7]),
        ("f2", [70000]),
        ("bfloat16", [1e300]),
        ("f8", [1j]),
        ("U4", [1]),
        ([("a", "f4"), ("b", "i4")], [1]),
        # They have an element type of their own: a list of them is not a list of plain numbers.
        ("f4", [np.float64(1.5)]),
        ("i4", [np.int64(1)]),
    ],
)
def test_plain_numbers_that_a_row_cannot_hold_are_refused(
    job: ps.Job, dtype: Any, numbers: list[Any]
) -> None:
    table = job.table("n", rows=2, width=1, dtype=dtype, produce="all", consume="all")
    for rows, values in ((0, numbers), ([0, 1], [numbers, numbers])):
        with pytest.raises(ps.exceptions.DtypeError) as caught:
            table.set(rows, values, clock=1)
        assert caught.value.hint
    assert table.versions([0, 1]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        ("i4", [-(2**31), 2**31 - 1]),
        ("u1", [0, 255]),
        ("u8", [2**63, 2**64 - 1]),
        ("i8", [-(2**63), 2**63 - 1]),
        ("?", [True, False]),
        ("f4", [1, 0.5]),
        ("f4", [math.inf, -math.inf]),
        ("bfloat16", [1, 0.5]),
        ("c8", [1, 1j]),
    ],
)
def test_plain_numbers_become_what_a_row_holds(job: ps.Job, dtype: Any, numbers: list[Any]) -> None:
    table = job.table("n", rows=1, width=2, dtype=dtype, produce="all", consume="all")
    table.set(0, numbers, clock=1)
    assert table.get(0).tolist() == numbers
    table.set([0], (tuple(numbers),), clock=2)
    assert table.get([0]).tolist() == [numbers]


def test_an_element_type_may_be_torchs(job: ps.Job) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        name = str(dtype).removeprefix("torch.")
        assert job.table(name, rows=1, dtype=dtype, produce="all").dtype.name == name
    with pytest.raises(ps.exceptions.DtypeError):
        job.table("q", rows=1, dtype=torch.qint8, produce="all")


def test_a_sum_adds_up_and_its_own_rows_are_read_at_once(job: ps.Job) -> None:
    table = job.table("S", rows=3, width=2, dtype="f8", produce="all", consume="all", fold="sum")
    table.add([0, 2, 0], np.ones((3, 2)))
    table.add(0, np.array([0.5, 0.25]))
    assert table.get(slice(None)).tolist() == [[2.5, 2.25], [0, 0], [1, 1]]
    with pytest.raises(ps.exceptions.OptionError, match="is a sum"):
        table.set(0, np.ones(2))


def test_a_view_shows_the_row_itself_and_tells_when_it_was_overwritten(table: ps.Table) -> None:
    table.set([0, 1], np.ones((2, 3)), clock=1)
    with table.view([0, 1], clock=1) as view:
        assert [row.tolist() for row in view.rows] == [[1, 1, 1]] * 2
        assert not view.rows[0].flags.writeable
        assert view.versions == [1, 1]
        table.set(0, np.full(3, 2.0), clock=2)
        assert view.valid()
    with pytest.raises(ps.exceptions.TornView, match="set twice"), table.view(0) as view:
        table.set(0, np.full(3, 3.0), clock=3)
        table.set(0, np.full(3, 4.0), clock=4)
        assert not view.valid()


def test_keys_are_64_bits_and_cost_nothing(job: ps.Job) -> None:
    rows = [7, 2**40, 2**62]
    table = job.table("far", rows=2**63, width=1, dtype="f8", produce=rows, consume=rows)
    table.set(rows, [[1.0], [2.0], [3.0]], clock=1)
    assert table.get(rows[::-1])[:, 0].tolist() == [3, 2, 1]
    assert table.get(2**62).tolist() == [3]
    assert table.produced.tolist() == rows


def test_several_tables_and_jobs_in_one_process(job: ps.Job) -> None:
    with ps.init() as other:
        a = job.table("x", rows=1, width=1, dtype="f8", produce="all")
        b = job.table("y", rows=1, width=1, dtype="f8", produce="all")
        c = other.table("x", rows=1, width=1, dtype="f8", produce="all")
        for table, value in ((a, 1.0), (b, 2.0), (c, 3.0)):
            table.set(0, np.array([value]))
        assert [table.get(0)[0] for table in (a, b, c)] == [1, 2, 3]


def test_own_rows_are_not_waited_for(table: ps.Table) -> None:
    with pytest.raises(ps.exceptions.NeverSet, match="only this worker can set it"):
        table.get(0, clock=1)
    assert table.get(0, clock=1, slack=1).tolist() == [0, 0, 0]
    assert table.get(0, clock=99, slack=ps.ASP()).tolist() == [0, 0, 0]


def test_what_is_refused_is_named_and_changes_nothing(job: ps.Job, table: ps.Table) -> None:
    table.set(0, np.ones(3), clock=5)
    part = job.table("part", rows=9, width=3, dtype="f8", produce=[0, 1], consume=None)
    wrong = [
        (ps.exceptions.UnknownRow, lambda: table.set(6, np.ones(3))),
        (ps.exceptions.UnknownRow, lambda: table.get(-1)),
        (ps.exceptions.UnknownRow, lambda: table.set([0, 6], np.ones((2, 3)))),
        (ps.exceptions.NotProducer, lambda: part.set(2, np.ones(3))),
        (ps.exceptions.UnknownRow, lambda: part.get(2)),
        (ps.exceptions.RowTwice, lambda: table.set([1, 0, 1], np.ones((3, 3)), clock=9)),
        (ps.exceptions.ClockBackwards, lambda: table.set(0, np.full(3, 9.0), clock=4)),
        (ps.exceptions.OptionError, lambda: table.set(0, np.full(3, 9.0), clock=-1)),
        (ps.exceptions.OptionError, lambda: table.get(0, slack=-2)),
        (ps.exceptions.OptionError, lambda: table.get(0, slack=ps.SSP("auto"))),
        (ps.exceptions.OptionError, lambda: table.get([0.5])),
        (ps.exceptions.OptionError, lambda: table.get(np.array([True]))),
        (ps.exceptions.ShapeError, lambda: table.set(0, np.ones(2))),
        (ps.exceptions.ShapeError, lambda: table.set([0, 1], np.ones((1, 3)))),
        (ps.exceptions.ShapeError, lambda: table.get([0], out=np.empty(3))),
        (ps.exceptions.DtypeError, lambda: table.set(0, np.ones(3, np.float32))),
        (ps.exceptions.DtypeError, lambda: table.get(0, out=np.empty(3, np.float32))),
        (ps.exceptions.OptionError, lambda: table.add(0, np.ones(3))),
    ]
    for number, (error, call) in enumerate(wrong):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value), number
    assert table.get(0).tolist() == [1, 1, 1]
    assert table.versions(0).tolist() == [5]


# NumPy has no array of so many: a slice of all rows was one of none, and a set of nothing succeeded.
@pytest.mark.parametrize("rows", [2**62, 2**63 - 1, 2**63])
def test_more_rows_at_a_time_than_an_array_can_name_are_refused(job: ps.Job, rows: int) -> None:
    table = job.table("t", rows=rows, produce=[0, rows - 1], consume=[0, rows - 1])
    for call in (
        lambda: table.versions(slice(None)),
        lambda: table.prefetch(slice(1, None)),
        lambda: table.set(slice(None, None, 2), np.ones((0, 1), np.float32)),
        lambda: table.get(slice(None, None, -2)),
        lambda: table.get(range(2**32)),
        lambda: job.table("u", rows=rows, produce=slice(None, None, 2)),
    ):
        with pytest.raises(ps.exceptions.OptionError, match="at most 2147483648 rows at a time"):
            call()
    table.set([0, rows - 1], np.ones((2, 1), np.float32))
    assert table.get(slice(-1, None)).tolist() == [[1]]
    assert table.get(slice(None, None, rows - 1)).tolist() == [[1], [1]]
    assert table.get(slice(3, 3)).shape == (0, 1)
    assert table.get(range(rows - 1, -1, 1 - rows)).tolist() == [[1], [1]]
    with pytest.raises(ps.exceptions.UnknownRow, match=f"got {rows}$"):
        table.get(range(rows - 1, rows + 2))


def test_the_same_declaration_gives_the_same_table(job: ps.Job) -> None:
    def declare() -> ps.Table:
        return job.table("t", rows=2, width=2, dtype="i4", produce="all", consume="all")

    first = declare()
    assert declare() is first
    for other in ({"dtype": "u4", "width": 2}, {"dtype": "i8", "width": 1}):
        with pytest.raises(ps.exceptions.DeclarationConflict, match=r"with other elements: 2 x int32 then"):
            job.table("t", rows=2, produce="all", consume="all", **other)
    first.drop()
    second = declare()
    assert second is not first
    second.set(0, [3, 4])
    assert second.get(0).tolist() == [3, 4]


def test_declarations_are_judged(job: ps.Job, table: ps.Table) -> None:
    declare = job.table
    wrong = [
        (ps.exceptions.DeclarationConflict, lambda: declare("U", rows=6, width=3, dtype="f8")),
        (ps.exceptions.TensorNameError, lambda: declare("", rows=1)),
        (ps.exceptions.ShapeError, lambda: declare("a", rows=0)),
        (ps.exceptions.ShapeError, lambda: declare("a", rows=1, width=0)),
        (ps.exceptions.ShapeError, lambda: declare("a", rows=1, width=2**24, dtype="f8")),
        (ps.exceptions.DtypeError, lambda: declare("a", rows=1, dtype="O")),
        (ps.exceptions.DtypeError, lambda: declare("a", rows=1, dtype="i4", fold="sum")),
        (ps.exceptions.OptionError, lambda: declare("a", rows=1, fold="mean")),
        (ps.exceptions.OptionError, lambda: declare("a", rows=1, propagation="quick")),
        (ps.exceptions.OptionError, lambda: declare("a", rows=1, produce="none")),
        (ps.exceptions.UnknownRow, lambda: declare("a", rows=1, produce=[1])),
        (ps.exceptions.UnknownRow, lambda: declare("b", rows=4, produce=[1], consume=[2])),
    ]
    for number, (error, call) in enumerate(wrong):
        with pytest.raises(error):
            call()
        assert number >= 0
    assert job.table("fine", rows=1).rows == 1


def test_a_closed_job_says_so(job: ps.Job, table: ps.Table) -> None:
    job.close()
    with pytest.raises(ps.exceptions.JobClosed):
        table.get(0)
    with pytest.raises(ps.exceptions.JobClosed):
        table.set(0, np.ones(3))


def test_slack_may_be_chosen_by_waiting(job: ps.Job) -> None:
    table = job.table("t", rows=1, width=1, produce="all", slack=ps.SSP("auto", max=8))
    tensor = job.tensor("w", shape=3, consistency=ps.SSP("auto", min=1, max=8), optimizer=ps.SGD(0.1))
    assert (table.slack, tensor.slack) == (0, 1)
    assert str(tensor.consistency) == "ssp:auto:1:8"
    for _ in range(20):
        tensor.push(np.ones(3, np.float32))
        tensor.pull()
        job.clock()
    assert tensor.slack == 1, "alone there is nobody to wait for"
    assert np.allclose(tensor.pull(), -2.0)
    assert job.stats()["slack"] == 1
    for text in (
        "ssp:auto",
        "ssp:auto:x",
        "ssp:auto:3:2",
        "ssp:auto::8",
        "ssp:auto:1:2:3",
        "ssp:" + "9" * 5000,
    ):
        with pytest.raises(ps.exceptions.OptionError):
            job.tensor("v", shape=1, consistency=text)
