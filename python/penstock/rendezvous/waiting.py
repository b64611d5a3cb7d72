"""Says what is waited for while a process joins, so that a wrong address is seen long before the deadline."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SLOW_SECONDS = 2.0


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """One line on standard error if the block takes longer than two seconds: it still waits for `what`."""
    timer = threading.Timer(SLOW_SECONDS, _tell, [what])
    timer.daemon = True
    try:
        # Where there is no thread to be had, nothing is said.
        with suppress(RuntimeError):
            timer.start()
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    line = f"penstock: still waiting for {what}; gives up after the option `deadline`\n"
    # There may be no standard error, or one that is closed or of the script's own making.
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(line.encode("ascii", "backslashreplace").decode())
        sys.stderr.flush()
