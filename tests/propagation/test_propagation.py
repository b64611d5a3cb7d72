"""Values that are broadcast: the same view everywhere, in memory when they are pulled, and nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import DeclarationConflict, OptionError

HERE = Path(__file__).parent


def test_all_who_read_a_version_read_the_same_whichever_way_it_comes_to_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "4", "--servers", "2"]
    command += ["--transport", "tcp", str(HERE / "train.py"), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    workers = [np.load(tmp_path / f"{rank}.npz") for rank in range(4)]
    for which in ("arr_0", "arr_1"):
        views: dict[int, bytes] = {}
        for worker in workers:
            for view in worker[which]:
                # The slowest worker's count is the version: it was shown once that worker had come so far.
                if which == "arr_0":
                    assert views.setdefault(int(view.min()), view.tobytes()) == view.tobytes()
            # And it does not go back.
            assert np.all(np.diff(worker[which], axis=0) >= 0)
        assert len(views) > 5 or which == "arr_1", "they read many versions"


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_own_updates_are_seen_with_the_version_that_holds_them_and_a_flush_or_an_exact_pull_sees_them_before(
    spawn_job: Any, transport: str
) -> None:
    first, _ = spawn_job(
        2,
        """
        with ps.init() as job:
            options = dict(shape=3000, reduce="sum", consistency="ssp:9")
            pulled = job.tensor("pulled", **options)
            cast = job.tensor("cast", propagation="broadcast", **options)
            assert (pulled.propagation, cast.propagation) == ("pull", "broadcast")
            ones = np.ones(3000, np.float32)
            if job.rank == 0:
                for step in range(5):
                    for tensor in (pulled, cast):
                        tensor.push(ones)
                    job.clock()
                save(pulled=pulled.pull()[0], cast=cast.pull()[0], exact=cast.pull(exact=True)[0])
                job.barrier()
                job.barrier()
                assert cast.pull(slack=0)[0] == 6
            else:
                job.barrier()
                assert cast.pull()[0] == 0
                job.barrier()
                cast.push(ones)
                for _ in range(5):
                    job.clock()
            job.barrier()
            cast.flush()
            assert np.all(cast.pull() == 6)
            if job.rank == 0:
                cast.push(ones)
            job.barrier()
            assert np.all(cast.pull() == 6)
            cast.flush()
            assert np.all(cast.pull() == 7), "folded, and in no version so far"
            job.barrier()
        """,
        options={"transport": transport},
    )
    assert (first["pulled"], first["cast"], first["exact"]) == (5, 0, 5)


@pytest.mark.parametrize("consistency", ["ssp:9", "asp"])
def test_out_of_step_an_exact_pull_has_all_own_updates_and_a_flush_everybodys(
    spawn_job: Any, consistency: str
) -> None:
    for transport in ("auto", "tcp"):
        spawn_job(
            2,
            f"""
            with ps.init() as job:
                # Several chunks: a mixture of two states would show.
                w = job.tensor(
                    "w", shape=100_000, reduce="sum", consistency={consistency!r}, propagation="broadcast"
                )
                ones = np.ones(100_000, np.float32)
                job.barrier()
                for step in range(1, 15):
                    w.push(ones)
                    exact = w.pull(exact=True)
                    assert exact.min() >= step, (step, exact.min())
                    job.clock()
                    job.barrier()
                    w.flush()
                    seen = w.pull()
                    assert np.all(seen == 2 * step), (step, seen.min(), seen.max())
                    job.barrier()
            """,
            options={"transport": transport},
        )


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_what_nobody_pushes_costs_little_at_a_clock_and_a_push_comes_through(
    spawn_job: Any, consistency: str
) -> None:
    saved = spawn_job(
        2,
        f"""
        with ps.init() as job:
            w = job.tensor(
                "w", shape=1_000_000, reduce="sum", consistency={consistency!r}, propagation="broadcast"
            )
            ones = np.ones(1_000_000, np.float32)
            w.push(ones)
            job.clock()
            assert w.pull(slack=0)[-1] == 2
            job.barrier()
            before = job.stats()["received_bytes"]
            for _ in range(50):
                job.clock()
            assert np.all(w.pull(slack=0) == 2)
            save(received=job.stats()["received_bytes"] - before)
            job.barrier()
            w.push(ones)
            job.clock()
            assert np.all(w.pull(slack=0) == 4)
            assert w.version >= 52
            job.barrier()
        """,
        options={"transport": "tcp"},
    )
    for result in saved:
        # A frame for each shard and clock, and not 4 MB.
        assert result["received"] < 1_000_000, result["received"]


@pytest.mark.parametrize("consistency", ["bsp", "ssp:2", "asp"])
def test_a_pull_asks_servers_on_other_hosts_for_nothing(spawn_job: Any, consistency: str) -> None:
    saved = spawn_job(
        2,
        f"""
        with ps.init() as job:
            tensors = [
                job.tensor(it, shape=100_000, consistency={consistency!r}, propagation=it)
                for it in ("pull", "broadcast")
            ]
            ones = np.ones(100_000, np.float32)
            for tensor in tensors:
                tensor.push(ones)
            job.clock()
            for tensor in tensors:
                tensor.pull(slack=0)
            job.barrier()
            asked = []
            for tensor in tensors:
                tensor.pull()
                before = job.stats()["sent_bytes"]
                for _ in range(500):
                    tensor.pull()
                asked.append(job.stats()["sent_bytes"] - before)
            save(asked=asked)
            job.barrier()
        """,
        options={"transport": "tcp"},
    )
    for result in saved:
        pull, broadcast = result["asked"]
        # Signs of life are sent all the time; a fetch is 128 bytes.
        assert broadcast < 500 * 8, broadcast
        assert consistency == "bsp" or pull >= 500 * 128


def test_a_worker_that_only_reads_sees_each_version_and_one_that_leaves_holds_none_up(spawn_job: Any) -> None:
    spawn_job(
        3,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=20_000, reduce="sum", consistency="ssp:1", propagation="broadcast")
            for step in range(12):
                if job.rank == 2 and step == 6:
                    break
                if job.rank:
                    w.push(np.ones(20_000, np.float32))
                job.clock()
                if job.rank == 2:
                    continue
                both = min(step + 1, 6)
                assert w.pull(slack=0).min() >= both + step + 1
        """,
        options={"transport": "tcp"},
    )


@pytest.mark.parametrize("consistency", [ps.BSP(), ps.SSP(2), ps.ASP()])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_with_one_worker_a_value_that_is_broadcast_is_what_any_other_is(
    job: ps.Job, consistency: ps.consistency.Consistency, dtype: str
) -> None:
    options: dict[str, Any] = {"shape": 30_001, "dtype": dtype, "optimizer": ps.Adam(lr=0.1)}
    pulled = job.tensor("pulled", consistency=consistency, **options)
    cast = job.tensor("cast", consistency=consistency, propagation="broadcast", **options)
    draw = np.random.default_rng(5)
    for _ in range(5):
        gradient = draw.standard_normal(30_001).astype(pulled.dtype)
        for tensor in (pulled, cast):
            tensor.push(gradient)
        # Whatever its slack: alone, a worker waits for nobody.
        assert pulled.pull(slack=0).tobytes() == cast.pull().tobytes() == cast.pull(slack=9).tobytes()
        job.clock()
    states = [tensor.optimizer_state() for tensor in (pulled, cast)]
    assert states[0].keys() == states[1].keys()
    for name, state in states[0].items():
        np.testing.assert_array_equal(state, states[1][name])


def test_what_is_no_propagation_is_refused_and_workers_must_agree(job: ps.Job) -> None:
    with pytest.raises(OptionError, match="got 'eager'"):
        job.tensor("w", shape=3, propagation="eager")
    with pytest.raises(OptionError, match="got None"):
        job.tensor("w", shape=3, propagation=None)  # type: ignore[arg-type]
    assert job.tensor("w", shape=3).propagation == "pull"
    with pytest.raises(DeclarationConflict, match="propagation"):
        job.tensor("w", shape=3, propagation="broadcast")
    assert job.tensor("w", shape=3).propagation == "pull"
