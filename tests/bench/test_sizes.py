"""Sizes that a user writes, and figures that a user reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.exceptions import OptionError
from penstock.units import format_ratio, format_size, format_time, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4", 4),
        ("4096", 4096),
        ("4096B", 4096),
        ("4KiB", 4096),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5 KiB", 1536),
        ("1GiB", 1 << 30),
        ("4kB", 4000),
        ("1 MB", 1_000_000),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, nbytes: int) -> None:
    assert parse_bytes(text, of="float32") == nbytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "not above zero"),
        ("-4KiB", "is negative"),
        ("4097", "not a multiple of 4"),
        ("1.3", "not a whole number of bytes"),
        ("64M", "unknown unit 'M'"),
        ("", "is not a valid size"),
        ("much", "is not a valid size"),
        ("nan", "is not a valid size"),
        ("1e-3", "not a whole number of bytes"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write_instead(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        parse_bytes(text, "--size", of="float32")
    assert caught.value.hint
    assert "--size" in str(caught.value)


@given(st.integers(1, 1 << 40))
def test_every_whole_number_of_floats_is_a_size(floats: int) -> None:
    assert parse_bytes(str(4 * floats), of="float32") == 4 * floats


def test_figures_have_three_digits_and_the_unit_that_suits_them() -> None:
    assert [format_size(n) for n in (100, 4096, 1536, 64 << 20, 3 << 30)] == [
        "100 B", "4 KiB", "1.5 KiB", "64 MiB", "3 GiB",
    ]  # fmt: skip
    assert [format_time(t) for t in (2.0, 0.00412, 12.34e-6, 870e-9)] == [
        "2.00 s",
        "4.12 ms",
        "12.3 us",
        "870 ns",
    ]
    assert [format_ratio(r) for r in (1.234, 11.17, 431.4)] == ["1.23x", "11.2x", "431x"]
