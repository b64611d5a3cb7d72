"""
`penstock bench` between hosts, a file a bench: pushpull --hosts netns, zero-compute, loopback, tenants, link,
factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock_bench.cli.network import factors, link, loopback, tenants, zero_compute
from penstock_bench.cli.network.arguments import EXAMPLES

BENCHES: dict[str, Callable[[Sequence[str]], int]] = {
    "loopback": loopback.run,
    "zero-compute": zero_compute.run,
    "tenants": tenants.run,
    "link": link.run,
    "factors": factors.run,
}
"""Beside `pushpull --hosts netns`, which is asked for by its option."""

__all__ = ["BENCHES", "EXAMPLES"]
