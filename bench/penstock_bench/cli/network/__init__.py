"""`penstock bench` between hosts, a file a bench: pushpull --hosts netns, zero-compute, loopback, tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock_bench.cli.network.hosts import EXAMPLES
from penstock_bench.cli.network.loopback import loopback
from penstock_bench.cli.network.pushpull import pushpull
from penstock_bench.cli.network.tenants import tenants
from penstock_bench.cli.network.zero_compute import zero_compute

BENCHES: dict[str, Callable[[Sequence[str]], int]] = {
    "loopback": loopback,
    "zero-compute": zero_compute,
    "tenants": tenants,
}
"""Beside `pushpull --hosts netns`."""

__all__ = ["BENCHES", "EXAMPLES", "pushpull"]
