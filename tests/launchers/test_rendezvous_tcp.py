"""
The TCP rendezvous: who knows the secret gets everyone's messages, everyone else gets nothing and harms
nobody. What it looks like from inside, `crates/penstock-join` tests.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import penstock as ps
from penstock import _core
from penstock.limit import Limit
from penstock.rendezvous.errors import RendezvousTimeout
from penstock.rendezvous.exchange import MESSAGE_LIMIT
from penstock.rendezvous.tcp import Root, Visitor

SECRET = secrets.token_hex(32)
SECONDS = 20.0
"""Deadline of exchanges that succeed."""


class Rendezvous:
    """A rendezvous within this process: each rank in a thread of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.root = Root(size, "127.0.0.1", 0, SECRET, "job", Limit(SECONDS))
        self._threads = ThreadPoolExecutor(16)
        self._visitors: list[Visitor] = []

    def visitor(self, rank: int, **different: object) -> Visitor:
        """The end of another rank."""
        told: dict[str, object] = {"size": self.size, "secret": SECRET, "job": "job", **different}
        size, secret, job = int(str(told["size"])), str(told["secret"]), str(told["job"])
        self._visitors.append(Visitor(rank, size, "127.0.0.1", self.root.port, secret, job))
        return self._visitors[-1]

    def go(self, call: Callable[..., object], *arguments: object) -> Future[object]:
        """Calls something in another thread."""
        return self._threads.submit(call, *arguments)

    def close(self) -> None:
        """Ends it; threads come back by their own deadlines."""
        self.root.close()
        for visitor in self._visitors:
            visitor.close()
        self._threads.shutdown()


@pytest.fixture
def rendezvous() -> Iterator[Callable[[int], Rendezvous]]:
    opened: list[Rendezvous] = []

    def open_one(size: int) -> Rendezvous:
        opened.append(Rendezvous(size))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def gathered(one: Rendezvous, rounds: int = 1, others: list[Visitor] | None = None) -> list[list[bytes]]:
    """What each rank gets in the last of some rounds."""
    ends = [one.root, *(others or [one.visitor(rank) for rank in range(1, one.size)])]

    def rounds_of(end: Root | Visitor) -> list[bytes]:
        for number in range(rounds):
            got = end.gather(b"%d/%d" % (number, end.rank), Limit(SECONDS))
        return got

    return [future.result(SECONDS) for future in [one.go(rounds_of, end) for end in ends]]  # type: ignore[misc]


@pytest.mark.parametrize("size", [2, 3, 9])
def test_everyone_gets_the_messages_of_all_in_rank_order_round_after_round(rendezvous, size: int) -> None:
    expected = [b"2/%d" % rank for rank in range(size)]
    assert gathered(rendezvous(size), rounds=3) == [expected] * size


def test_messages_as_long_as_allowed_arrive_whole(rendezvous) -> None:
    one = rendezvous(4)
    message = secrets.token_bytes(MESSAGE_LIMIT)
    ends = [one.root, *map(one.visitor, range(1, 4))]
    for future in [one.go(end.gather, message, Limit(SECONDS)) for end in ends]:
        assert future.result(SECONDS) == [message] * 4
    with pytest.raises(ps.exceptions.ProtocolError, match="at most"):
        ends[1].gather(message + b"x", Limit(1))


def test_who_comes_before_rank_0_listens_waits_for_it(port: int) -> None:
    with ThreadPoolExecutor(1) as threads:
        visitor = Visitor(1, 2, "127.0.0.1", port, SECRET, "job")
        waiting = threads.submit(visitor.gather, b"b", Limit(SECONDS))
        root = Root(2, "127.0.0.1", port, SECRET, "job", Limit(SECONDS))
        assert root.gather(b"a", Limit(SECONDS)) == waiting.result(SECONDS) == [b"a", b"b"]
        root.close()
        visitor.close()


def test_everyone_is_told_who_did_not_come(rendezvous) -> None:
    one = rendezvous(4)
    future = one.go(one.visitor(2).gather, b"", Limit(SECONDS))
    for wait in (lambda: one.root.gather(b"", Limit(0.5)), lambda: future.result(SECONDS)):
        with pytest.raises(RendezvousTimeout, match="for ranks 1, 3 of 4 to call") as caught:
            wait()
        assert caught.value.missing == [1, 3]
        assert caught.value.waited >= 0.5


def test_rank_0_is_named_where_it_does_not_come(port: int) -> None:
    with pytest.raises(RendezvousTimeout, match="for rank 0 of 2") as caught:
        Visitor(1, 2, "127.0.0.1", port, SECRET, "job").gather(b"", Limit(0.3))
    assert caught.value.missing == [0]


# It was told that rank 0 had not come.
def test_rank_0_that_was_reached_is_not_named(rendezvous) -> None:
    one = rendezvous(3)
    result = one.go(one.root.gather, b"", Limit(SECONDS))
    visitor = one.visitor(1)
    visitor.deliver(_core.given(b""), Limit(SECONDS))
    # What it gave has come: it only waits.
    visitor.deliver = lambda *_: None
    with pytest.raises(
        RendezvousTimeout, match=r"for other ranks to call .* rank 0 was reached at"
    ) as caught:
        visitor.gather(b"", Limit(0.0))
    assert caught.value.missing == []
    one.visitor(2).gather(b"", Limit(SECONDS))
    result.result(SECONDS)


def test_where_rank_0_cannot_let_all_in_all_are_told() -> None:
    verdict = _core.late_verdict([1], 2.0, "Too many open files")
    _, late, _ = _core.judge(verdict, 2)
    assert late is not None
    missing, waited, why = late
    assert (missing, waited) == ([1], 2.0)
    assert why is not None
    assert why[0] == "rank 0 could not accept a connection: Too many open files"
    assert "ulimit" in why[1]
    assert _core.judge(_core.late_verdict([1], 2.0, None), 2)[1] == ([1], 2.0, None)


def test_more_processes_than_a_job_may_have_are_refused(port: int) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="at most 1024 processes, got 1025"):
        Root(1025, "127.0.0.1", port, SECRET, "job", Limit(SECONDS))
    with pytest.raises(ps.exceptions.OptionError, match="at most 1024 processes, got 1025"):
        Visitor(1, 1025, "127.0.0.1", port, SECRET, "job").gather(b"", Limit(SECONDS))


# It was told only that it had waited for rank 0.
def test_who_does_not_reach_rank_0_is_told_why(port: int) -> None:
    with pytest.raises(RendezvousTimeout, match=f"connection refused at 127.0.0.1:{port}") as caught:
        Visitor(1, 2, "127.0.0.1", port, SECRET, "job").gather(b"", Limit(0.3))
    assert "PENSTOCK_RENDEZVOUS" in str(caught.value.hint)


# It waited for the whole deadline, and was told then that rank 0 had not come.
def test_a_second_process_of_the_same_rank_is_told_so(rendezvous) -> None:
    one = rendezvous(3)
    first, second, third = one.visitor(1), one.visitor(1), one.visitor(1)
    result = one.go(one.root.gather, b"a", Limit(SECONDS))
    first.deliver(_core.given(b"first"), Limit(SECONDS))
    with pytest.raises(RendezvousTimeout, match="another process has come there as rank 1"):
        third.gather(b"third", Limit(0.3))
    with pytest.raises(ps.exceptions.JobFull, match=r"another process has come .* as rank 1") as caught:
        second.gather(b"second", Limit(60.0))
    assert "PENSTOCK_RANK" in str(caught.value.hint)
    assert one.visitor(2).gather(b"c", Limit(SECONDS)) == [b"a", b"first", b"c"]
    assert result.result(SECONDS) == [b"a", b"first", b"c"]


def test_one_that_cannot_go_on_ends_the_wait_of_all_with_its_reason(rendezvous) -> None:
    one = rendezvous(5)  # two of which never come: none has to wait for them any more
    waiting = one.go(one.visitor(1).gather, b"", Limit(SECONDS))
    one.go(one.visitor(3).fail, "no memory for a server", Limit(SECONDS))
    for wait in (lambda: one.root.gather(b"", Limit(SECONDS)), lambda: waiting.result(SECONDS)):
        with pytest.raises(ps.JobFailed, match="rank 3 could not join: no memory for a server"):
            wait()


def test_rank_0_that_cannot_go_on_tells_who_comes(rendezvous) -> None:
    one = rendezvous(2)
    waiting = one.go(one.visitor(1).gather, b"", Limit(SECONDS))
    one.root.fail("no such topology", Limit(SECONDS))
    with pytest.raises(ps.JobFailed, match="rank 0 could not join: no such topology"):
        waiting.result(SECONDS)


@pytest.mark.parametrize("when", ["before", "while"])
def test_one_that_goes_away_between_rounds_is_noticed_at_once(rendezvous, when: str) -> None:
    one = rendezvous(3)
    others = [one.visitor(1), one.visitor(2)]
    gathered(one, others=others)
    if when == "before":
        others[0].close()
    waiting = one.go(others[1].gather, b"", Limit(SECONDS))
    result = one.go(one.root.gather, b"", Limit(SECONDS))
    others[0].close()
    for future in (result, waiting):
        with pytest.raises(ps.JobFailed, match="rank 1 could not join: it went away"):
            future.result(SECONDS)


@pytest.mark.parametrize(
    ("different", "error", "says"),
    [
        (
            {"secret": secrets.token_hex(32)},
            ps.exceptions.AuthenticationError,
            "different secret or job name from rank 1",
        ),
        ({"job": "another"}, ps.exceptions.AuthenticationError, "different secret or job name from rank 1"),
        (
            {"size": 3},
            ps.exceptions.OptionError,
            "expects 2 processes, but this process was told that it is rank 1 of 3",
        ),
    ],
)
def test_one_of_another_job_is_refused_at_once_and_the_job_goes_on(
    rendezvous, different, error, says
) -> None:
    one = rendezvous(2)
    result = one.go(one.root.gather, b"a", Limit(SECONDS))
    with pytest.raises(error, match=says) as caught:
        one.visitor(1, **different).gather(b"stolen", Limit(SECONDS))
    assert SECRET not in str(caught.value) + str(caught.value.hint)
    assert one.visitor(1).gather(b"b", Limit(SECONDS)) == [b"a", b"b"]
    assert result.result(SECONDS) == [b"a", b"b"]


def test_rank_0_says_who_came_with_another_secret_where_somebody_is_missing(rendezvous) -> None:
    # It knew no more, at its deadline, than that rank 1 had not come.
    one = rendezvous(2)
    result = one.go(one.root.gather, b"a", Limit(1))
    with pytest.raises(ps.exceptions.AuthenticationError):
        one.visitor(1, secret=secrets.token_hex(32)).gather(b"b", Limit(SECONDS))
    with pytest.raises(RendezvousTimeout, match=r"from 127\.0\.0\.1 used a different secret") as caught:
        result.result(SECONDS)
    assert caught.value.missing == [1]
    assert "PENSTOCK_SECRET" in str(caught.value.hint)


def test_a_second_process_of_the_same_rank_takes_nothing_from_the_first(rendezvous) -> None:
    one = rendezvous(3)
    first, second = one.visitor(1), one.visitor(1)
    result = one.go(one.root.gather, b"a", Limit(SECONDS))
    first.deliver(_core.given(b"first"), Limit(SECONDS))
    holding = one.go(first.await_verdict, Limit(SECONDS))
    with pytest.raises(RendezvousTimeout):
        second.gather(b"second", Limit(0.3))
    assert one.visitor(2).gather(b"c", Limit(SECONDS)) == [b"a", b"first", b"c"]
    assert result.result(SECONDS) == [b"a", b"first", b"c"]
    assert holding.result(SECONDS) == _core.verdict({0: b"+a", 1: b"+first", 2: b"+c"})


MAGIC = b"PSMEET\x00\x02"
HELLO = MAGIC + bytes(32)
STRANGERS = 256
"""Connections that have not proved themselves and are listened to at once."""

GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    MAGIC,
    HELLO,
    HELLO + bytes(40),
    MAGIC + bytes(1 << 16),
    secrets.token_bytes(1 << 16),
]


@pytest.mark.parametrize("hangs_up", [True, False])
def test_strangers_get_nothing_and_harm_nobody(rendezvous, hangs_up: bool) -> None:
    one = rendezvous(2)
    result = one.go(one.root.gather, b"a", Limit(SECONDS))
    with contextlib.ExitStack() as open_ones:
        for garbage in GARBAGE:
            stranger = socket.create_connection(("127.0.0.1", one.root.port), SECONDS)
            with contextlib.suppress(OSError):  # it may be dropped before it has said all
                stranger.sendall(garbage)
            if hangs_up:
                stranger.close()
            else:
                open_ones.callback(stranger.close)
        assert one.visitor(1).gather(b"b", Limit(SECONDS)) == [b"a", b"b"]
        assert result.result(SECONDS) == [b"a", b"b"]


def test_more_silent_connections_than_there_are_places_keep_nobody_out(rendezvous) -> None:
    one = rendezvous(2)
    result = one.go(one.root.gather, b"a", Limit(SECONDS))
    with contextlib.ExitStack() as open_ones:
        for _ in range(STRANGERS + 50):
            stranger = socket.create_connection(("127.0.0.1", one.root.port), SECONDS)
            open_ones.callback(stranger.close)
        assert one.visitor(1).gather(b"b", Limit(SECONDS)) == [b"a", b"b"]
        assert result.result(SECONDS) == [b"a", b"b"]


def test_ctrl_c_ends_a_wait_at_a_rendezvous(rendezvous, port: int) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        visitor = Visitor(1, 2, "127.0.0.1", port, SECRET, "job")
        for end in (rendezvous(2).root, visitor):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupted):
                end.gather(b"", Limit(SECONDS))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_taken_port_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(ps.exceptions.AddressInUse, match="is taken on this host") as caught:
            Root(2, "127.0.0.1", listener.getsockname()[1], SECRET, "job", Limit(SECONDS))
        assert "PENSTOCK_RENDEZVOUS" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a:1", ("a", 1)), ("[fd00::1]:70", ("fd00::1", 70)), ("10.0.0.1:65535", ("10.0.0.1", 65535))],
)
def test_a_rendezvous_address_is_read(text: str, expected: tuple[str, int]) -> None:
    assert _core.rendezvous_address(text) == expected


@pytest.mark.parametrize(
    "text", ["a", "a:", ":1", "a:b", "a:0", "a:65536", "fd00::1:70", "[fd00::1]", "a:１"]
)
def test_a_rendezvous_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="HOST:PORT"):
        _core.rendezvous_address(text)
