"""`penstock bench torch --overhead`: what is measured, and how its figures are made. No time is judged."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from penstock.cli import main
from penstock_bench.cli import training
from penstock_bench.runner import Case, Round, Spread
from penstock_bench.training import overhead, report
from penstock_bench.training.models import task_of
from penstock_bench.training.names import OVERHEADS, TENSOR_BYTES

US = 1e-6


def measured(amount: int, *, ours: Sequence[float], theirs: Sequence[float] = ()) -> overhead.Point:
    """A point whose computation takes a second, and the overheads of its rounds."""
    case = Case(amount, 2)
    for number, seconds in enumerate(ours):
        times = {"alone": [1.0], "penstock": [1.0 + seconds]}
        if theirs:
            times["ddp"] = [1.0 + theirs[number]]
        # Of all processes: twice as much of each, and as much again of the servers.
        processor = {name: 3 * time[0] for name, time in times.items()}
        case.rounds.append(Round((50.0, 50.0), times, processor=processor))
    # The bytes' own time is not taken off: what they cost is the question.
    ideal = report.Ideal(Spread.of(case.times("alone")), bytes=0.5)
    parts = {name: {"blocked": [0.1], "waiting": [0.2]} for name in ("penstock", "ddp")}
    return overhead.point(amount, case, ideal, parts)


def test_what_a_tensor_costs_is_the_slope_of_each_round_and_what_a_step_costs_beside_is_not_in_it() -> None:
    # The second round was on a machine half as fast.
    points = [measured(n, ours=[100 * US + 5 * US * n, 200 * US + 10 * US * n]) for n in (64, 128, 512)]
    (fit,) = overhead.fits(points)
    assert fit.slopes == pytest.approx([5 * US, 10 * US])
    assert fit.slope == pytest.approx(7.5 * US)
    assert fit.constants == pytest.approx([100 * US, 200 * US])
    said = overhead.said("tensors", 2, points, None)
    assert (
        "penstock: 7.50 us a tensor (5.00 us to 10.0 us by round), and 150 us a step; processor 22.5 us"
        in said
    )
    assert said.splitlines()[0] == "overhead by tensors: tensors of 4 KiB, 2 workers"


def test_bytes_stand_beside_a_copy_and_the_sum_at_the_limit_and_systems_beside_each_other() -> None:
    sizes = (1 << 20, 1 << 22)
    points = [measured(n, ours=[n * 0.5e-9] * 2, theirs=[n * 2e-9] * 2) for n in sizes]
    said = overhead.said("bytes", 2, points, copy=0.1e-9)
    assert "penstock: 0.500 ns a byte (2.0 GB/s) (0.500 to 0.500 by round), and" in said
    assert "ddp: 2.000 ns a byte (0.5 GB/s)" in said
    assert "a byte costs penstock 0.25x of what it costs ddp" in said
    assert "a copy by one thread: 0.100 ns a byte (10.0 GB/s); their sum on all cores:" in said
    document = overhead.document("bytes", 2, points, 0.1e-9)
    assert [one["amount"] for one in document["points"]] == list(sizes)
    assert {one["system"]: one["slope_s"] for one in document["systems"]} == pytest.approx(
        {"penstock": 0.5e-9, "ddp": 2e-9}
    )


def test_a_system_that_failed_at_a_point_and_a_single_point_have_no_line() -> None:
    with_both = measured(1, ours=[US], theirs=[US])
    alone = measured(2, ours=[2 * US])
    assert [fit.system for fit in overhead.fits([with_both, alone])] == ["penstock"]
    assert overhead.fits([with_both]) == []


def test_a_copy_is_timed_for_each_byte() -> None:
    ticks = itertools.count(0.0, 1.0)
    assert overhead.copy_time([1 << 12, 1 << 14, 1 << 16], lambda: next(ticks)) == 1.0 / (1 << 14)


@pytest.mark.parametrize(("what", "amount"), [(what, n) for what, ns in OVERHEADS.items() for n in ns])
def test_a_model_of_a_sweep_has_the_tensors_and_bytes_that_it_is_named_for(what: str, amount: int) -> None:
    task = task_of(f"{what}:{amount}")
    if what == "bytes":
        sizes = [4 * parameter.numel() for parameter in task.network().parameters()]
        assert sizes == [amount // 4] * 4
    else:
        assert [4 * one.numel() for one in task.network().parameters()] == [TENSOR_BYTES] * amount


def test_a_sweep_is_measured_beside_the_computation_alone_and_written_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(training, "OVERHEADS", {"bytes": (1 << 20, 1 << 21)})
    figures = tmp_path / "figures.json"
    command = "bench torch --overhead bytes --workers 2 --rounds 1 --repeats 3 --systems penstock"
    assert main([*command.split(), "--json", str(figures)]) == 0
    (nbytes,) = json.loads(figures.read_text())["overheads"]
    assert nbytes["of"] == "bytes"
    assert [one["amount"] for one in nbytes["points"]] == [1 << 20, 1 << 21]
    assert [one["system"] for one in nbytes["systems"]] == ["penstock"]
    for one in nbytes["points"]:
        (ours,) = one["systems"]
        assert ours["overhead_s"] == pytest.approx(ours["median"] - one["alone"]["median"])
        assert ours["parts_s"]["waiting"] >= 0
    assert nbytes["copy_s_per_byte"] > 0
    assert "limits: a copy by one thread: " in capsys.readouterr().out
