"""Bad input: a typed error that says what was expected and what came, and a state that is as it was."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import pickle
import re
import secrets
import select
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import penstock as ps
from penstock import _core, exceptions

ONE = np.ones(3, np.float32)


@pytest.fixture
def w(job: ps.Job) -> Iterator[ps.Tensor]:
    """A tensor that must hold 1, 2, 3 at the end, and still work."""
    tensor = job.tensor("w", np.array([1, 2, 3], np.float32), refuse_nonfinite=True)
    yield tensor
    if not job.closed:
        np.testing.assert_array_equal(tensor.pull(), [1, 2, 3])
        np.testing.assert_array_equal(tensor.pushpull(ONE), [2, 3, 4])


@pytest.mark.parametrize(
    ("gradient", "error", "says"),
    [
        (np.ones(4, np.float32), ps.exceptions.ShapeError, r"\(3,\).*\(4,\)"),
        (np.ones((3, 1), np.float32), ps.exceptions.ShapeError, r"\(3, 1\)"),
        ([1, 2], ps.exceptions.ShapeError, r"\(2,\)"),
        (np.ones(3), ps.exceptions.DtypeError, "float32.*float64"),
        (np.ones(3, np.int32), ps.exceptions.DtypeError, "int32"),
        (np.ones(3, ">f4"), ps.exceptions.DtypeError, "float32"),
        (np.array(["a", "b", "c"]), ps.exceptions.DtypeError, "float32"),
        (..., ps.exceptions.DtypeError, "got ellipsis"),
        (np.array([1, np.nan, 1], np.float32), ps.exceptions.NonFiniteError, "element 1"),
        (np.array([1, 1, -np.inf], np.float32), ps.exceptions.NonFiniteError, "element 2"),
    ],
    ids=str,
)
def test_a_push_that_does_not_fit_is_refused(w: ps.Tensor, gradient: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        w.push(gradient)
    assert isinstance(caught.value, ps.PenstockError)


# The gradient of the iteration before stood in the lane, and counted once more.
@pytest.mark.parametrize("call", ["push", "pushpull", "push_async", "pushpull_async"])
def test_a_gradient_that_nobody_has_computed_is_not_the_one_in_the_lane(job: ps.Job, call: str) -> None:
    w = job.tensor("w", shape=3)
    w.push(ONE)
    job.clock()

    def contribute(*gradient: Any) -> Any:
        result = getattr(w, call)(*gradient)
        return result.result() if call.endswith("async") else result

    with pytest.raises(ps.exceptions.DtypeError, match=r"gradient.*None") as caught:
        contribute(None)
    assert "do not push" in str(caught.value.hint)
    if call.endswith("async"):
        with pytest.raises(ps.exceptions.DtypeError):
            job.clock()  # hears of it too
    np.testing.assert_array_equal(w.pull(), ONE)
    w.lane()[:] = 2
    contribute()
    np.testing.assert_array_equal(w.pull(), [3, 3, 3])


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(4, np.float32),
        np.zeros(3),
        np.zeros(6, np.float32)[::2],
        [0, 0, 0],
        np.zeros(3, np.float32).tobytes(),
    ],
    ids=["shape", "dtype", "strides", "list", "bytes"],
)
def test_a_pull_into_what_does_not_fit_is_refused(w: ps.Tensor, out: Any) -> None:
    with pytest.raises((ps.exceptions.ShapeError, ps.exceptions.DtypeError)):
        w.pull(out=out)
    with pytest.raises((ps.exceptions.ShapeError, ps.exceptions.DtypeError)):
        w.pushpull(ONE, out)


def test_a_pull_into_memory_that_is_read_only_is_refused(w: ps.Tensor) -> None:
    out = np.zeros(3, np.float32)
    out.flags.writeable = False
    with pytest.raises(ps.exceptions.ShapeError, match="read-only"):
        w.pull(out=out)


class Copied:
    """What shows NumPy a copy of itself each time, and does not say so."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array.copy()


# The value went into the copy, and the pull returned as if all were well.
def test_an_out_that_shows_a_copy_of_itself_is_refused(job: ps.Job, w: ps.Tensor) -> None:
    table = job.table("table", rows=3, width=3, produce="all", consume="all")
    out = Copied(np.zeros(3, np.float32))
    for call in (
        lambda: w.pull(out=out),
        lambda: w.pull(out=out, slack=0),
        lambda: w.pushpull(ONE, out=out),
        lambda: w.pull_async(out=out).result(10),
        lambda: table.get(0, clock=0, out=out),
    ):
        with pytest.raises(ps.exceptions.ShapeError, match="got Copied"):
            call()
    np.testing.assert_array_equal(w.pull(), [1, 2, 3])


@pytest.mark.parametrize("slack", [-1, 1.5, "", [], "1", 1 << 31, True])
def test_a_slack_that_counts_no_iterations_is_refused(w: ps.Tensor, slack: Any) -> None:
    for call in (lambda: w.pull(slack=slack), lambda: w.pushpull(ONE, slack=slack), lambda: ps.SSP(slack)):
        with pytest.raises(ps.exceptions.OptionError, match="slack"):
            call()


def test_a_second_push_in_one_iteration_is_refused_and_the_first_stands(job: ps.Job) -> None:
    w = job.tensor("w", shape=3)
    w.push(ONE)
    with pytest.raises(ps.exceptions.AlreadyPushed):
        w.push(ONE)
    with pytest.raises(ps.exceptions.AlreadyPushed):
        w.push(ONE, more=True)
    job.clock()
    np.testing.assert_array_equal(w.pull(), ONE)


def test_after_close_every_call_says_so(job: ps.Job) -> None:
    w = job.tensor("w", [1.0, 2.0, 3.0])
    view = w.pull()
    job.close()
    job.close()
    assert job.closed
    calls = [
        lambda: w.push(ONE),
        w.pull,
        lambda: w.pull(out=np.zeros(3, np.float32)),
        lambda: w.pushpull(ONE),
        job.clock,
        job.barrier,
        lambda: job.tensor("v", shape=3),
        lambda: job.tensor("w", [1.0, 2.0, 3.0]),
        lambda: w.push_async(ONE).result(10),
    ]
    for call in calls:
        with pytest.raises(ps.exceptions.JobClosed):
            call()
    np.testing.assert_array_equal(view, [1, 2, 3])


@pytest.mark.parametrize("name", ["", "line\nbreak", "a\x1b[2J", "x" * 513, 7, b"w"])
def test_a_name_that_is_none_is_refused(job: ps.Job, name: Any) -> None:
    with pytest.raises(ps.exceptions.TensorNameError):
        job.tensor(name, shape=3)
    job.tensor("層.重み", shape=3).pushpull(ONE)


@pytest.mark.parametrize(
    ("declaration", "error"),
    [
        ({}, ps.exceptions.ShapeError),
        ({"shape": (3, 0)}, ps.exceptions.ShapeError),
        ({"shape": (-1,)}, ps.exceptions.ShapeError),
        ({"shape": "ab"}, ps.exceptions.ShapeError),
        ({"shape": True}, ps.exceptions.ShapeError),
        ({"shape": 3, "refuse_nonfinite": "no"}, ps.exceptions.OptionError),
        ({"shape": 3, "refuse_nonfinite": 1}, ps.exceptions.OptionError),
        ({"value": np.zeros((0, 2), np.float32)}, ps.exceptions.ShapeError),
        ({"value": ONE, "shape": (4,)}, ps.exceptions.ShapeError),
        ({"value": np.ones(3, np.int64)}, ps.exceptions.DtypeError),
        ({"value": np.ones(3, np.complex64)}, ps.exceptions.DtypeError),
        ({"value": np.ones(3, np.complex64), "dtype": "float32"}, ps.exceptions.DtypeError),
        ({"shape": 3, "dtype": "int8"}, ps.exceptions.DtypeError),
        ({"shape": 3, "dtype": "no such"}, ps.exceptions.DtypeError),
        ({"shape": 3, "reduce": "max"}, ps.exceptions.OptionError),
        ({"shape": 3, "consistency": "ssp"}, ps.exceptions.OptionError),
        ({"shape": 3, "consistency": ps.BSP}, ps.exceptions.OptionError),
        ({"shape": 3, "optimizer": ps.SGD}, ps.exceptions.OptionError),
        ({"shape": 3, "clip": -1.0}, ps.PenstockError),
        ({"shape": 3, "rescale": float("nan")}, ps.PenstockError),
    ],
    ids=str,
)
def test_a_declaration_that_is_none_declares_nothing(
    job: ps.Job, declaration: dict[str, Any], error: type
) -> None:
    with pytest.raises(error):
        job.tensor("w", **declaration)
    np.testing.assert_array_equal(job.tensor("w", shape=3, dtype="float64").pull(), np.zeros(3))


def test_the_same_declaration_gives_the_same_tensor_and_another_is_a_conflict(job: ps.Job) -> None:
    w = job.tensor("w", [1.0, 2.0, 3.0], optimizer=ps.SGD(0.5))
    w.set_lr(0.25)
    assert job.tensor("w", [9.0, 9.0, 9.0], optimizer=ps.SGD(0.5)) is w
    for other in (
        {"shape": 4, "optimizer": ps.SGD(0.5)},
        {"shape": 3, "optimizer": ps.SGD(0.5), "dtype": "float64"},
        {"shape": 3, "optimizer": ps.SGD(0.5, momentum=0.9)},
        {"shape": 3, "optimizer": ps.SGD(0.125)},
        {"shape": 3, "optimizer": ps.SGD(0.5), "consistency": ps.SSP(1)},
        {"shape": 3, "optimizer": ps.SGD(0.5), "reduce": "sum"},
        {"shape": 3, "optimizer": ps.SGD(0.5), "clip": 1.0},
    ):
        with pytest.raises(ps.exceptions.DeclarationConflict):
            job.tensor("w", **other)
    np.testing.assert_array_equal(w.pull(), [1, 2, 3])
    with pytest.raises(
        ps.exceptions.DeclarationConflict, match=r"with optimizer SGD\(lr=0.5.* now with SGD\(lr=0.125"
    ):
        job.tensor("w", shape=3, optimizer=ps.SGD(0.125))
    with pytest.raises(
        ps.exceptions.DeclarationConflict, match=r"with optimizer SGD, worker 0 declares it with Adam"
    ):
        job.tensor("w", shape=3, optimizer=ps.Adam())


@pytest.mark.parametrize("number", ["clip", "rescale"])
@pytest.mark.parametrize("value", ["1", b"1", [1.0, 2.0], object()], ids=["text", "bytes", "list", "object"])
def test_a_number_of_a_declaration_is_a_number(job: ps.Job, number: str, value: Any) -> None:
    with pytest.raises(ps.exceptions.OptionError, match=f"expected {number} as a number"):
        job.tensor("w", **{"shape": 3, number: value})
    job.tensor("w", shape=3, clip=np.float32(1), rescale=np.int64(2))


class _Interrupted:
    """A core whose declarations are interrupted when nearly everything is done."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def declare(self, *arguments: Any) -> Any:
        return _Interrupted(self._core.declare(*arguments))

    def initialize(self, *arguments: Any) -> None:
        self._core.initialize(*arguments)
        raise KeyboardInterrupt


# What was declared again had a second end of its own in the same lane: the first value was given once more,
# over what had been contributed meanwhile.
def test_a_tensor_whose_declaration_was_interrupted_is_the_same_when_it_is_declared_again(
    job: ps.Job,
) -> None:
    core = job._core
    job._core = _Interrupted(core)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        job.tensor("w", [1.0, 2.0, 3.0])
    job._core = core
    w = job.tensor("w", [9.0, 9.0, 9.0])
    np.testing.assert_array_equal(w.pull(), [1, 2, 3])
    w.push(ONE)
    job.clock()
    np.testing.assert_array_equal(w.pull(), [2, 3, 4])


def test_threads_that_declare_a_tensor_together_have_one(job: ps.Job) -> None:
    start, found = threading.Barrier(4), []

    def declare() -> None:
        start.wait()
        found.append(job.tensor("w", shape=100, optimizer=ps.SGD(0.5)))

    threads = [threading.Thread(target=declare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(tensor is found[0] for tensor in found)


def test_what_belongs_to_one_process_says_so_when_it_is_sent(job: ps.Job) -> None:
    table = job.table("U", rows=2, produce="all", consume="all")
    for thing, says in ((job, "ps.init"), (job.tensor("w", shape=3), "pull"), (table, "get")):
        for send in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(ps.exceptions.OptionError, match="belongs to the process") as caught:
                send(thing)
            assert says in str(caught.value.hint)


@pytest.mark.parametrize("name", ["workers", "rank", "size"])
def test_who_a_process_is_its_launcher_says(name: str) -> None:
    with pytest.raises(ps.exceptions.OptionError, match=f"no option `{name}`") as caught:
        ps.init(**{name: 2})
    assert "penstock run" in str(caught.value.hint)


def test_a_tensor_larger_than_the_servers_memory_is_refused_with_what_it_needs() -> None:
    with ps.init(memory=1 << 20) as job:
        with pytest.raises(ps.exceptions.OutOfMemory) as caught:
            job.tensor("big", shape=1 << 20)
        assert caught.value.needed >= 8 << 20
        assert 0 < caught.value.available <= 1 << 20
        np.testing.assert_array_equal(job.tensor("small", shape=3).pushpull(ONE), ONE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deadlin": 3}, "deadlin"),
        ({"deadline": "soon"}, "deadline"),
        ({"chunk_bytes": 5000}, "chunk_bytes"),
        ({"consistency": "sometimes"}, "consistency"),
    ],
)
def test_an_option_that_is_none_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ps.exceptions.OptionError, match=says):
        ps.init(**options)


def test_an_unknown_option_is_met_with_its_neighbours() -> None:
    with pytest.raises(ps.exceptions.OptionError) as caught:
        ps.init(deadlin=3)
    assert caught.value.hint == "did you mean `deadline`?"


@pytest.mark.parametrize(
    ("environment", "error", "says"),
    [
        ({"WORLD_SIZE": "4"}, ps.exceptions.NotUnderLauncher, "4 processes"),
        ({"PENSTOCK_SERVERS": "/nowhere"}, ps.exceptions.NotUnderLauncher, "PENSTOCK_SECRET"),
        (
            {
                "PENSTOCK_SERVERS": "/no",
                "PENSTOCK_SECRET": "00" * 32,
                "PENSTOCK_RANK": "x",
                "PENSTOCK_SIZE": "1",
            },
            ps.exceptions.OptionError,
            "PENSTOCK_RANK",
        ),
        (
            {
                "PENSTOCK_SERVERS": "/nowhere",
                "PENSTOCK_SECRET": "00" * 32,
                "PENSTOCK_RANK": "0",
                "PENSTOCK_SIZE": "1",
                "PENSTOCK_DEADLINE": "0.05",
            },
            ps.exceptions.ConnectTimeout,
            "/nowhere",
        ),
    ],
)
def test_an_environment_that_leads_nowhere_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], error: type, says: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=says):
        ps.init()


def test_who_waits_for_servers_says_so_long_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong address was seen when the deadline was over: after a minute."""
    given = {"SERVERS": "tcp://127.0.0.1:1", "SECRET": "00" * 32, "RANK": 0, "SIZE": 1, "DEADLINE": 4}
    for name, value in given.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    with pytest.raises(ps.exceptions.ConnectTimeout):
        ps.init()
    line = (
        "penstock: still waiting for the server at tcp://127.0.0.1:1; gives up after the option `deadline`\n"
    )
    assert capsys.readouterr().err == line


JOINS_SLOWLY = """
import threading
from penstock.rendezvous import waiting
waiting.SLOW_SECONDS = 0.0
with waiting.told_if_slow("it"):
    # Until it is said, or for as long as it takes to know that it cannot be.
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        thread.join(5)
"""


def _joins_slowly(stderr: int, **environment: str) -> subprocess.CompletedProcess[str]:
    # With the stream's own buffer and its lock, as scripts have it.
    given = os.environ | {"PYTHONUNBUFFERED": ""} | environment
    command = [sys.executable, "-c", JOINS_SLOWLY]
    return subprocess.run(command, stderr=stderr, env=given, timeout=60, text=True, check=True)


def test_what_is_waited_for_is_said_unless_hints_are_off() -> None:
    said = _joins_slowly(subprocess.PIPE, PENSTOCK_HINTS="on").stderr
    assert said == "penstock: still waiting for it; gives up after the option `deadline`\n"
    assert _joins_slowly(subprocess.PIPE, PENSTOCK_HINTS="off").stderr == ""


def test_a_full_pipe_for_errors_keeps_no_process_that_waited_from_ending() -> None:
    """The thread that waited for room kept the stream's lock: the interpreter waited for it at its end."""
    reads, writes = os.pipe()
    try:
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, bytes(select.PIPE_BUF))
        os.set_blocking(writes, True)
        assert _joins_slowly(writes, PENSTOCK_HINTS="on").returncode == 0
    finally:
        os.close(reads)
        os.close(writes)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of a server, in this process, for a job of two workers; the environment is worker 0's."""
    path = tmp_path / "s"
    secret = secrets.token_hex(32)
    for name, value in {"SERVERS": path, "SECRET": secret, "RANK": 0, "SIZE": 2, "DEADLINE": 5}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    server = _core.Server(str(path), "job", secret, 0, 1, 2, {})
    yield path
    server.stop()


def test_a_wrong_secret_is_refused(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", secrets.token_hex(32))
    with pytest.raises(ps.exceptions.AuthenticationError):
        ps.init()


@pytest.mark.parametrize(
    ("note", "error", "says"),
    [
        ("worker 1\nwas killed by SIGKILL\n", ps.WorkerLost, "worker 1 was lost: its process was killed"),
        ("server 0\nwas stopped by SIGTERM\n", ps.ServerLost, "server 0 was lost: its process was stopped"),
        (None, ps.ServerLost, "it ended before it welcomed this worker"),
    ],
)
def test_a_server_that_ends_before_it_welcomes_a_worker_ends_for_the_reason_that_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: str | None, error: type, says: str
) -> None:
    """The job had just failed, since another worker was killed: this one heard of a lost server."""
    path = tmp_path / "s"
    told = {"SERVERS": path, "SECRET": secrets.token_hex(32), "RANK": 0, "SIZE": 2, "DEADLINE": 60}
    for name, value in told.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))

    def end() -> None:
        connection, _ = listener.accept()
        if note is not None:
            Path(f"{path}.lost").write_text(note)
        connection.close()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=end)
        server.start()
        with pytest.raises(error, match=says):
            ps.init()
        server.join()


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("0", "3")])
def test_more_workers_than_the_job_has_are_refused(
    server: Path, monkeypatch: pytest.MonkeyPatch, rank: str, size: str
) -> None:
    monkeypatch.setenv("PENSTOCK_RANK", rank)
    monkeypatch.setenv("PENSTOCK_SIZE", size)
    with pytest.raises(ps.exceptions.JobFull):
        ps.init()


def test_a_rank_joins_once(server: Path) -> None:
    with ps.init() as job:
        with pytest.raises(ps.exceptions.JobFull, match="0"):
            ps.init()
        job.tensor("w", shape=3)


def test_a_wait_names_whom_it_waits_for(server: Path) -> None:
    with ps.init() as job:
        w = job.tensor("w", shape=3)

        def named(error: type[Any], call: Callable[[], object]) -> Any:
            # A server may be too busy to say in time for whom a short wait was.
            for _ in range(100):
                with pytest.raises(error) as caught:
                    call()
                if caught.value.missing:
                    break
            assert caught.value.missing == [1]
            return caught.value

        at_barrier = named(ps.exceptions.BarrierTimeout, lambda: job.barrier(timeout=0.05))
        assert at_barrier.waited >= 0.05
        w.push(ONE)
        named(ps.PullTimeout, lambda: w.pull(timeout=0.05))
        job.clock()
        at_push = named(ps.exceptions.LaneTimeout, lambda: w.push(ONE, timeout=0.05))
        assert isinstance(at_push, TimeoutError)


def test_a_barrier_is_called_by_what_it_is_for(server: Path) -> None:
    with ps.init() as job:
        with pytest.raises(
            ps.exceptions.BarrierTimeout, match=r"^the barrier `epoch 3` waited .* for (workers|server 0)"
        ):
            job.barrier(timeout=0.05, what="epoch 3")
        with pytest.raises(ps.exceptions.OptionError, match="timeout in seconds") as caught:
            job.barrier("epoch 3")  # type: ignore[arg-type]
        assert "barrier(what='epoch 3')" in str(caught.value.hint)


def test_a_name_in_other_letters_is_guessed() -> None:
    with pytest.raises(AttributeError, match="did you mean `SGD`"):
        _ = ps.sgd  # type: ignore[attr-defined]
    for written, meant in (("Filter", "Filters"), ("Quantise", "Quantize"), ("RandK", "RandomK")):
        with pytest.raises(AttributeError, match=f"did you mean `{meant}`"):
            getattr(ps, written)
    for written in ("_Filters", "nothing"):
        with pytest.raises(AttributeError, match=f"has no attribute `{written}`$"):
            getattr(ps, written)


def test_flags_that_are_no_booleans_are_refused(job: ps.Job) -> None:
    w = job.tensor("w", shape=(2, 3))
    ones = np.ones((2, 3), np.float32)
    for got in ("no", 1, None):
        for call in (
            lambda got=got: w.pull(exact=got),
            lambda got=got: w.pull(rows=[1], exact=got),
            lambda got=got: w.push(ones, more=got),
            lambda got=got: w.push_factors(ones[:, :1], ones[:1], more=got),
        ):
            with pytest.raises(ps.exceptions.OptionError, match=f"as True or False, got {got!r}"):
                call()
    assert job.stats()["pushes"] == 0
    w.push(ones, more=np.True_)
    w.push()
    np.testing.assert_array_equal(w.pull(exact=np.True_), ones)


def test_hints_are_of_what_was_given(job: ps.Job) -> None:
    w = job.tensor("w", shape=(4, 3))
    ones = np.ones(2, np.float32)
    pairs = np.array([[0, 1], [1, 2], [3, 0]])
    for call, error, hint in (
        (lambda: w.pull(rows=np.ones(4, bool)), ps.exceptions.DtypeError, r"numpy.flatnonzero\(mask\)"),
        (lambda: w.pull(indices=np.ones((4, 3), bool)), ps.exceptions.DtypeError, r"numpy.nonzero\(mask\)"),
        (lambda: ps.Sparse(np.ones(4, bool), ones), ps.exceptions.DtypeError, r"numpy.flatnonzero\(mask\)"),
        (lambda: w.pull(indices=pairs), ps.exceptions.ShapeError, r"indices\.T"),
        (lambda: ps.Sparse(pairs, np.ones(3, np.float32)), ps.exceptions.ShapeError, r"indices\.T"),
        (lambda: setattr(ps.Add(), "lr", 0.1), ps.exceptions.SettingsError, "it has none"),
    ):
        with pytest.raises(error) as caught:
            call()
        assert re.search(hint, str(caught.value.hint)), caught.value.hint
    for indices in ([2**70], [0, 2**63], [[2**64, 1]]):
        with pytest.raises(ps.exceptions.DtypeError, match=r"from 0 to 9223372036854775807, got \d{19}"):
            ps.Sparse(indices, ones)
    torch = pytest.importorskip("torch")
    with pytest.raises(ps.exceptions.DtypeError) as caught:
        w.push(torch.ones(4, 3, dtype=torch.float64))
    assert "`x.to(torch.float32)`" in caught.value.hint


def test_a_second_server_on_the_same_socket_is_refused(server: Path) -> None:
    with pytest.raises(ps.exceptions.AddressInUse):
        _core.Server(str(server), "job", secrets.token_hex(32), 0, 1, 2, {})
    ps.init().close()


def test_a_socket_left_by_a_crash_is_taken_over(tmp_path: Path, spawn_job: Any) -> None:
    import socket

    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = _core.Server(str(path), "job", secrets.token_hex(32), 0, 1, 1, {})
    server.stop()


def test_a_forked_child_cannot_use_its_parents_job_and_does_it_no_harm(job: ps.Job) -> None:
    w = job.tensor("w", [1.0, 2.0, 3.0])
    child = os.fork()
    if child == 0:
        # The child reports by its exit code alone: it must not run pytest's own clean-up.
        code = 1
        try:
            job.clock()
        except ps.exceptions.JobClosed as error:
            try:
                w.pull()
            except ps.exceptions.JobClosed:
                code = 0 if "forked" in str(error) and job.closed else 2
            del w, job
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(w.pushpull(ONE), [2, 3, 4])


def taking(job: ps.Job, w: ps.Tensor, table: ps.Table, array: Any) -> list[Callable[[], object]]:
    """Every call that takes an array, with this one."""
    return [
        lambda: w.push(array),
        lambda: w.load(value=array),
        lambda: w.pull(out=array),
        lambda: job.tensor("other", array),
        lambda: table.set(0, array),
        lambda: table.get(0, clock=0, out=array),
    ]


# What stands below a mask was taken for numbers.
def test_a_masked_array_in_a_list_is_refused_too(job: ps.Job) -> None:
    masked = np.ma.array(ONE, mask=[0, 1, 0])
    for value in ([masked], [1.0, [2.0, masked]], (masked, masked)):
        with pytest.raises(ps.exceptions.DtypeError, match="masked"):
            job.mean(value)
    assert job.mean([ONE]).shape == (1, 3)


def test_torch_tensors_that_numpy_cannot_read_are_refused(job: ps.Job) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ps.exceptions.DtypeError, match="requires grad"):
        job.mean([torch.ones(2, requires_grad=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        nested = [
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
            for layout in (torch.strided, torch.jagged)
        ]
    for tensor in nested:
        with pytest.raises(ps.exceptions.DtypeError, match="nested"):
            job.mean(tensor)


def test_a_masked_array_is_refused_wherever_it_comes_in(job: ps.Job, w: ps.Tensor) -> None:
    masked = np.ma.array(ONE, mask=[0, 1, 0])
    table = job.table("table", rows=3, width=3, produce="all", consume="all")
    for call in (
        *taking(job, w, table, masked),
        lambda: table.set(np.ma.array([0, 1], mask=[1, 0]), np.ones((2, 3), np.float32)),
        lambda: table.get(np.ma.array(0, mask=True), clock=0),
    ):
        with pytest.raises(ps.exceptions.DtypeError, match="masked") as caught:
            call()
        assert "filled" in str(caught.value.hint)
    np.testing.assert_array_equal(w.pull(), [1, 2, 3])


def test_an_array_of_the_other_byte_order_is_refused_as_that(job: ps.Job, w: ps.Tensor) -> None:
    swapped = ONE.astype(ONE.dtype.newbyteorder())
    table = job.table("table", rows=3, width=3, produce="all", consume="all")
    for call in (
        *taking(job, w, table, swapped),
        lambda: job.tensor("swapped", shape=3, dtype=swapped.dtype),
        lambda: job.table("swapped", rows=3, dtype=swapped.dtype, produce="all"),
    ):
        with pytest.raises(ps.exceptions.DtypeError, match="byte order") as caught:
            call()
        assert ONE.dtype.str in str(caught.value.hint) or "float32" in str(caught.value.hint)


# Text and lists were a bare TypeError, and True was a second.
@pytest.mark.parametrize(
    "timeout", ["1", np.nan, -1, -(10**400), True, np.True_, [1], timedelta(seconds=1)], ids=str
)
def test_a_timeout_that_is_no_number_of_seconds_is_refused_by_every_call(
    job: ps.Job, w: ps.Tensor, timeout: Any
) -> None:
    table = job.table("table", rows=3, width=3, produce="all", consume="all")
    for call in (
        lambda: w.push(ONE, timeout=timeout),
        lambda: w.pull(timeout=timeout),
        lambda: w.pull(np.empty(3, np.float32), timeout=timeout),
        lambda: w.pushpull(ONE, timeout=timeout),
        lambda: w.pull_async(timeout=timeout).result(),
        lambda: w.load(ONE, timeout=timeout),
        lambda: w.optimizer_state(timeout=timeout),
        lambda: job.tensor("other", shape=3, timeout=timeout),
        lambda: job.table("other", rows=3, produce="all", timeout=timeout),
        lambda: table.get(0, clock=0, timeout=timeout),
        lambda: table.view(0, clock=0, timeout=timeout),
        lambda: table.drop(timeout),
        lambda: job.barrier(timeout),
        lambda: job.close(timeout),
        lambda: ps.ray.run(lambda: None, workers=1, timeout=timeout),
    ):
        says = "expected a timeout in seconds, a number of 0 or more, got"
        with pytest.raises(ps.exceptions.OptionError, match=says) as caught:
            call()
        # The hint is the last line of a traceback: nothing stands behind it.
        assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]
    assert not job.closed


# Each wait of a call had it anew.
def test_a_timeout_bounds_all_waits_of_a_call_together(job: ps.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.Adam())
    clock = itertools.count()
    monkeypatch.setattr("penstock.limit.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    calls = {"load": 1, "optimizer_state": 2, "pushpull": 1, "view": 2}
    table = job.table("t", rows=3, width=3, produce="all", consume="all")
    table.set([0, 1], np.ones((2, 3), np.float32), clock=0)
    w.pull()  # what it looks up once
    for call, least in calls.items():
        cores = [Mock(wraps=one._core) for one in (job, w, table)]
        with monkeypatch.context() as patch:
            for one, core in zip((job, w, table), cores, strict=True):
                core.slots = one._core.slots if one is w else ()
                patch.setattr(one, "_core", core)
            {
                "load": lambda: w.load(ONE, {"exp_avg": ONE}, timeout=100),
                "optimizer_state": lambda: w.optimizer_state(timeout=100),
                "pushpull": lambda: w.pushpull(ONE, np.empty(3, np.float32), timeout=100),
                "view": lambda: table.view([0, 1], clock=0, timeout=100).__enter__(),
            }[call]()
        given = [
            argument
            for core in cores
            for one in core.mock_calls
            for argument in one.args
            if isinstance(argument, float)
        ]
        assert len(given) >= least, call
        assert len(set(given)) == len(given), (call, given)
        assert max(given) < 100, (call, given)


@pytest.mark.parametrize("timeout", [None, 60, 60.0, np.float32(60), np.int64(60), np.inf, 10**400], ids=str)
def test_a_timeout_is_any_number_of_seconds(job: ps.Job, w: ps.Tensor, timeout: Any) -> None:
    np.testing.assert_array_equal(w.pull(timeout=timeout), [1, 2, 3])
    job.barrier(timeout)


# 2.7 steps were 2.
@pytest.mark.parametrize("step", [2.7, -1, "3", None, np.nan, 2**64], ids=str)
def test_a_step_count_is_a_whole_number(job: ps.Job, step: Any) -> None:
    w = job.tensor("w", shape=3, optimizer=ps.Adam())
    with pytest.raises(ps.exceptions.SettingsError, match="step count"):
        w.load(value=ONE, state={"step": step})
    if step is not None:
        with pytest.raises(ps.exceptions.SettingsError, match="step count"):
            w.load(value=ONE, step=step)
    np.testing.assert_array_equal(w.pull(), np.zeros(3))
    w.load(state={"step": np.float32(2.0)})
    assert w.optimizer_state()["step"] == 2


# `w.lr = 0.1` was taken, and changed nothing.
def test_an_attribute_that_would_do_nothing_cannot_be_set(job: ps.Job, w: ps.Tensor) -> None:
    table = job.table("table", rows=3, produce="all")
    for of, name, hint in (
        (w, "lr", "set_lr"),
        (w, "optimizer", "optimizer.lr"),
        (w, "foo", None),
        (table, "foo", None),
        (table, "slack", "get"),
        (job, "foo", None),
        (job, "deadline", "init"),
    ):
        with pytest.raises(AttributeError, match=f"no attribute `{name}`") as caught:
            setattr(of, name, 0.1)
        notes = getattr(caught.value, "__notes__", [])
        assert not notes if hint is None else hint in notes[0]


# The parts were gone without a word.
def test_parts_of_a_push_that_no_last_one_follows_are_lost_with_a_warning() -> None:
    with ps.init(deadline=20) as job:
        v, w = job.tensor("v", shape=3), job.tensor("w", shape=3)
        w.push(ONE, more=True)
        v.push(ONE, more=True)
        v.push()
        with pytest.warns(UserWarning, match="^`w`: .*more=True"):
            job.clock()
        np.testing.assert_array_equal([v.pull(), w.pull()], [ONE, 0 * ONE])
        w.push(3 * ONE)
        assert job.clock() == 2
        np.testing.assert_array_equal(w.pull(), 3 * ONE)
        w.push_async(ONE, more=True)
        with pytest.warns(UserWarning, match="closed.*more=True"):
            job.close()


# Who filled it for each part, as `lane` says, lost all but the last.
def test_the_lane_is_not_filled_while_parts_of_a_push_wait_in_it(job: ps.Job) -> None:
    w = job.tensor("w", shape=3)
    w.lane()[:] = 1
    w.push(w.lane(), more=True)
    with pytest.raises(ps.exceptions.OptionError, match="`w` with `more` waits in the lane"):
        w.lane()
    w.push(ONE, more=True)
    w.push()
    job.clock()
    np.testing.assert_array_equal(w.pull(), 2 * ONE)
    w.push_async(ONE, more=True)
    with pytest.raises(ps.exceptions.OptionError, match="push an array"):
        w.lane()
    w.push(w._lane)
    w.lane()[:] = 3
    job.clock()
    np.testing.assert_array_equal(w.pull(), 3 * ONE)


def test_a_load_does_not_overwrite_a_contribution_that_has_not_been_sent(job: ps.Job) -> None:
    w = job.tensor("w", shape=3)
    w.push(ONE, more=True)
    with pytest.raises(ps.exceptions.OptionError, match="more=True"):
        w.load(value=100 * ONE)
    w.push(ONE)
    job.clock()
    np.testing.assert_array_equal(w.pull(), 2 * ONE)
    w.load(value=100 * ONE)
    w.push(ONE)
    np.testing.assert_array_equal(w.pull(), 101 * ONE)


# What was lost was sent by the next push of the lane, and what was loaded was pushed as a gradient.
@pytest.mark.parametrize("kept", [None, ps.Filters(push=ps.TopK(1))])
def test_what_is_lost_or_was_loaded_is_not_pushed_from_the_lane(job: ps.Job, kept: ps.Filters | None) -> None:
    w = job.tensor("w", shape=3, filter=kept)
    lane = w.lane()
    w.push(ONE, more=True)
    with pytest.warns(UserWarning, match="before its clock"):
        job.clock()
    for push in (w.push, w.pushpull, lambda: w.push(lane), lambda: w.push(more=True)):
        with pytest.raises(ps.exceptions.OptionError, match="`w`: what stands in the lane") as caught:
            push()
        assert "lane()" in str(caught.value.hint)
    np.testing.assert_array_equal(w.pull(), 0 * ONE)
    w.load(value=100 * ONE)
    with pytest.raises(ps.exceptions.OptionError, match="what stands in the lane"):
        w.push()
    w.lane()[:] = 0
    w.push()
    np.testing.assert_array_equal(w.pull(), 100 * ONE)
    job.clock()
    w.push(0 * ONE)
    job.clock()
    w.push()  # the lane was not lost
    np.testing.assert_array_equal(w.pull(), 100 * ONE)


def test_a_value_that_a_tensor_was_declared_with_is_not_pushed_from_the_lane(job: ps.Job) -> None:
    w = job.tensor("w", 100 * ONE)
    with pytest.raises(ps.exceptions.OptionError, match="what stands in the lane"):
        w.push()
    w.lane()[:] = ONE
    w.push()
    np.testing.assert_array_equal(w.pull(), 101 * ONE)


# It raised after the iteration was completed: the next attempt of the caller was a second clock.
def test_a_clock_whose_warning_is_an_error_completes_no_iteration(job: ps.Job) -> None:
    w = job.tensor("w", shape=3)
    w.push(ONE, more=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="more=True"):
                job.clock()
        assert job.iteration == 0
        w.push()
        assert job.clock() == 1
    np.testing.assert_array_equal(w.pull(), ONE)


# It raised once the worker had left well.
def test_a_close_whose_warning_is_an_error_has_not_left_well() -> None:
    job = ps.init()
    job.tensor("w", shape=3).push(ONE, more=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"closed.*more=True"):
            job.close()
    assert job.closed
    with pytest.raises(ps.exceptions.JobClosed, match="UserWarning"):
        job.clock()
    job.close()


def test_a_job_left_by_an_error_is_no_longer_usable() -> None:
    with pytest.raises(ZeroDivisionError), ps.init() as job:
        1 / 0  # noqa: B018
    assert job.closed
    with pytest.raises(ps.exceptions.JobClosed, match="ZeroDivisionError"):
        job.clock()


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in vars(exceptions).values()
        if isinstance(kind, type) and issubclass(kind, ps.PenstockError)
    ],
)
def test_every_error_shows_its_hint_on_a_line_of_its_own_and_survives_pickling(kind: type) -> None:
    error = kind("what was expected, what came", "what to do", missing=[1], waited=0.5)
    assert str(error) == "what was expected, what came"
    assert "\nhint: what to do\n" in "".join(traceback.format_exception(error))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.hint, again.missing) == (kind, str(error), "what to do", [1])
    assert kind.__name__ == "PenstockError" or kind.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (ps.exceptions.ShapeError, ValueError),
        (ps.exceptions.DtypeError, TypeError),
        (ps.PullTimeout, TimeoutError),
        (ps.exceptions.CircularWait, ps.PullTimeout),
        (ps.exceptions.CircularWait, ps.exceptions.BarrierTimeout),
        (ps.exceptions.JobClosed, RuntimeError),
        (ps.WorkerLost, ps.exceptions.JobClosed),
        (ps.exceptions.OutOfMemory, MemoryError),
        (ps.exceptions.AuthenticationError, PermissionError),
        (ps.exceptions.AddressInUse, OSError),
    ],
)
def test_errors_are_also_the_ones_that_callers_expect(kind: type, builtin: type) -> None:
    assert issubclass(kind, builtin)
