"""
The exchange by torchrun's key-value store, the one at MASTER_ADDR:MASTER_PORT.

torchrun's agent serves the store; where no agent does (the variables were set by hand, or by an operator),
rank 0's process does, and shares it with the process group that the script may make later.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from penstock import _core
from penstock.exceptions import NotUnderLauncher, PenstockError
from penstock.limit import Limit
from penstock.rendezvous.environment import PAGES, Place, text, whole_number
from penstock.rendezvous.exchange import VERDICT_MARGIN, Exchange, Missing

_LEAST = timedelta(milliseconds=1)
_LOOK_SECONDS = 1.0
"""Between two looks for processes that cannot go on, while rank 0 waits for another."""
_rounds: dict[str, int] = {}
# A store that this process serves lives as long as the process: others may still read from it.
_served: list[Any] = []


class TorchStore(Exchange):
    """
    This process's end of the exchange.

    Parameters
    ----------
    store
        A `torch.distributed.Store`.
    name
        What keeps the keys of this job, and of this attempt to start it, apart from all others.
    """

    trusted = True

    def __init__(self, place: Place, store: Any, host: str, name: str) -> None:
        super().__init__(place.rank, place.size)
        self.rendezvous_host = host
        self._store = store
        self._prefix = f"penstock/{name}/{_next(name)}"
        self._number = 0

    def collect(self, own: bytes, deadline: Limit[float]) -> Mapping[int, bytes]:
        came = {0: own}
        for rank in range(1, self.size):
            while rank not in came and not any(map(_core.is_failure, came.values())):
                # The store waits for keys, not for the first of several: processes that fail are looked
                # for in between.
                found = self._wait_for(self._key(rank), min(_LOOK_SECONDS, deadline.left()))
                if found is not None:
                    came[rank] = found
                    continue
                try:
                    here = [
                        other for other in range(rank, self.size) if self._store.check([self._key(other)])
                    ]
                    came |= self._failed(here)
                except RuntimeError as error:
                    raise self._lost(error) from error
                if not deadline.left() and not any(map(_core.is_failure, came.values())):
                    raise Missing([other for other in range(rank, self.size) if other not in here])
        return came

    def announce(self, verdict: bytes) -> None:
        self._set("verdict", verdict)
        self._number += 1

    def deliver(self, contribution: bytes, deadline: Limit[float]) -> None:  # noqa: ARG002 (sent at once)
        self._set(str(self.rank), contribution)

    def await_verdict(self, deadline: Limit[float]) -> bytes:
        found = self._wait_for(f"{self._prefix}/{self._number}/verdict", deadline.left() + VERDICT_MARGIN)
        if found is None:
            raise Missing([0])
        self._number += 1
        return found

    def _failed(self, ranks: list[int]) -> dict[int, bytes]:
        said = {rank: bytes(self._store.get(self._key(rank))) for rank in ranks}
        return {rank: one for rank, one in said.items() if _core.is_failure(one)}

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{self._number}/{rank}"

    def _set(self, what: str, value: bytes) -> None:
        try:
            self._store.set(f"{self._prefix}/{self._number}/{what}", value)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _wait_for(self, key: str, seconds: float) -> bytes | None:
        """The value of a key once it is set; None if it is not in time."""
        try:
            self._store.wait([key], max(_LEAST, timedelta(seconds=seconds)))
            return bytes(self._store.get(key))
        except RuntimeError as error:
            # torch says by the text alone whether a wait was too long, in words that differ between versions.
            if any(word in str(error).lower() for word in ("timeout", "timed out")):
                return None
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> PenstockError:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        return PenstockError(
            f"torchrun's store at {self.rendezvous_host} does not answer rank {self.rank}: {said}",
            "check what torchrun and rank 0 print",
        )


def connect(place: Place, deadline: Limit[float], job: str) -> TorchStore:
    """
    The exchange, connected.

    Raises
    ------
    OptionError
        MASTER_ADDR is not UTF-8.
    NotUnderLauncher
        There is no MASTER_ADDR and MASTER_PORT, or no torch.
    RendezvousTimeout, PenstockError
        The store cannot be reached.
    """
    host = text("MASTER_ADDR")
    if not (host and os.environ.get("MASTER_PORT")):
        raise NotUnderLauncher(
            f"{place.announced_by} says that {place.size} processes were started, but MASTER_ADDR and "
            "MASTER_PORT "
            "do not say where they meet",
            f"start the script with torchrun ({PAGES['torchrun']}) or with `penstock run --workers "
            f"{place.size}`; "
            f"to train alone, unset {place.announced_by}",
        )
    port = whole_number("MASTER_PORT")
    try:
        distributed = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise NotUnderLauncher(
            f"MASTER_ADDR says that {place.size} processes meet at torch's store, but torch is not installed",
            "pip install torch, or set PENSTOCK_RENDEZVOUS=HOST:PORT and PENSTOCK_SECRET, the same for all "
            "processes",
        ) from error
    serves = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = distributed.TCPStore(
            host,
            port,
            is_master=serves,
            timeout=max(_LEAST, timedelta(seconds=deadline.left())),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, ValueError) as error:
        raise PenstockError(
            f"rank {place.rank} cannot reach torch's store at {host}:{port} (MASTER_ADDR, MASTER_PORT): "
            f"{str(error).splitlines()[0]}",
            f"start all processes of the job with torchrun, as {PAGES['torchrun']} shows",
        ) from error
    if serves:
        _served.append(store)
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return TorchStore(place, store, host, f"{job}/{run}/{attempt}")


def _next(name: str) -> int:
    """
    How many exchanges of that name this process has made before: a script may join one job after another.
    """
    _rounds[name] = number = _rounds.get(name, -1) + 1
    return number
