"""
What the kernel counts of the test hosts' links: every byte, whoever sent it.

The switch has a port for each host. What a port receives, its host has sent; so one table of the kernel, read
every few milliseconds in the switch's namespace, tells of all hosts at once, and of any moment afterwards.

Where competing flows share the links, the ports copy what is not theirs to a device that nobody listens to,
and its bytes are counted. Subtracting the flows' bytes, counted at their own ports, would not do: between the
two stands a queue, as large as some trainings.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from penstock_bench.netns import NetworkTestbed, commands
from penstock_bench.systems import BenchError

EVERY = 0.02
"""Seconds between two readings: at 1 Gbit/s a link takes 2.5 MB in them."""
COPIES = "job"
"""The device that the job's bytes are copied to, where others share the links."""

_RECEIVED, _SENT, _LOST = 0, 8, 11
"""Columns of the table."""


class Counters:
    """
    Bytes that a job's hosts have sent, by time (`time.monotonic`).

    Parameters
    ----------
    job
        The hosts that are the job's.
    others
        Their neighbours, if there are competing flows: then `set_apart` has been called.
    """

    def __init__(self, job: Sequence[int], others: Sequence[int] = ()) -> None:
        self._job, self._others = list(job), list(others)
        self._times: list[float] = []
        self._sent: list[int] = []
        self._beside: list[int] = []

    def take(self, now: float, table: str) -> None:
        """Notes a reading of `/proc/net/dev` in the switch's namespace."""
        devices = parse(table)
        if self._others:
            copies = devices[COPIES]
            if copies[_LOST]:
                raise BenchError(f"the kernel did not count {copies[_LOST]} packets: it was too busy")
            sent = copies[_SENT]
        else:
            sent = sum(devices[f"p{host}"][_RECEIVED] for host in self._job)
        ports = [devices[f"p{host}"] for host in self._others]
        self._times.append(now)
        self._sent.append(sent)
        self._beside.append(sum(port[_RECEIVED] + port[_SENT] for port in ports))

    def between(self, start: float, end: float) -> float:
        """
        Bytes that the job sent between two moments, each byte counted once.

        Raises
        ------
        BenchError
            There was no reading before and after them.
        """
        if not self._times or start < self._times[0] or end > self._times[-1]:
            raise BenchError("the links' counters were not read for all of the training")
        first, last = np.interp([start, end], self._times, self._sent)
        return float(last - first)

    @property
    def beside(self) -> int:
        """Bytes that competing flows moved, from the first reading to the last."""
        return self._beside[-1] - self._beside[0] if self._beside else 0


def parse(table: str) -> dict[str, list[int]]:
    """The figures of each device, by its name."""
    found = {}
    for line in table.splitlines():
        name, colon, figures = line.partition(":")
        if colon:
            found[name.strip()] = [int(figure) for figure in figures.split()]
    return found


def set_apart(testbed: NetworkTestbed, job: Sequence[int], others: Sequence[int]) -> None:
    """
    Has the ports of a job's hosts copy what does not go to the neighbour to the device `COPIES`.

    The kernel says how much that is: bytes are counted where a host's link ends, as without competing flows.
    """
    switch = testbed.switch
    # What is copied to one end of this pair arrives at the other, which has no address and drops it.
    commands.run("ip", "-n", switch, "link", "add", COPIES, "type", "veth", "peer", "name", "dropped")
    for device in (COPIES, "dropped"):
        commands.run("ip", "-n", switch, "link", "set", device, "up")
    for host, other in zip(job, others, strict=True):
        port = ("dev", f"p{host}")
        commands.run("tc", "-n", switch, "qdisc", "add", *port, "ingress")
        rule = ("tc", "-n", switch, "filter", "add", *port, "parent", "ffff:", "protocol", "ip")
        competing = ("u32", "match", "ip", "dst", f"{testbed.address(other)}/32")
        commands.run(*rule, "prio", "1", *competing, "flowid", ":1")
        copied = ("action", "mirred", "egress", "mirror", "dev", COPIES)
        commands.run(*rule, "prio", "2", "u32", "match", "u32", "0", "0", *copied)


@contextlib.contextmanager
def counting(testbed: NetworkTestbed, counters: Counters) -> Iterator[None]:
    """
    Fills `counters` as long as the context lasts, by a thread; the last reading is made at its end.

    Raises
    ------
    BenchError
        The counters could not be read, at its end; what the context itself raises comes first.
    """
    # A process in the namespace, through which its table is read; it ends with its standard input.
    inside = subprocess.Popen(["ip", "netns", "exec", testbed.switch, "cat"], stdin=subprocess.PIPE)
    over = threading.Event()
    table = Path(f"/proc/{inside.pid}/net/dev")
    failed: list[Exception] = []

    def look() -> None:
        try:
            now, text = time.monotonic(), table.read_text()
            # Before `ip` has become `cat` it stands in our own namespace, which has no such ports.
            if "p0:" in text:
                counters.take(now, text)
        # Whatever it is, the thread has nobody to raise it to.
        except Exception as error:
            failed.append(error)

    def read() -> None:
        while not failed and not over.wait(EVERY):
            look()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
        over.set()
        thread.join()
        look()
        if failed:
            raise BenchError(f"the links' counters could not be read: {failed[0]}") from failed[0]
    finally:
        over.set()
        thread.join()
        assert inside.stdin is not None
        inside.stdin.close()
        inside.wait()
