"""
The exchange over TCP, for launchers that only say which process is which: rank 0 listens, the others come,
and each side proves that it knows the job's secret.

The rendezvous itself is the core's, the same for C programs: a job may have workers of both.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock import _core
from penstock.exceptions import DeadlineExceeded
from penstock.limit import Limit
from penstock.rendezvous.environment import Place
from penstock.rendezvous.exchange import Exchange, Missing


def own_side(place: Place, host: str, port: int, secret: str, job: str, deadline: Limit[float]) -> Exchange:
    """This process's side of the rendezvous at `host`:`port`."""
    if place.rank == 0:
        return Root(place.size, host, port, secret, job, deadline)
    return Visitor(place.rank, place.size, host, port, secret, job)


class Root(Exchange):
    """Rank 0's end: it listens. `deadline` bounds the look for the host's address."""

    def __init__(
        self, size: int, host: str, port: int, secret: str, job: str, deadline: Limit[float]
    ) -> None:
        super().__init__(0, size)
        self.rendezvous_host = host
        self._end = _core.RendezvousRoot(size, host, port, secret, job, deadline.left())
        self.port = self._end.port

    def collect(self, own: bytes, deadline: Limit[float]) -> Mapping[int, bytes]:
        came, missing, no_room, unproved = self._end.collect(own, deadline.left())
        if missing:
            raise Missing(missing, unproved and DeadlineExceeded(*unproved), no_room)
        return came

    def announce(self, verdict: bytes) -> None:
        self._end.announce(verdict)

    def close(self) -> None:
        self._end.close()


class Visitor(Exchange):
    """Everyone else's side: it comes to rank 0, again and again until rank 0 is there."""

    def __init__(self, rank: int, size: int, host: str, port: int, secret: str, job: str) -> None:
        super().__init__(rank, size)
        self.rendezvous_host = host
        self._end = _core.RendezvousVisitor(rank, size, host, port, secret, job)

    def deliver(self, contribution: bytes, deadline: Limit[float]) -> None:
        try:
            self._end.deliver(contribution, deadline.left())
        except DeadlineExceeded as late:
            raise Missing(late.missing, late) from None

    def await_verdict(self, deadline: Limit[float]) -> bytes:
        try:
            return self._end.await_verdict(deadline.left())
        except DeadlineExceeded as late:
            raise Missing(late.missing, late) from None

    def close(self) -> None:
        self._end.close()
