"""What tests of benchmarks need of the machine; what it lacks is printed with the skip."""

from __future__ import annotations

import pytest

from penstock_bench.netns import missing

hosts = pytest.mark.skipif(missing() is not None, reason=f"NO TEST HOSTS ON THIS MACHINE: {missing()}")
