"""How a job ends for its processes: exit codes, and errors where something would be lost in silence."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps


@pytest.mark.parametrize("error", ["ValueError: the data is bad", "KeyboardInterrupt"])
def test_a_failure_that_no_call_has_raised_ends_the_script_with_an_error(spawn_job: Any, error: str) -> None:
    """It ended with exit code 0: what fails when the interpreter ends was forgotten."""
    kind, _, text = error.partition(": ")
    saved = spawn_job(
        2,
        f"""
        import time

        job = ps.init()
        job.barrier()
        if job.rank == 1:
            raise {kind}(*{[text] if text else []})
        while not job.closed:
            time.sleep(0.01)
        print("the script is done")
        """,
        fails=True,
    )
    assert "the script is done" in saved[0]["output"]
    assert "WorkerLost: " in saved[0]["output"]
    assert f"worker 1 was lost: it failed: {error}\n" in saved[0]["output"]
    assert saved[0]["code"] == 1


def test_who_catches_the_failure_ends_as_it_likes_and_the_others_hear_of_it_all_the_same(
    spawn_job: Any,
) -> None:
    saved = spawn_job(
        3,
        """
        import time
        job = ps.init()
        try:
            w = job.tensor("w", shape=3, consistency=ps.ASP())
            job.barrier()
            if job.rank == 2:
                raise ValueError("the data is bad")
            while True:
                w.pull()
                time.sleep(0.001)
        except ps.WorkerLost as error:
            assert error.rank == 2
            if job.rank == 1:
                raise
        job.close()
        print("my own choice")
        """,
        fails=True,
    )
    assert "my own choice" in saved[0]["output"]
    assert (saved[0]["code"], saved[1]["code"]) == (0, 1)
    assert "worker 2 was lost" in saved[1]["output"]


def test_a_block_that_ends_after_the_loss_was_caught_is_no_clean_leave(spawn_job: Any) -> None:
    """Its end closes the job. To a server that had not heard of the loss yet, this worker was done."""
    saved = spawn_job(
        4,
        """
        import signal
        from select import select

        with ps.init() as job:
            with open(os.environ["TEST_OUT"] + f".{job.rank}.pid", "w") as file:
                file.write(str(os.getpid()))
            job.barrier()
            with open(os.environ["TEST_OUT"] + ".0.pid") as file:
                first = os.pidfd_open(int(file.read()))
            job.barrier()
            if job.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if job.rank > 1:
                # They look when worker 0 has gone: with or without a call before the end of their block.
                assert select([first], [], [], 60)[0]
            try:
                if job.rank != 3:
                    job.barrier()
                    print("passed the barrier")
            except ps.WorkerLost as error:
                print("caught the loss of", error.rank, "in the block")
        print("the block has ended")
        """,
        servers=2,
        options={"lease": "30"},
        fails=True,
    )
    assert [one["code"] for one in saved] == [0, -9, 0, 1], saved
    for rank in (0, 2):
        assert "caught the loss of 1 in the block\nthe block has ended" in saved[rank]["output"], saved[rank]
    # This one has not been told before: the end of its block does so, and names the worker that
    # was lost first.
    assert "WorkerLost: the job has ended: worker 1 was lost" in saved[3]["output"], saved[3]
    assert "the block has ended" not in saved[3]["output"]


@pytest.mark.parametrize("loss", ["stop", "continue"])
@pytest.mark.parametrize("when", ["before the load", "during the load"])
def test_a_load_after_worker_0_was_killed_is_an_error_at_once(spawn_job: Any, loss: str, when: str) -> None:
    saved = spawn_job(
        3,
        f"""
        import signal, threading, time
        from select import select

        with ps.init() as job:
            w = job.tensor("w", shape=3)
            w.load(np.ones(3, np.float32))
            if job.rank == 0:
                with open(os.environ["TEST_OUT"] + ".pid", "w") as file:
                    file.write(str(os.getpid()))
            job.barrier()
            if job.rank == 0:
                if {when!r} == "before the load":
                    job.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            if {when!r} == "before the load":
                with open(os.environ["TEST_OUT"] + ".pid") as file:
                    first = os.pidfd_open(int(file.read()))
                job.barrier()
                assert select([first], [], [], 60)[0]
            begun = time.monotonic()
            try:
                w.load(np.full(3, 2, np.float32))
                print("loaded nothing")
            except ps.WorkerLost as error:
                print("raised for", error.rank, "soon:", time.monotonic() - begun < 10)
            if {loss!r} == "continue":
                np.testing.assert_array_equal(w.pull(), np.ones(3))
        """,
        options={"on_worker_loss": loss, "lease": "30"},
        fails=True,
    )
    for one in saved[1:]:
        assert "raised for 0 soon: True" in one["output"], one
        assert one["code"] == 0, one


def test_a_load_without_worker_0_is_an_error_not_nothing(spawn_job: Any) -> None:
    """It did nothing and raised nothing."""
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=3)
            w.load(np.ones(3, np.float32))
            if job.rank == 1:
                try:
                    w.load(np.full(3, 2, np.float32))
                except ps.WorkerLost as error:
                    print("raised for", error.rank)
                np.testing.assert_array_equal(w.pull(), np.ones(3))
        """,
    )
    assert "raised for 0" in saved[1]["output"]


def test_an_asynchronous_push_that_was_not_delivered_is_raised_by_close(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        job = ps.init()
        job.barrier()  # both are here
        w = job.tensor("w", shape=3)
        if job.rank == 0:
            w.push(np.ones(3, np.float32))
            job.clock()
            # The other pushes nothing: the lane stays taken.
            w.push_async(np.ones(3, np.float32), timeout=0.2)
            try:
                job.close()
            except ps.exceptions.LaneTimeout:
                print("not delivered")
        else:
            try:
                job.barrier()
            except ps.WorkerLost as error:
                print("lost", error.rank)
        """,
        fails=True,
    )
    assert "not delivered" in saved[0]["output"]
    assert "lost 0" in saved[1]["output"]


def test_the_timeout_of_close_bounds_its_wait_for_asynchronous_pushes_which_end_with_it(
    spawn_job: Any,
) -> None:
    """It waited for each push's own deadline."""
    saved = spawn_job(
        2,
        """
        import time

        job = ps.init()
        w = job.tensor("w", shape=3)
        job.barrier()
        if job.rank == 0:
            w.push(np.ones(3, np.float32))
            job.clock()
            # The other pushes nothing: the lane stays taken, and no push ends before the deadline.
            pushes = [w.push_async(np.ones(3, np.float32)) for _ in range(2)]
            begun = time.monotonic()
            try:
                job.close(timeout=0.2)
            except ps.exceptions.NotDelivered as error:
                print("not delivered:", error)
            ended = [type(push.exception()).__name__ for push in pushes]
            print("ended with the job:", ended, "before the deadline:", time.monotonic() - begun < 60)
        else:
            try:
                job.barrier()
            except ps.WorkerLost as error:
                print("lost", error.rank)
        """,
        options={"deadline": "60"},
        fails=True,
    )
    assert "not delivered: " in saved[0]["output"], saved[0]["output"]
    assert "ended with the job: ['JobClosed', 'JobClosed'] before the deadline: True" in saved[0]["output"]
    assert "lost 0" in saved[1]["output"]


@pytest.mark.parametrize("timeout", ["soon", float("nan"), -1])
def test_a_timeout_of_close_that_is_none_leaves_the_job_as_it_was(job: ps.Job, timeout: Any) -> None:
    """The job was left as one that failed."""
    with pytest.raises(ps.exceptions.OptionError):
        job.close(timeout=timeout)
    assert job.clock() == 1


def test_a_script_that_ends_with_an_exit_code_has_not_left_well(spawn_job: Any) -> None:
    """Nobody but the worker itself says so here. It said goodbye as one that is done."""
    saved = spawn_job(
        3,
        """
        job = ps.init()
        job.barrier()
        if job.rank == 1:
            raise SystemExit(3)
        try:
            job.barrier()
            job.barrier()
        except ps.WorkerLost as error:
            print("lost", error.rank, error)
        """,
        fails=True,
    )
    assert [one["code"] for one in saved] == [0, 3, 0]
    for rank in (0, 2):
        assert "lost 1" in saved[rank]["output"], saved[rank]["output"]
        assert "its process ended with exit code 3" in saved[rank]["output"]


def test_a_call_that_joins_by_itself_does_not_wait_for_the_job_that_was_left(spawn_job: Any) -> None:
    """It waited for servers that had ended with the job, until the deadline."""
    spawn_job(
        2,
        """
        from penstock.job import current

        first = ps.init()
        assert current() is first
        first.barrier()
        first.close()
        for _ in range(2):
            try:
                current()
            except ps.exceptions.JobClosed as error:
                assert "PENSTOCK_SERVERS" in str(error), error
                assert "before `job.close()`" in error.hint, error.hint
            else:
                raise AssertionError("it joined")
        # Another job is another matter, joined by itself or not.
        next_job()
        second = current()
        second.barrier()
        second.close()
        next_job()
        with ps.init() as third:
            assert current() is third
            third.barrier()
        """,
        jobs=3,
    )


def test_a_job_that_is_asked_for_beside_the_one_that_was_joined_by_itself_is_never_that_one(
    spawn_job: Any,
) -> None:
    spawn_job(
        1,
        """
        from penstock.job import current

        first = current()
        # Servers are named by the environment alone.
        for option in ("servers", "job"):
            try:
                ps.init(**{option: "/elsewhere"})
            except ps.exceptions.OptionError as error:
                assert f"`{option}`" in str(error), error
            else:
                raise AssertionError(option)
        try:
            ps.init(consistency="asp")
        except ps.exceptions.JobFull as error:
            assert "has joined already" in str(error), error
        else:
            raise AssertionError("it joined twice")
        assert current() is first
        first.close()
        next_job()
        with ps.init() as second:
            assert second is not first and current() is second
        """,
        jobs=2,
    )
