"""
A rendezvous over TCP, for launchers that only say who is who: rank 0 listens, the others come.

Rank 0 has one thread and one loop. A connection that has not proved that it knows the job's secret costs it 8
KiB at most, a place among a limited number, and a few seconds; then it is dropped, and so is whoever sends
anything but the next message of the handshake. A process that proved itself and then goes away ends the
attempt at once.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.exceptions import AddressInUse, AuthenticationError, OptionError, PenstockError, ProtocolError
from penstock.limit import Limit
from penstock.rendezvous import proof
from penstock.rendezvous.exchange import (
    GONE,
    MESSAGE_LIMIT,
    VERDICT_MARGIN,
    Exchange,
    Missing,
    is_failure,
    verdict_limit,
)

STRANGERS = 256
"""Connections that have not proved themselves and are listened to at once; one more drops the oldest."""
STRANGER_SECONDS = 5.0
"""Time in which a connection must prove itself."""
_RETRY_SECONDS = 0.05
"""Pause of a worker before it tries again: rank 0 may not be listening yet."""
_RETRY_LIMIT = 1.0
_LATE_SECONDS = 1.0
"""After the failure of another process, rank 0 stays this long to tell those that are about to come."""
_READ_BYTES = 8192
_READ_AHEAD_LIMIT = 2 * (proof.FRAME_HEAD_BYTES + 1 + MESSAGE_LIMIT)
"""Bytes of a connection that are kept until they are asked for."""


def parse_place(text: str, name: str = "PENSTOCK_RENDEZVOUS") -> tuple[str, int]:
    """
    Host and port of `HOST:PORT`; an IPv6 address is in brackets.

    Raises
    ------
    OptionError
        It is something else.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise OptionError(
            f"expected {name} to be HOST:PORT, got `{text}`",
            "name the host of rank 0 and a port that is free there, such as node1:7070; IPv6 as "
            "[fd00::1]:7070",
        )
    return host, int(port)


def meet(rank: int, size: int, host: str, port: int, secret: str, job: str) -> Exchange:
    """This process's side of the rendezvous at `host`:`port`."""
    if rank == 0:
        return Root(size, host, port, secret, job)
    return Visitor(rank, size, host, port, secret, job)


# Rank 0


@dataclass(eq=False)
class _Guest:
    """A connection to rank 0."""

    connection: socket.socket
    until: float
    nonce: bytes = field(default_factory=proof.nonce)
    received: bytearray = field(default_factory=bytearray)
    to_send: bytearray = field(default_factory=bytearray)
    conversation: proof.Conversation | None = None
    rank: int | None = None
    """Its rank, once it has proved itself."""

    def take(self, count: int) -> bytes | None:
        """The next `count` bytes, if they have come."""
        if len(self.received) < count:
            return None
        taken = bytes(self.received[:count])
        del self.received[:count]
        return taken


class _Stranger(Exception):  # noqa: N818 (never leaves this module)
    """What arrived does not belong here."""


class Root(Exchange):
    """Rank 0's end: it listens."""

    def __init__(self, size: int, host: str, port: int, secret: str, job: str) -> None:
        super().__init__(0, size)
        self.meeting_place = host
        self._secret, self._job = secret, job
        self._listener = _listen(host, port, size)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._strangers: dict[_Guest, None] = {}
        self._guests: dict[int, _Guest] = {}
        self._came: dict[int, bytes] = {}
        self._heard: set[int] = set()
        self.port = self._listener.getsockname()[1]

    def collect(self, own: bytes, deadline: Limit[float]) -> Mapping[int, bytes]:
        self._came = {0: own, **{rank: GONE for rank in self._heard if rank not in self._guests}}
        # Where it cannot go on itself it stays just long enough to tell those who come.
        # Where another cannot, a little shorter.
        patience, ending = deadline, False
        for guest in list(self._guests.values()):
            self._advance(guest)  # what came before it was asked for
        while len(self._came) < self.size:
            if not ending and self._broken():
                margin = VERDICT_MARGIN if is_failure(own) else _LATE_SECONDS
                patience, ending = Limit(min(deadline.left(), margin)), True
            if not patience.left():
                if ending:
                    break
                raise Missing([rank for rank in range(self.size) if rank not in self._came])
            self._step(patience.left())
        return self._came

    def announce(self, verdict: bytes) -> None:
        patience = Limit(VERDICT_MARGIN)
        for guest in self._guests.values():
            assert guest.conversation is not None
            guest.to_send += guest.conversation.frame(verdict)
            self._send(guest)
        while any(guest.to_send for guest in self._guests.values()) and patience.left():
            self._step(patience.left())

    def close(self) -> None:
        for guest in [*self._strangers, *self._guests.values()]:
            self._drop(guest)
        self._selector.close()
        self._listener.close()

    def _broken(self) -> bool:
        return any(is_failure(one) for one in self._came.values())

    def _step(self, seconds: float) -> None:
        """Waits for something to happen, and deals with it."""
        now = time.monotonic()
        for guest in [guest for guest in self._strangers if guest.until <= now]:
            self._drop(guest)
        due = min((guest.until for guest in self._strangers), default=now + seconds)
        for key, events in self._selector.select(max(0.0, min(seconds, due - now))):
            guest = key.data
            if guest is None:
                self._accept()
            elif guest.connection.fileno() >= 0:  # an earlier event of this round may have dropped it
                if events & selectors.EVENT_WRITE:
                    self._send(guest)
                if events & selectors.EVENT_READ and guest.connection.fileno() >= 0:
                    self._read(guest)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone already, or no descriptor is left for it
        connection.setblocking(False)
        if len(self._strangers) >= STRANGERS:
            self._drop(next(iter(self._strangers)))
        guest = _Guest(connection, time.monotonic() + STRANGER_SECONDS)
        self._strangers[guest] = None
        self._selector.register(connection, selectors.EVENT_READ, guest)

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        guest.received += data
        if not data or len(guest.received) > _READ_AHEAD_LIMIT:
            self._leave(guest)
        else:
            self._advance(guest)

    def _advance(self, guest: _Guest) -> None:
        """Processes what has arrived, as far as possible."""
        try:
            if guest.conversation is None:
                self._greet(guest)
            if guest.conversation is not None and guest.rank is None:
                self._admit(guest)
            if guest.rank is not None and guest.rank not in self._came:
                self._hear(guest)
        except (_Stranger, proof.BadFrame):
            self._leave(guest)

    def _greet(self, guest: _Guest) -> None:
        hello = guest.take(proof.HELLO_BYTES)
        begun = bytes(guest.received[: len(proof.MAGIC)])
        if hello is None:
            if not proof.MAGIC.startswith(begun):
                raise _Stranger
            return
        if not hello.startswith(proof.MAGIC):
            raise _Stranger
        nonces = hello[len(proof.MAGIC) :] + guest.nonce
        guest.conversation = proof.Conversation("root", self._secret, self._job, nonces)
        guest.to_send += guest.nonce
        self._send(guest)

    def _admit(self, guest: _Guest) -> None:
        claim = guest.take(proof.CLAIM_BYTES)
        if claim is None:
            return
        assert guest.conversation is not None
        rank, size = proof.CLAIM.unpack_from(claim)
        if not guest.conversation.proves(claim[proof.CLAIM.size :], rank, size):
            answer = proof.WRONG_SECRET
        elif size != self.size or not 0 < rank < size:
            answer = proof.WRONG_SIZE
        elif rank in self._guests:
            answer = proof.TAKEN
        else:
            guest.rank = rank
            self._guests[rank] = guest
            self._strangers.pop(guest, None)
            guest.to_send += proof.WELCOME + guest.conversation.proof(rank, size)
            self._send(guest)
            return
        guest.to_send += answer
        if answer == proof.WRONG_SIZE:
            guest.to_send += proof.FRAME.pack(self.size)
        self._send(guest)
        raise _Stranger

    def _hear(self, guest: _Guest) -> None:
        if len(guest.received) < proof.FRAME_HEAD_BYTES:
            return
        (length,) = proof.FRAME.unpack_from(guest.received)
        if length > MESSAGE_LIMIT + 1:
            raise _Stranger
        whole = guest.take(proof.FRAME_HEAD_BYTES + length)
        if whole is not None:
            assert guest.conversation is not None
            assert guest.rank is not None
            tag, payload = whole[proof.FRAME.size : proof.FRAME_HEAD_BYTES], whole[proof.FRAME_HEAD_BYTES :]
            self._came[guest.rank] = guest.conversation.payload(tag, payload)
            self._heard.add(guest.rank)

    def _send(self, guest: _Guest) -> None:
        try:
            while guest.to_send:
                del guest.to_send[: guest.connection.send(guest.to_send)]
        except BlockingIOError:
            pass
        except OSError:
            guest.to_send.clear()
            self._leave(guest)
            return
        if guest.connection.fileno() >= 0:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.to_send else 0)
            self._selector.modify(guest.connection, events, guest)

    def _leave(self, guest: _Guest) -> None:
        """The connection has ended, or is ended. A process that was heard will not come again."""
        if guest.rank in self._heard and guest.rank not in self._came:
            self._came[guest.rank] = GONE
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        self._strangers.pop(guest, None)
        if guest.rank is not None and self._guests.get(guest.rank) is guest:
            del self._guests[guest.rank]
        if guest.connection.fileno() >= 0:
            self._selector.unregister(guest.connection)
            guest.connection.close()


def _listen(host: str, port: int, size: int) -> socket.socket:
    """
    Listens at an address that was given as such, on every interface for a name.

    A host's own name often leads to its loopback address, where nobody else could come.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OptionError(
            f"the rendezvous host `{host}` has no address: {error.strerror or error}",
            "PENSTOCK_RENDEZVOUS=HOST:PORT names the host of rank 0 as the others reach it",
        ) from error
    family, _, _, _, address = found[0]
    exactly = host == "localhost" or _is_address(host)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        everywhere = ("::", port) if family == socket.AF_INET6 else ("0.0.0.0", port)  # noqa: S104 (peers prove themselves)
        listener.bind(address if exactly else everywhere)
        listener.listen(max(128, size))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} for the rendezvous is taken on this host",
                "set PENSTOCK_RENDEZVOUS=HOST:PORT, the same for all processes, to a port that is free there",
            ) from error
        raise PenstockError(
            f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}",
            "PENSTOCK_RENDEZVOUS=HOST:PORT names the host on which rank 0 runs, the same for all processes",
        ) from error
    listener.setblocking(False)
    return listener


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


# The others


class Visitor(Exchange):
    """Everyone else's side: it connects to rank 0, again and again until rank 0 is there."""

    def __init__(self, rank: int, size: int, host: str, port: int, secret: str, job: str) -> None:
        super().__init__(rank, size)
        self.meeting_place = host
        self._where = (host, port)
        self._secret, self._job = secret, job
        self._connection: socket.socket | None = None
        self._conversation: proof.Conversation | None = None

    def deliver(self, contribution: bytes, deadline: Limit[float]) -> None:
        pause = _RETRY_SECONDS
        while self._connection is None:
            try:
                self._come(deadline)
            except PenstockError:  # some are OSErrors too, but none of them passes
                raise
            except (OSError, _Stranger):
                if not deadline.left():
                    raise Missing([0]) from None
                # Nothing tells when a port on another host begins to listen.
                time.sleep(min(pause, deadline.left()))
                pause = min(2 * pause, _RETRY_LIMIT)
        assert self._conversation is not None
        try:
            self._connection.settimeout(max(0.001, deadline.left()))
            self._connection.sendall(self._conversation.frame(contribution))
        except OSError:
            raise Missing([0]) from None

    def await_verdict(self, deadline: Limit[float]) -> bytes:
        assert self._connection is not None
        assert self._conversation is not None
        patience = Limit(deadline.left() + VERDICT_MARGIN)
        try:
            head = _receive(self._connection, proof.FRAME_HEAD_BYTES, patience)
            (length,) = proof.FRAME.unpack_from(head)
            if length > verdict_limit(self.size):
                raise proof.BadFrame
            payload = _receive(self._connection, length, patience)
            return self._conversation.payload(head[proof.FRAME.size :], payload)
        except TimeoutError:
            raise Missing([0]) from None
        except (OSError, _Stranger):
            raise ProtocolError(
                f"rank 0 went away during the rendezvous at {_spell(*self._where)}",
                "check what rank 0 prints",
            ) from None
        except proof.BadFrame:
            raise ProtocolError(
                f"the answer of the rendezvous at {_spell(*self._where)} was changed on the way"
            ) from None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _come(self, deadline: Limit[float]) -> None:
        """Connects, and each side proves itself to the other."""
        patience = Limit(min(STRANGER_SECONDS, max(0.001, deadline.left())))
        with contextlib.ExitStack() as cleanup:
            connection = socket.create_connection(self._where, max(0.001, patience.left()))
            cleanup.callback(connection.close)
            own = proof.nonce()
            connection.sendall(proof.MAGIC + own)
            theirs = _receive(connection, proof.NONCE_BYTES, patience)
            conversation = proof.Conversation("worker", self._secret, self._job, own + theirs)
            claim = proof.CLAIM.pack(self.rank, self.size) + conversation.proof(self.rank, self.size)
            connection.sendall(claim)
            answer = _receive(connection, 1, patience)
            if answer == proof.WRONG_SECRET:
                raise self._other_secret()
            if answer == proof.WRONG_SIZE:
                (size,) = proof.FRAME.unpack(_receive(connection, proof.FRAME.size, patience))
                raise OptionError(
                    f"rank 0 at {_spell(*self._where)} expects {size} processes, this one was told that it "
                    "is "
                    f"rank {self.rank} of {self.size}",
                    "start all processes of the job with one command, or give all the same PENSTOCK_SIZE",
                )
            if answer != proof.WELCOME:
                raise _Stranger
            if not conversation.proves(
                _receive(connection, proof.PROOF_BYTES, patience), self.rank, self.size
            ):
                raise self._other_secret()
            cleanup.pop_all()
        self._connection, self._conversation = connection, conversation

    def _other_secret(self) -> AuthenticationError:
        return AuthenticationError(
            f"the rendezvous at {_spell(*self._where)} has another secret or job name than rank {self.rank}",
            "give all processes the same PENSTOCK_SECRET and PENSTOCK_JOB; another job may use this port: "
            "then choose another in PENSTOCK_RENDEZVOUS",
        )


def _receive(connection: socket.socket, count: int, patience: Limit[float]) -> bytes:
    received = bytearray()
    while len(received) < count:
        connection.settimeout(max(0.001, patience.left()))
        if not (data := connection.recv(min(count - len(received), 1 << 16))):
            raise _Stranger
        received += data
        if not patience.left() and len(received) < count:
            raise TimeoutError
    return bytes(received)


def _spell(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
