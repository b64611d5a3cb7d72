"""`ps.ray.run`: the driver's part of a job on Ray."""

from __future__ import annotations

import contextlib
import importlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock import _core
from penstock.exceptions import DeadlineExceeded, JobClosed, OptionError, PenstockError, WorkerLost
from penstock.limit import Limit
from penstock.ray.actors import ServerActor, WorkerActor
from penstock.rendezvous.assemble import LOOPBACK, as_environment
from penstock.rendezvous.waiting import told_if_slow

T = TypeVar("T")

_JOB = "ray"
_START_SECONDS = 60.0
"""Time for starting, unless `timeout` or the option `deadline` says otherwise."""
_GRACE_SECONDS = 5.0
"""After the first failure: time in which the worker that caused it may report."""
_SETTLE_SECONDS = 1.0
"""And then for the others to end by themselves, before their actors are killed."""


def run(
    function: Callable[[], T],
    *,
    workers: int,
    servers: int = 1,
    resources_per_worker: Mapping[str, float] | None = None,
    resources_per_server: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[T]:
    """
    Run a function on several workers, with the servers they share, on a Ray cluster.

    The function calls `ps.init()` and trains; it is pickled, so it may be a closure. Servers and workers are
    actors in one placement group: close together if the cluster allows it, otherwise on several hosts. Ray is
    started on this host if this process has not joined a cluster.

    Parameters
    ----------
    function
        Called without arguments in each worker.
    workers, servers
        How many actors of each kind.
    resources_per_worker, resources_per_server
        What each takes of the cluster, such as `{"CPU": 4, "GPU": 1}`. Default: one CPU.
    options
        Options of the job by name, as for `ps.init`; they apply to servers and workers.
    timeout
        Seconds until everything is done. Default: no limit; the start is still bounded, by the option
        `deadline`.

    Returns
    -------
    list
        What the workers returned, by rank.

    Raises
    ------
    OptionError
        A number of processes, a resource or an option is out of range, or (without `timeout`) more than the
        whole cluster has. Nothing was started.
    DeadlineExceeded
        Ray did not give the resources, or the workers did not end, in time. Nothing is left running.
    WorkerLost
        A worker's process died; `.rank` says whose.
    Exception
        What a worker raised: the one that the others' failures follow from. A note names the worker.

    Examples
    --------
    >>> def train():
    ...     with ps.init() as job:
    ...         return job.rank
    >>> ps.ray.run(train, workers=2)  # doctest: +SKIP
    [0, 1]
    """
    order = _checked(workers, servers, resources_per_worker, resources_per_server, options)
    seconds = None if timeout is None else _core.seconds(timeout)
    limit = None if seconds is None else Limit(seconds)
    start = Limit(min(order.start_seconds, seconds or order.start_seconds))
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise PenstockError(
            "ps.ray needs Ray, which is not installed", "pip install 'penstock-ps[ray]'"
        ) from error
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(_cluster(ray))
        if timeout is None:
            _check_fits(ray, order)
        group = cleanup.enter_context(_placement(ray, order, start))
        serving = [_actor(ray, ServerActor, order.server, group, index) for index in range(servers)]
        cleanup.callback(_end_servers, ray, serving)
        working = [_actor(ray, WorkerActor, order.worker, group, servers + rank) for rank in range(workers)]
        cleanup.callback(_kill, ray, working)
        environment = _serve(ray, order, serving, working, start)
        results = [
            worker.work.remote(function, {**environment, "PENSTOCK_RANK": str(rank)})
            for rank, worker in enumerate(working)
        ]
        return _outcome(ray, results, limit)


@dataclass(frozen=True)
class _Order:
    """What to start, checked."""

    workers: int
    servers: int
    worker: dict[str, float]
    server: dict[str, float]
    options: dict[str, str]

    @property
    def start_seconds(self) -> float:
        return float(self.options.get("deadline", _START_SECONDS))


def _checked(
    workers: int,
    servers: int,
    worker: Mapping[str, float] | None,
    server: Mapping[str, float] | None,
    options: Mapping[str, Any] | None,
) -> _Order:
    from penstock.job import as_text

    for name, number, most in (
        ("workers", workers, _core.MAX_WORKERS),
        ("servers", servers, _core.MAX_SERVERS),
    ):
        if not isinstance(number, int) or not 1 <= number <= most:
            raise OptionError(f"expected {name} to be a number from 1 to {most}, got {number!r}")
    for name, resources in (("resources_per_worker", worker), ("resources_per_server", server)):
        for what, amount in (resources or {}).items():
            if not isinstance(amount, (int, float)) or amount < 0:
                raise OptionError(f"expected {name}[{what!r}] to be a number of 0 or above, got {amount!r}")
    text = as_text(options or {})
    _core.check_options(text)
    return _Order(workers, servers, dict(worker or {"CPU": 1}), dict(server or {"CPU": 1}), text)


@contextlib.contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    """Ray, started if it does not run, and ended if it was started here."""
    if ray.is_initialized():
        yield
        return
    ray.init()
    try:
        yield
    finally:
        ray.shutdown()


def _check_fits(ray: Any, order: _Order) -> None:
    """
    Refuses what the whole cluster does not have, used or not.

    Raises
    ------
    OptionError
        It asks for more than there is.
    """
    total = ray.cluster_resources()
    for name in sorted({*order.server, *order.worker}):
        needed = order.servers * order.server.get(name, 0) + order.workers * order.worker.get(name, 0)
        if needed > total.get(name, 0):
            raise OptionError(
                f"{order.servers} x {order.server} for servers and {order.workers} x {order.worker} for "
                f"workers are {needed:g} {name}, but Ray's cluster has {total.get(name, 0):g}",
                "ask for less in `resources_per_worker` and `resources_per_server` (a server needs little: "
                '{"CPU": 0.1}); on a cluster that scales by itself pass a `timeout`, to wait for it',
            )


@contextlib.contextmanager
def _placement(ray: Any, order: _Order, deadline: Limit[float]) -> Iterator[Any]:
    """A placement group with a bundle for each actor, servers first."""
    groups = importlib.import_module("ray.util.placement_group")
    bundles = [order.server] * order.servers + [order.worker] * order.workers
    group = groups.placement_group(bundles, strategy="PACK")
    wanted = f"{order.servers} x {order.server} and {order.workers} x {order.worker}"
    left = deadline.left()
    try:
        try:
            with told_if_slow(f"Ray to give {wanted}", f"{left:.0f} s"):
                ray.get(group.ready(), timeout=left)
        except ray.exceptions.GetTimeoutError:
            raise DeadlineExceeded(
                f"Ray did not give {wanted} within {deadline.waited():.1f} s; "
                f"free are {_numbers(ray.available_resources())}",
                "ask for less in `resources_per_worker` and `resources_per_server`, or add hosts to the "
                "cluster",
                waited=deadline.waited(),
            ) from None
        yield group
    finally:
        groups.remove_placement_group(group)


def _actor(ray: Any, kind: type, resources: Mapping[str, float], group: Any, bundle: int) -> Any:
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU", "memory")}
    return (
        ray.remote(kind)
        .options(
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            resources=others or None,
            max_restarts=0,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        )
        .remote()
    )


def _serve(
    ray: Any, order: _Order, serving: Sequence[Any], working: Sequence[Any], deadline: Limit[float]
) -> dict[str, str]:
    """Starts the servers; returns the environment of the workers."""
    hosts = _get(ray, [actor.host.remote() for actor in (*serving, *working)], deadline, "start the actors")
    one_host = len({host for host, _ in hosts}) == 1
    secret = secrets.token_hex(32)
    settings = as_environment(order.options)
    asked = []
    for index, (actor, (_, address)) in enumerate(zip(serving, hosts, strict=False)):
        reachable = address
        if one_host:
            reachable = LOOPBACK if order.options.get("transport") == "tcp" else None
        numbers = (index, order.servers, order.workers)
        asked.append(actor.serve.remote(reachable, *numbers, secret, _JOB, settings, deadline.left()))
    endpoints = _get(ray, asked, deadline, "start the servers")
    return {
        **settings,
        "PENSTOCK_SERVERS": ",".join(endpoints),
        "PENSTOCK_SECRET": secret,
        "PENSTOCK_JOB": _JOB,
        "PENSTOCK_SIZE": str(order.workers),
    }


def _get(ray: Any, references: Sequence[Any], deadline: Limit[float], what: str) -> list[Any]:
    try:
        return list(ray.get(list(references), timeout=deadline.left()))
    except ray.exceptions.GetTimeoutError:
        raise DeadlineExceeded(
            f"Ray did not {what} within {deadline.waited():.1f} s",
            "check `ray status` and the actors' logs, or raise the option `deadline`",
            waited=deadline.waited(),
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise _cause(error) from None


def _outcome(ray: Any, results: Sequence[Any], limit: Limit[float] | None) -> list[Any]:
    """What the workers return; raises the failure that caused the others, if any."""
    ranks = {reference: rank for rank, reference in enumerate(results)}
    values: dict[int, Any] = {}
    failed: list[tuple[int, BaseException]] = []
    waiting = list(results)
    patience = limit
    while waiting and not any(not isinstance(error, JobClosed) for _, error in failed):
        left = None if patience is None else patience.left()
        done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
        if not done:
            break
        rank = ranks[done[0]]
        try:
            values[rank] = ray.get(done[0])
        except ray.exceptions.RayActorError as error:
            failed.append((rank, _died(rank, error)))
        except ray.exceptions.RayTaskError as error:
            failed.append((rank, _cause(error)))
        if failed and (patience is limit):
            patience = Limit(min(_GRACE_SECONDS, limit.left() if limit is not None else _GRACE_SECONDS))
    if failed:
        _hear_out(ray, waiting)
        rank, cause = next((one for one in failed if not isinstance(one[1], JobClosed)), failed[0])
        cause.add_note(f"raised by worker {rank} of {len(results)}")
        raise cause
    if waiting:
        missing = sorted(ranks[reference] for reference in waiting)
        assert limit is not None
        raise DeadlineExceeded(
            f"waited {limit.waited():.1f} s for workers {', '.join(map(str, missing))} to return",
            "give ps.ray.run a longer `timeout`, or none",
            missing=missing,
            waited=limit.waited(),
        )
    return [values[rank] for rank in range(len(results))]


def _hear_out(ray: Any, waiting: Sequence[Any]) -> None:
    """Collects the failures that follow from the first: Ray prints those that were never collected."""
    if waiting:
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=_SETTLE_SECONDS)
        for one in done:
            with contextlib.suppress(Exception):
                ray.get(one)


def _cause(error: Any) -> BaseException:
    """What the worker raised, as its own exception if that could be brought here."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, BaseException):
        return error if isinstance(error, BaseException) else PenstockError(str(error))
    cause.add_note(str(error).strip())  # where it happened
    return cause


def _died(rank: int, error: BaseException) -> WorkerLost:
    lost = WorkerLost(
        f"worker {rank}'s process died",
        "see its log (`ray logs`); it may have run out of memory",
        rank=rank,
    )
    lost.__cause__ = error
    return lost


def _end_servers(ray: Any, serving: Sequence[Any]) -> None:
    """Ends the servers, then their actors."""
    with contextlib.suppress(Exception):  # an actor that does not answer is killed, and its server with it
        ray.get([actor.end.remote() for actor in serving], timeout=2 * _GRACE_SECONDS)
    _kill(ray, serving)


def _kill(ray: Any, actors: Sequence[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


def _numbers(resources: Mapping[str, float]) -> str:
    shown = {name: amount for name, amount in resources.items() if not name.startswith(("node:", "bundle"))}
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(shown.items())) or "none"
