"""
What the kernel counts of the test hosts' links: every byte, whoever sent it.

The switch has a port for each host. What a port receives, its host has sent; so one table of the kernel, read
every few milliseconds in the switch's namespace, tells of all hosts at once, and of any moment afterwards.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from penstock_bench.netns import NetworkTestbed

EVERY = 0.02
"""Seconds between two readings: at 1 Gbit/s a link takes 2.5 MB in them."""


class Counters:
    """
    Bytes that a job's hosts have sent, by time (`time.monotonic`).

    Parameters
    ----------
    job
        The hosts that are the job's.
    others
        Those of competing flows, which run between one of them and one of the job's: what comes in from a
        job's host and goes out to one of these is not the job's.
    """

    def __init__(self, job: Sequence[int], others: Sequence[int] = ()) -> None:
        self._job, self._others = list(job), list(others)
        self._times: list[float] = []
        self._sent: list[list[int]] = []
        self._foreign: list[int] = []

    def take(self, now: float, table: str) -> None:
        """Notes a reading of `/proc/net/dev` in the switch's namespace."""
        ports = parse(table)
        self._times.append(now)
        self._sent.append([ports[host][0] for host in self._job])
        self._foreign.append(sum(ports[host][1] for host in self._others))

    def between(self, start: float, end: float, hosts: Sequence[int] | None = None) -> float:
        """
        Bytes that the job sent between two moments: all of it, each byte counted once; or what some of its
        hosts sent, competing flows included.
        """
        chosen = [self._job.index(host) for host in self._job if hosts is None or host in hosts]
        sent = np.array(self._sent, np.float64)[:, chosen].sum(axis=1)
        if hosts is None:
            sent -= np.array(self._foreign, np.float64)
        first, last = np.interp([start, end], self._times, sent)
        return float(last - first)


def parse(table: str) -> dict[int, tuple[int, int]]:
    """Bytes that each host has sent and received, from the table of the switch's ports, p0, p1 and so on."""
    found = {}
    for line in table.splitlines():
        name, colon, figures = line.partition(":")
        name = name.strip()
        if colon and name[:1] == "p" and name[1:].isdecimal():
            columns = figures.split()
            found[int(name[1:])] = int(columns[0]), int(columns[8])
    return found


@contextlib.contextmanager
def counting(testbed: NetworkTestbed, counters: Counters) -> Iterator[None]:
    """Fills `counters` as long as the context lasts, by a thread."""
    # A process in the namespace, through which its table is read; it ends with its standard input.
    inside = subprocess.Popen(["ip", "netns", "exec", testbed.switch, "cat"], stdin=subprocess.PIPE)
    over = threading.Event()
    table = Path(f"/proc/{inside.pid}/net/dev")

    def read() -> None:
        while not over.wait(EVERY):
            now, text = time.monotonic(), table.read_text()
            # Before `ip` has become `cat` it stands in our own namespace, which has no such ports.
            if parse(text):
                counters.take(now, text)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # The last bytes of a run are in the next reading.
        time.sleep(2 * EVERY)
        over.set()
        thread.join()
        assert inside.stdin is not None
        inside.stdin.close()
        inside.wait()
