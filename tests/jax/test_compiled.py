"""What compiled programs call: whatever happens there is an error of the program, and ends no process."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

# Never imported here: a process that has imported JAX warns of every fork.
PRELUDE = """
import jax, jax.numpy as jnp, numpy as np
from penstock.jax import compiled, registry
from penstock.jax.compiled import known_calls, ordered_call

def program(fill):
    return jax.jit(lambda *x: ordered_call(fill, x, x))

def error_of(fill, *x):
    try:
        jax.block_until_ready(program(fill)(*x))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError("no error")

def adds_one(arguments, results):
    for argument, result in zip(arguments, results):
        result[...] = argument + 1

ones = jnp.ones(3)
assert (program(adds_one)(ones)[0] == 2).all()
assert known_calls.taken(None), "this JAX does not take the function"
"""


def run(code: str) -> None:
    """In a process of its own, with the function of the extension: not by an `io_callback`."""
    alone(PRELUDE + code)


def alone(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_ctrl_c_at_any_moment_of_a_compiled_program_is_an_exception() -> None:
    """A callback of ctypes left its result undefined: XLA read that as an error's address."""
    code = """
import os, random, signal

heard, armed = 0, False
def hears(*_):
    global heard
    heard += 1
    if armed:
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, hears)

def fill(arguments, results):
    if random.random() < 0.1:
        os.write(1, b"now\\n")
    adds_one(arguments, results)

step = program(fill)
step(ones)
inside = outside = 0
while heard < 150:
    try:
        armed = True
        while heard < 150:
            (got,) = step(ones)
            assert (got == 2).all()
    except KeyboardInterrupt:
        armed = False
        outside += 1
    except jax.errors.JaxRuntimeError as error:
        armed = False
        assert "KeyboardInterrupt" in str(error), error
        inside += 1
armed = False
assert (step(ones)[0] == 2).all() and len(known_calls)
os.write(1, f"{inside} {outside}\\n".encode())
signal.signal(signal.SIGINT, signal.default_int_handler)
raise KeyboardInterrupt
"""
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last = ""
        for line in process.stdout:
            if line == "now\n":
                process.send_signal(signal.SIGINT)
            else:
                last = line
        errors = process.stderr.read()
    # As Python ends by an interrupt that nobody takes.
    assert process.returncode == -signal.SIGINT, (process.returncode, errors)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert sum(map(int, last.split())) > 0, last


def test_an_error_before_the_first_line_of_the_call_is_one_of_the_program() -> None:
    run("""
Registry = type(known_calls)
works = Registry.__call__
for kind in (KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit):
    def raises(*_):
        raise kind("early")
    Registry.__call__ = raises
    assert f"{kind.__name__}: early" in error_of(adds_one, ones)
for answer in (None, False, 1, "done"):
    Registry.__call__ = lambda *_: answer
    assert "did not say that it is done" in error_of(adds_one, ones)
Registry.__call__ = works
assert (program(adds_one)(ones)[0] == 2).all()
""")


def test_a_warning_of_jax_about_what_we_use_of_it_is_not_the_scripts() -> None:
    """Where warnings are errors, every compiled program failed."""
    code = """
import warnings
import jax, jax.numpy as jnp, penstock as ps
warnings.simplefilter("error")
assert (jax.jit(ps.jax.average)(jnp.ones(3)) == 1).all()
"""
    alone(code)


def test_an_error_is_told_whatever_its_text_is() -> None:
    """Text that UTF-8 has no bytes for, a zero, which ends text in C, and what raises when it is shown."""
    run("""
class Hidden(Exception):
    def __str__(self):
        raise KeyboardInterrupt
    __repr__ = __str__

def raising(error):
    def fill(arguments, results):
        raise error
    return fill

told = error_of(raising(ValueError("lone \\udcff and \\ud800, zero \\0, and the end")), ones)
assert "ValueError: lone" in told and told.endswith("and the end"), told
assert "Hidden" in error_of(raising(Hidden()), ones)
assert "KeyboardInterrupt: pressed" in error_of(raising(KeyboardInterrupt("pressed")), ones)
registry.traceback.format_exception = raising(KeyboardInterrupt())
told = error_of(raising(ValueError("lost")), ones)
assert "ValueError" in told and "when it was to be shown" in told, told
""")


def test_a_process_that_ends_while_a_program_calls_ends_as_any() -> None:
    """The interpreter unwinds threads that come back to it, and what had called them was aborted."""
    run("""
import threading
inside = threading.Event()
def endless(arguments, results):
    inside.set()
    while True:
        pass
step = program(endless)
step.lower(ones).compile()
threading.Thread(target=step, args=[ones], daemon=True).start()
assert inside.wait(60)
""")


def test_a_module_that_is_loaded_again_keeps_the_calls_of_programs() -> None:
    run("""
import gc, importlib, sys
before, kept = program(adds_one), []
assert (before(ones)[0] == 2).all()
for again in (1, 2):
    importlib.reload(registry)
    importlib.reload(compiled)
    from penstock.jax.compiled import ordered_call
    gc.collect()
    assert compiled.known_calls is known_calls and registry.known_calls is known_calls
    known = len(known_calls)
    after = program(adds_one)
    kept.append(after)
    assert (after(2 * ones)[0] == 3).all() and (before(ones)[0] == 2).all()
    assert len(known_calls) == known + 1
for name in [name for name in sys.modules if name.startswith("penstock.jax")]:
    del sys.modules[name]
from penstock.jax.compiled import known_calls as found, ordered_call
assert found is known_calls
assert (program(adds_one)(ones)[0] == 2).all() and (before(ones)[0] == 2).all()
""")


def test_buffers_are_those_of_an_io_callback_bit_by_bit() -> None:
    run("""
jax.config.update("jax_enable_x64", True)
noise = np.random.default_rng(3)
kinds = [*"?bhilBHILefdFD"]
arrays = [jnp.asarray(noise.integers(0, 2, (4, 3)).astype(kind)) for kind in kinds]
arrays += [jnp.asarray(noise.integers(0, 2**16, (2, 1, 5), np.uint16)).view(jnp.bfloat16)]
arrays += [jnp.asarray(noise.integers(0, 2**32, 1000, np.uint32)).view(jnp.float32)]
arrays += [jnp.float32(7), jnp.zeros((0, 4)), jnp.zeros((2, 0), jnp.int8)]
seen = []
def fill(arguments, results):
    seen.append([(one.dtype, one.shape, one.tobytes()) for one in arguments])
    for argument, result in zip(arguments, results):
        result[...] = argument[::-1] if argument.ndim else argument
for primitive in (compiled._primitive, lambda: None):
    compiled._primitive = primitive
    seen.append([(one.dtype, one.shape, np.asarray(one).tobytes()) for one in program(fill)(*arrays)])
assert seen[0] == seen[2] and seen[1] == seen[3]
assert [one[2] for one in seen[0]] == [np.asarray(one).tobytes() for one in arrays]
""")


def test_what_a_program_was_not_traced_for_is_an_error_before_it_is_read() -> None:
    run("""
struct = jax.ShapeDtypeStruct
called = lambda likes: compiled._Called(adds_one, likes, likes)
for wrong in (
    [], [struct((4,), "float32")], [struct((3,), "int32")], [struct((3,), "float32")] * 2,
):
    def add(self, one, wrong=called(wrong)):
        number = works(self, wrong)
        kept.append(wrong)
        return number
    works, kept = type(known_calls).add, []
    type(known_calls).add = add
    told = error_of(lambda arguments, results: None, ones)
    type(known_calls).add = works
    assert "XLA gave buffers of types and shapes" in told, told
""")


def test_an_array_that_is_kept_beyond_the_call_is_an_error() -> None:
    """Its memory is XLA's, which has taken it back."""
    run("""
lent = []
works = type(known_calls).__call__
def notes(self, number, arguments, results):
    lent.extend(memory for _, _, memory in [*arguments, *results])
    return works(self, number, arguments, results)
type(known_calls).__call__ = notes
assert (program(adds_one)(ones)[0] == 2).all()
assert len(lent) == 4
for memory in lent:
    try:
        memoryview(memory)
    except BufferError as error:
        assert "has ended" in str(error)
    else:
        raise AssertionError("a view of memory that XLA has again")

registry._PAUSES = 3
kept = []
def keeps(arguments, results):
    adds_one(arguments, results)
    kept.append(arguments[0][1:])
assert "was kept beyond the call" in error_of(keeps, ones)
# The call was carried out. To repeat it would be one more.
kept.clear()
assert "end the program" in error_of(adds_one, ones)
""")


def test_an_exception_that_is_held_elsewhere_holds_no_array() -> None:
    """A failed push's, which its future has: to show what its frames held read memory that XLA had again."""
    run("""
import traceback, weakref
held, arrays = ValueError("held"), []
def raises(arguments, results):
    arrays.extend(map(weakref.ref, arguments))
    local = arguments[0][1:]
    raise held
assert "held" in error_of(raises, ones)
assert not any(array() is not None for array in arrays)
traceback.TracebackException.from_exception(held, capture_locals=True)
assert (program(adds_one)(ones)[0] == 2).all()
""")


def test_what_evaluates_a_traced_program_outside_of_jit_makes_the_call() -> None:
    run("""
traced = jax.make_jaxpr(lambda x: ordered_call(adds_one, [x], [x]))(ones)
(got,) = jax.core.eval_jaxpr(traced.jaxpr, traced.consts, ones)
assert (got == 2).all()
""")


def test_who_looks_at_frames_and_cycles_of_objects_hold_arrays_for_a_while_only() -> None:
    """As profilers and watchdogs do: each look holds what is in the frames of all threads."""
    run("""
import threading
over = threading.Event()
def looks():
    while not over.is_set():
        held = [frame.f_locals for frame in sys._current_frames().values()]
        over.wait(1e-3)
def cycles(arguments, results):
    cycle = [arguments]
    cycle.append(cycle)
    adds_one(arguments, results)
watcher = threading.Thread(target=looks)
watcher.start()
try:
    for fill in (adds_one, cycles):
        step = program(fill)
        for _ in range(500 if fill is adds_one else 3):
            assert (step(ones)[0] == 2).all()
finally:
    over.set()
    watcher.join()
""")


def test_a_program_that_another_process_has_compiled_is_an_error(tmp_path: Path) -> None:
    stored = str(tmp_path / "program")
    run(f"""
import pickle
from jax import export
from jax.experimental import serialize_executable

step = program(adds_one)
try:
    export.export(step)(ones).serialize()
except Exception as error:
    assert "host_callbacks" in str(error) or "effects" in str(error), error
else:
    raise AssertionError("it was exported")
with open({stored!r}, "wb") as file:
    pickle.dump(serialize_executable.serialize(step.lower(ones).compile()), file)
""")
    load = f"""
import jax, jax.numpy as jnp, pickle
from jax.experimental import serialize_executable

with open({stored!r}, "rb") as file:
    stored = pickle.load(file)
try:
    step = serialize_executable.deserialize_and_load(*stored)
    jax.block_until_ready(step(jnp.ones(3)))
except Exception as error:
    told = str(error)
else:
    raise AssertionError("no error")
"""
    run(load + 'assert "a call that this process does not know" in told, told')
    alone(load + 'assert "penstock_call" in told, told')
