"""
A signal handler raises at each place of a call where one can, and the call is made again. Python runs such
handlers when something written in C has returned, so a profiler that raises then stands for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

RAISES = """
        import signal, sys

        class Raised(Exception):
            pass

        def handler(*_):
            raise Raised

        signal.signal(signal.SIGUSR1, handler)

        def made_again(call, place):
            # The call, made again if it was interrupted at that place, counted from 0; and whether it was.
            left = place

            def profile(frame, event, _):
                nonlocal left
                if event == "c_return" and frame.f_code.co_filename.endswith(("first.py", "gather.py")):
                    left -= 1
                    if left == -1:
                        sys.setprofile(None)
                        handler()

            sys.setprofile(profile)
            try:
                return call(), False
            except Raised:
                return call(), True
            finally:
                sys.setprofile(None)

        def until_done(call):
            while True:
                try:
                    return call()
                except ps.exceptions.FirstFailed as error:
                    assert "Raised" in str(error)
"""
CALLS = {
    "load": """
        w = job.tensor("w", shape=4)

        def call(number):
            w.load(np.full(4, number, np.float32))
            return float(w.pull()[0])
        """,
    "publish": """
        import torch

        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = ps.torch.distribute(model, optimizer, where="servers")

        def call(number):
            if job.rank == 0:
                torch.nn.init.constant_(model.weight, number)
            optimizer.publish()
            return float(model.weight[0, 0])
        """,
    "mean": """
        def call(number):
            return job.mean(np.full(4, number))[0]
        """,
    "gather": """
        def call(number):
            # Of more than one piece.
            gathered = job.all_gather([number, job.rank, bytes(200_000)])
            assert [one[1] for one in gathered] == [0, 1] and gathered[0][0] == gathered[1][0]
            return gathered[0][0]
        """,
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("call", CALLS)
def test_what_is_interrupted_anywhere_and_made_again_is_the_same_call(
    spawn_job: Any, call: str, rank: int
) -> None:
    """Taken for the next one, it gave the value of that, or waited for a call that nobody made."""
    if call == "publish":
        pytest.importorskip("torch")
    saved = spawn_job(
        2,
        RAISES
        + """
        job = ps.init(deadline=20)
        """
        + CALLS[call]
        + f"""
        found = []
        for place in range(1000):
            if job.rank == {rank}:
                value, more = made_again(lambda: call(place), place)
            else:
                value, more = until_done(lambda: call(place)), False
            found.append(value)
            if not any(job.all_gather(more)):
                break
        save(found=found)
        job.close()
        """,
    )
    for result in saved:
        assert 4 < len(result["found"]) < 1000
        np.testing.assert_array_equal(result["found"], np.arange(len(result["found"])))


def test_worker_0_that_was_interrupted_behind_a_load_and_gives_another_value_makes_the_next_one(
    spawn_job: Any,
) -> None:
    saved = spawn_job(
        2,
        RAISES
        + """
        with ps.init(deadline=20) as job:
            w = job.tensor("w", shape=2)
            values = [np.full(2, number, np.float32) for number in range(3)]
            w.load(values[0])
            if job.rank == 0:
                # It has told the others.
                def profile(frame, event, call):
                    if event == "c_return" and getattr(call, "__name__", "") == "end_by_first":
                        sys.setprofile(None)
                        handler()
                sys.setprofile(profile)
                try:
                    w.load(values[1])
                    raise AssertionError("it was not interrupted")
                except Raised:
                    pass
            else:
                w.load(values[1])
            before = w.pull().copy()
            job.barrier()
            w.load(values[2])
            save(before=before, behind=w.pull())
        """,
    )
    for result in saved:
        assert [*result["before"], *result["behind"]] == [1, 1, 2, 2]
