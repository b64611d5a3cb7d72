"""Pytrees of all kinds, inside `jit` and outside; and what workers must not do differently."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

# Never imported here: a process that has imported JAX warns of every fork.
PRELUDE = """
        import jax, jax.numpy as jnp
        from penstock import exceptions
"""


def test_leaves_of_every_kind_come_back_as_what_they_are(spawn_job: Any) -> None:
    spawn_job(
        2,
        PRELUDE
        + """
        jax.config.update("jax_enable_x64", True)
        with ps.init() as job:
            r = job.rank
            tree = {
                "f4": jnp.full((2, 3), r, jnp.float32),
                "f8": jnp.full((1,), r, jnp.float64),
                "f2": jnp.full((5,), r, jnp.float16),
                "bf16": (jnp.full((3,), r, jnp.bfloat16), jnp.full((2, 2), 2 * r, jnp.bfloat16)),
                "complex": jnp.full((2,), r * (1 + 2j), jnp.complex64),
                "scalar": jnp.float32(r),
                "python": float(r),
                "numpy": np.full((2,), r, np.float32),
                "empty": jnp.zeros((0, 4)),
                "none": None,
                "large": jnp.full((700, 500), r, jnp.float32),
                "whole": jax.grad(lambda x: 1.0, allow_int=True)(3),
            }
            half = {
                "f4": 0.5, "f8": 0.5, "f2": 0.5, "bf16": None, "complex": 0.5 + 1j, "scalar": 0.5,
                "python": 0.5, "numpy": 0.5, "large": 0.5,
            }
            whole = tree.pop("whole")
            assert ps.jax.average({"whole": whole})["whole"].dtype == jax.dtypes.float0
            for average in (ps.jax.average, jax.jit(ps.jax.average)):
                got = average(tree)
                assert jax.tree.structure(got) == jax.tree.structure(tree)
                for name, value in half.items():
                    if value is not None:
                        like = jnp.asarray(tree[name])
                        assert got[name].shape == like.shape and got[name].dtype == like.dtype, name
                        assert isinstance(got[name], jax.Array) and (got[name] == value).all(), name
                assert (got["bf16"][0] == 0.5).all() and (got["bf16"][1] == 1).all()
                assert got["bf16"][1].dtype == jnp.bfloat16 and got["bf16"][1].shape == (2, 2)
                assert got["empty"].shape == (0, 4) and got["none"] is None
            assert job.iteration == 3
        """,
        servers=2,
    )


def test_a_compiled_program_keeps_the_arrays_that_it_needs_after_a_call(spawn_job: Any) -> None:
    """A mean is written over the gradients that it is of, in the program's own memory, where these are no
    longer needed; and only there."""
    spawn_job(
        2,
        PRELUDE
        + """
        with ps.init() as job:
            for shape in ((5,), (300, 1024)):
                @jax.jit
                def step(x):
                    once = x * 2
                    mean = ps.jax.average({"a": once, "b": x})
                    again = ps.jax.average(once)
                    first = ps.jax.broadcast(once)
                    return once, mean["a"] + again, mean["b"], first, once - mean["a"]

                x = jnp.full(shape, job.rank + 1.0)
                for _ in range(3):
                    once, twice, mean, first, rest = step(x)
                    for array, value in (
                        (x, job.rank + 1), (once, 2 * job.rank + 2), (twice, 6), (mean, 1.5),
                        (first, 2), (rest, 2 * job.rank - 1),
                    ):
                        assert (array == value).all(), (array, value)
        """,
    )


@pytest.mark.parametrize("lacks", ["_primitive", "_registered"])
def test_versions_of_jax_that_lack_something_make_the_same_calls(spawn_job: Any, lacks: str) -> None:
    """By `io_callback`, as for devices that are no CPU."""
    spawn_job(
        2,
        PRELUDE
        + f"""
        from penstock.jax import compiled
        compiled.{lacks} = lambda: None
        """
        + """
        with ps.init() as job:
            def twice(tree):
                again = lambda tree, _: (ps.jax.average(tree), tree["w"].sum())
                return jax.lax.scan(again, ps.jax.broadcast(tree), length=2)

            tree = {"w": jnp.full(3, 1.0 + job.rank), "c": jnp.ones((), jnp.bfloat16)}
            got, sums = jax.jit(twice)(tree)
            assert (got["w"] == 1).all() and got["c"].dtype == jnp.bfloat16 and got["c"] == 1
            assert (sums == 3).all() and job.iteration == 2
            try:
                jax.block_until_ready(jax.jit(ps.jax.average)(jnp.ones(3 + job.rank)))
            except jax.errors.JaxRuntimeError as error:
                assert "DeclarationConflict: workers gave different pytrees" in str(error)
            else:
                raise AssertionError("no error")
            assert len(compiled.known_calls) == 0
        """,
    )


def test_a_compiled_program_hands_over_its_own_memory() -> None:
    """An `io_callback` copies each array three times on the way."""
    code = """
import gc, jax, jax.numpy as jnp, numpy as np
from penstock.jax.compiled import known_calls, ordered_call

seen = []
def fill(arguments, results):
    seen.append([np.shares_memory(*pair) for pair in zip(arguments, results)])
    seen.append(not arguments[0].flags.writeable)
    for argument, result in zip(arguments, results):
        result[...] = argument + 1

@jax.jit
def program(x):
    used = x * 2
    return [x + 1, *ordered_call(fill, [used, x], [used, x])]

given = jnp.arange(5.0)
got = program(given)
assert [list(one) for one in got] == [[1, 2, 3, 4, 5], [1, 3, 5, 7, 9], [1, 2, 3, 4, 5]], got
assert list(given) == [0, 1, 2, 3, 4], given
assert seen == [[True, True], True], seen
assert len(known_calls) == 1
del program, got
jax.clear_caches()
gc.collect()
assert len(known_calls) == 0
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_leaves_on_several_devices_come_back_where_they_were(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax, jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        with ps.init() as job:
            one, two = jax.devices()
            halves = NamedSharding(Mesh(np.array([one, two]), ("x",)), PartitionSpec("x"))
            tree = {
                "one": jax.device_put(jnp.full(3, job.rank + 0j), one),
                "two": jax.device_put(jnp.full((2, 2), job.rank, jnp.bfloat16), two),
                "both": jax.device_put(jnp.arange(8.0) + job.rank, halves),
            }
            for got in (ps.jax.average(tree), ps.jax.broadcast(tree), ps.jax.average({"two": tree["two"]})):
                for name, value in got.items():
                    assert value.sharding == tree[name].sharding, name
            assert (ps.jax.average(tree)["both"] == jnp.arange(8.0) + 0.5).all()
            assert (ps.jax.average(tree)["one"] == 0.5).all()

            # Each device made the call with its part: one device's mean, or value, was given to both.
            mesh, split = halves.mesh, PartitionSpec("x")
            served = ps.jax.distribute(jnp.zeros(2), ps.SGD(1.0))
            known = jax.jit(ps.jax.average)
            known(jnp.ones(2))
            x, before = jnp.arange(4.0) + job.rank, job.iteration
            pull = lambda x: x + served.pull()
            for call in (ps.jax.average, known, ps.jax.broadcast, served.push_pull, pull):
                sharded = jax.shard_map(call, mesh=mesh, in_specs=split, out_specs=split)
                for several, given in (
                    (sharded, x), (jax.jit(sharded), x), (jax.pmap(call), x.reshape(2, 2))
                ):
                    try:
                        several(given)
                    except ps.exceptions.OptionError as error:
                        assert "over 2 devices" in str(error), error
                    else:
                        raise AssertionError(call)
            assert job.iteration == before
            alone = Mesh(np.array([two]), ("x",))
            one_device = jax.shard_map(ps.jax.average, mesh=alone, in_specs=split, out_specs=split)
            assert (jax.jit(one_device)(x) == jnp.arange(4.0) + 0.5).all()
        """,
    )


def test_a_broadcast_gives_rank_0s_bits_of_every_element_type(spawn_job: Any) -> None:
    spawn_job(
        3,
        PRELUDE
        + """
        with ps.init() as job:
            def tree(rank):
                noise = np.random.default_rng(rank)
                return {
                    "noise": jnp.asarray(noise.integers(0, 2**32, (1200, 1024), np.uint32)).view(jnp.float32),
                    "large": jnp.asarray(noise.normal(size=(4200, 1024)).astype(np.float32)),
                    "nan": jnp.asarray(np.array([0x7FC00001 + rank, 0xFFC12345], np.uint32).view(np.float32)),
                    "count": rank, "flag": jnp.array([rank == 0, True]), "key": jax.random.key(rank),
                    "empty": jnp.zeros((0,)), "byte": jnp.full((3,), rank, jnp.int8),
                }

            def bits(value):
                if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
                    value = jax.random.key_data(value)
                return np.asarray(value).tobytes()

            expected = jax.tree.map(jnp.asarray, tree(0))
            for broadcast in (ps.jax.broadcast, jax.jit(ps.jax.broadcast)):
                got = broadcast(tree(job.rank))
                assert jax.tree.map(bits, got) == jax.tree.map(bits, expected)
                assert jax.random.normal(got["key"]) == jax.random.normal(jax.random.key(0))
            assert job.iteration == 0
        """,
    )


def test_what_workers_do_differently_is_an_error_on_all_of_them_and_training_goes_on(spawn_job: Any) -> None:
    spawn_job(
        2,
        PRELUDE
        + """
        with ps.init() as job:
            known = {"w": jnp.ones(3), "b": jnp.ones(())}
            ps.jax.average(known)
            cases = [
                # Both trees are new; one is known and has left for the servers; leaves that one has not.
                (lambda: ps.jax.average({"w": jnp.ones(3 + job.rank)}), "DeclarationConflict", "['w']"),
                (lambda: ps.jax.average(known if job.rank else {"w": jnp.ones(3)}),
                 "DeclarationConflict", "['b']"),
                (lambda: ps.jax.average({"w": jnp.ones(3, [jnp.float32, jnp.bfloat16][job.rank])}),
                 "DeclarationConflict", "bfloat16"),
                (lambda: (ps.jax.average, ps.jax.broadcast)[job.rank](known), "GatherConflict", "broadcast"),
                (lambda: ps.jax.distribute(known, ps.SGD(0.1 + job.rank)), "DeclarationConflict", "SGD"),
            ]
            for call, kind, says in cases:
                try:
                    call()
                except getattr(exceptions, kind) as error:
                    assert says in str(error), error
                else:
                    raise AssertionError(f"no {kind}")
                assert ps.jax.average(known)["w"][0] == 1
            try:
                jax.block_until_ready(jax.jit(ps.jax.average)({"w": jnp.ones(3 + job.rank)}))
            except jax.errors.JaxRuntimeError as error:
                assert "DeclarationConflict: workers gave different pytrees" in str(error)
                assert "hint: give trees of the same structure" in str(error)
            else:
                raise AssertionError("no error")
            assert (ps.jax.average({"x": jnp.full(2, job.rank, jnp.float32)})["x"] == 0.5).all()
            # An iteration too many on one worker.
            if job.rank == 1:
                job.clock()
            try:
                ps.jax.average(known)
            except exceptions.GatherConflict as error:
                assert "in iteration" in str(error)
            else:
                raise AssertionError("no error")
        """,
    )


def test_bad_arguments_are_refused_by_name_before_anything_is_sent(spawn_job: Any) -> None:
    spawn_job(
        1,
        PRELUDE
        + """
        import optax
        from penstock.jax.together import together

        def refused(kind, says, call):
            try:
                call()
            except kind as error:
                assert says in str(error), error
            else:
                raise AssertionError(says)

        with ps.init() as job:
            refused(exceptions.DtypeError, "['n'] is int32", lambda: ps.jax.average({"n": jnp.arange(3)}))
            refused(exceptions.DtypeError, "['n'] is int32", lambda: jax.jit(ps.jax.average)({"n": 1}))
            refused(exceptions.DtypeError, "str", lambda: ps.jax.average({"n": "text"}))
            refused(exceptions.OptionError, "optimizer of penstock",
                    lambda: ps.jax.distribute(jnp.ones(2), optax.sgd(0.1)))
            served = ps.jax.distribute({"w": jnp.ones(2)}, ps.SGD(0.1))
            refused(exceptions.DeclarationConflict, "expected ['w']: float32 (2,)",
                    lambda: served.push_pull({"w": jnp.ones(3)}))
            refused(exceptions.DeclarationConflict, "2 leaves",
                    lambda: served.push_pull({"w": jnp.ones(2), "x": jnp.ones(1)}))
            refused(exceptions.OptionError, "inside `jax.jit`",
                    lambda: jax.jit(lambda w: ps.jax.distribute(w, ps.SGD(0.1)) and w)(jnp.ones(2)))
            # As from another thread: what two threads average at once was mixed, or lost without a word.
            def others():
                for call in (ps.jax.average, ps.jax.broadcast, served.push_pull,
                             lambda w: ps.jax.distribute(w, ps.SGD(0.1))):
                    refused(exceptions.OptionError, "another thread", lambda: call({"w": jnp.ones(2)}))
            together(job).in_turn("ps.jax.average", others)
            assert job.iteration == 0
            assert (jax.jit(served.pull)()["w"] == 1).all()
        for call in (ps.jax.average, ps.jax.broadcast):
            refused(exceptions.JobClosed, "closed", lambda: call(jnp.ones(2), job=job))
        """,
    )


def test_compiled_programs_call_in_order_and_in_loops_and_each_time(spawn_job: Any) -> None:
    spawn_job(
        2,
        PRELUDE
        + """
        with ps.init() as job:
            def body(total, x):
                return total + ps.jax.average(x), ps.jax.average(2 * x)

            xs = jnp.arange(4.0) + job.rank
            total, doubled = jax.jit(lambda xs: jax.lax.scan(body, 0.0, xs))(xs)
            assert total == 8 and (doubled == 2 * (jnp.arange(4.0) + 0.5)).all()

            # What does not depend on an argument is averaged in each run, not once while it is traced.
            before = job.iteration
            constant = jax.jit(lambda x: x + ps.jax.average(jnp.float32(job.rank)))
            assert [float(constant(1.0)) for _ in range(3)] == [1.5] * 3
            assert job.iteration == before + 3

            # Steps that nobody has waited for come before what is called outside, and metrics beside them.
            step = jax.jit(lambda w: ps.jax.average(w + job.rank))
            w = jnp.zeros(1000)
            for number in range(50):
                w = step(w)
                assert job.sum(number) == 2 * number
            x = ps.jax.average(jnp.full(3, job.rank, jnp.float32))
            assert (x == 0.5).all() and (w == 25).all()
        """,
    )


@pytest.mark.parametrize("end", ["job.close()", "pass", "sys.exit(0)"])
def test_a_job_is_left_after_the_steps_that_are_under_way(spawn_job: Any, end: str) -> None:
    """They are dispatched, and the program goes on to its end: they found a closed job."""
    saved = spawn_job(
        2,
        f"""
        import jax, jax.numpy as jnp
        job = ps.init()
        step = jax.jit(lambda w: ps.jax.average(w + job.rank))
        w = jnp.zeros(1000)
        for _ in range(50):
            w = step(w)
        {end}
        """,
    )
    assert all("failed" not in one["output"] for one in saved), saved


def test_a_late_worker_is_named_and_the_call_can_be_repeated(spawn_job: Any) -> None:
    spawn_job(
        2,
        PRELUDE
        + """
        with ps.init() as job:
            for tree in ({"w": jnp.full(2, job.rank, jnp.float32)},) * 2:
                if job.rank == 0:
                    try:
                        ps.jax.average(tree, timeout=0.05)
                    except exceptions.GetTimeout as error:
                        assert "`ps.jax.average` of worker 0" in str(error) and error.missing == [1], error
                    else:
                        raise AssertionError("nobody was late")
                job.barrier()
                assert (ps.jax.average(tree)["w"] == 0.5).all()
            assert job.iteration == 2
        """,
    )


@pytest.mark.parametrize("call", ["average", "broadcast"])
def test_workers_that_wait_in_a_circle_are_told_so(spawn_job: Any, call: str) -> None:
    saved = spawn_job(
        2,
        PRELUDE
        + f"""
        with ps.init() as job:
            tree = {{"w": jnp.zeros(2)}}
            ps.jax.{call}(tree)
            if job.rank == 0:
                ps.jax.{call}(tree)
            else:
                job.barrier()
        """,
        options={"deadline": "20"},
        fails=True,
    )
    said = "".join(one["output"] for one in saved)
    assert "CircularWait" in said, said
    assert "Timeout" not in said, said


def test_a_worker_that_leaves_is_not_waited_for_and_the_mean_is_over_the_others(spawn_job: Any) -> None:
    saved = spawn_job(
        3,
        PRELUDE
        + """
        with ps.init() as job:
            step = jax.jit(lambda x: ps.jax.average({"x": x}))
            seen = [float(step(jnp.float32(job.rank))["x"]) for _ in range(3 if job.rank == 2 else 6)]
            save(seen=seen)
        """,
    )
    for one in saved[:2]:
        assert one["seen"][:3].tolist() == [1, 1, 1]
        assert one["seen"][3:].tolist() == [0.5] * 3
    assert saved[2]["seen"].tolist() == [1, 1, 1]


def test_the_examples_in_docstrings_run_and_every_public_function_says_what_it_raises() -> None:
    code = """
import doctest, inspect
import jax, jax.numpy as jnp, numpy as np
import penstock as ps
import penstock.jax
calls = [ps.jax.average, ps.jax.broadcast, ps.jax.distribute, ps.jax.Served.push_pull, ps.jax.Served.pull]
assert len(ps.jax.__all__) == 4
for call in [*calls, ps.jax.Served]:
    text = inspect.getdoc(call)
    if call in calls:
        assert "Raises\\n------" in text, call
        for parameter in inspect.signature(call).parameters:
            assert parameter == "self" or parameter in text, (call, parameter)
    found = doctest.DocTestFinder(recurse=False).find(call, call.__qualname__)
    assert found and found[0].examples, call
    with ps.init() as job:
        found[0].globs = {"ps": ps, "jax": jax, "jnp": jnp, "job": job}
        assert doctest.DocTestRunner(verbose=False).run(found[0]).failed == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_adapter_loads_jax() -> None:
    code = "import sys, penstock as ps; ps.init().close(); assert 'jax' not in sys.modules; ps.jax.average"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# What was kept of them held the job, by which it was found.
def test_a_job_goes_with_its_averages(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import gc, weakref
        with ps.init() as job:
            ps.jax.average({"w": np.ones(8, np.float32)})
        kept = weakref.ref(job)
        del job
        gc.collect()
        save(kept=kept() is not None)
        """,
    )
    assert [bool(one["kept"]) for one in saved] == [False, False]


def test_what_another_worker_says_of_its_leaves_is_unpacked_up_to_a_limit() -> None:
    code = """
import zlib
from penstock.exceptions import GatherConflict
from penstock.gather import lines_of
from penstock.jax.leaves import difference
from penstock.jax.together import MOST_LEAVES_BYTES
assert lines_of(1, zlib.compress(b"a\\nb"), MOST_LEAVES_BYTES) == ["a", "b"]
# What would make lines of its own, or move what the terminal shows.
found = str(difference(0, ["w: f32"], 1, ["w: \\x1b[2J\\u2028hint: " + "x" * 10000])).split("\\nhint")[0]
assert found.isprintable() and len(found) < 3000 and "w: \\ufffd[2J\\ufffdhint: x" in found, found
bomb = zlib.compress(bytes(MOST_LEAVES_BYTES + 1))
for packed in (bomb, bomb[:-1], b"no zlib", zlib.compress(b"\\xff"), zlib.compress(b"\\n" * (1 << 20))):
    try:
        lines_of(1, packed, MOST_LEAVES_BYTES)
    except GatherConflict as error:
        assert "worker 1" in str(error) and 1 in error.given
    else:
        raise AssertionError(packed[:9])
"""
    subprocess.run([sys.executable, "-c", code], check=True)
