"""
The exchange by MPI, through mpi4py.

Messages go from process to process, not by a collective, so that one that does not come can be named and
no process waits for it past the deadline.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any

from penstock import _core
from penstock.exceptions import NotUnderLauncher, ProtocolError
from penstock.limit import Limit
from penstock.rendezvous.environment import PAGES, Place
from penstock.rendezvous.exchange import VERDICT_MARGIN, Exchange, Missing

_TAG = 20563
"""Of our messages in MPI_COMM_WORLD. Every MPI allows at least 32767."""
_PAUSE_SECONDS = 0.002
"""Between two looks for a message. MPI has no way to wait for one until a deadline."""


def available() -> bool:
    """Whether mpi4py, with an MPI beneath it, can be loaded."""
    try:
        importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):
        return False
    return True


class Mpi(Exchange):
    """
    This process's end of the exchange, in MPI_COMM_WORLD.

    Raises
    ------
    NotUnderLauncher
        MPI sees other processes than the launcher announced: mpi4py was built for another MPI.
    """

    trusted = True

    def __init__(self, place: Place) -> None:
        super().__init__(place.rank, place.size)
        self._mpi: Any = importlib.import_module("mpi4py.MPI")
        self._world = self._mpi.COMM_WORLD
        seen = (self._world.Get_rank(), self._world.Get_size())
        if seen != (place.rank, place.size):
            raise NotUnderLauncher(
                f"{place.announced_by} says that this is rank {place.rank} of {place.size}, but mpi4py says "
                "that it "
                f"is rank {seen[0]} of {seen[1]}: it was built for another MPI than the launcher's",
                "use the mpirun of mpi4py's own MPI, build mpi4py for the launcher's (pip install "
                "--no-binary mpi4py "
                "mpi4py), or set PENSTOCK_RENDEZVOUS=HOST:PORT and PENSTOCK_SECRET",
            )
        self._sending: list[tuple[Any, bytes]] = []

    def collect(self, own: bytes, deadline: Limit[float]) -> Mapping[int, bytes]:
        came = {0: own}
        limit = _core.verdict_limit(1)
        while len(came) < self.size and not any(map(_core.is_failure, list(came.values())[1:])):
            found = self._receive(self._mpi.ANY_SOURCE, limit)
            if found is not None:
                came[found[0]] = found[1]
            elif deadline.left():
                time.sleep(_PAUSE_SECONDS)
            elif _core.is_failure(own):
                break
            else:
                raise Missing([rank for rank in range(self.size) if rank not in came])
        return came

    def announce(self, verdict: bytes) -> None:
        for rank in range(1, self.size):
            self._send(rank, verdict)
        self._settle(Limit(VERDICT_MARGIN))

    def deliver(self, contribution: bytes, deadline: Limit[float]) -> None:
        self._send(0, contribution)
        self._settle(deadline)

    def await_verdict(self, deadline: Limit[float]) -> bytes:
        patience = Limit(deadline.left() + VERDICT_MARGIN)
        while (found := self._receive(0, _core.verdict_limit(self.size))) is None:
            if not patience.left():
                raise Missing([0])
            time.sleep(_PAUSE_SECONDS)
        self._settle(patience)
        return found[1]

    def _send(self, rank: int, message: bytes) -> None:
        self._sending.append((self._world.Isend([message, self._mpi.BYTE], rank, _TAG), message))

    def _settle(self, patience: Limit[float]) -> None:
        """Waits until what was sent has left this process."""
        while self._sending and patience.left():
            self._sending = [one for one in self._sending if not one[0].Test()]
            if self._sending:
                time.sleep(_PAUSE_SECONDS)

    def _receive(self, source: int, limit: int) -> tuple[int, bytes] | None:
        """A message that has come: who sent it, and what."""
        status = self._mpi.Status()
        if not self._world.Iprobe(source, _TAG, status):
            return None
        count, sender = int(status.Get_count(self._mpi.BYTE)), int(status.Get_source())
        if not 0 <= count <= limit:
            raise ProtocolError(
                f"expected a message of at most {limit} bytes of rank {sender}, got {count}",
                f"does the program use the tag {_TAG} in MPI_COMM_WORLD?",
            )
        message = bytearray(count)
        self._world.Recv([message, self._mpi.BYTE], sender, _TAG)
        return sender, bytes(message)


def required(place: Place) -> Mpi:
    """
    The exchange; raises NotUnderLauncher where there is no mpi4py.
    """
    if not available():
        raise NotUnderLauncher(
            f"{place.announced_by} says that {place.size} processes were started, but mpi4py, through which "
            "they would find each other, cannot be loaded",
            "pip install mpi4py, or set PENSTOCK_RENDEZVOUS=HOST:PORT and PENSTOCK_SECRET, as "
            f"{PAGES['mpirun']} shows; "
            f"to train alone, unset {place.announced_by}",
        )
    return Mpi(place)
