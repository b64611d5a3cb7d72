"""Rates, sizes, counts, times and money as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.exceptions import OptionError
from penstock.units import format_rate, parse_bytes, parse_count, parse_money, parse_rate, parse_time


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1bit", 1),
        ("9600bit", 9600),
        ("8bit", 8),
        ("1kbit", 1_000),
        ("100mbit", 100_000_000),
        ("10gbit", 10_000_000_000),
        ("1.1gbit", 1_100_000_000),
        ("0.5 Gbit", 500_000_000),
        ("1tbit", 10**12),
        ("1kibit", 1024),
        ("1gibit", 1 << 30),
        ("1e9bit", 10**9),
        ("1bps", 8),
        ("125mbps", 10**9),
        ("1kibps", 8192),
        ("1.5bit", 1),
    ],
)
def test_a_rate_is_read_as_tc_reads_it(text: str, bits: int) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a valid rate"),
        ("fast", "is not a valid rate"),
        ("nan", "is not a valid rate"),
        ("inf", "is not a valid rate"),
        ("gbit", "is not a valid rate"),
        ("1,5gbit", "is not a valid rate"),
        ("10 gbit each", "is not a valid rate"),
        ("10gb", "unknown unit 'gb'"),
        ("10GB/s", "unknown unit 'GB/s'"),
        ("-1gbit", "is negative"),
        ("0bit", "below one bit"),
        # To tc these are bits a second, to those that write them hardly ever.
        ("10", "has no unit"),
        ("1e9", "has no unit"),
        ("0.9bit", "below one bit"),
        ("1e99gbit", "above an exabit"),
    ],
)
def test_what_is_no_rate_is_refused_with_what_to_write_instead(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        parse_rate(text, "--link")
    assert "--link" in str(caught.value)
    assert "10gbit" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (0, "0bit"),
        (0.25, "0.25bit"),
        (999, "999bit"),
        (1000, "1kbit"),
        (10**9, "1gbit"),
        (999_999_999, "1gbit"),
        (17.828e9, "17.83gbit"),
        (121.875e9, "121.9gbit"),
        (950e6, "950mbit"),
        (1.408e12, "1.408tbit"),
        (123456e12, "123500tbit"),
    ],
)
def test_a_rate_is_printed_to_four_digits_in_tcs_own_units(bits: float, text: str) -> None:
    assert format_rate(bits) == text


@given(st.integers(1, 10**17))
def test_a_printed_rate_reads_as_itself_to_four_digits(bits: int) -> None:
    assert parse_rate(format_rate(bits)) == pytest.approx(bits, rel=0.5e-3)


@given(st.integers(1, 10**18))
def test_every_whole_number_of_bits_a_second_is_read_exactly(bits: int) -> None:
    assert parse_rate(f"{bits}bit") == bits


@given(st.text(max_size=12))
def test_no_text_does_anything_but_give_a_figure_or_be_refused(text: str) -> None:
    for parse in (parse_rate, parse_bytes, parse_count, parse_time, parse_money):
        hint: str | None = "none is needed"
        try:
            assert parse(text) >= 0
        except OptionError as error:
            hint = error.hint
        assert hint


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_bytes, "97MB", 97_000_000),
        (parse_bytes, "3", 3),
        (parse_count, "25.6M", 25_600_000),
        (parse_count, "7B", 7 * 10**9),
        (parse_count, "12", 12),
        (parse_count, "1e6", 10**6),
        (parse_time, "161ms", 0.161),
        (parse_time, "1.5 s", 1.5),
        (parse_time, "250us", 250e-6),
        (parse_time, "2min", 120.0),
        (parse_money, "162.50", 162.5),
        (parse_money, "$699", 699.0),
        (parse_money, "0", 0.0),
    ],
)
def test_a_figure_is_read_as_people_write_it(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_bytes, "0", "not above zero"),
        (parse_bytes, "1.5", "not a whole number of bytes"),
        (parse_bytes, "97M", "unknown unit 'M'"),
        (parse_bytes, "1e30", "above 10"),
        (parse_count, "0", "not above zero"),
        (parse_count, "-3", "is negative"),
        (parse_count, "2.5", "not a whole number"),
        (parse_count, "two", "is not a valid number"),
        (parse_count, "25.6MB", "unknown unit 'MB'"),
        (parse_time, "161", "has no unit"),
        (parse_time, "0ms", "not above zero"),
        (parse_time, "-1s", "is negative"),
        (parse_time, "1h", "unknown unit 'h'"),
        (parse_time, "1e9s", "above a hundred days"),
        (parse_money, "-1", "is negative"),
        (parse_money, "700EUR", "unknown unit 'EUR'"),
        (parse_money, "1e10", "not from 0 to a billion"),
    ],
)
def test_what_is_no_figure_is_refused_by_name(
    parse: Callable[[str, str], float], text: str, said: str
) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        parse(text, "--it")
    assert "--it" in str(caught.value)
    assert caught.value.hint
