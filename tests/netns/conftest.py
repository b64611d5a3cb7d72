"""What tests on several hosts share; all of them are skipped, aloud, where there can be no test hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock_bench.netns import NetworkTestbed, missing

sys.path.insert(0, str(Path(__file__).parent))

MakeTestbed = Callable[..., NetworkTestbed]


@pytest.fixture(scope="session", autouse=True)
def _hosts() -> None:
    if reason := missing():
        pytest.skip(f"NO TEST HOSTS ON THIS MACHINE: {reason}")


@pytest.fixture
def make_testbed() -> Iterator[MakeTestbed]:
    """Makes testbeds that end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(NetworkTestbed(*args, **kwargs))
