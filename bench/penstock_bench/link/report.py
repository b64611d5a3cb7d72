"""A measurement in words, and as others read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.units import format_rate, format_size
from penstock_bench.link.measure import Result, Way
from penstock_bench.link.search import Verdict
from penstock_bench.network.report import columns

_LIMITS = {
    Verdict.BELOW: "all of {rate} is available, and no higher rate may be tried: --most-rate of either end",
    Verdict.UNCLEAR: "no rate up to {rate} was found to be more than is available",
    Verdict.SENDER: "the sending host could not keep to {rate}: too slow, or held up (--realtime)",
    Verdict.RECEIVER: "the receiving host could not keep up with {rate}: too slow, or held up (--realtime)",
}


def document(result: Result) -> dict[str, Any]:
    """The JSON."""
    return {
        "peer": result.peer,
        "frame_bytes": result.frame,
        "seconds": result.seconds,
        "ways": [_way(one) for one in result.ways],
    }


def _way(way: Way) -> dict[str, Any]:
    found = way.found
    return {
        "way": way.way,
        "low_bits_per_second": found.low,
        "high_bits_per_second": found.high if found.limited is None else None,
        "grey_bits_per_second": found.grey,
        "limited": found.limited and {"by": found.limited.value, "at_bits_per_second": found.high},
        "narrow": found.narrow,
        "streams": found.streams,
        "discarded": found.discarded,
        "bytes": way.bytes,
        "seconds": way.seconds,
    }


def table(measured: Mapping[str, Any], more: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """
    The same as a table.

    Parameters
    ----------
    measured
        The JSON.
    more
        Further columns: of each way its text.
    """
    more = more or {}
    rows: list[Sequence[str]] = [
        ["way", *more, "available", "grey", "streams", "discarded", "sent", "time"],
    ]
    for way in measured["ways"]:
        grey = way["grey_bits_per_second"]
        rows.append(
            [
                way["way"],
                *(column[way["way"]] for column in more.values()),
                available(way),
                span(*grey) if grey else "-",
                str(way["streams"]),
                str(sum(way["discarded"].values())),
                format_size(way["bytes"]),
                f"{way['seconds']:.1f} s",
            ]
        )
    return "\n".join([columns(rows), *(f"  {note}" for note in notes(measured))])


def available(way: Mapping[str, Any]) -> str:
    """The range, or what is known of it."""
    if way["high_bits_per_second"] is None:
        return f"at least {format_rate(way['low_bits_per_second'])}"
    return span(way["low_bits_per_second"], way["high_bits_per_second"])


def span(low: float, high: float) -> str:
    """From one rate to another."""
    return f"{format_rate(low)} to {format_rate(high)}"


def notes(measured: Mapping[str, Any]) -> list[str]:
    """What a reader has to know of the figures."""
    said = []
    for way in measured["ways"]:
        if limited := way["limited"]:
            rate = format_rate(limited["at_bits_per_second"])
            said.append(f"{way['way']}: {_LIMITS[Verdict(limited['by'])].format(rate=rate)}")
        if not way["narrow"]:
            said.append(f"{way['way']}: the time was over (--most-seconds) before the range was narrow")
        if way["discarded"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in way["discarded"].items())
            said.append(f"{way['way']}: streams discarded: {reasons}")
    return said
