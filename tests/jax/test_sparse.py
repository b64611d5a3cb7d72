"""Sparse arrays of JAX as contributions."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

# JAX is never imported here: a process that has imported it warns of every fork.


def test_arrays_of_jax_name_the_rows_of_a_pull(spawn_job: Any) -> None:
    spawn_job(
        1,
        """
        import jax.numpy as jnp

        with ps.init() as job:
            w = job.tensor("w", np.arange(12).reshape(4, 3), dtype="float32")
            np.testing.assert_array_equal(w.pull(rows=jnp.array([2, 0])), [[6, 7, 8], [0, 1, 2]])
            np.testing.assert_array_equal(w.pull(indices=jnp.array([[2, 0], [1, 1]])), [7, 1])
        """,
    )


def test_sparse_arrays_of_jax_are_taken(spawn_job: Any) -> None:
    spawn_job(
        1,
        """
        import jax, jax.numpy as jnp
        from jax.experimental import sparse
        from penstock import exceptions

        with ps.init() as job:
            w = job.tensor("w", shape=(60, 3))
            whole = jnp.zeros((60, 3)).at[2].set(1.0).at[59, 1].set(3.0)
            made = sparse.BCOO.fromdense
            for given in (
                made(whole),
                made(whole, nse=9),  # those beyond are no places
                made(whole, n_dense=1, nse=4),
                made(whole, n_dense=2),
                made(whole, n_batch=1).update_layout(n_batch=0),
                made(whole[::-1])[::-1],
            ):
                before = w.pull().copy()
                w.push(given)
                np.testing.assert_array_equal(w.pull() - before, whole)
                job.clock()
            twice = sparse.BCOO((jnp.array([1.0, 2.0]), jnp.array([[7, 1], [7, 1]])), shape=(60, 3))
            before = w.pull()[7, 1]
            w.push(twice)
            assert w.pull()[7, 1] == before + 3
            job.clock()

            jitted = jax.jit(lambda given: w.push(given))
            for push, given, error, says in (
                (w.push, made(whole, n_batch=1), exceptions.ShapeError, "without batch dimensions, got 1"),
                (w.push, sparse.BCSR.fromdense(whole), exceptions.DtypeError, "got BCSR"),
                (w.push, made(whole.T), exceptions.ShapeError, "has shape"),
                (w.push, made(whole.astype(jnp.float16)), exceptions.DtypeError, "got float16"),
                (w.push, jax.grad(lambda b: b.data.sum(), allow_int=True)(made(whole)), exceptions.DtypeError,
                    "expected indices as whole numbers"),
                (w.push, jax.tree.map(lambda x: -0.1 * x, made(whole)), exceptions.DtypeError,
                    "expected indices as whole numbers"),
                (w.push, jax.tree.map(lambda x: x[:2] if x.ndim == 1 else x, made(whole)),
                    exceptions.ShapeError, "expected as many values as indices"),
                (jitted, made(whole), exceptions.DtypeError, "expected an array of numbers"),
            ):
                try:
                    push(given)
                except error as refused:
                    assert says in str(refused), refused
                else:
                    raise AssertionError(says)
            w.push(made(whole))  # none of them was taken

            half = job.tensor("half", shape=(60, 3), dtype="bfloat16")
            half.push(made(whole.astype(jnp.bfloat16), nse=9))
            np.testing.assert_array_equal(half.pull().astype(np.float32), whole)
        """,
    )
