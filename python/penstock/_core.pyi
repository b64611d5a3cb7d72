"""
The Rust core. Use the classes of `penstock` instead: this interface takes and returns plain numbers and
buffers, and checks them again.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Self, final

import numpy.typing as npt

__version__: str

MAX_WORKERS: int
"""The most workers of a job."""
MAX_SERVERS: int
"""The most servers of a job."""
MESSAGE_LIMIT: int
"""Bytes of one process's message in an exchange."""
VERDICT_MARGIN: float
"""Seconds after the deadline in which an exchange's verdict may still come."""
AUTO_FILTER: list[float]
"""The settings of `DVF` that "auto" stands for."""
THRESHOLD: float
"""The threshold of "2bit" where none is given."""

@final
class Memory:
    """
    A piece of memory that supports the buffer protocol (bytes, one dimension). It keeps its mapping alive.

    `readonly` memory is mapped read-only: not even a bug can write it.
    """

    readonly: bool
    nbytes: int
    address: int
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Job:
    """
    A worker's connection to the servers of a job. Every wait inside releases the GIL and honours Ctrl-C.
    """

    @staticmethod
    def connect(
        servers: Sequence[str], job: str, secret: str, rank: int, size: int, options: Mapping[str, str]
    ) -> Job:
        """
        Join the job of this name through the endpoints `servers`, in the servers' order. `secret`: 64
        hexadecimal digits.
        """

    @staticmethod
    def embedded(options: Mapping[str, str]) -> Job:
        """A job of one worker with a server inside this process."""

    rank: int
    size: int
    iteration: int
    """Iterations that this worker has completed (its clock)."""
    deadline: float
    closed: bool
    servers: int
    shards: int
    """Shards of all servers together."""
    chunk_bytes: int
    default_consistency: str

    def balance(self) -> list[list[int]]:
        """Bytes of this worker's tensors that each shard is home to, by server."""

    def clock(self) -> int:
        """Completes an iteration; returns the new clock."""

    def barrier(self, timeout: float | None, what: str) -> tuple[list[int], list[int]]:
        """
        Waits until every live worker is here; returns the ranks that came, and those that had left the job by
        then.
        """

    def begin_by_first(self, what: str, timeout: float | None, then: float | None) -> bool:
        """
        Takes part in what worker 0 does for all. True on worker 0, when all others wait; on the others it
        returns when it is done.
        """

    def end_by_first(self, what: str, timeout: float | None) -> None:
        """Worker 0 has done it: the others go on."""

    def fail_by_first(self, what: str, why: str) -> None:
        """
        Worker 0 has not done it: the others are told so. Waits for nothing; nothing happens where it has, or
        has not begun.
        """

    def done_by_first(self, what: str) -> int:
        """How often that was done, as far as this worker knows."""

    def declare(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        rule: str,
        flags: Sequence[str],
        settings: tuple[float, float, float, float, float],
        consistency: str,
        propagation: str,
        sparse: bool,
        low_rank: int,
        compress: str,
        mean: bool,
        rescale: float,
        clip: float | None,
        refuse_nonfinite: bool,
        push_filter: tuple[str, Sequence[float]],
        broadcast_filter: tuple[str, Sequence[float]],
        timeout: float | None,
    ) -> Tensor:
        """
        Declares a tensor; all workers make the same declaration. It holds zeros and cannot be pulled until
        rank 0 calls `Tensor.initialize`.

        dtype: "float32" | "float64" | "float16" | "bfloat16". rule: a row's name in `optimizers`, in small
        letters; flags: of the row's; settings: its numbers in the row's order, then 0. consistency: "bsp" |
        "ssp:4" | "asp" | "" (the job's default). propagation: "pull" | "broadcast" | "auto". compress:
        "none" | "lz4" | "zstd" | "auto". Filters: "everything", or a filter's name as
        `penstock.filters.spelled` gives it, with its settings.
        """

    def table(
        self,
        name: str,
        rows: int,
        row_bytes: int,
        element: str,
        holds: str,
        adds: bool,
        produce: Sequence[tuple[int, int]],
        consume: Sequence[tuple[int, int]],
        propagation: str,
        slack: int | None,
        bounds: str | None,
        timeout: float | None,
    ) -> Table:
        """
        Declares a table of items; waits for all workers. produce, consume: ranges (start, end) of rows.
        propagation: "eager" | "lazy" | "bounded". slack: -1 for none. bounds: "MIN:MAX" of an adaptive slack.
        """

    def stats(self) -> dict[str, float]:
        """
        Counters since the start: pushed_bytes, pulled_bytes, sent_bytes, received_bytes; parents, children;
        compressed_chunks_sent, uncompressed_chunks_sent, compress_before_sent, compress_after_sent, and the
        same with _received; pushes, pulls, waited_seconds, max_staleness, copies_retried, slack, iteration;
        all by this worker.
        """

    def spent(self, timeout: float | None) -> tuple[dict[str, float], list[dict[str, float]]]:
        """Seconds that each layer has taken: this worker's, and each server's."""

    def clocks(self) -> list[int]:
        """
        The clock of each worker as the first server last saw it, by rank; -1 for one that has left, was
        lost, or will not come.
        """

    def abandon(self) -> None:
        """In a forked child: refuses every later call, and tells the servers nothing."""

    def leave(self, timeout: float | None) -> None:
        """
        Leaves cleanly, so that the others carry on without this worker: waits until the servers have
        everything. If that fails, it has left as one that failed.
        """

    def fail(self, what: str) -> None:
        """Leaves because of an error, so that the others learn of it."""

class TableCalls:
    """
    The calls that are made a million times a second: what `penstock.Table` inherits.

    Arguments that the core cannot take as they are go to `_write` and `_read`, which the subclass defines.
    """

    def __new__(cls, core: Table, rows: int, width: int, dtype: Any, /, *others: Any) -> Self: ...
    def set(self, rows: Any, values: Any, clock: int | None = None) -> None: ...
    def add(self, rows: Any, values: Any, clock: int | None = None) -> None: ...
    def get(
        self,
        rows: Any,
        clock: int | None = None,
        slack: Any = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> npt.NDArray[Any]: ...

@final
class Table:
    """Buffers `rows` hold uint64; values and `out` are contiguous, one row after the other."""

    name: str
    slack: int
    """-1: none."""
    def produced(self) -> list[tuple[int, int]]: ...
    def consumed(self) -> list[tuple[int, int]]: ...
    def write(self, rows: Any, values: Any, clock: int | None, add: bool) -> None: ...
    def get(
        self, rows: Any, out: Any, clock: int | None, slack: int | None, timeout: float | None
    ) -> int: ...
    def prefetch(self, rows: Any, clock: int | None, slack: int | None) -> None: ...
    def versions(self, rows: Any, out: Any) -> None: ...
    def view(self, row: int, clock: int | None, slack: int | None, timeout: float | None) -> View: ...
    def drop(self, timeout: float | None) -> None: ...
    def is_same(self, other: Table) -> bool: ...
    def stats(self) -> dict[str, float]: ...

@final
class View:
    """A row in place."""

    version: int
    def memory(self) -> Memory: ...
    def valid(self) -> bool: ...

@final
class Tensor:
    name: str
    nbytes: int
    elements: int
    chunks: int
    consistency: str
    propagation: str
    why_propagation: str | None
    """Why "auto" is that."""
    version: int
    """Least version over the chunks that the homes have published; -1 before initialization."""
    slack: int
    """The current slack of a pull that does not name one; -1: no bound."""
    staleness: int
    """How many iterations behind this worker's clock the last pull was (0: fresh)."""
    borrowed: bool
    """Whether all of the value is read in memory that other workers of this host lend."""
    slots: list[str]
    """Names of the optimizer's state arrays, torch's own."""

    def lane(self) -> Memory:
        """This worker's own registered gradient buffer, writable until the next push.

        From now on what is pushed to other hosts is copied out of it first."""

    def loaded(self) -> None:
        """All workers have loaded together: what was written into the lane before is no contribution."""

    def lane_until_push(self) -> Memory:
        """The same for a caller that never writes after the push: it is sent from where it stands."""

    def model(self) -> Memory:
        """The published value itself, read-only."""

    def mirror(self) -> Memory:
        """This worker's private copy, filled by `pull_mirror`; read-only for Python."""

    def initialize(self, value: Any | None, timeout: float | None) -> None:
        """
        Rank 0: sets the value (a contiguous buffer of `nbytes` bytes, or None for zeros) and publishes
        version 0. Other ranks: does nothing.
        """

    def pushpull(
        self,
        data: Any | None,
        settings: tuple[float, float, float, float, float],
        timeout: float | None,
    ) -> int:
        """
        `push`, then `pull` with the tensor's own slack, both within `timeout`. Returns the version read.
        """

    def push(
        self,
        data: Any | None,
        settings: tuple[float, float, float, float, float],
        more: bool,
        timeout: float | None,
    ) -> int:
        """
        Contributes `data` (a C-contiguous buffer of `nbytes` bytes; None: what is in the lane). Returns the
        clock it is stamped with.

        With `more` the contribution stays in the lane and later ones of the same iteration are added to it.
        """

    def push_sparse(
        self, units: Any, unit: int, values: Any, settings: Any, more: bool, timeout: float | None
    ) -> int:
        """
        As `push`, of zeros but for some elements. units: a buffer of uint64; each names `unit` elements from
        `unit` times it on, whose values stand in `values` one after the other. Those named twice are summed.
        """

    def push_factors(
        self, u: Any, v: Any, rank: int, settings: Any, more: bool, timeout: float | None
    ) -> int:
        """
        As `push`, of `u @ v`: buffers of the tensor's dtype, of (rows, rank) and (rank, columns) elements.
        """

    def product(self, u: Any, v: Any, rank: int, out: Any) -> None:
        """Fills `out`, a buffer of `nbytes` bytes, with what `push_factors` contributes."""

    def pull_sparse(
        self, units: Any, unit: int, out: Any, slack: int | None, exact: bool, timeout: float | None
    ) -> int:
        """
        As `pull_into`, or with `exact` as `pull_whole`, of some elements, which are named as for
        `push_sparse`, into `out`, one after the other.
        """

    def due(
        self,
        data: Any | None,
        out: Any,
        settings: tuple[float, float, float, float, float],
        timeout: float | None,
    ) -> tuple[int, int]:
        """
        Fills `out`, a buffer with an accumulator for each element, with what would be due were `data` (None:
        what is in the lane) the last contribution of the iteration: with the parts in the lane, and what is
        carried. Changes nothing. Returns the clock that it would be stamped with, and what has changed so
        far. For tensors with a filter of pushes.
        """

    def push_divided(
        self,
        sent: Any,
        kept: Any,
        is_array: bool,
        due: tuple[int, int],
        settings: tuple[float, float, float, float, float],
        timeout: float | None,
    ) -> int | None:
        """
        Contributes `sent`, `nbytes` bytes, of what was `due`, and carries `kept` from now on. None, and
        nothing is changed, if something else is due by now.
        """

    def flush(self, settings: tuple[float, float, float, float, float], timeout: float | None) -> int | None:
        """
        Pushes what a filter has held back. Returns the clock that it is stamped with; None, and pushes
        nothing, where the tensor has no filter of pushes.
        """

    @property
    def lags(self) -> bool:
        """Whether pulls may lack some of what is folded, by a filter or as it comes unasked."""

    def release(self, timeout: float | None) -> None:
        """Worker 0, while no worker pushes: all that a filter holds back of the values passes."""

    def pull_whole(self, out: Any, slack: int | None, timeout: float | None) -> int:
        """`pull_into` of the value itself, of which a filter may hold back something."""

    def held_back(self) -> tuple[float, int]:
        """The norm of what a filter holds back of this worker's pushes, and of how many elements."""

    def pushes_followed(self, timeout: float | None) -> list[tuple[int, float, float, float | None]]:
        """When the filter of this worker's pushes changed its bound: see `filters.Pressed`."""

    def values_followed(
        self, timeout: float | None
    ) -> list[tuple[int, int, list[tuple[int, float, float, float | None]]]]:
        """The same of the value: server, shard, changes."""

    def pull(self, slack: int | None, timeout: float | None) -> int:
        """
        Waits until `model()` is fresh enough to be read in place (BSP with slack 0 only, else ValueError).
        Returns its version.
        """

    def pull_mirror(self, slack: int | None, timeout: float | None) -> int:
        """
        Waits, then fills `mirror()` with verified copies of the chunks. Returns the least version among
        them.
        """

    def pull_into(self, out: Any, slack: int | None, timeout: float | None) -> int:
        """The same into a writable C-contiguous buffer of `nbytes` bytes."""

    def stable(self, slack: int | None) -> bool:
        """Whether `pull` may be used: the value does not change until this worker's next push."""

    def state(self, slot: int, timeout: float | None) -> bytes:
        """
        State array `slot` (accumulator type: float64 for float64, else float32), after all of this worker's
        pushes are folded.
        """

    def steps(self, timeout: float | None) -> int:
        """Optimizer steps taken (the least over the chunks)."""

    def load(self, slot: int, data: Any, steps: int, timeout: float | None) -> None:
        """
        Rank 0, between two barriers: overwrites the value (slot -1) or a state array, and the step count.
        """

@final
class Server:
    """A server: its threads run from construction until `stop`."""

    def __init__(
        self,
        endpoint: str,
        job: str,
        secret: str,
        index: int,
        servers: int,
        workers: int,
        options: Mapping[str, str],
    ) -> None: ...
    endpoint: str
    """Where workers find it: with the port that the system chose, and the id of this host."""
    def wait(self) -> str | None:
        """Blocks until the job has ended; returns None, or why it failed. Honours Ctrl-C."""

    def worker_ended(self, rank: int, how: str | None = None) -> None:
        """
        Called by whoever started a worker and saw its process end: `how` ("was killed by SIGKILL"), or None
        if it ended well.
        """

    def stop(self) -> None: ...

@final
class LinkSocket:
    """
    A UDP socket of `penstock bench link`, and the stream of datagrams that it receives. A token is 16 bytes,
    by which datagrams of one measurement are known. Every call may raise `OSError`, the kernel's refusal.
    """

    def __init__(self, address: str, port: int) -> None: ...
    def port(self) -> int: ...
    def connect(self, address: str, port: int) -> None: ...
    def greet(self, token: bytes) -> None:
        """Shows the other end the token."""

    def met(self, token: bytes, peer: str, limit: float) -> bool:
        """
        Waits up to `limit` seconds until the host `peer` has shown the token, and connects to the port that
        it came from. Whether it has.
        """

    def mtu(self) -> int:
        """Bytes of the largest packet to the other end, as far as the kernel knows."""

    def dropped(self) -> int:
        """Datagrams that this host threw away because the process was late, since the socket was made."""

    def send(
        self,
        token: bytes,
        number: int,
        payload: int,
        counted: tuple[int, int, int],
        ahead: tuple[int, int],
        limit: float,
    ) -> tuple[int, float, float, float]:
        """
        Sends stream `number` in datagrams of `payload` bytes, by spinning: first `ahead`, then what counts.

        `counted` is messages, datagrams of each, nanoseconds from one message to the next; `ahead` is
        messages and nanoseconds. Returns the messages that were sent of those that count, and seconds: from
        first to last; by which the sender was late, where it ended the stream for that; in which the host's
        queue was full.
        """

    def expect(self, token: bytes, number: int, messages: int, together: int) -> None:
        """The next stream, and what it has."""

    def receive(self, quiet: float, limit: float) -> bool:
        """
        Receives until its last message is complete, or nothing comes for `quiet` seconds, or `limit` seconds
        have passed. Whether it is complete.
        """

    def end(self, messages: int) -> None:
        """The other end has sent only so many of the messages that count."""

    def heard(self) -> tuple[list[tuple[int, int, int]], int, int, int]:
        """
        What came of it: each message's index and the nanoseconds of its send and its arrival, on two clocks;
        datagrams that count; those ahead; those of somebody else.
        """

def host_id() -> str:
    """An id that two processes have in common exactly if they may share memory."""

def options() -> list[dict[str, Any]]:
    """The table of options: name, env, default, unit, minimum, maximum, doc."""

def optimizers() -> list[dict[str, Any]]:
    """
    The table of optimizers: name, settings (name, default, below, expected, needs, zero_with), flags (name,
    needs), slots of state (name, needs). A number lies from 0 up to, not including, `below`; `needs` and
    `zero_with` name flags.
    """

def check_options(options: Mapping[str, str]) -> None:
    """
    Raises OptionError for values that no server would accept, in `options` or, for options that are not named
    there, in the environment.
    """

def limit_pushpull(nbytes: int, workers: int, threads: int, repeats: int) -> list[float]:
    """
    Seconds for w -= lr * (g0 + g1 + ...) in plain vector code on `threads` threads, float32, for each repeat:
    the machine's limit.
    """

def core_distance() -> float:
    """Nanoseconds for a cache line to go to another core and back: about 50 near, 400 far."""

def cpu_features() -> str:
    """The variant of the kernels in use: "avx512", "avx2" or "generic"."""

def stray_names(names: Sequence[str]) -> list[tuple[str, str | None]]:
    """What to say of those that begin with PENSTOCK_ and that nothing reads; a hint if one is nearly ours."""

def seconds(timeout: float) -> float:
    """A timeout in seconds, checked as in every call: `OptionError` unless it is a number of 0 or more."""

def is_interrupting() -> bool:
    """Whether this thread is inside another call of this module, and thus runs a signal handler."""

def warn_on_stderr() -> None:
    """From now on the warnings of this process's servers, manager or agent go to standard error."""

def exit_with(code: int) -> None:
    """When the interpreter has ended, the process ends with this code, whatever the interpreter says."""

def leave_at_exit(jobs: Sequence[Job], children: Sequence[tuple[int, str]]) -> bool:
    """
    When the process ends, leaves the jobs: cleanly if it ends with exit code 0, else as one that failed; then
    waits for the children. False if not all of it can be done because the system has no room for it.
    """

def keep_xla_call(call: Any, shown: Callable[[BaseException], str]) -> Any:
    """
    Keeps what compiled programs of JAX call, and what makes text of its exceptions, for as long as the
    process lives, unless something is kept already. Returns the `call` that is kept: it takes a number,
    arguments and results, and returns True when all is done.
    """

def xla_target() -> object:
    """The address of the function that XLA calls, in a capsule."""

def xla_has_asked() -> bool:
    """Whether XLA has asked that function which version of the interface it is for."""

def checksum(data: Any) -> int:
    """XXH3 of a contiguous buffer, 64 bits."""

def first_nonfinite(dtype: str, data: Any) -> int | None:
    """Index of the first NaN or infinity in a contiguous buffer."""

@final
class Manager:
    """The control plane: serves from construction until `stop`."""

    def __init__(
        self,
        listen: str,
        state: str | PathLike[str],
        certificate: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
        insecure: bool = False,
    ) -> None: ...
    @property
    def address(self) -> str:
        """`HOST:PORT` that it listens on."""

    def wait(self) -> None:
        """Blocks until it has stopped. Honours Ctrl-C."""

    def stop(self) -> None: ...

def create_job(
    manager: str,
    token: str,
    name: str,
    workers: int,
    servers: int,
    memory: int,
    share: float,
    settings: Mapping[str, str],
    ca: str = "",
    insecure: bool = False,
) -> dict[str, Any]:
    """Creates a job; what `show_job` returns, with `secret` and `balance`."""

def list_jobs(manager: str, token: str, ca: str = "", insecure: bool = False) -> dict[str, Any]:
    """`jobs`, `servers`, and the `balance` of the shares over the servers."""

def show_job(
    manager: str, token: str, name: str, reveal: bool = False, ca: str = "", insecure: bool = False
) -> dict[str, Any]:
    """One job; with its `secret` if `reveal`."""

def delete_job(manager: str, token: str, name: str, ca: str = "", insecure: bool = False) -> None:
    """Deletes a job: its servers drop it, its workers get an error."""

@final
class LauncherVariables:
    """What environment variables say of this process and its job; see `penstock.rendezvous.environment`."""

    def __init__(self, of: Mapping[str, str]) -> None: ...
    def place(self) -> tuple[Literal["penstock", "torchrun", "mpirun", "srun"], int, int, str] | None:
        """
        Launcher, rank, size, and the variable that says how many there are; None if it was started alone.
        """

    def way(
        self,
    ) -> tuple[
        Literal["servers", "manager", "rendezvous", "launcher", "alone"],
        tuple[Literal["penstock", "torchrun", "mpirun", "srun"], int, int, str] | None,
        list[str],
        str | None,
    ]:
        """
        Which way the process joins, its place if anything says it, the servers or the one address, and the
        secret if it needs it.
        """

    def job(self) -> str:
        """The job's name."""

    def secret(self) -> str | None:
        """The job's secret."""

    def alone(self) -> bool:
        """Whether the only server is rank 0's."""

    def whole_number(self, name: str) -> int:
        """A variable that is a whole number."""

@final
class OverlayPlanner:
    """
    The planner of overlay trees. Servers and hosts are (zone, rack, host, bytes per second); `traffic` is
    (bytes, bytes of a block, seconds of a hop).
    """

    def __new__(
        cls,
        servers: Sequence[tuple[int, int, int, float]],
        hosts: Sequence[tuple[int, int, int, float]],
        measured: bool,
        traffic: tuple[int, int, float],
    ) -> Self: ...
    def plan(
        self, shape: str, limits: tuple[int, int, float], stripes: int | None
    ) -> tuple[str, tuple[float, float, float, int], list[list[tuple[float, list[int]]]]]:
        """
        What the shape is called; seconds, ratio to one transfer, seconds of the busiest uplink, depth; of
        each server the stripes, each a share and the hosts' parents. `limits`: degree, depth, penalty on
        leaves.
        """

    def predict(
        self, overlays: Sequence[Sequence[tuple[float, Sequence[tuple[int, int]]]]]
    ) -> tuple[float, float, float, int]:
        """What given trees take: of each server the stripes, each a share and edges (who sends, to whom)."""

def least_depth(hosts: int, degree: int) -> int | None:
    """The least depth at which a tree of this degree reaches so many hosts; `None` for degree 0."""

@final
class RendezvousRoot:
    """Rank 0's end of a rendezvous over TCP; listens from construction until `close`. Ctrl-C ends a wait."""

    def __init__(self, size: int, host: str, port: int, secret: str, job: str, seconds: float) -> None: ...

    port: int
    def collect(
        self, own: bytes, seconds: float
    ) -> tuple[dict[int, bytes], list[int], str | None, tuple[str, str] | None]:
        """
        Everyone's contribution by rank, the ranks that did not come in time, what the system said where not
        all that came could be let in, and, where a process came with another secret or job name, what to say
        of that and what to do. As soon as one says that its process cannot go on, the rest are not waited
        for, and none counts as missing.
        """

    def announce(self, verdict: bytes) -> None:
        """Hands the verdict to all processes that are here."""

    def close(self) -> None:
        """Lets go of the port and of all connections."""

@final
class RendezvousVisitor:
    """Everyone else's end; it connects when it first delivers. Waits honour Ctrl-C."""

    def __init__(self, rank: int, size: int, host: str, port: int, secret: str, job: str) -> None: ...
    def deliver(self, contribution: bytes, seconds: float) -> None:
        """Hands a contribution to rank 0. DeadlineExceeded: rank 0 was not reached."""

    def await_verdict(self, seconds: float) -> bytes:
        """The verdict, at most VERDICT_MARGIN after `seconds`. DeadlineExceeded: there is none."""

    def close(self) -> None:
        """Ends the connection."""

def rendezvous_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 address is in brackets."""

def reachable(rendezvous_host: str, seconds: float) -> str | None:
    """
    The address by which other hosts reach this one: on the way to `rendezvous_host`, on the way out, or
    of any interface. None if there is none but loopback.
    """

def introduction(host: str, job: str, has_secret: bool, alone: bool | None, secret: str | None) -> bytes:
    """
    What a process says of itself in the first round; rank 0 also whether its server is the only one
    (`alone`), and the secret that it made.
    """

def agree(messages: Sequence[bytes]) -> tuple[list[int], bool, str | None]:
    """
    What all conclude from that: the rank that starts each server, whether all share a host, and the secret
    that rank 0 made. NotUnderLauncher: they are not one job. ProtocolError: one said something else.
    """

def named_servers(owners: Sequence[int], told: Sequence[bytes]) -> list[str]:
    """
    The servers' endpoint strings, from what each rank said in the second round. ProtocolError: one is none.
    """

def given(message: bytes) -> bytes:
    """What a process gives in a round of an exchange."""

def failed(why: str) -> bytes:
    """What a process says that cannot go on."""

def is_failure(contribution: bytes) -> bool:
    """Whether it says that."""

def verdict_limit(size: int) -> int:
    """The most bytes of a verdict."""

def verdict(contributions: Mapping[int, bytes]) -> bytes:
    """What rank 0 tells all: everyone's messages, or which process could not go on."""

def late_verdict(missing: Sequence[int], waited: float, no_room: str | None) -> bytes:
    """What rank 0 tells all where some did not come; `no_room`: why it could not let all in, if so."""

def judge(
    verdict: bytes, size: int
) -> tuple[list[bytes] | None, tuple[list[int], float, tuple[str, str] | None] | None, str | None]:
    """
    A verdict, of which one part is not None: everyone's messages in rank order, who is missing after how many
    seconds (and what kept rank 0 from letting more in, with what to do), or why a process could not go on.
    """

def health(manager: str, ca: str = "", insecure: bool = False) -> bool:
    """Whether the manager serves (grpc.health.v1)."""

def connect(
    manager: str,
    job: str,
    secret: str,
    rank: int | None,
    size: int | None,
    ca: str,
    options: Mapping[str, str],
) -> dict[str, Any]:
    """
    A worker's place in its job: `servers` (endpoint strings), `rank`, `size`, and the job's `options`.

    Waits for the job's servers, at most as long as the option `deadline` says. Honours Ctrl-C.
    """

def options_under_manager(of_job: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The options that count for a worker of a managed job: those that it is given go before the job's."""

def make_certificate(
    folder: str | PathLike[str], name: str, hosts: list[str], days: int, force: bool
) -> dict[str, Any]:
    """Makes a certificate, and a CA if there is none: the paths `ca`, `certificate`, `key`, and `ca_kept`."""

@final
class Service:
    """A server of many jobs, which a manager names."""

    def __init__(
        self, listen: list[str], options: Mapping[str, str], advertise: str | None = None
    ) -> None: ...
    @property
    def endpoint(self) -> str:
        """The endpoint string that workers are given."""

    def serve(self, manager: str, token: str, ca: str = "", insecure: bool = False) -> None:
        """Homes what the manager says, until it is stopped. Honours Ctrl-C."""

    def create(
        self,
        name: str,
        secret: str,
        index: int,
        servers: int,
        workers: int,
        options: Mapping[str, str],
        memory: int = 0,
        share: float = 1.0,
    ) -> None:
        """Homes a job without a manager."""

    def delete(self, name: str) -> bool:
        """Ends a job and forgets it; False if there was none."""

    def stop(self) -> None: ...
