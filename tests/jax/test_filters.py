"""Filters and broadcasts of parameters that `ps.jax.distribute` leaves to the servers."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

# JAX is never imported here: a process that has imported it warns of every fork.


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("propagation", ["pull", "broadcast", "auto"])
@pytest.mark.parametrize("consistency", ["bsp", "ssp:2"])
def test_what_is_held_back_comes_with_a_flush(
    spawn_job: Any, transport: str, propagation: str, consistency: str
) -> None:
    spawn_job(
        2,
        f"""
        import jax, jax.numpy as jnp

        with ps.init() as job:
            start = {{"w": jnp.zeros((40, 50)), "b": jnp.zeros(7), "c": jnp.zeros(3, jnp.complex64)}}
            few = ps.Filters(push=ps.TopK(0.1), broadcast=ps.TopK(0.2))
            options = {{"consistency": {consistency!r}, "reduce": "sum", "lr_scale": None}}
            served = ps.jax.distribute(start, ps.SGD(1.0), filter=few, propagation={propagation!r}, **options)
            plain = ps.jax.distribute(start, ps.SGD(1.0), **options)
            whole = lambda shape, key: jnp.round(4 * jax.random.normal(jax.random.key(key), shape))

            def gradients(step):
                key = 100 * step + job.rank
                c = whole(3, key + 50) + 1j * whole(3, key + 60)
                return {{"w": whole((40, 50), key), "b": whole(7, key + 40), "c": c.astype(jnp.complex64)}}

            filtered = jax.jit(served.push_pull)
            for step in range(6):
                grads = gradients(step)
                seen = filtered(grads)
                expected = plain.push_pull(grads)
            jax.block_until_ready(seen)
            assert served.held_back.elements > 1000 and served.held_back.norm > 0
            assert plain.held_back == (0, 0)
            differs = lambda a, b: any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), a, b)))
            assert differs(seen, expected)
            served.flush()
            plain.flush()  # nothing
            job.barrier()
            assert served.held_back.elements == 0
            expected = plain.pull(slack=0)
            assert not differs(served.pull(slack=0), expected)
            assert not differs(served.pull(slack=0, exact=True), expected)
            assert len(set(job.all_gather(float(jnp.abs(expected["w"]).sum())))) == 1
        """,
        options={"transport": transport},
    )


def test_what_these_parameters_cannot_have_is_refused(spawn_job: Any) -> None:
    spawn_job(
        1,
        """
        import jax, jax.numpy as jnp
        from penstock import exceptions

        class Mine(ps.OwnFilter):
            def send(self, due, clock):
                return due

        with ps.init() as job:
            make = lambda **more: ps.jax.distribute(jnp.zeros(3), ps.SGD(1.0), **more)
            for more, says in (
                ({"filter": ps.Filters(push=Mine())}, "expected a filter that Penstock has"),
                ({"filter": ps.TopK(0.1)}, "expected which direction is filtered"),
                ({"filter": "all"}, 'expected ps.Filters or "auto"'),
                ({"propagation": "tree"}, "propagation"),
            ):
                try:
                    make(**more)
                except exceptions.OptionError as refused:
                    assert says in str(refused), refused
                else:
                    raise AssertionError(says)
            served = make(filter="auto")
            try:
                jax.jit(lambda: served.flush())()
            except exceptions.OptionError as refused:
                assert "outside of `jax.jit`" in str(refused)
            else:
                raise AssertionError
            assert served.push_pull(jnp.ones(3)).tolist() == [-1, -1, -1]
        """,
    )


def test_what_auto_has_chosen_is_seen_with_its_reason(spawn_job: Any) -> None:
    spawn_job(
        1,
        """
        import jax.numpy as jnp

        few = ps.Filters(broadcast=ps.TopK(0.1))
        with ps.init() as job:
            for more, chosen, why in (
                ({}, "pull", "no tree"),
                ({"consistency": "ssp:1"}, "pull", "own updates"),
                ({"consistency": "ssp:1", "filter": few}, "broadcast", "once for each version"),
                ({"consistency": "asp", "filter": "auto"}, "pull", "at each push"),
            ):
                served = ps.jax.distribute({"w": jnp.zeros(3)}, ps.SGD(1.0), propagation="auto", **more)
                assert served.propagation == chosen, served
                assert why in repr(served), served
            plain = ps.jax.distribute({"w": jnp.zeros(3)}, ps.SGD(1.0), propagation="broadcast")
        assert plain.propagation == "broadcast"
        assert repr(plain) == "Served(1 leaves, bsp, propagation='broadcast')", plain
        """,
    )


def test_workers_that_filter_differently_are_told(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import jax.numpy as jnp
        from penstock import exceptions

        with ps.init() as job:
            mine = ps.Filters(push=ps.TopK(0.1 * (job.rank + 1)))
            try:
                ps.jax.distribute(jnp.zeros(3), ps.SGD(1.0), filter=mine)
            except exceptions.DeclarationConflict as conflict:
                assert "TopK(fraction=0.1)" in str(conflict), conflict
            else:
                raise AssertionError
        """,
    )
