"""
Several hosts on one machine, for tests and benchmarks: network namespaces, shaped links, cables to cut.

Linux and root only; `missing` says what a machine lacks.
"""

from penstock.netns.commands import missing
from penstock.netns.errors import LaboratoryError
from penstock.netns.laboratory import Laboratory, clean

__all__ = ["Laboratory", "LaboratoryError", "clean", "missing"]
