"""What two ends of `penstock bench link` say to each other, and what hostile ends may say."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_path import Path

from penstock import _core
from penstock_bench.link import listen, measure, sockets
from penstock_bench.link.control import MOST_LINE, VERSION, Control, LinkError, Message
from penstock_bench.link.search import Trial, Verdict
from penstock_bench.link.streams import Heard, Sent, Stream, summary
from penstock_bench.link.trend import Trend

HERE = "127.0.0.1"
STREAM = Stream.of(Trial(20e6, ahead=True), 7, 1472, 42)
LIMITS = listen.Limits(rate=50e6, seconds=60)


def message(**fields: Any) -> Message:
    return Message(json.dumps(fields).encode())


def test_what_is_told_is_what_is_understood() -> None:
    assert message(kind="send", **sockets.told(STREAM)).stream() == STREAM
    sent = Sent(7, 0.25, 0.0, 0.125)
    assert message(kind="sent", **sockets.told(sent)).sent(STREAM) == sent
    heard = Heard(90, 3, Trend.GROWS, 1234.5)
    assert message(kind="heard", **sockets.told(heard)).heard(STREAM) == heard
    assert message(kind="welcome", token="0f" * 16).token() == b"\x0f" * 16


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1",
        b"[1]",
        b'{"kind": 3}',
        b"{}",
        b"[" * 4000,
        b"\xff\xfe",
        b'"kind"',
        b'{"kind": "send"',
        b"1" * 4000,
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(LinkError, match="expected a message of penstock bench link"):
        Message(line)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(line: bytes) -> None:
    try:
        found = Message(line)
    except LinkError:
        return
    assert isinstance(found.kind, str)


WRONG: list[tuple[str, Any]] = [
    ("number", -1),
    ("number", 1 << 32),
    ("payload", 31),
    ("payload", 65_508),
    ("together", 0),
    ("together", 65),
    ("messages", 0),
    ("messages", 1 << 20),
    ("gap", 0),
    ("gap", 10**10),
    ("ahead", -1),
    ("ahead_gap", -1),
    ("messages", "12"),
    ("messages", 12.0),
    ("messages", True),
    ("messages", None),
    ("gap", [1]),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_stream_with_a_number_out_of_bounds_is_refused_by_name(name: str, value: object) -> None:
    fields = {**sockets.told(STREAM), name: value}
    with pytest.raises(LinkError, match=f"as {name} in 'send' from the other end, got "):
        message(kind="send", **fields).stream()


def test_a_stream_whose_numbers_are_each_allowed_but_not_together_is_refused() -> None:
    large = replace(STREAM, payload=2000, together=64)
    with pytest.raises(LinkError, match="bytes a message"):
        message(kind="send", **sockets.told(large)).stream()
    long = replace(STREAM, messages=501, gap=10**7)
    with pytest.raises(LinkError, match="at most 5 s of messages that count"):
        message(kind="send", **sockets.told(long)).stream()
    long = replace(STREAM, ahead=6000, ahead_gap=10**7)
    with pytest.raises(LinkError, match="a stream of at most 60 s"):
        message(kind="send", **sockets.told(long)).stream()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "1", None, 10**400, True])
def test_a_number_that_is_none_is_refused(value: object) -> None:
    fields = {**sockets.told(Sent(7, 0.25, 0.0, 0.0)), "elapsed": value}
    with pytest.raises(LinkError, match="as elapsed"):
        message(kind="sent", **fields).sent(STREAM)


@pytest.mark.parametrize("token", ["", "00" * 15, "zz" * 16, 5, None, "é" * 32])
def test_a_token_that_is_none_is_refused(token: object) -> None:
    with pytest.raises(LinkError, match="32 hexadecimal digits as token"):
        message(kind="welcome", token=token).token()


def test_what_a_stranger_says_is_printed_in_ascii_and_not_at_any_length() -> None:
    with pytest.raises(LinkError) as caught:
        message(kind="\x1b[2J" + "x" * 3000).whole("number", 0, 1)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


@contextmanager
def listening(limits: listen.Limits = LIMITS) -> Iterator[tuple[listen.Listener, list[str]]]:
    """A listener that serves one connection; what went wrong with it, once that is over."""
    listener, wrong = listen.Listener(HERE, 0, limits), []

    def serve() -> None:
        try:
            listener.serve(lambda _: None)
        except LinkError as error:
            wrong.append(str(error))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener, wrong
    finally:
        thread.join(30)
        listener.close()
        assert not thread.is_alive()


@contextmanager
def asking(listener: listen.Listener) -> Iterator[tuple[Control, bytes, _core.LinkSocket]]:
    """A stranger that has said hello."""
    with Control(socket.create_connection((HERE, listener.port), 10)) as control:
        control.say("hello", version=VERSION)
        udp = sockets.bound(HERE, 0)
        udp.connect(HERE, listener.port)
        yield control, control.hear("welcome").token(), udp


def test_a_listener_sends_nothing_to_who_has_not_shown_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PATIENCE", 0.2)
    with listening() as (listener, wrong), asking(listener) as (control, _, udp):
        udp.greet(bytes(16))
        control.say("send", **sockets.told(STREAM))
        with pytest.raises(
            LinkError, match=r"the other end refused: 'no datagram with the token came from 127\.0\.0\.1"
        ):
            control.hear("met")
        assert not udp.met(bytes(16), HERE, 0.05), "not even an answer"
    assert len(wrong) == 1


def test_a_listener_sends_to_the_host_at_the_other_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "PATIENCE", 0.2)
    with listening() as (listener, _), asking(listener) as (control, token, _):
        # Somebody else who knows the token, at another address.
        other = sockets.bound("127.0.0.2", 0)
        other.connect(HERE, listener.port)
        other.greet(token)
        with pytest.raises(LinkError, match="refused: 'no datagram with the token"):
            control.hear("met")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gap": STREAM.gap // 3}, "at most 5e"),
        ({"ahead_gap": 0}, "at most 5e"),
        ({"ahead_gap": STREAM.ahead_gap // 3}, "at most 5e"),
        ({"ahead": 16_384}, "at most 5e"),
        ({"messages": 0}, "as messages"),
    ],
)
@pytest.mark.parametrize("kind", ["send", "receive"])
def test_a_listener_does_no_more_than_its_options_allow(kind: str, change: dict[str, int], said: str) -> None:
    with listening() as (listener, wrong), asking(listener) as (control, token, udp):
        udp.greet(token)
        control.hear("met")
        control.say(kind, **sockets.told(replace(STREAM, **change)))
        with pytest.raises(LinkError, match=f"refused: .*{said}"):
            control.hear(("sent", "ready"))
    assert len(wrong) == 1


def test_a_measurement_that_takes_too_long_is_ended() -> None:
    with listening(replace(LIMITS, seconds=0.0)) as (listener, _), asking(listener) as (control, token, udp):
        udp.greet(token)
        control.hear("met")
        control.say("send", **sockets.told(STREAM))
        with pytest.raises(LinkError, match="refused: 'expected a measurement of at most 0 s"):
            control.hear("sent")


@contextmanager
def measuring(limits: listen.Limits) -> Iterator[tuple[Control, bytes, _core.LinkSocket, list[str]]]:
    """A stranger that has shown the token, and what goes wrong with it."""
    with listening(limits) as (listener, wrong), asking(listener) as (control, token, udp):
        udp.greet(token)
        control.hear("met")
        yield control, token, udp, wrong


SLEEPY = replace(STREAM, ahead=2000, ahead_gap=10**7)
"""20 s."""


def test_a_listener_ends_a_stream_when_its_time_is_over() -> None:
    with measuring(replace(LIMITS, seconds=0.5)) as (control, _, _, _):
        control.say("send", **sockets.told(SLEEPY))
        assert control.hear("sent").sent(SLEEPY).messages == 0
        with pytest.raises(LinkError, match=r"refused: 'expected a measurement of at most 0\.5 s"):
            control.hear("sent")


def test_a_listener_waits_for_a_stream_no_longer_than_its_time() -> None:
    with measuring(replace(LIMITS, seconds=0.5)) as (control, _, _, _):
        control.say("receive", **sockets.told(SLEEPY))
        control.hear("ready")
        with pytest.raises(LinkError, match="refused: 'expected sent from the other end, but it was silent"):
            control.hear("heard")


def test_a_listener_sends_to_nobody_who_has_gone() -> None:
    with measuring(LIMITS) as (control, _, _, wrong):
        control.say("send", **sockets.told(SLEEPY))
        control.close()
    assert wrong == ["expected silence from the other end, but it closed the connection"]


def test_a_listener_rests_until_the_mean_is_the_rate_it_allows() -> None:
    # What goes ahead has twice the rate: without rest, stream after stream would have nearly that.
    stream = Stream.of(Trial(LIMITS.rate, ahead=True), 1, 1472, 42)
    start, bits = time.monotonic(), 0.0
    with measuring(LIMITS) as (control, _, _, _):
        for _ in range(4):
            control.say("send", **sockets.told(stream))
            sent = control.hear("sent").sent(stream)
            ahead = stream.ahead * stream.ahead_gap / 1e9
            assert time.monotonic() - start >= bits / LIMITS.rate + 0.9 * ahead
            bits += 8 * stream.bytes(42, sent.messages)
        control.say("done")


def test_a_measurement_ends_in_time_with_what_was_found() -> None:
    # Streams of 1.2 s, and 12 s of rest.
    with listening(replace(LIMITS, rate=1e6, seconds=3)) as (listener, wrong):
        settings = measure.Settings(rate=1e6, seconds=3, resolution=0.5, bucket=0)
        result = measure.measure(HERE, listener.port, settings, lambda _: None)
    assert wrong == []
    for way in result.ways:
        assert way.found.streams + sum(way.found.discarded.values()) <= 1
        assert (way.found.limited, way.found.narrow) == (Verdict.UNCLEAR, False)


def serves(server: socket.socket, rate: float, then: Callable[[Control], None]) -> threading.Thread:
    """A listener of another kind."""

    def serve() -> None:
        with Control(server.accept()[0]) as control:
            control.hear("hello")
            udp = sockets.bound(HERE, server.getsockname()[1])
            control.say("welcome", token="00" * 16, rate=rate, seconds=60)
            with contextlib.suppress(LinkError):
                sockets.meet(udp, bytes(16), HERE)
                control.say("met", payload=1472)
                then(control)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_listener_that_never_answers_costs_its_stream_and_not_the_result() -> None:
    def never(control: Control) -> None:
        control.hear("receive")
        control.say("ready")
        control.hear("sent")
        control.hear("done", 30)

    with socket.create_server((HERE, 0)) as server:
        thread = serves(server, 1e9, never)
        settings = measure.Settings(rate=50e6, seconds=1, resolution=0.5)
        result = measure.measure(HERE, server.getsockname()[1], settings, lambda _: None)
        thread.join()
    assert [way.found.streams for way in result.ways] == [0, 0]


def test_a_listener_that_allows_hardly_anything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A stream of 1 bit/s would take a fortnight.
    monkeypatch.setattr(sockets, "PATIENCE", 0.1)
    with socket.create_server((HERE, 0)) as server:
        thread = serves(server, 1, lambda _: None)
        with pytest.raises(LinkError, match=r"expected a number from 1e\+06 to 1e\+18 as rate in 'welcome'"):
            measure.measure(HERE, server.getsockname()[1], measure.Settings(1e9, 60, 0.5), lambda _: None)
        thread.join()


class Clock:
    """Time that passes only where it is slept through."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("seconds", [1, 10, 20, 60, 120])
@pytest.mark.parametrize("rate", [0.2e6, 1e6, 1.5e6, 2e6, 3e6, 4e6, 10e6, 20e6, 1e9])
def test_a_measurement_of_any_path_ends_in_time(
    rate: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, path = Clock(), Path(rate, 256 << 10)

    def exchange(_: Control, udp: object, token: bytes, stream: Stream, end: float) -> tuple[Sent, Heard]:
        sent, arrived, datagrams, dropped = path.sent(stream)
        clock.sleep(stream.whole_seconds)
        assert clock.now <= end
        return sent, summary(stream, arrived, datagrams, dropped)

    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "_send", exchange)
    monkeypatch.setattr(measure, "_receive", exchange)
    with listening(listen.Limits(1e10, seconds)) as (listener, wrong):
        settings = measure.Settings(1e10, seconds, 0.05)
        result = measure.measure(HERE, listener.port, settings, lambda _: None)
    assert wrong == []
    assert result.seconds <= seconds
    for way in result.ways:
        assert path.near(way.found) or not way.found.narrow
    # From 4 Mbit/s on two minutes are enough, as the documentation has it.
    assert seconds < 120 or rate < 4e6 or all(way.found.narrow for way in result.ways)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"x" * (2 * MOST_LINE), b'{"kind": "hello"}\n', b'{"kind": "send"}\n', b""],
)
def test_a_stranger_that_says_anything_else_is_refused(said: bytes) -> None:
    with listening() as (listener, wrong), socket.create_connection((HERE, listener.port), 10) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    assert len(wrong) == 1


def test_a_line_without_an_end_is_not_kept() -> None:
    with listening() as (listener, wrong), socket.create_connection((HERE, listener.port), 10) as stranger:
        # Its connection stays open, and the line might go on for ever.
        stranger.sendall(b"x" * (2 * MOST_LINE))
        assert b"expected a line of at most 4096 bytes" in stranger.recv(MOST_LINE)
    assert len(wrong) == 1


def test_a_line_of_more_than_there_may_be_is_refused_with_its_end_too() -> None:
    for more in (0, 1):
        hello = json.dumps({"kind": "hello", "version": VERSION + 1, "pad": ""}).encode()
        line = hello[:-2] + b"x" * (MOST_LINE + more - 1 - len(hello)) + hello[-2:] + b"\n"
        assert len(line) == MOST_LINE + more
        with (
            listening() as (listener, wrong),
            socket.create_connection((HERE, listener.port), 10) as stranger,
        ):
            stranger.sendall(line)
            assert (b"at most 4096 bytes" in stranger.recv(MOST_LINE)) == bool(more)
        assert len(wrong) == 1


def test_another_version_is_refused_by_number() -> None:
    with listening() as (listener, _), Control(socket.create_connection((HERE, listener.port))) as control:
        control.say("hello", version=VERSION + 1)
        with pytest.raises(LinkError, match=f"expected version {VERSION} of penstock bench link, got 2"):
            control.hear("welcome")


def test_nobody_there_is_said_with_what_to_do() -> None:
    with socket.socket() as closed:
        closed.bind((HERE, 0))
        with pytest.raises(LinkError, match="nobody answers") as caught:
            measure.measure(HERE, closed.getsockname()[1], measure.Settings(1e6, 1, 0.5), lambda _: None)
    assert "--listen" in str(caught.value.hint)


def test_what_a_message_may_ask_for_is_what_the_core_does() -> None:
    udp, other = sockets.bound(HERE, 0), sockets.bound(HERE, 0)
    udp.connect(HERE, other.port())
    allowed = [(32, 1), (65_507, 1), (1_023, 64)]
    for payload, together in [*allowed, (31, 1), (65_508, 1), (1_024, 64), (100, 65)]:
        stream = replace(STREAM, payload=payload, together=together, messages=1, ahead=1)
        fields = sockets.told(stream)
        if (payload, together) in allowed:
            assert message(kind="send", **fields).stream() == stream
            assert sockets.send(udp, bytes(16), stream, 10, lambda: None).messages <= 1
        else:
            with pytest.raises(LinkError):
                message(kind="send", **fields).stream()
            with pytest.raises(ValueError, match="expected datagrams of 32 bytes"):
                sockets.send(udp, bytes(16), stream, 10, lambda: None)


def test_a_stream_goes_from_end_to_end_and_both_say_the_same_of_it() -> None:
    stream = Stream.of(Trial(20e6, ahead=True), 1, 1200, 42, bucket=4096)
    with listening() as (listener, wrong), asking(listener) as (control, token, udp):
        udp.greet(token)
        control.hear("met")
        for exchange in (measure._send, measure._receive):
            sent, heard = exchange(control, udp, token, stream, math.inf)
            assert heard.datagrams == sent.messages * stream.together
            assert heard.dropped == 0
        control.say("done")
    assert wrong == []
