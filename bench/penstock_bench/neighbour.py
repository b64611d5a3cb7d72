"""A process that is always at work: beside it one sees how waits behave on a host that is in use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BESIDE = "beside a busy process"

_WORK = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1 << 20):
        pass
"""


@contextmanager
def busy() -> Iterator[None]:
    """
    Keeps a core busy while the block runs.

    The process ends with the block, or with this process, however that ends.

    Raises
    ------
    OSError
        No process could be started.
    """
    process = subprocess.Popen([sys.executable, "-S", "-c", _WORK], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it is at work
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
