"""How the time of an iteration is taken, and how the answer is checked before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench import ranks

ENDS = st.lists(st.lists(st.integers(0, 10**9), min_size=4, max_size=4).map(sorted), min_size=1, max_size=5)


def test_an_iteration_lasts_until_its_slowest_rank_sees_the_result() -> None:
    seconds = 10**9
    assert ranks.iteration_times(
        [[0, 1 * seconds, 5 * seconds], [2 * seconds, 4 * seconds, 5 * seconds]]
    ) == [2.0, 1.0]


@given(ENDS)
def test_iterations_neither_overlap_nor_leave_a_gap(ends: list[list[int]]) -> None:
    times = ranks.iteration_times(ends)
    assert min(times) >= 0
    first, last = max(end[0] for end in ends), max(end[-1] for end in ends)
    assert sum(times) == pytest.approx((last - first) / 1e9)


@pytest.mark.parametrize("elements", [1, 6, 7, 8, 7168, 7169, 20_000])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_right_answer_passes_the_check(elements: int, size: int) -> None:
    gradient, parameters = np.empty(elements, np.float32), np.zeros(elements, np.float32)
    for _ in range(3):
        for rank in range(size):
            ranks.fill(gradient, rank)
            parameters -= ranks.LEARNING_RATE * gradient
    ranks.check(parameters, 3, size)


@pytest.mark.parametrize("spoiled", [0, 7168, 19_999])
def test_one_wrong_element_is_found_and_named(spoiled: int) -> None:
    parameters = np.zeros(20_000, np.float32)
    ranks.fill(parameters, 0)
    parameters *= -ranks.LEARNING_RATE
    ranks.check(parameters, 1, 1)
    parameters[spoiled] += 1
    with pytest.raises(ranks.WrongAnswerError, match=f"element {spoiled} "):
        ranks.check(parameters, 1, 1)


def test_a_rank_that_was_left_out_of_the_sum_is_noticed() -> None:
    parameters = np.zeros(100, np.float32)
    ranks.fill(parameters, 0)
    with pytest.raises(ranks.WrongAnswerError):
        ranks.check(-ranks.LEARNING_RATE * parameters, 1, 2)


def test_there_is_one_end_more_than_repeats_and_every_step_is_taken() -> None:
    class Counting:
        rank, size, steps = 0, 1, 0

        def open(self, nbytes: int) -> None: ...

        def step(self) -> None:
            self.steps += 1

        def close(self) -> None: ...

    body = Counting()
    assert len(ranks.ends(body, 5)) == 6
    assert body.steps == 5 + ranks.WARMUP
