"""Several worker processes: what each sees of the others, and what they may not do to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_sum_and_mean_over_workers_are_what_they_say(spawn_job: Any) -> None:
    saved = spawn_job(
        3,
        """
        with ps.init() as job:
            total = job.tensor("total", shape=9000, reduce="sum")
            mean = job.tensor("mean", shape=9000)
            clipped = job.tensor("clipped", shape=3, reduce="sum", rescale=0.5, clip=2.0)
            first = job.tensor("first", np.full(3, job.rank, np.float32))   # rank 0's value counts
            for step in range(4):
                gradient = np.full(9000, 10.0 ** job.rank, np.float32)
                total.push(gradient)
                mean.push(gradient)
                clipped.push([job.rank, 2 * job.rank, -9])
                job.clock()
            save(total=total.pull(), mean=mean.pull(), clipped=clipped.pull(), first=first.pull())
        """,
    )
    for result in saved:
        np.testing.assert_array_equal(result["total"], np.full(9000, 444))
        np.testing.assert_allclose(result["mean"], np.full(9000, 148), rtol=1e-6)
        np.testing.assert_array_equal(result["clipped"], [6, 8, -8])
        np.testing.assert_array_equal(result["first"], np.zeros(3))


def test_a_worker_that_pushes_nothing_holds_no_one_up_once_its_clock_moves(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=5, reduce="sum")
            for step in range(6):
                if (step + job.rank) % 2:
                    w.push(np.ones(5, np.float32))
                job.clock()
            save(w=w.pull())
        """,
    )
    for result in saved:
        np.testing.assert_array_equal(result["w"], np.full(5, 6))


def test_no_pull_is_staler_than_its_slack_and_no_update_is_lost(spawn_job: Any) -> None:
    slack, steps, workers = 2, 60, 3
    saved = spawn_job(
        workers,
        f"""
        with ps.init() as job:
            w = job.tensor("w", shape=9000, reduce="sum", consistency=ps.SSP({slack}))
            every = np.zeros(9000, np.float32)
            seen, fresh, stale = [], [], 0
            for step in range({steps}):
                value = w.pull()
                seen.append([value.min(), value.max()])
                stale = max(stale, w.staleness)
                if step % 10 == 9:
                    fresh.append([step, w.pull(slack=0).min()])
                w.push(np.ones(9000, np.float32))
                job.clock()
            job.barrier()
            save(seen=seen, fresh=fresh, stale=stale, last=w.pull(slack=0))
        """,
        options={"chunk_bytes": "4096"},
    )
    for result in saved:
        steps_seen = np.arange(steps)
        # Own updates always; of each other worker's at least those of `slack` iterations ago.
        least = steps_seen + (workers - 1) * np.maximum(steps_seen - slack, 0)
        assert (result["seen"][:, 0] >= least).all()
        assert (np.diff(result["seen"][:, 0]) >= 0).all(), "a version moved backwards"
        assert result["stale"] <= slack
        for step, value in result["fresh"]:
            assert value >= workers * step, "a pull with slack 0 lacked an update"
        np.testing.assert_array_equal(result["last"], np.full(9000, steps * workers))


def test_asp_waits_for_no_one(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=5, reduce="sum", consistency=ps.ASP())
            if job.rank == 0:
                for step in range(50):           # the other one is at the barrier all the while
                    w.push(np.ones(5, np.float32))
                    job.clock()
                assert w.pull().min() == 50
            job.barrier()
            save(w=w.pull(slack=None), clocks=job.clocks())
        """,
    )
    for result in saved:
        np.testing.assert_array_equal(result["w"], np.full(5, 50))
        np.testing.assert_array_equal(result["clocks"], [50, 0])


def test_a_tensor_declared_differently_by_two_workers_is_refused_to_the_second(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            if job.rank == 1:
                job.barrier()                     # worker 0 declares first
                others = [{"shape": 4}, {"dtype": "float64"}, {"optimizer": ps.Adam()}]
                for other in [*others, {"consistency": "asp"}, {"reduce": "sum"}]:
                    try:
                        job.tensor("w", **{"shape": 3, **other})
                    except ps.exceptions.DeclarationConflict as error:
                        print("refused:", error)
                    else:
                        raise SystemExit(f"{other} was not refused")
            w = job.tensor("w", shape=3)
            if job.rank == 0:
                job.barrier()
            w.push(np.ones(3, np.float32))
            job.clock()
            save(w=w.pull())
        """,
    )
    assert saved[1]["output"].count("refused: ") == 5
    for result in saved:
        np.testing.assert_array_equal(result["w"], np.ones(3))


def test_rows_that_two_workers_take_for_something_else_are_refused_to_both(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            for number, pair in enumerate([("i4", "f4"), ("f2", "i2"), ("M8[s]", "M8[ms]")]):
                try:
                    job.table(f"t{number}", rows=2, dtype=pair[job.rank], produce=[job.rank], consume="all")
                except ps.exceptions.DeclarationConflict as error:
                    print("refused:", error)
                else:
                    raise SystemExit(f"{pair} was not refused")
            save(done=True)
        """,
    )
    for result in saved:
        assert result["output"].count("refused: ") == 3
        assert "elements" in result["output"]
        assert "1 x int32" in result["output"]


def test_a_child_that_inherits_a_workers_place_is_told_so(spawn_job: Any) -> None:
    saved = spawn_job(
        1,
        """
        import concurrent.futures, multiprocessing
        with ps.init() as job:
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                error = pool.submit(ps.init).exception()
            assert isinstance(error, ps.exceptions.JobFull), error
            print("said:", error, "|", error.hint)
            save(parent=os.getpid())
        """,
    )
    assert f"was started by process {saved[0]['parent']} with its environment" in saved[0]["output"]
    assert "a child process is not a worker by itself" in saved[0]["output"]


# While multiprocessing prepares such a child, it does not say yet that the process is one.
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_whose_script_joins_while_it_is_prepared_is_told_so(
    spawn_job: Any, tmp_path: Path, method: str
) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(f"""
import multiprocessing, os
import penstock as ps

def work():
    pass

job = ps.init()
context = multiprocessing.get_context("{method}")
child = context.Process(target=work)
child.start()
child.join()
assert child.exitcode == 1, child.exitcode
job.close()
""")
    (saved,) = spawn_job(
        1, f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')".join("\n\n")
    )
    assert "a child process is not a worker by itself" in saved["output"], saved["output"]


# The server was blamed, and the memory that it had passed was lost for good.
def test_a_worker_without_descriptors_says_so_and_can_declare_again(spawn_job: Any) -> None:
    saved = spawn_job(
        1,
        """
        import resource
        with ps.init() as job:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            for elements in (3, 1 << 20):         # in a slab, and in regions of its own
                names = [f"a{elements}", f"b{elements}"]
                resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
                try:
                    job.tensor(names[0], shape=elements)
                except ps.PenstockError as error:
                    assert type(error) is ps.PenstockError and "ulimit -n" in str(error), error
                    print("said:", error)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for name in reversed(names):      # the second lies where the first does
                    w = job.tensor(name, shape=elements)
                    w.push(np.ones(elements, np.float32))
                    np.testing.assert_array_equal(w.pull(), np.ones(elements))
                job.clock()
            save(fine=1)
        """,
    )
    assert saved[0]["output"].count("said:") == 2


def test_workers_that_disagree_about_the_learning_rate_are_stopped_with_both_named(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        job = ps.init()
        w = job.tensor("w", shape=3, optimizer=ps.SGD(0.5))
        w.set_lr(0.5 + job.rank)
        try:
            w.push(np.ones(3, np.float32))
            job.clock()
            w.pull()
        except ps.PenstockError as error:
            print(type(error).__name__, error)
            raise SystemExit(3)
        """,
        fails=True,
    )
    for result in saved:
        assert "SettingsConflict" in result["output"]
        assert "0 and 1" in result["output"]


@pytest.mark.parametrize("how", ["raise ValueError('the data is bad')", "os.kill(os.getpid(), 9)"])
def test_a_worker_that_fails_ends_the_others_with_an_error_that_names_it(spawn_job: Any, how: str) -> None:
    saved = spawn_job(
        2,
        f"""
        with ps.init() as job:
            w = job.tensor("w", shape=3)
            try:
                for step in range(10):
                    if step == 5 and job.rank == 1:
                        {how}
                    w.push(np.ones(3, np.float32))
                    job.clock()
                    w.pull()
            except ps.WorkerLost as error:
                print("lost", error.rank)
                raise SystemExit(3)
        """,
        fails=True,
    )
    assert "lost 1" in saved[0]["output"]


def test_a_load_waits_for_worker_0_however_short_the_others_timeouts_are(spawn_job: Any) -> None:
    # Their time ran out while worker 0 loaded. They went, stood at their next barrier, and worker 0 took that
    # for the end of the load: from then on all barriers were off by one.
    saved = spawn_job(
        2,
        """
        import time

        class Slow:
            def __init__(self, core):
                self.core = core

            def __getattr__(self, name):
                return getattr(self.core, name)

            def load(self, *arguments):
                time.sleep(4)
                return self.core.load(*arguments)

        with ps.init() as job:
            w = job.tensor("w", shape=3)
            job.barrier()
            if job.rank == 0:
                object.__setattr__(w, "_core", Slow(w._core))
            w.load(np.full(3, 7, np.float32), timeout=3 if job.rank else 60)
            save(seen=w.pull())
        """,
    )
    for result in saved:
        np.testing.assert_array_equal(result["seen"], np.full(3, 7))


def test_what_rank_0_loads_is_what_everyone_sees(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=9000, optimizer=ps.Adam())
            for step in range(3):
                w.push(np.full(9000, step, np.float32))
                job.clock()
            w.load(np.full(9000, 7, np.float32), {"exp_avg": np.full(9000, 0.5, np.float32)}, step=9)
            loaded = w.pull().copy()
            state = w.optimizer_state()
            w.push(np.zeros(9000, np.float32))
            job.clock()
            save(loaded=loaded, exp_avg=state["exp_avg"], step=state["step"], after=w.pull())
        """,
        servers=2,
    )
    for result in saved:
        np.testing.assert_array_equal(result["loaded"], np.full(9000, 7))
        np.testing.assert_array_equal(result["exp_avg"], np.full(9000, 0.5))
        assert result["step"] == 9
        assert (result["after"] < 7).all()
    np.testing.assert_array_equal(saved[0]["after"], saved[1]["after"])


# The next load of worker 0 met the others where they waited for its last: they went on with the old value.
@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_a_load_that_fails_on_worker_0_is_believed_by_nobody_and_the_next_one_is_seen_by_all(
    spawn_job: Any, error: str
) -> None:
    saved = spawn_job(
        3,
        f"""
        import penstock.tensor

        sound, failure = penstock.tensor.Tensor._write, ""

        def fails(*_):
            penstock.tensor.Tensor._write = sound
            raise {error}("while it is loaded")

        with ps.init() as job:
            w = job.tensor("w", shape=3)
            if job.rank == 0:
                penstock.tensor.Tensor._write = fails
            try:
                w.load(value=np.full(3, 100, np.float32))
            except BaseException as error:
                failure = f"{{type(error).__name__}}: {{error}}"
            first = w.pull().copy()
            if failure:
                w.load(value=np.full(3, 200, np.float32))
            save(failure=failure, first=first, w=w.pull())
            job.barrier()
        """,
    )
    assert str(saved[0]["failure"]).startswith(error)
    for result in saved[1:]:
        text = f"FirstFailed: load of `w` (every worker calls it) was not done: worker 0 failed: {error}"
        assert str(result["failure"]).startswith(text)
        np.testing.assert_array_equal(result["first"], np.zeros(3))
    for result in saved:
        np.testing.assert_array_equal(result["w"], np.full(3, 200))


# torch's idiom: the others evaluated what was there before, or a part of it, and nobody was told.
def test_a_load_on_worker_0_alone_before_a_barrier_of_all_is_told_as_a_circle(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=3)
            said = ""
            try:
                if job.rank == 0:
                    w.load(value=np.ones(3, np.float32))
                job.barrier()
            except ps.exceptions.CircularWait as error:
                said = str(error)
            save(said=said)
        """,
    )
    # Whoever hears of it first, and goes on, ends the other's wait.
    said = [str(result["said"]) for result in saved if result["said"]]
    assert said
    assert "worker 0 stands at the barrier `load of `w`" in said[0]
    assert "worker 1 stands at the barrier and waits for workers [0]" in said[0]
