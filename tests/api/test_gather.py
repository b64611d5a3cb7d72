"""Means, sums and objects of all workers: right to the bit, outside of iterations, and never mixed up."""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import _core, gather
from penstock.gather import FIRST_BYTES, REST_BYTES
from penstock.job import Job

Pair = Callable[[Callable[[Job], Any]], list[Any]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two workers of one job in this process; runs a function as both, and returns what each returned."""
    secret = secrets.token_hex(32)
    path = str(tmp_path_factory.mktemp("s") / "0")
    server = _core.Server(path, "job", secret, 0, 1, 2, {})
    with ThreadPoolExecutor(2) as pool:

        def connect(rank: int) -> Job:
            return Job(_core.Job.connect([path], "job", secret, rank, 2, {"deadline": "60"}))

        jobs = list(pool.map(connect, range(2)))
        yield lambda run: list(pool.map(run, jobs))
        for job in jobs:
            job.close()
    server.stop()


class Unreadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return struct.unpack, ("<d", b"")


def test_a_job_of_one_worker_means_sums_and_gathers_its_own(job: ps.Job) -> None:
    assert (job.mean(3), job.mean(True), job.mean(0.5), job.mean(1j)) == (3.0, 1.0, 0.5, 1j)
    assert (job.sum(3), job.sum(2**200), job.sum(np.float32(0.5))) == (3, 2**200, 0.5)
    kinds = [type(job.sum(x)) for x in (3, True, np.int8(3), 3.0, np.float32(3))]
    assert kinds == [int, int, int, float, float]
    own = [1]
    (copy,) = job.all_gather(own)
    assert copy == own
    assert copy is not own
    assert job.iteration == 0


@pytest.mark.parametrize(
    ("dtype", "total", "mean"),
    [
        ("bool", "int64", "float64"),
        ("int8", "int64", "float64"),
        ("uint8", "uint64", "float64"),
        ("uint64", "uint64", "float64"),
        ("float16", "float16", "float16"),
        ("float32", "float32", "float32"),
        (">f4", "float32", "float32"),
        (ml_dtypes.bfloat16, "bfloat16", "bfloat16"),
        ("float64", "float64", "float64"),
        ("complex64", "complex64", "complex64"),
    ],
)
def test_arrays_keep_their_shape_and_the_element_type_that_numpy_would_give(
    job: ps.Job, dtype: Any, total: str, mean: str
) -> None:
    for shape in ((), (3,), (2, 0), (1, 2, 3)):
        x = np.ones(shape, dtype)
        for result, name in ((job.sum(x), total), (job.mean(x), mean)):
            assert isinstance(result, np.ndarray)
            assert (result.shape, result.dtype.name) == (shape, name)
            assert (result == 1).all()


@pytest.mark.parametrize(
    "x",
    ["1", b"1", None, {"loss": 1.0}, ..., np.array(["a"]), np.array([None]), np.zeros(2, "M8[s]")],
    ids=repr,
)
def test_what_holds_no_numbers_is_refused(job: ps.Job, x: Any) -> None:
    for call in (job.mean, job.sum):
        with pytest.raises(ps.exceptions.DtypeError):
            call(x)


@pytest.mark.parametrize("name", ["", "n" * 257, "\N{SNOWMAN}" * 100, "loss\n", "\0", 1], ids=range(6))
def test_a_name_that_could_not_be_told_from_others_is_refused(job: ps.Job, name: Any) -> None:
    for call in (job.mean, job.sum, job.all_gather):
        with pytest.raises(ps.exceptions.OptionError, match="expected a name"):
            call(1, name=name)
        assert call(1, name="accuracy of \N{GREEK SMALL LETTER ALPHA}") in (1, [1])


# The mean of one metric was given as that of another, without a word.
def test_gathers_that_pair_otherwise_are_an_error_where_they_have_names(pair: Pair) -> None:
    metrics = {"loss": 5.0, "accuracy": 0.5}

    def run(job: Job) -> list[str]:
        told = []
        for name in sorted(metrics, reverse=job.rank == 1):
            with pytest.raises(ps.exceptions.GatherConflict) as caught:
                job.mean(metrics[name], name=name)
            told.append(str(caught.value))
        return told

    for told in pair(run):
        assert all("loss" in one and "accuracy" in one for one in told)
    assert pair(lambda job: [job.mean(metrics[name], name=name) for name in metrics]) == [[5.0, 0.5]] * 2


def test_what_cannot_be_pickled_or_unpickled_is_refused_by_name(job: ps.Job) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="can be pickled, got"):
        job.all_gather(threading.Lock())
    with pytest.raises(ps.exceptions.OptionError, match="belongs to the process"):
        job.all_gather(job)
    with pytest.raises(ps.exceptions.OptionError, match="worker 0 gave cannot be unpickled"):
        job.all_gather(Unreadable())


class Unpicklable:
    """Raises when it is pickled, or has a signal handler do so."""

    def __init__(self, signals: bool = False) -> None:
        self.signals = signals

    def __reduce__(self) -> Any:
        if self.signals:
            signal.raise_signal(signal.SIGUSR1)
        raise ValueError("no part of it")


# It was said that the object cannot be pickled.
def test_what_a_signal_handler_raises_while_an_object_is_pickled_stays_what_it_is(job: ps.Job) -> None:
    class TooLate(Exception):
        pass

    def late(number: int, frame: Any) -> None:
        raise TooLate

    before = signal.signal(signal.SIGUSR1, late)
    try:
        with pytest.raises(TooLate):
            job.all_gather(Unpicklable(signals=True))
        with pytest.raises(ps.exceptions.OptionError, match="ValueError: no part of it") as caught:
            job.all_gather(Unpicklable())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(caught.value.__cause__, ValueError)


def test_after_close_and_after_a_fork_they_are_refused_like_every_call(job: ps.Job) -> None:
    calls: list[Callable[[Any], Any]] = [job.mean, job.sum, job.all_gather]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call(1)
            except ps.exceptions.JobClosed as error:
                refused += "forked" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    job.close()
    for call in calls:
        with pytest.raises(ps.exceptions.JobClosed):
            call(1)


numbers = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**80),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(
    ["?", "i1", "i4", "i8", "u2", "u8", "f2", "f4", "f8", "c8", "c16", ml_dtypes.bfloat16]
)


@settings(max_examples=40, deadline=None)
@given(numbers, numbers)
def test_numbers_of_two_workers_are_summed_as_python_would(pair: Pair, a: Any, b: Any) -> None:
    assert pair(lambda job: job.sum((a, b)[job.rank])) == [a + b] * 2
    assert pair(lambda job: job.mean((a, b)[job.rank])) == [(a + b) / 2] * 2


@settings(max_examples=60, deadline=None)
@given(shapes, dtypes, st.integers(0, 2**32 - 1), st.sampled_from(["mean", "sum"]))
def test_arrays_of_two_workers_give_what_numpy_gives_in_a_wide_type(
    pair: Pair, shape: tuple[int, ...], dtype: Any, seed: int, how: str
) -> None:
    values = np.random.default_rng(seed).integers(-9, 9, (2, *shape)).astype(dtype)
    wide = values.astype(np.float64) if values.dtype.kind == "V" else values
    expected = getattr(np, how)(wide, axis=0)
    for result in pair(lambda job: getattr(job, how)(values[job.rank, ...])):
        assert result.shape == shape
        assert result.dtype == (values.dtype if values.dtype.kind == "V" else expected.dtype)
        np.testing.assert_array_equal(result.astype(expected.dtype), expected)


def test_the_mean_of_large_whole_numbers_does_not_overflow(pair: Pair) -> None:
    large = np.array([2**63 - 1, -(2**63)])
    for result in pair(lambda job: job.mean(large)):
        np.testing.assert_array_equal(result, large.astype(np.float64))


objects = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.binary(max_size=2 * FIRST_BYTES)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None)
@given(objects, objects)
def test_objects_come_back_by_rank(pair: Pair, a: Any, b: Any) -> None:
    assert pair(lambda job: job.all_gather((a, b)[job.rank])) == [[a, b]] * 2


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_objects_of_any_length_come_whole(pair: Pair, data: st.DataObject) -> None:
    edges = st.sampled_from([0, FIRST_BYTES, FIRST_BYTES + REST_BYTES, 3 * REST_BYTES])
    near = st.builds(lambda edge, by: max(0, edge + by), edges, st.integers(-150, 50))
    lengths = [data.draw(near), data.draw(near)]
    made = [np.random.default_rng(length).bytes(length) for length in lengths]
    assert pair(lambda job: job.all_gather(made[job.rank])) == [made] * 2


def test_tensors_of_torch_come_back_as_what_they_are(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.nn.Parameter(torch.ones(2, 3, dtype=dtype))
        for result in pair(lambda job, x=x: job.mean(x * job.rank)):
            assert torch.equal(result, torch.full((2, 3), 0.5, dtype=dtype))
            assert not result.requires_grad
    assert all(
        one.dtype == torch.int64 for one in pair(lambda job: job.sum(torch.ones(2, dtype=torch.int32)))
    )
    assert all(one == 2 and one.shape == () for one in pair(lambda job: job.sum(torch.tensor(1.0))))
    # Torch cannot add to its uint64, nor compare it.
    bytes_of_both = pair(lambda job: job.sum(torch.tensor([200], dtype=torch.uint8)))
    assert all(one.dtype == torch.int64 and (one + 1 > 400).all() for one in bytes_of_both)
    large = pair(lambda job: job.sum(torch.tensor([2**62], dtype=torch.uint64)))
    assert all(one.dtype == torch.uint64 and one.tolist() == [2**63] for one in large)


def test_a_tensor_without_values_is_refused_as_that(job: ps.Job) -> None:
    torch = pytest.importorskip("torch")
    empty = torch.ones(2, device="meta")
    for call in (lambda: job.sum(empty), lambda: job.tensor("w", empty)):
        with pytest.raises(ps.exceptions.DtypeError, match="meta device"):
            call()


def test_arrays_of_jax_come_back_as_what_they_are(spawn_job: Any) -> None:
    """In processes of their own: a process that has imported JAX warns of every fork."""
    pytest.importorskip("jax")
    spawn_job(
        2,
        """
        import jax, jax.numpy as jnp
        with ps.init() as job:
            for dtype in (jnp.float32, jnp.bfloat16):
                result = job.mean(jnp.full((2,), job.rank, dtype))
                assert isinstance(result, jax.Array) and result.dtype == dtype and (result == 0.5).all()
            whole = job.sum(jnp.array(1))
            assert isinstance(whole, jax.Array) and whole == 2 and whole.dtype == jnp.int32
            try:
                jax.jit(job.mean)(1.0)
            except ps.exceptions.DtypeError as error:
                assert "inside `jax.jit` there are none" in str(error)
            else:
                raise AssertionError("a value without numbers was taken")
        """,
    )


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (lambda job: job.mean(1), lambda job: job.sum(1), "worker 0 gave mean.*worker 1 gave sum"),
        (lambda job: job.mean(1), lambda job: job.all_gather(1), "worker 1 gave all_gather"),
        (lambda job: job.sum(1), lambda job: job.sum([1]), r"number.*int64 with shape \(1,\)"),
        (lambda job: job.sum(np.ones(3)), lambda job: job.sum(np.ones(4)), r"\(3,\).*\(4,\)"),
        (lambda job: job.sum(np.ones(3)), lambda job: job.sum(np.ones(3, "f4")), "float64.*float32"),
        (
            lambda job: job.sum(1, name="a"),
            lambda job: job.sum(1, name="b"),
            'sum "a" of.*sum "b" of a number',
        ),
        (lambda job: job.mean(1, name="a"), lambda job: job.mean(1), 'mean "a" of.*mean of a number'),
        (lambda job: job.all_gather(1, name="a"), lambda job: job.all_gather(1, name="b"), 'gather "a".*"b"'),
        # One has more to say than fits into a row: what does not belong together is found before that.
        (lambda job: job.sum(np.ones(9000)), lambda job: job.sum(1), r"\(9000,\).*number"),
    ],
)
def test_what_does_not_belong_together_is_an_error_on_every_worker(
    pair: Pair, first: Any, second: Any, says: str
) -> None:
    def run(job: Job) -> dict[int, str]:
        with pytest.raises(ps.exceptions.GatherConflict, match=says) as caught:
            (first, second)[job.rank](job)
        return caught.value.given

    assert [sorted(given) for given in pair(run)] == [[0, 1], [0, 1]]
    assert pair(lambda job: job.sum(job.rank)) == [1, 1], "the gathers after it are not mixed up"


def test_a_worker_that_does_not_come_is_named_and_the_same_call_goes_on_waiting(pair: Pair) -> None:
    late = threading.Event()

    def run(job: Job) -> int:
        if job.rank == 1:
            assert late.wait(60)
            return int(job.sum(2))
        with pytest.raises(
            ps.exceptions.GetTimeout, match=r"`job.sum` of worker 0 .* for worker 1"
        ) as caught:
            job.sum(1, timeout=0.05)
        assert caught.value.missing == [1]
        with pytest.raises(ps.exceptions.OptionError, match="with another value"):
            job.sum(3)
        with pytest.raises(ps.exceptions.OptionError, match="now it gives mean"):
            job.mean(1)
        late.set()
        return int(job.sum(1))

    assert pair(run) == [3, 3]


# It was said to wait for the others, which had all made the call.
def test_a_gather_for_which_a_server_does_not_answer_names_the_server(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import signal, socket, struct
        with ps.init() as job:
            job.barrier()
            if job.rank == 0:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                    one.connect(os.environ["PENSTOCK_SERVERS"])
                    pid, *_ = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                os.kill(pid, signal.SIGSTOP)
                try:
                    job.mean(1.0, timeout=0.2)
                    raise AssertionError("no server made the table")
                except ps.exceptions.GetTimeout as error:
                    told = error
                finally:
                    os.kill(pid, signal.SIGCONT)
                assert str(told).startswith("`job.mean` of worker 0 waited "), told
                assert "server 0 did not" in str(told), told
                assert "server 0" in told.hint and told.hint.endswith("; repeat the call to continue waiting")
                assert told.missing == [], told.missing
                assert isinstance(told.__cause__, ps.exceptions.DeadlineExceeded)
            assert job.mean(1.0) == 1.0
        """,
    )
    assert len(saved) == 2


class Cached:
    """Keeps what was asked of it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cached) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


class Plain:
    """Has no equality of its own."""

    def __init__(self, *held: Any) -> None:
        self.held = held


def _twice(text: str, shared: bool) -> list[str]:
    return [text, text if shared else f" {text}".strip()]


def _cached(asked: bool) -> Cached:
    found = Cached(3)
    if asked:
        found.square = 9  # type: ignore[attr-defined]
    return found


def _holding_itself() -> list[Any]:
    found: list[Any] = [float("nan")]
    found.append(found)
    return found


# An equal object with another pickle was refused as another value.
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({8, 0}, {0, 8}),
        ({"a": 1, "b": [2.5]}, {"b": [2.5], "a": 1}),
        (_twice("loss", shared=True), _twice("loss", shared=False)),
        (_cached(asked=False), _cached(asked=True)),
        (Plain({8, 0}, np.arange(3)), Plain({0, 8}, np.arange(3))),
        (
            [{8, 0}, np.array([0.0, np.nan]), _holding_itself()],
            [{0, 8}, np.array([0.0, np.nan]), _holding_itself()],
        ),
    ],
    ids=["set", "dict", "text", "cache", "object", "nested"],
)
@pytest.mark.parametrize("long", [False, True])
def test_an_equal_object_with_another_pickle_goes_on_with_a_gather(
    pair: Pair, first: Any, then: Any, long: bool
) -> None:
    assert pickle.dumps(first) != pickle.dumps(then) or isinstance(first, Plain)
    late = threading.Event()
    more = bytes(3 * REST_BYTES) if long else b""

    def run(job: Job) -> int:
        if job.rank == 1:
            assert late.wait(60)
            return len(job.all_gather(then))
        with pytest.raises(ps.exceptions.GetTimeout):
            job.all_gather([first, more], timeout=0.05)
        late.set()
        return len(job.all_gather([then, more]))

    assert pair(run) == [2, 2]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({8, 0}, {0, 16}),
        ([0.0], [-0.0]),
        ([1], [True]),
        (Cached(3), Cached(4)),
        (Plain(1), Plain(2)),
        (np.arange(3), np.arange(3.0)),
        ({"a": 1}, {"a": 1, "b": 2}),
    ],
)
def test_another_object_does_not_go_on_with_a_gather(pair: Pair, first: Any, then: Any) -> None:
    late = threading.Event()

    def run(job: Job) -> int:
        if job.rank == 1:
            assert late.wait(60)
            return len(job.all_gather(0))
        with pytest.raises(ps.exceptions.GetTimeout):
            job.all_gather(first, timeout=0.05)
        with pytest.raises(ps.exceptions.OptionError, match="with another value"):
            job.all_gather(then)
        late.set()
        return len(job.all_gather(first))

    assert pair(run) == [2, 2]


# It was said to be another value, and not why.
def test_why_an_object_cannot_be_compared_with_that_of_a_gather_that_was_begun_is_said(pair: Pair) -> None:
    late = threading.Event()

    def run(job: Job) -> None:
        if job.rank == 0:
            with pytest.raises(ps.exceptions.GetTimeout):
                job.all_gather([0, Unreadable()], timeout=0.05)
            with pytest.raises(
                ps.exceptions.OptionError, match="cannot be compared: error: unpack"
            ) as caught:
                job.all_gather([1, Unreadable()])
            assert isinstance(caught.value.__cause__, struct.error)
            late.set()
        assert late.wait(60)
        with pytest.raises(ps.exceptions.OptionError, match="cannot be unpickled"):
            job.all_gather([0, Unreadable()])

    pair(run)


class Interrupted:
    """Calls a function of the gathers, and raises before or after it in one worker's first `times` calls."""

    def __init__(self, owner: Any, name: str, kind: type[BaseException], after: bool, times: int) -> None:
        self.owner, self.name, self.kind, self.after, self.left = owner, name, kind, after, times
        self.real = getattr(owner, name)
        self.thread: int | None = None

    def __enter__(self) -> Interrupted:
        interrupted = self

        def call(*args: Any, **kwargs: Any) -> Any:
            here = threading.get_ident() == interrupted.thread and interrupted.left > 0
            if here and not interrupted.after:
                interrupted.left -= 1
                raise interrupted.kind
            result = interrupted.real(*args, **kwargs)
            if here:
                interrupted.left -= 1
                raise interrupted.kind
            return result

        setattr(self.owner, self.name, call)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.owner, self.name, self.real)

    def repeat(self, call: Callable[[], Any]) -> Any:
        """The call's result, once it is not interrupted any more."""
        self.thread = threading.get_ident()
        while True:
            try:
                return call()
            except self.kind:
                pass


@pytest.mark.parametrize(("kind", "after"), [(KeyboardInterrupt, True), (TimeoutError, False)])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (gather._Head, "__init__"),
        (gather._Head, "extended"),
        (gather._Channel, "exchange"),
        (gather._Channel, "_numbered"),
        (gather._Gather, "first"),
        (gather._Gather, "piece"),
        (gather, "_compare"),
        (ps.Table, "set"),
        (ps.Table, "get"),
    ],
)
def test_a_gather_that_is_interrupted_anywhere_goes_on_by_the_same_call(
    pair: Pair, owner: Any, name: str, kind: type[BaseException], after: bool
) -> None:
    """It was taken for the next gather: the other worker's next value was given for its last."""
    long = [bytes([rank]) * (3 * REST_BYTES) for rank in range(2)]
    with Interrupted(owner, name, kind, after, 4) as interrupted:

        def run(job: Job) -> list[Any]:
            calls: list[Callable[[], Any]] = [
                lambda: job.sum(10**job.rank),
                lambda: job.all_gather(long[job.rank]),
                lambda: job.sum(3 * 10**job.rank),
                lambda: job.all_gather(long[1 - job.rank]),
            ]
            return [interrupted.repeat(call) if job.rank == 0 else call() for call in calls]

        assert pair(run) == [[11, long, 33, long[::-1]]] * 2
    assert interrupted.left < 4, "it was interrupted"


def test_a_gather_that_was_interrupted_is_another_once_an_iteration_was_completed(spawn_job: Any) -> None:
    """A worker that gave the same again had the mean of before, and the others waited for it."""
    saved = spawn_job(
        2,
        """
        from penstock.gather import Gathering

        gather = Gathering._gather

        def cut(*arguments):
            gather(*arguments)
            raise KeyboardInterrupt

        with ps.init() as job:
            tensor, means = job.tensor("w", shape=(4,), optimizer=ps.Add()), []
            for iteration in range(3):
                tensor.push(np.ones(4, np.float32))
                job.clock()
                tensor.pull()
                if job.rank and not iteration:
                    Gathering._gather = cut
                try:
                    means.append(job.mean(1.0 if job.rank else 10.0 * iteration))
                except KeyboardInterrupt:
                    means.append(0.5)
                Gathering._gather = gather
            save(means=means)
        """,
    )
    for result in saved:
        assert result["means"].tolist() == [0.5, 5.5, 10.5]


def test_a_gather_that_was_given_up_and_goes_on_in_a_later_iteration_says_so(
    spawn_job: Any, tmp_path: Path
) -> None:
    """Whoever gave the same number each time was an iteration behind the others, without a word."""
    saved = spawn_job(
        2,
        """
        import pathlib, time, warnings

        with ps.init() as job, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            sums, said = [], pathlib.Path(sys.argv[1])
            for iteration in range(3):
                while iteration == 1 and job.rank == 0 and not said.exists():
                    time.sleep(0.01)
                try:
                    late = iteration == 1 and job.rank == 1
                    sums.append(job.sum(job.rank or 10 * iteration, timeout=0.2 if late else None))
                except ps.exceptions.GetTimeout:
                    said.touch()
                job.clock()
            if job.rank:
                sums.append(job.sum(1))
            save(sums=sums, warned=[str(one.message) for one in warned])
        """,
        arguments=(str(tmp_path / "said"),),
    )
    assert [result["sums"].tolist() for result in saved] == [[1, 11, 21]] * 2
    assert not saved[0]["warned"].size
    (warning,) = saved[1]["warned"].tolist()
    assert "goes on with the gather that it began in iteration 1" in warning
    assert "not of iteration 2" in warning


def test_a_gather_that_goes_on_in_a_later_iteration_goes_on_where_warnings_are_errors(
    spawn_job: Any, tmp_path: Path
) -> None:
    """Each repetition raised the warning, and every other gather was refused until this one had ended."""
    saved = spawn_job(
        2,
        """
        import pathlib, time, warnings

        warnings.simplefilter("error")
        with ps.init() as job:
            told, said = [], pathlib.Path(sys.argv[1])
            while job.rank == 0 and not said.exists():
                time.sleep(0.01)
            for iteration in range(2):
                if job.rank:
                    try:
                        job.sum(1, timeout=0.2)
                    except ps.exceptions.GetTimeout:
                        pass
                    except UserWarning as warning:
                        told.append(str(warning))
                job.clock()
            said.touch()
            for _ in range(3):
                try:
                    told.append(str(job.sum(job.rank)))
                    break
                except UserWarning as warning:
                    told.append(str(warning))
            save(told=told)
        """,
        arguments=(str(tmp_path / "said"),),
    )
    ours, theirs = (result["told"].tolist() for result in saved)
    assert ours == ["1"]
    # However often it is repeated, it says so once.
    (warning, total) = theirs
    assert "began in iteration 0 and that had not ended: what it returns is of that one, not of" in warning
    assert total == "1"


def test_a_gather_that_goes_on_in_a_later_iteration_and_is_interrupted_behind_its_end_is_the_same(
    spawn_job: Any, tmp_path: Path
) -> None:
    saved = spawn_job(
        2,
        """
        import pathlib, time, warnings
        from penstock import gather

        warnings.simplefilter("ignore")
        with ps.init() as job:
            told, said = [], pathlib.Path(sys.argv[1])
            if job.rank:
                try:
                    job.all_gather("same", timeout=0.2)
                except ps.exceptions.GetTimeout:
                    told.append("timeout")
                job.clock()
                said.touch()
                real = gather._Gather.result

                def interrupted(self):
                    gather._Gather.result = real
                    raise KeyboardInterrupt

                gather._Gather.result = interrupted
                try:
                    job.all_gather("same")
                except KeyboardInterrupt:
                    told.append("interrupted")
                told.append(job.all_gather("same"))
            else:
                while not said.exists():
                    time.sleep(0.01)
                job.clock()
                told.append(job.all_gather("same"))
            told.append(job.all_gather("next"))
            save(told=[str(one) for one in told])
        """,
        arguments=(str(tmp_path / "said"),),
    )
    ends = [str(["same"] * 2), str(["next"] * 2)]
    ours, theirs = (result["told"].tolist() for result in saved)
    assert ours == ends
    assert theirs == ["timeout", "interrupted", *ends]


def test_a_gather_that_timed_out_goes_on_while_another_thread_completes_iterations(spawn_job: Any) -> None:
    """A thread that only gathers completes none: it repeats its call, and its numbers went to the next."""
    saved = spawn_job(
        2,
        """
        import threading, time

        def repeated(number):
            while True:
                try:
                    return job.sum(number, timeout=0.2)
                except ps.exceptions.GetTimeout:
                    timeouts.append(number)

        def gathers():
            for number in range(4):
                if job.rank == 1 and number == 1:
                    time.sleep(0.7)
                sums.append(repeated(100 * number + job.rank))

        with ps.init() as job:
            sums, timeouts = [], []
            thread = threading.Thread(target=gathers)
            thread.start()
            while thread.is_alive():
                job.clock()
                thread.join(0.01)
            save(sums=sums, timeouts=timeouts)
        """,
    )
    assert saved[0]["timeouts"].size, "it waited for the other in vain"
    for result in saved:
        assert result["sums"].tolist() == [1, 201, 401, 601]


# It had ended the gather for this worker alone, whose next call was another one than the others'.
@pytest.mark.parametrize("name", ["penstock/gather", "penstock/gather/rest"])
def test_a_gather_goes_on_by_the_same_call_once_a_worker_has_what_it_lacked(
    spawn_job: Any, name: str
) -> None:
    saved = spawn_job(
        2,
        f"""
        from penstock import gather
        real, failed = gather.declare, []

        def declare(core, name, **given):
            if core.rank and name == {name!r} and not failed:
                failed.append(name)
                raise ps.exceptions.PenstockError("no memory")
            return real(core, name, **given)

        gather.declare = declare
        with ps.init() as job:
            def call():
                return job.all_gather(bytes([job.rank]) * 300_000)
            if job.rank:
                try:
                    call()
                except ps.exceptions.PenstockError as error:
                    assert "no memory" in str(error), error
                assert failed == [{name!r}]
            assert call() == [bytes([rank]) * 300_000 for rank in range(2)]
            assert job.sum(job.rank) == 1
        """,
    )
    assert len(saved) == 2


# It stayed open for ever: any other was refused until that one was repeated, for which there was no room.
def test_a_gather_for_which_there_is_no_room_is_given_up_by_another_call(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        with ps.init() as job:
            for attempt in range(2):
                try:
                    job.all_gather(bytes(5_000))
                    raise AssertionError("it has room")
                except ps.exceptions.OutOfMemory:
                    pass
            assert job.sum(job.rank) == 1
            assert job.all_gather(job.rank) == [0, 1]
        """,
        options={"memory": "500kib"},
    )
    assert len(saved) == 2


def hostile(job: Job, row: Callable[[int], bytes], version: int = 0) -> None:
    """Takes part in the next gather with a row of its own."""
    gathering = job._gathering
    last = gathering._last
    number = last.next
    gathering._last = gather._Gather("", b"", number, 0, set=True, over=True, failed=True)
    table = gathering._first.declared(job, gather.Limit(60.0))
    mine = np.zeros(FIRST_BYTES, np.uint8)
    packed = row(number)
    mine[: len(packed)] = np.frombuffer(packed, np.uint8)
    table.set(number % 2 * job.size + job.rank, mine, clock=gather._BASE + number + version)


WORDS = b"sum of a number"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            lambda n: gather._HEAD.pack(n, 3, 0, 2, 3) + b"\xff\xfe123",
            "worker 1 gave to a gather cannot be read",
        ),
        (lambda n: gather._HEAD.pack(n, 3, 0, 65_535, 3), "worker 1 gave to a gather cannot be read"),
        (
            lambda n: gather._HEAD.pack(n, 1, 0, len(WORDS), 2) + WORDS + b"i1",
            "worker 1 gave to a gather cannot",
        ),
        (
            lambda n: gather._HEAD.pack(n, 3, 0, len(WORDS), 3) + WORDS + b"f12",
            "worker 1 gave to a gather cannot",
        ),
        (
            lambda n: gather._HEAD.pack(n, 3, 0, len(WORDS), 3) + WORDS + b"ixy",
            "worker 1 gave to a gather cannot",
        ),
        (
            lambda n: gather._HEAD.pack(n, 2, 0, len(WORDS), 2) + WORDS + b"??",
            "worker 1 gave to a gather cannot",
        ),
        # Longer than any number: it would fill the memory of those that read it.
        (
            lambda n: gather._HEAD.pack(n, 1 << 62, 0, len(WORDS), 0) + WORDS,
            "worker 1 gave to a gather cannot",
        ),
        # Another number: the sum would be without it.
        (
            lambda n: gather._HEAD.pack(n + 2, 2, 0, len(WORDS), 2) + WORDS + b"i1",
            "worker 1 gave to a gather cannot",
        ),
        (
            lambda n: gather._HEAD.pack(n, 0, 0, 9, 0) + b"\x1b[2J\nowned"[:9],
            "worker 1 gave \ufffd\\[2J\ufffdowne",
        ),
    ],
)
def test_what_no_worker_sends_is_an_error_that_names_who_did(
    pair: Pair, row: Callable[[int], bytes], says: str
) -> None:
    def run(job: Job) -> None:
        if job.rank == 1:
            hostile(job, row)
            return
        with pytest.raises(ps.exceptions.GatherConflict, match=says) as caught:
            job.sum(1)
        assert 1 in caught.value.given

    pair(run)
    assert pair(lambda job: job.sum(job.rank)) == [1, 1], "the gathers after it are not mixed up"


def test_workers_that_gathered_from_different_workers_hear_of_it_in_the_next_gather(pair: Pair) -> None:
    pair(lambda job: job.sum(1))

    def run(job: Job) -> None:
        if job.rank == 1:
            # As if it had not seen the row of worker 0 the last time.
            job._gathering._last.heads[0] = None
        with pytest.raises(ps.exceptions.GatherConflict, match="from different workers in the gather before"):
            job.sum(1)

    pair(run)
    assert pair(lambda job: job.sum(job.rank)) == [1, 1]


def test_a_number_that_is_too_long_is_refused_before_anything_is_sent(pair: Pair) -> None:
    def run(job: Job) -> None:
        with pytest.raises(ps.exceptions.DtypeError, match="a whole number of at most"):
            job.sum(1 << gather._MOST_BITS)

    pair(run)
    large = 1 << gather._MOST_BITS - 1
    assert pair(lambda job: job.sum((large, -large)[job.rank] + job.rank)) == [1, 1]


def test_threads_of_a_worker_take_turns(pair: Pair) -> None:
    def run(job: Job) -> list[int]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda _: job.sum(1), range(20)))

    assert pair(run) == [[2] * 20] * 2


def test_a_gather_inside_a_signal_handler_of_a_gather_is_refused(job: ps.Job) -> None:
    """The core answers a signal during a wait; a second gather there would take the first one's turn."""
    job._core = type("Two", (), {"size": 2, "rank": 0, "closed": False, "deadline": 5.0})()
    job._gathering._finish = lambda *_: job.sum(1)  # type: ignore[method-assign]
    with pytest.raises(ps.exceptions.OptionError, match="signal handler"):
        job.sum(1)
    job._let_go("the test has ended", None)


def test_no_clock_moves_and_no_tensor_notices(spawn_job: Any) -> None:
    """Rows are at their producer's clock at least: a gather's number must not be taken for an old one."""
    saved = spawn_job(
        3,
        """
        with ps.init() as job:
            w = job.tensor("w", shape=100, reduce="sum")
            s = job.tensor("s", shape=100, reduce="sum", consistency=ps.SSP(2))
            heard = []
            for step in range(30):
                w.push(np.full(100, job.rank + step, np.float32))
                heard.append(job.sum(step + job.rank))
                s.push(np.full(100, 1, np.float32))
                job.mean(np.full(50 * step, job.rank, np.float32))
                assert job.iteration == step
                job.clock()
                w.pull()
                assert job.all_gather((job.rank, job.iteration)) == [(rank, step + 1) for rank in range(3)]
            job.barrier()
            save(w=w.pull(), s=s.pull(slack=0), heard=heard)
        """,
        servers=3,
    )
    for one in saved:
        np.testing.assert_array_equal(one["heard"], [3 * step + 3 for step in range(30)])
        np.testing.assert_array_equal(one["w"], np.full(100, sum(3 * step + 3 for step in range(30))))
        np.testing.assert_array_equal(one["s"], np.full(100, 90))


def test_sums_are_in_the_order_of_ranks_and_the_same_bits_everywhere(spawn_job: Any) -> None:
    saved = spawn_job(
        3,
        """
        with ps.init() as job:
            big = [1e16, 1.0, -1e16][job.rank]
            noise = np.random.default_rng(job.rank).normal(size=20_000)
            save(big=job.sum(big), array=job.sum(np.array([big])), noise=job.mean(noise))
        """,
        servers=2,
    )
    first, second, third = (np.random.default_rng(rank).normal(size=20_000) for rank in range(3))
    noise = (first + second + third) / 3
    for one in saved:
        assert one["big"] == one["array"][0] == (1e16 + 1.0) - 1e16
        assert one["noise"].tobytes() == noise.tobytes()


def test_who_leaves_instead_is_named(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        for before in (0, 1):
            job = ps.init()
            for _ in range(before):
                job.mean(1)
            if job.rank == 1:
                job.close()
            else:
                try:
                    job.mean(1)
                except ps.WorkerLost as error:
                    assert error.rank == 1 and "worker 1 left the job" in str(error), error
                    print("told")
                job.close()
            next_job()
        """,
        jobs=2,
    )
    assert saved[0]["output"].count("told") == 2


# It had declared its row, and had not mapped it: the others got the mean of those that were left.
@pytest.mark.parametrize("on_loss", ["stop", "continue"])
def test_who_leaves_in_the_middle_of_its_first_gather_is_named(spawn_job: Any, on_loss: str) -> None:
    saved = spawn_job(
        3,
        """
        with ps.init() as job:
            if job.rank == 1:
                try:
                    job.mean(1.0, timeout=0.5)
                except ps.exceptions.GetTimeout:
                    pass
            else:
                job.barrier()  # it has left
                try:
                    job.mean(1.0)
                except ps.WorkerLost as error:
                    assert error.rank == 1 and "worker 1 left the job" in str(error), error
                    print("told")
        """,
        options={"on_worker_loss": on_loss},
    )
    assert [saved[rank]["output"].count("told") for rank in (0, 2)] == [1, 1], saved


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("job.mean(1)", "job.barrier()"),
        ("job.sum(1)", "w.pull()"),
        ("job.all_gather(1)", "job.table('t', rows=2)"),
    ],
)
def test_a_gather_in_a_circle_of_waits_is_told_so(spawn_job: Any, one: str, other: str) -> None:
    """It waited to its deadline, as with a timeout of the caller's own."""
    saved = spawn_job(
        2,
        f"""
        with ps.init() as job:
            w = job.tensor("w", shape=3)
            job.mean(0)
            if job.rank == 0:
                {one}
            else:
                w.push(np.ones(3, np.float32))
                job.clock()
                {other}
        """,
        options={"deadline": "20"},
        fails=True,
    )
    said = "".join(result["output"] for result in saved)
    assert "CircularWait" in said, said
    assert "Timeout" not in said, said


def test_a_gather_and_a_second_model_in_a_circle_are_told_so(spawn_job: Any) -> None:
    pytest.importorskip("torch")
    saved = spawn_job(
        2,
        """
        import torch
        with ps.init() as job:
            distribute = lambda: ps.torch.distribute(torch.nn.Linear(2, 2))
            first = distribute()
            calls = [distribute, lambda: job.mean(1)]
            for call in calls if job.rank else calls[::-1]:
                call()
        """,
        options={"deadline": "20"},
        fails=True,
    )
    said = "".join(result["output"] for result in saved)
    assert "CircularWait" in said, said
    assert "Timeout" not in said, said


def test_a_job_that_goes_on_without_a_lost_worker_gathers_what_there_is(spawn_job: Any) -> None:
    saved = spawn_job(
        3,
        """
        import signal
        with ps.init() as job:
            assert job.mean(job.rank) == 1
            assert len(job.all_gather(b"x" * 300_000)) == 3
            if job.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            save(mean=job.mean(job.rank), who=[one is not None for one in job.all_gather(b"x" * 300_000)])
        """,
        options={"on_worker_loss": "continue"},
        fails=True,
    )
    assert saved[2]["code"] == -signal.SIGKILL
    for one in saved[:2]:
        assert one["code"] == 0, one["output"]
        assert one["mean"] == 0.5
        assert one["who"].tolist() == [True, True, False]


def test_the_words_for_an_array_fit_into_the_first_row() -> None:
    """So that conflicts are found before anything longer is sent."""
    named = f'mean "{"n" * gather.NAME_BYTES}"'
    longest = f"{named} of a torch tensor of float8_e4m3fnuz with shape {(1,) * 63 + (2**48,)}"
    assert len(longest) + 24 < FIRST_BYTES
