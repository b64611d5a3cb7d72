"""The order of rounds, and what becomes of systems that are missing or fail."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from penstock_bench import report, runner
from penstock_bench.neighbour import busy
from penstock_bench.network import report as network_report
from penstock_bench.runner import Case, Round, Spread
from penstock_bench.systems import BenchError


class Fake:
    """A system that notes what it is told; fails where it is asked to."""

    processor: float | None = None

    def __init__(
        self, name: str, log: list[str], *, seconds: float = 0.25, absent: str | None = None, fails: str = ""
    ) -> None:
        self.name, self.log, self.seconds, self.absent, self.fails = name, log, seconds, absent, fails

    def missing(self) -> str | None:
        return self.absent

    def memory(self, nbytes: int, workers: int) -> int:
        return nbytes

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        if what == self.fails:
            raise BenchError(f"{self.name}: rank 1 has gone", "what it said last")

    def open(self, nbytes: int, workers: int) -> None:
        self._note("open")

    def run(self, repeats: int) -> list[float]:
        self._note("run")
        return [self.seconds] * repeats

    def close(self) -> None:
        self._note("close")

    def end(self) -> None:
        self._note("end")


def measured(
    *systems: Fake,
    rounds: int = 2,
    repeats: int | None = 3,
    distance: float = 50.0,
    busy: float = 0.0,
    nbytes: int = 4096,
    neighbour: Callable[[], AbstractContextManager[None]] | None = None,
) -> Case:
    return runner.measure(
        Case(nbytes, 2),
        systems,
        rounds=rounds,
        repeats=repeats,
        distance=lambda: distance,
        busy=lambda: busy,
        note=lambda text: None,
        neighbour=neighbour,
    )


def test_processor_time_stands_beside_every_gigabyte_moved() -> None:
    log: list[str] = []
    frugal, silent = Fake("penstock ncc", log), Fake("gloo", log)
    frugal.processor = 0.5
    case = measured(frugal, silent, nbytes=1_000_000_000)
    lines = {line.system: line.processor_per_gb for line in network_report.lines(case, {})}
    # Two workers send and receive a gigabyte each.
    assert lines == {"penstock ncc": 0.125, "gloo": None}
    text = network_report.table(network_report.lines(case, {}), rate=False)
    assert [line.split()[-1] for line in text.splitlines()] == ["s/GB", "0.12", "-"]


def test_systems_take_turns_in_every_round() -> None:
    log: list[str] = []
    case = measured(Fake("a", log), Fake("b", log), rounds=3)
    assert log == ["a open", "b open", *["a run", "b run"] * 3, "a close", "b close"]
    assert case.spreads()["a"].repeats == 9


def test_each_round_is_run_once_more_beside_a_neighbour() -> None:
    log: list[str] = []

    @contextmanager
    def neighbour() -> Iterator[None]:
        log.append("comes")
        yield
        log.append("goes")

    case = measured(Fake("a", log), neighbour=neighbour)
    beside = case.beside
    assert beside is not None
    assert log == ["a open", *["a run", "comes", "a run", "goes"] * 2, "a close"]
    assert case.spreads()["a"].repeats == beside.spreads()["a"].repeats == 6
    assert "beside a busy process" in report.line(beside)
    assert "beside" not in report.line(case)
    assert ["neighbour" in entry for entry in report.document(case.all, {})["cases"]] == [False, True]


def test_a_busy_neighbour_takes_a_core_until_it_is_told_to_go() -> None:
    def used() -> float:
        children = os.times()
        return children.children_user + children.children_system

    before = used()
    with busy():
        time.sleep(0.3)
    assert used() - before > 0.05


def test_without_a_count_as_many_iterations_as_fit_into_a_round_are_taken() -> None:
    assert runner.fitting([runner.ROUND_SECONDS / 10] * 3) == 10
    assert runner.fitting([60.0]) == runner.LEAST_REPEATS
    assert runner.fitting([1e-9]) == runner.MOST_REPEATS
    log: list[str] = []
    case = measured(Fake("a", log, seconds=runner.ROUND_SECONDS / 7), rounds=2, repeats=None)
    assert case.spreads()["a"].repeats == 14, "what was timed as a pilot does not count"


def test_a_system_that_is_missing_is_named_with_its_reason_and_never_started() -> None:
    log: list[str] = []
    case = measured(Fake("penstock", log), Fake("gloo+sgd", log, absent="torch is not installed"))
    assert case.absent == {"gloo+sgd": "torch is not installed"}
    assert not any(entry.startswith("gloo") for entry in log)
    assert "gloo+sgd skipped" in report.line(case)
    assert "gloo+sgd: skipped: torch is not installed" in report.details(case)
    assert report.document([case], {})["absent"][0]["reason"] == "torch is not installed"


@pytest.mark.parametrize("fails", ["open", "run", "close"])
def test_a_system_that_fails_is_reported_and_stops_no_other(fails: str) -> None:
    log: list[str] = []
    case = measured(Fake("mpi+sgd", log, fails=fails), Fake("penstock", log))
    assert case.spreads()["penstock"].repeats == 6
    assert log[-1] == "penstock close"
    said = report.details(case)
    assert "mpi+sgd: failed: mpi+sgd: rank 1 has gone" in said
    assert "what it said last" in said


def test_a_case_that_does_not_fit_into_memory_is_skipped_with_what_it_needs() -> None:
    log: list[str] = []
    case = measured(Fake("penstock", log), nbytes=1 << 60)
    assert "need" in case.absent["penstock"]
    assert not log


def test_a_round_says_where_the_cores_were() -> None:
    assert Round((50.0, 60.0)).placement == "near"
    assert Round((330.0, 400.0)).placement == "far"
    assert Round((50.0, 400.0)).placement == "moving"
    assert Round((math.nan, math.nan)).placement == "single"


def test_a_machine_that_others_use_meanwhile_is_reported() -> None:
    log: list[str] = []
    assert "not alone" not in report.details(measured(Fake("a", log)))
    assert "used up to 40% of the cores" in report.details(measured(Fake("a", log), busy=0.4))
    assert 0 <= runner.busy_cores() <= 1


def test_rounds_in_different_placements_are_compared_only_with_their_like() -> None:
    case = Case(4096, 2)
    case.rounds = [
        Round((50, 50), {"penstock": [1.0], "limit": [0.5]}),
        Round((400, 400), {"penstock": [3.0]}),
    ]
    assert case.spreads("near")["penstock"].median == 1.0
    assert case.spreads("far") == {"penstock": Spread.of([3.0])}
    said = report.details(case)
    assert "rounds with cores near" in said
    assert "rounds with cores far" in said


def test_the_spread_is_that_of_all_iterations() -> None:
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (spread.median, spread.least, spread.most, spread.repeats) == (3.0, 1.0, 10.0, 5)
    assert spread.relative == pytest.approx(1 / 3)
    assert Spread.of([2.0]).relative == 0


def test_the_line_says_the_limit_by_our_ratio_to_it_and_the_peers_by_theirs_to_us() -> None:
    case = Case(64 << 20, 2)
    times = {"penstock": [0.004], "limit": [0.002], "gloo+sgd": [0.044]}
    case.rounds = [Round((50, 50), times)]
    line = report.line(case)
    assert line.startswith("pushpull 64 MiB f32, 2 workers, ")
    assert "penstock 4.00 ms   limit 2.00 ms (2.00x)   gloo+sgd 44.0 ms (11.0x)   n=1, +-0 %" in line


def test_the_json_holds_exactly_what_others_build_on() -> None:
    log: list[str] = []
    first, second = (
        measured(Fake("penstock", log), Fake("limit", log)),
        measured(Fake("penstock", log), nbytes=8),
    )
    document = json.loads(json.dumps(report.document([first, second], {"cores": 2})))
    assert document["bench"] == "pushpull"
    assert document["machine"] == {"cores": 2}
    assert [(case["system"], case["bytes"]) for case in document["cases"]] == [
        ("penstock", 4096),
        ("limit", 4096),
        ("penstock", 8),
    ]
    kinds = {
        "system": str,
        "bytes": int,
        "workers": int,
        "median_s": float,
        "min_s": float,
        "max_s": float,
        "repeats": int,
    }
    for case in document["cases"]:
        assert {key: type(value) for key, value in case.items()} == kinds


def test_of_swept_chunk_sizes_the_first_stands_among_the_cases_and_all_in_chunks() -> None:
    log: list[str] = []
    cases = []
    for chunk in (16384, 32768):
        case = measured(Fake("penstock", log), Fake("limit", log))
        case.chunk = chunk
        cases.append(case)
    document = report.document(cases, {})
    assert [case["system"] for case in document["cases"]] == ["penstock", "limit"]
    assert [entry["chunk_bytes"] for entry in document["chunks"]] == [16384, 32768]


def test_a_summary_has_a_row_for_each_case_and_a_dash_for_each_absence() -> None:
    log: list[str] = []
    cases = [
        measured(Fake("penstock", log), Fake("gloo+sgd", log, absent="x")),
        measured(Fake("gloo+sgd", log)),
    ]
    rows = report.summary(cases).splitlines()
    assert len(rows) == 3
    assert "-" in rows[1].split()
