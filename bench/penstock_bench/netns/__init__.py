"""
Several hosts on one machine, for tests and benchmarks: network namespaces, shaped links, cables to cut.

Linux and root only; `missing` says what a machine lacks.
"""

from penstock_bench.netns.commands import missing
from penstock_bench.netns.errors import NetworkTestbedError
from penstock_bench.netns.testbed import NetworkTestbed, clean

__all__ = ["NetworkTestbed", "NetworkTestbedError", "clean", "missing"]
