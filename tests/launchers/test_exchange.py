"""What peers say in an exchange, where it is not what was expected."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

import penstock as ps
from penstock import _core
from penstock.limit import Limit
from penstock.rendezvous import assemble
from penstock.rendezvous.environment import Place
from penstock.rendezvous.exchange import Exchange

LONG = 20.0
SECRET = "ab" * 32
ELSEWHERE = json.dumps({"host": "elsewhere", "job": "job", "has_secret": True}).encode()


class Rank0(Exchange):
    """Rank 0 of two, whose other process says what the test says, one round after the other."""

    def __init__(self, *others: bytes) -> None:
        super().__init__(0, 2)
        self.others = list(others)
        self.told: list[bytes] = []

    def collect(self, own: bytes, deadline: Limit[float]) -> Mapping[int, bytes]:
        return {0: own, 1: self.others.pop(0)}

    def announce(self, verdict: bytes) -> None:
        self.told.append(verdict)


class Rank1(Exchange):
    """Rank 1 of two, whose rank 0 tells it what the test says."""

    def __init__(self, verdict: bytes) -> None:
        super().__init__(1, 2)
        self.verdict = verdict

    def deliver(self, contribution: bytes, deadline: Limit[float]) -> None:
        pass

    def await_verdict(self, deadline: Limit[float]) -> bytes:
        return self.verdict


class Server:
    """One that need not run."""

    ended = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def listening(self, deadline: Limit[float]) -> str:
        return "/run/server"

    def end(self) -> None:
        type(self).ended += 1


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's secret, and a server that need not run."""
    monkeypatch.setenv("PENSTOCK_SECRET", SECRET)
    monkeypatch.setattr(assemble, "Server", Server)
    monkeypatch.setattr(Server, "ended", 0)


def assembled(exchange: Exchange) -> assemble.Assembled:
    place = Place("torchrun", exchange.rank, exchange.size, "WORLD_SIZE")
    return assemble.assemble(place, exchange, {}, Limit(LONG))


GARBAGE = [
    b"",
    b"+",
    b"+{}",
    b"+[]",
    b"+null",
    b"+\xff\xfe",
    b'+{"host": 7, "job": "job", "has_secret": true}',
    b'+{"job": "job", "has_secret": true}',
    b'+{"host": "a", "job": ["job"], "has_secret": true}',
    b'+{"host": "a", "job": "job", "has_secret": "yes"}',
    b'+{"host": "a", "job": "job", "has_secret": true, "secret": 7}',
    b"+" + b"[" * 5000,
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_introduction_that_is_none_is_refused(garbage: bytes) -> None:
    with pytest.raises(ps.exceptions.ProtocolError, match="rank 1 sent something that is not understood"):
        assembled(Rank0(garbage))


@pytest.mark.parametrize(
    ("garbage", "says"),
    [
        (b"", "rank 1 had to start a server, and named none"),
        (b"+", "rank 1 had to start a server, and named none"),
        (b"+\xff\xfe", "rank 1 sent something that is not understood"),
        (b"+tcp://", "rank 1 sent something that is not understood"),
    ],
)
def test_a_server_that_is_none_is_refused_and_the_own_one_ended(garbage: bytes, says: str) -> None:
    with pytest.raises(ps.exceptions.ProtocolError, match=says):
        assembled(Rank0(b"+" + ELSEWHERE, garbage))
    assert Server.ended == 1


def test_both_rounds_lead_to_the_servers_in_their_order() -> None:
    found = assembled(Rank0(b"+" + ELSEWHERE, b"+tcp://10.0.0.2:7"))
    assert found.servers == ["/run/server", "tcp://10.0.0.2:7"]
    assert found.secret == SECRET
    assert SECRET not in repr(found)


def test_two_jobs_are_told_apart() -> None:
    other = json.dumps({"host": "a", "job": "other", "has_secret": True}).encode()
    with pytest.raises(
        ps.exceptions.NotUnderLauncher, match="for the job 'other', rank 0 for 'job'"
    ) as caught:
        assembled(Rank0(b"+" + other))
    assert "PENSTOCK_JOB" in str(caught.value.hint)
    lacking = json.dumps({"host": "a", "job": "job", "has_secret": False}).encode()
    with pytest.raises(ps.exceptions.NotUnderLauncher, match="rank 0 has a PENSTOCK_SECRET, rank 1 has none"):
        assembled(Rank0(b"+" + lacking))


VERDICTS = [b"", b"GET /", b"+", b"+\xff\xff\xff\xff", b"-", b"-[]", b"-{}", b'-{"kind": "late"}', b"-\xff"]


@pytest.mark.parametrize("verdict", [*VERDICTS, b'-{"kind": "late", "missing": [-1], "waited": 1}'])
def test_a_verdict_that_is_none_is_refused(verdict: bytes) -> None:
    with pytest.raises(ps.exceptions.ProtocolError):
        Rank1(verdict).gather(b"", Limit(LONG))


@pytest.mark.parametrize(
    "refuse",
    [
        lambda *_: OSError("no file \udcff"),
        lambda *_: ValueError("x" * 100_000),
        lambda *_: ps.exceptions.OptionError("\ud800"),
    ],
)
def test_the_cause_of_a_failure_is_not_lost_to_how_it_is_told(
    refuse: Callable[..., Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file's name that is not text: another error came in place of it, and no process was told.
    error = refuse()

    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(assemble.environment, "topology", fail)
    exchange = Rank0(b"+" + ELSEWHERE)
    with pytest.raises(type(error)) as caught:
        assembled(exchange)
    assert caught.value is error
    assert b"rank 0 could not join" in exchange.told[0]


def test_a_failure_whose_telling_fails_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Rank0):
        def announce(self, verdict: bytes) -> None:
            raise RuntimeError("the launcher's library has ended")

    monkeypatch.setenv("PENSTOCK_TOPOLOGY", "ring")
    with pytest.raises(ps.exceptions.OptionError, match="got `ring`"):
        assembled(Broken(b"+" + ELSEWHERE))


def test_whoever_shows_a_verdict_reads_it_first() -> None:
    failed = _core.verdict({0: b"+", 1: b"-\xff\x1b[2J"})
    with pytest.raises(ps.JobFailed, match="rank 1 could not join") as caught:
        Rank1(failed).gather(b"", Limit(LONG))
    assert "\x1b" not in str(caught.value)
