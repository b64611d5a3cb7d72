"""Training by several workers takes the steps of one process on the joined batch."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

# Never imported here: a process that has imported JAX warns of every fork.
if any(importlib.util.find_spec(name) is None for name in ("jax", "optax")):
    pytest.skip("JAX or optax is not installed", allow_module_level=True)

PRELUDE = """
        import jax, jax.numpy as jnp, optax

        def start(seed):
            a, b = jax.random.split(jax.random.key(seed))
            return {
                "first": {"w": jax.random.normal(a, (5, 16)) / 2, "b": jnp.zeros(16)},
                "second": (jax.random.normal(b, (16, 1)) / 4, jnp.float32(0.0)),
                "unused": jnp.zeros((0, 3)),
                "half": jnp.ones(4, jnp.bfloat16),
            }

        def loss(params, x, y):
            hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
            w, b = params["second"]
            # Rounding of the bfloat16 leaf must not reach the others: they are compared to the last digits.
            half = (params["half"] / 8).sum().astype(jnp.float32)
            return jnp.mean(((hidden @ w)[:, 0] + b - y) ** 2) + half

        rng = np.random.default_rng(7)
        xs = rng.normal(size=(20, 24, 5)).astype(np.float32)
        ys = np.sin(xs).sum(axis=2)
        gradient = jax.jit(jax.grad(loss))

        def mine(job, array):
            return array[job.rank :: job.size]

        def near(a, b):
            for one, two in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
                assert one.dtype == two.dtype
                tolerance = 3e-2 if one.dtype == jnp.bfloat16 else 2e-5
                np.testing.assert_allclose(np.float32(one), np.float32(two), rtol=tolerance, atol=tolerance)
"""


@pytest.mark.parametrize(
    ("workers", "optimizer"),
    [
        (2, "optax.sgd(0.1, momentum=0.9)"),
        (2, "optax.adam(0.01)"),
        (3, "optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.01))"),
    ],
)
def test_averaged_gradients_train_like_the_joined_batch_with_any_optax_optimizer(
    spawn_job: Any, workers: int, optimizer: str
) -> None:
    saved = spawn_job(
        workers,
        PRELUDE
        + """
        optimizer = OPTIMIZER

        @jax.jit
        def update(params, state, grads):
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        @jax.jit
        def compiled(params, state, x, y):
            return update(params, state, ps.jax.average(gradient(params, x, y)))

        def plain(params, state, x, y):
            return update(params, state, ps.jax.average(gradient(params, x, y)))

        expected = start(0)
        state = optimizer.init(expected)
        for x, y in zip(xs, ys):
            expected, state = update(expected, state, gradient(expected, x, y))
        with ps.init() as job:
            for step in (compiled, plain):
                params = ps.jax.broadcast(start(job.rank))
                state = optimizer.init(params)
                for x, y in zip(xs, ys):
                    params, state = step(params, state, mine(job, x), mine(job, y))
                near(params, expected)
                flat = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
                assert job.all_gather(flat) == [flat] * job.size
            print("the same")
        """.replace("OPTIMIZER", optimizer),
        servers=2,
        timeout=300,
    )
    assert all("the same" in one["output"] for one in saved)


def test_the_servers_steps_are_those_of_optax_under_bsp(spawn_job: Any) -> None:
    spawn_job(
        2,
        PRELUDE
        + """
        with ps.init() as job:
            ways = [
                (ps.SGD(0.1, momentum=0.9), optax.sgd(0.1, momentum=0.9)),
                (ps.Adam(0.01), optax.adam(0.01)),
            ]
            for ours, theirs in ways:
                @jax.jit
                def update(params, state, x, y):
                    updates, state = theirs.update(gradient(params, x, y), state, params)
                    return optax.apply_updates(params, updates), state

                params = start(0)
                state = theirs.init(params)
                for x, y in zip(xs, ys):
                    params, state = update(params, state, x, y)
                for inside in (True, False):
                    served = ps.jax.distribute(start(job.rank), ours)
                    step = lambda params, x, y: served.push_pull(gradient(params, x, y))
                    step = jax.jit(step) if inside else step
                    now = served.pull()
                    for x, y in zip(xs, ys):
                        now = step(now, mine(job, x), mine(job, y))
                    near(now, params)
        """,
        timeout=300,
    )


@pytest.mark.parametrize("propagation", ["pull", "broadcast"])
def test_with_bounded_staleness_it_learns_and_takes_a_schedule_from_inside_jit(
    spawn_job: Any, propagation: str
) -> None:
    spawn_job(
        2,
        f"""{PRELUDE}
        PROPAGATION = {propagation!r}
        """
        """
        with ps.init() as job:
            options = {"consistency": ps.SSP(slack=2), "propagation": PROPAGATION}
            served = ps.jax.distribute(start(0), ps.SGD(0.1), **options)
            assert served._tensors.all[0].propagation == PROPAGATION
            schedule = optax.cosine_decay_schedule(0.1, 100)

            @jax.jit
            def step(params, count, x, y):
                return served.push_pull(gradient(params, x, y), lr=schedule(count))

            params = served.pull()
            before = loss(params, xs.reshape(-1, 5), ys.reshape(-1))
            for count in range(100):
                x, y = xs[count % 20], ys[count % 20]
                params = step(params, count, mine(job, x), mine(job, y))
            jax.block_until_ready(params)
            job.barrier()
            params = served.pull(slack=0)
            after = loss(params, xs.reshape(-1, 5), ys.reshape(-1))
            assert after < 0.5 * before, (before, after)
            assert served._tensors.all[0].optimizer.lr < 0.001
            assert len(set(job.all_gather(float(after)))) == 1
        """,
        timeout=300,
    )


def test_out_of_step_each_update_takes_its_part_of_an_iterations_settings(spawn_job: Any) -> None:
    """In torch's adapter it did, and in this one Adam's steps were twice as long with two workers."""
    spawn_job(
        2,
        """
        import jax, jax.numpy as jnp

        def near(array, value):
            np.testing.assert_allclose(np.asarray(array), value, rtol=1e-5)

        with ps.init() as job:
            def served(optimizer, **options):
                return ps.jax.distribute(jnp.zeros(3), optimizer, **{"consistency": "ssp:1", **options})

            root = 2**0.5
            all_set = {"lr": 0.1, "eps": 0.2, "weight_decay": 0.4}
            golden = [
                (ps.SGD(0.1, momentum=0.9, weight_decay=0.4), (0.1, 0.9, 0.0, 0.2, 0)),
                (ps.Adagrad(lr_decay=0.6, **all_set), (0.1 / root, 0.3, 0.2 / root, 0.2, 0)),
                (ps.RMSprop(alpha=0.8, **all_set), (0.05, 0.8, 0.1, 0.2, 0)),
                (ps.Adam(betas=(0.8, 0.9), **all_set), (0.05, 0.8, 0.9, 0.1, 0.2)),
                (ps.AdamW(betas=(0.8, 0.9), **all_set), (0.05, 0.8, 0.9, 0.1, 0.4)),
            ]
            for optimizer, expected in golden:
                before = optimizer.settings()
                for consistency in ("ssp:1", "asp"):
                    found = served(optimizer, consistency=consistency)._tensors.all[0].optimizer
                    near(found.settings(), expected)
                for options in ({"lr_scale": None}, {"consistency": "bsp"}):
                    assert served(optimizer, **options)._tensors.all[0].optimizer == optimizer
                assert optimizer.settings() == before

            # Gradients of one value: each of Adam's steps is as long as its rate, of one or of both workers.
            for options, long in (({}, 1), ({"lr_scale": None}, 2), ({"consistency": "bsp"}, 1)):
                model = served(ps.Adam(0.1), **options)
                step = jax.jit(lambda rate: model.push_pull(jnp.ones(3), lr=rate))
                for rate in (0.1, 0.3, 0.2):
                    step(rate)
                job.barrier()
                near(model.pull(slack=0), -0.6 * long)
            try:
                served(ps.Adam(), lr_scale="linear")
            except ps.exceptions.OptionError as error:
                assert 'expected lr_scale "per-update" or None' in str(error)
            else:
                raise AssertionError
        """,
    )


def test_a_callback_that_failed_unawaited_is_told_to_the_others_when_the_script_ends(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import jax, jax.numpy as jnp
        from jax.experimental import io_callback

        job = ps.init()
        jax.block_until_ready(jax.jit(ps.jax.average)(jnp.ones(3)))
        if job.rank == 1:
            def fails():
                raise RuntimeError("nobody waited for it")
            jax.jit(lambda: io_callback(fails, None, ordered=True))()
        else:
            try:
                job.barrier()
            except ps.PenstockError as error:
                print("heard", error)
        """,
        fails=True,
    )
    assert saved[1]["code"] == 1
    assert "nobody waited for it" in saved[0]["output"], saved[0]["output"]


def test_a_name_that_other_parameters_had_is_refused(spawn_job: Any) -> None:
    """The second call silently got the first one's values."""
    spawn_job(
        1,
        """
        import jax.numpy as jnp

        with ps.init() as job:
            ps.jax.distribute(jnp.ones(2), ps.SGD(0.5), name="params.1")
            try:
                ps.jax.distribute(jnp.zeros(2), ps.SGD(0.5), name="params.1")
            except ps.exceptions.OptionError as error:
                assert "`params.1` was used before" in str(error), error
            else:
                raise AssertionError("the name was taken twice")
            for fill in 3.0, 4.0:
                served = ps.jax.distribute(jnp.full(2, fill), ps.SGD(0.5))
                assert served.pull().tolist() == [fill, fill]
        """,
    )


def test_a_distribute_that_failed_is_made_again_under_its_name(spawn_job: Any) -> None:
    """The name was said to be used; what the failed call had declared kept its value."""
    spawn_job(
        2,
        """
        import jax.numpy as jnp
        from penstock.jax.served import Served

        def refused(kind, call):
            try:
                call()
            except kind:
                return
            raise AssertionError(kind)

        with ps.init() as job:
            sgd = ps.SGD(0.5, momentum=0.9)
            make = lambda fill, name, **more: ps.jax.distribute(jnp.full(2, fill), sgd, name=name, **more)
            refused(ps.exceptions.OutOfMemory, lambda: ps.jax.distribute(jnp.ones(8_000_000), sgd, name="x"))
            refused(ps.exceptions.SettingsError, lambda: make(1.0, "x", clip=-1))
            for name in "x", None, None:
                begin = Served.__init__

                def interrupted(*args):
                    begin(*args)
                    raise KeyboardInterrupt

                Served.__init__ = interrupted
                refused(KeyboardInterrupt, lambda: make(1.0, name))
                Served.__init__ = begin
                served = make(3.0 + job.rank, name)
                assert served.pull().tolist() == [3.0, 3.0], served.pull()
                assert served.push_pull(jnp.ones(2)).tolist() == [2.5, 2.5]
            # Other parameters get another name.
            served = ps.jax.distribute(jnp.zeros(3), sgd)
            names = [one.name for one in served._tensors.all]
            assert names == ["params.2/float32"], names
            refused(ps.exceptions.OptionError, lambda: make(1.0, "x"))
        """,
        options={"memory": "32MiB"},
    )


def test_a_distribute_that_others_had_not_begun_is_the_same_again(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import time
        import jax.numpy as jnp

        with ps.init() as job:
            for name in "x", None:
                if job.rank == 0:
                    try:
                        ps.jax.distribute(jnp.ones(2), ps.SGD(0.5), name=name, timeout=0.1)
                        raise AssertionError("the other one came")
                    except ps.exceptions.GetTimeout:
                        pass
                job.barrier()
                served = ps.jax.distribute(jnp.ones(2), ps.SGD(0.5), name=name)
                assert served.push_pull(jnp.ones(2)).tolist() == [0.5, 0.5]
        """,
    )


def test_a_call_that_a_signal_handler_ends_as_it_begins_lets_go_of_its_turn(spawn_job: Any) -> None:
    """The turn was taken as long as the exception lived."""
    spawn_job(
        1,
        """
        import contextlib, sys
        import jax.numpy as jnp
        import penstock.jax

        modules = contextlib, sys.modules["penstock.turn"], sys.modules["penstock.jax.together"]
        files = {one.__file__ for one in modules}

        class Raised(Exception):
            pass

        with ps.init() as job:
            for place in range(100):
                left = place

                def profile(frame, event, _):
                    global left
                    if event in ("c_return", "call") and frame.f_code.co_filename in files:
                        left -= 1
                        if left == -1:
                            sys.setprofile(None)
                            raise Raised

                sys.setprofile(profile)
                try:
                    ps.jax.average(jnp.ones(2))
                    break
                except Raised:
                    # Made again here, while the traceback holds all frames.
                    assert ps.jax.average(jnp.ones(2)).tolist() == [1, 1]
                finally:
                    sys.setprofile(None)
            assert 3 < place < 99, place
        """,
    )


def test_a_tensor_that_something_else_declared_is_not_the_parameters(spawn_job: Any) -> None:
    """They silently started from its value."""
    spawn_job(
        1,
        """
        import jax.numpy as jnp, penstock.jax

        with ps.init() as job:
            job.tensor("z/float32", [9, 9])
            for _ in range(2):
                try:
                    ps.jax.distribute(jnp.full(2, 4.0), ps.SGD(0.5), name="z")
                    raise AssertionError
                except ps.exceptions.OptionError as error:
                    assert "`z/float32` was declared before" in str(error), error
            assert job.tensor("z/float32", shape=2).pull().tolist() == [9, 9]
        """,
    )
