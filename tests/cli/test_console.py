"""Lines of many processes: cut where they end, kept whole, bounded in memory."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from penstock.launch.console import LINE_LIMIT, Console, Lines, Name


def cut(*pieces: bytes) -> list[bytes]:
    lines = Lines()
    return [line for piece in pieces for line in lines.feed(piece)] + lines.rest()


def test_a_line_comes_when_its_end_does():
    lines = Lines()
    assert lines.feed(b"one\ntw") == [b"one"]
    assert lines.feed(b"o\n\n") == [b"two", b""]
    assert lines.rest() == []


def test_a_progress_bar_is_seen_while_it_moves():
    lines = Lines()
    assert lines.feed(b"10 %\r20 %\r") == [b"10 %"]
    assert lines.feed(b"30 %") == [b"20 %"]
    assert lines.rest() == [b"30 %"]


def test_a_return_and_a_newline_are_one_end_even_when_they_come_apart():
    assert cut(b"one\r", b"\ntwo\r\n") == [b"one", b"two"]


@given(st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\r", b" ")), max_size=10))
def test_no_byte_is_lost_however_the_pieces_are_cut(pieces):
    text = b"".join(pieces)
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert cut(*pieces) == expected


def test_a_line_without_end_does_not_take_all_memory():
    lines = Lines()
    shown = [line for _ in range(5) for line in lines.feed(b"x" * LINE_LIMIT)]
    assert sum(map(len, shown)) >= 4 * LINE_LIMIT
    assert sum(map(len, shown + lines.rest())) == 5 * LINE_LIMIT


def test_a_stream_whose_reader_has_gone_is_remembered_and_stops_nothing(capfd):
    reading, writing = os.pipe()
    os.close(reading)
    kept = os.dup(1)
    try:
        os.dup2(writing, 1)
        console = Console()
        console.emit(Name("worker", 0), "stdout", [b"lost"])
        console.emit(Name("worker", 0), "stdout", [b"lost too"])
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writing)
    assert console.is_closed("stdout")
    assert not console.is_closed("stderr")
    console.emit(Name("worker", 0), "stderr", [b"kept"])
    assert capfd.readouterr().err == "[worker 0] kept\n"


def test_colour_changes_nothing_but_the_name():
    assert Console(colour=False).prefix(Name("server", 1)) == b"[server 1] "
    assert b"[worker 3]" in Console(colour=True).prefix(Name("worker", 3))
