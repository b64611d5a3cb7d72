"""The processes of a system: introduced, obeyed, and gone afterwards, whatever way they end."""

import sys
from pathlib import Path

import pytest

from penstock.launch.ranks import Ranks, RanksError
from penstock_bench.systems import BenchError
from penstock_bench.systems.on_ranks import SystemOnRanks

RANK = """
import os, sys
from penstock_bench import ranks

class Body:
    rank, size = int(sys.argv[1]), 2
    def open(self, nbytes):
        if nbytes == 13: raise ranks.WrongAnswerError("element 7 is wrong")
        if nbytes == 17 and self.rank == 1: os._exit(3)
    def step(self): pass
    def close(self): pass

print("hello from", sys.argv[1], flush=True)
if sys.argv[2:] == ["early"]: sys.exit("no such library")
ranks.serve(Body(), {"pid": lambda command: {"pid": os.getpid()}})
"""


def commands(*more: str) -> list[list[str]]:
    return [[sys.executable, "-c", RANK, str(rank), *more] for rank in range(2)]


class Two(SystemOnRanks):
    name = "two"

    def commands(self, workers: int) -> list[list[str]]:
        return commands()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_every_rank_answers_in_rank_order_and_none_is_left() -> None:
    with Ranks("two", 2, commands(), [{}, {}]) as ranks:
        pids = [answer["pid"] for answer in ranks.ask(do="pid")]
        assert len(set(pids)) == 2
        assert len(ranks.ask(do="run", repeats=4)[0]["ends"]) == 5
    assert all(map(gone, pids))


def test_a_process_that_ends_before_it_joins_is_reported_with_what_it_said() -> None:
    with pytest.raises(RanksError, match="ended with 1 before all ranks had come") as caught:
        Ranks("two", 2, commands("early"), [{}, {}])
    assert "no such library" in caught.value.detail


def test_a_wrong_answer_is_an_error_that_names_the_rank_and_the_element() -> None:
    system = Two()
    with pytest.raises(RanksError, match="two: rank 0: WrongAnswerError: element 7 is wrong") as caught:
        system.open(13, 2)
    assert "Traceback" in caught.value.detail
    system.end()


def test_after_a_rank_has_gone_the_next_case_starts_new_ones() -> None:
    system = Two()
    try:
        with pytest.raises(RanksError, match="rank 1 has gone"):
            system.open(17, 2)
        system.open(4, 2)
        assert len(system.run(3)) == 3
    finally:
        system.end()


def test_ending_twice_is_as_good_as_once() -> None:
    system = Two()
    system.open(4, 2)
    system.end()
    system.end()
    with pytest.raises(BenchError, match="not started"):
        system.run(1)
