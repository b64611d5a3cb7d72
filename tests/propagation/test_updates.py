"""Updates that are broadcast: the bits of values that are fetched, in fewer bytes where they are sparse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.exceptions import DeclarationConflict, OptionError, SettingsError

HERE = Path(__file__).parent


def test_every_optimizer_comes_to_the_same_bits_as_where_values_are_fetched(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "4", "--servers", "2"]
    command += ["--transport", "tcp", str(HERE / "updates.py"), str(tmp_path)]
    environment = {**os.environ, "PENSTOCK_CHUNK_BYTES": "4KiB"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seen = [np.load(tmp_path / f"{rank}.npy") for rank in range(4)]
    assert np.isfinite(seen[0]).all()
    for other in seen[1:]:
        assert other.tobytes() == seen[0].tobytes(), "on every host"


def test_versions_that_pass_before_an_update_is_sent_change_nothing_of_it(spawn_job: Any) -> None:
    # A push, and clocks behind it without one, come to a server together; and Adagrad counts what is skipped.
    spawn_job(
        2,
        """
        rules = [ps.SGD(0.1), ps.SGD(0.1, momentum=0.9), ps.Adam(0.01), ps.Adagrad(0.1, lr_decay=0.1)]
        with ps.init() as job:
            pairs = [
                [
                    job.tensor(
                        f"{at} {how}", shape=(300, 32), optimizer=rule, propagation=how, sparse=True
                    )
                    for how in ("pull", "update")
                ]
                for at, rule in enumerate(rules)
            ]
            for tensors in pairs:
                for tensor in tensors:
                    tensor.pull()
            draw, same = np.random.default_rng(job.rank), np.random.default_rng(7)
            for turn in range(40):
                # Only some of the chunks, in the same iterations on both workers.
                rows = np.unique(draw.integers(0, 300, 5))
                some = draw.standard_normal((len(rows), 32)).astype(np.float32)
                for tensors in pairs:
                    for tensor in tensors:
                        tensor.push(ps.Sparse(rows, some))
                for _ in range(same.integers(1, 4)):
                    job.clock()
                if turn % 8 == 7:
                    for fetched, updated in pairs:
                        assert fetched.pull().tobytes() == updated.pull().tobytes(), turn
            job.barrier()
        """,
        options={"transport": "tcp", "chunk_bytes": "4KiB"},
    )


def test_a_worker_that_comes_late_has_value_and_state_of_what_others_trained(spawn_job: Any) -> None:
    spawn_job(
        3,
        """
        with ps.init() as job:
            def declare(how):
                return job.tensor(
                    how, shape=9000, optimizer=ps.Adam(0.1), propagation=how, reduce="sum"
                )
            late = job.rank == 2
            tensors = [] if late else [declare(how) for how in ("pull", "update")]
            for step in range(12):
                if late and step == 5:
                    tensors = [declare(how) for how in ("pull", "update")]
                for tensor in tensors:
                    tensor.push(np.full(9000, job.rank + step + 1, np.float32))
                job.clock()
                if tensors:
                    fetched, updated = (tensor.pull(slack=0) for tensor in tensors)
                    assert fetched.tobytes() == updated.tobytes(), step
            one, other = (tensor.optimizer_state() for tensor in tensors)
            for name in one:
                assert one[name].tobytes() == other[name].tobytes(), name
            job.barrier()
        """,
        options={"transport": "tcp", "chunk_bytes": "4KiB"},
    )


def test_of_sparse_pushes_what_is_pushed_comes_down_though_all_of_the_value_changes(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        SIZE, SOME = 100_000, 500
        optimizers = {
            "sgd": lambda: ps.SGD(0.1),
            "momentum": lambda: ps.SGD(0.1, momentum=0.9),
            "adam": lambda: ps.Adam(0.01),
        }
        with ps.init() as job:
            took = {}
            for name, optimizer in optimizers.items():
                for how in ("pull", "broadcast", "update"):
                    w = job.tensor(
                        f"{name} {how}", shape=SIZE, optimizer=optimizer(), propagation=how, sparse=True
                    )
                    draw = np.random.default_rng(job.rank)
                    w.push(draw.standard_normal(SIZE).astype(np.float32))
                    job.clock()
                    w.pull(slack=0)
                    job.barrier()
                    before = job.stats()["received_bytes"]
                    for step in range(10):
                        w.push(ps.Sparse(draw.integers(0, SIZE, SOME), np.ones(SOME, np.float32)))
                        job.clock()
                        w.pull(slack=0)
                    took[f"{name}_{how}"] = (job.stats()["received_bytes"] - before) / 10
                    job.barrier()
            save(**took)
        """,
        options={"transport": "tcp"},
    )
    value = 400_000
    for took in saved:
        # 13 chunks, each a header and 40 bytes of settings; and what two workers pushed, with its places.
        for optimizer in ("sgd", "momentum", "adam"):
            assert took[f"{optimizer}_update"] < 13 * (128 + 40) + 1000 * 8 + 4000, took
        for optimizer in ("momentum", "adam"):
            for how in ("pull", "broadcast"):
                assert took[f"{optimizer}_{how}"] > 0.9 * value, took


def test_of_factors_factors_come_down_and_make_the_same_bits(spawn_job: Any) -> None:
    saved = spawn_job(
        3,
        """
        SIZE, RANK = 1024, 4
        optimizers = {"sgd": lambda: ps.SGD(0.1), "adam": lambda: ps.Adam(0.01)}
        with ps.init() as job:
            took = {}
            draw = np.random.default_rng(job.rank)

            def factors(rank):
                u = draw.standard_normal((SIZE, rank)).astype(np.float32)
                return u, draw.standard_normal((rank, SIZE)).astype(np.float32)

            for name, optimizer in optimizers.items():
                def declare(how):
                    return job.tensor(
                        f"{name} {how}", shape=(SIZE, SIZE), optimizer=optimizer(), propagation=how,
                        low_rank=RANK,
                    )
                pulled, updated = declare("pull"), declare("update")
                for step in range(6):
                    u, v = factors(1 + (step + job.rank) % RANK)
                    pulled.push_factors(u, v)
                    expected = pulled.pull(slack=0).tobytes()
                    before = job.stats()["received_bytes"]
                    updated.push_factors(u, v)
                    assert updated.pull(slack=0).tobytes() == expected, (name, step)
                    job.clock()
                    if step > 0:
                        took[f"{name}_{step}"] = job.stats()["received_bytes"] - before
                # One pushes all of it: the sum comes down.
                u, v = factors(RANK)
                for tensor in (pulled, updated):
                    if job.rank == 1:
                        tensor.push(u @ v)
                    else:
                        tensor.push_factors(u, v)
                assert updated.pull(slack=0).tobytes() == pulled.pull(slack=0).tobytes(), name
                job.clock()
                state, other = pulled.optimizer_state(), updated.optimizer_state()
                for what, array in state.items():
                    assert np.asarray(array).tobytes() == np.asarray(other[what]).tobytes(), what
                job.barrier()
            save(**took)
        """,
        options={"transport": "tcp"},
    )
    value = 4 * 1024 * 1024
    for took in saved:
        # 128 chunks, each with a header, 64 bytes of the step, and of each worker 16 and its rows; and right
        # factors for each shard.
        for name in ("sgd", "adam"):
            assert max(took[f"{name}_{step}"] for step in range(1, 6)) < value / 8, took


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"consistency": "ssp:4"}, "expected bsp"),
        ({"consistency": "asp"}, "expected bsp"),
        ({"filter": ps.Filters(broadcast=ps.DVF(1.0))}, "expected no filter of broadcasts"),
        ({"dtype": "float16"}, "expected float32 or float64"),
        ({"dtype": "bfloat16"}, "expected float32 or float64"),
    ],
)
def test_what_workers_could_not_compute_for_themselves_is_refused(
    job: ps.Job, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        job.tensor("w", shape=3, propagation="update", **options)
    # Nothing was declared.
    assert job.tensor("w", shape=3, propagation="update").propagation == "update"


def test_another_propagation_is_another_declaration(job: ps.Job) -> None:
    job.tensor("w", shape=3, propagation="update")
    with pytest.raises(DeclarationConflict, match="propagation"):
        job.tensor("w", shape=3, propagation="broadcast")
    with pytest.raises(OptionError, match='"pull", "broadcast", "update" or "auto"'):
        job.tensor("v", shape=3, propagation="updates")
