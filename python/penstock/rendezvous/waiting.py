"""Says what is waited for while a process joins, so that a wrong address is seen long before the deadline."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SLOW_SECONDS = 2.0


@contextmanager
def told_if_slow(what: str) -> Iterator[None]:
    """
    One line on standard error if the block takes longer than two seconds: that `what` is still waited for.
    """
    timer = threading.Timer(SLOW_SECONDS, _tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    # A process without a terminal may have no standard error, or one that is closed.
    if sys.stderr is None or sys.stderr.closed:
        return
    line = f"penstock: still waiting for {what}; gives up after the option `deadline`\n"
    sys.stderr.write(line.encode("ascii", "backslashreplace").decode())
    sys.stderr.flush()
