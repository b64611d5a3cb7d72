"""
Several hosts on one machine: network namespaces on a bridge, each link shaped to one rate both ways.

    host 0 [eth0 10.77.0.1] --- p0 \\
    host 1 [eth0 10.77.0.2] --- p1 -- br0 (the switch, in a namespace of its own)
    host 2 [eth0 10.77.0.3] --- p2 /

A token bucket at both ends of each link lets `rate` through each way, so that a host sends and receives at
`rate` at once, and flows that share a link share its rate. Hosts have the loopback too; files, memory and
processes are this machine's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from penstock.units import format_rate, parse_rate
from penstock_bench.netns import commands, names
from penstock_bench.netns.errors import NetworkTestbedError

MOST_HOSTS = 250
"""Hosts of one testbed: the last part of an address, with room."""
LEAST_BURST = 256 << 10
"""Bytes that pass at once after a pause: above the largest segment (64 KiB), below what a figure notices."""
BURST_SECONDS = 1e-3
"""On quick links the bucket holds this much time, since timers wake late; 10 Gbit/s: 1.25 MB."""
LEAST_QUEUE = 2 << 20
_ENDS_WITHIN = 5.0
"""Seconds for processes that were killed to be gone."""

_open: weakref.WeakSet[NetworkTestbed] = weakref.WeakSet()


class NetworkTestbed:
    """
    Test hosts, as a context manager; none is left when it ends, whatever way it ends.

    Left by an exception, the interpreter's end, or SIGTERM or SIGHUP (where the program has no handler of its
    own), the hosts and all processes on them are removed at once. After SIGKILL the next testbed on this
    machine removes them.

    Parameters
    ----------
    hosts
        How many, 1 to 250. They are numbered from 0.
    rate
        Of each link, each way, as `tc` reads it ("1gbit"), or bits per second; None: not shaped.

    Raises
    ------
    NetworkTestbedError
        Test hosts cannot be had here (`missing` says so without trying), or a command failed.
    OptionError
        `rate` is not a valid rate.

    Examples
    --------
    >>> with NetworkTestbed(hosts=2, rate="1gbit") as testbed:  # doctest: +SKIP
    ...     testbed.spawn(0, ["ping", "-c", "1", testbed.address(1)]).wait()
    0
    """

    def __init__(self, hosts: int = 3, rate: str | int | None = "1gbit") -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise NetworkTestbedError(
                f"expected 1 to {MOST_HOSTS} hosts, got {hosts}", "use several testbeds, or fewer hosts"
            )
        self.hosts = hosts
        self.rate = parse_rate(rate) if isinstance(rate, str) else rate
        """Bits per second of each link, each way; None where links are not shaped."""
        self._prefix = ""
        self._owner = 0
        self._lock = threading.RLock()
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        if self._prefix:
            raise NetworkTestbedError("the testbed is in use", "make another one")
        if reason := commands.missing():
            raise NetworkTestbedError(
                f"test hosts cannot be made here: {reason}", "run as root on Linux, with iproute2 installed"
            )
        clean()
        self._prefix, self._owner = names.prefix(), os.getpid()
        _open.add(self)
        _watch_signals()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self) -> None:
        switch = self.switch
        commands.run("ip", "netns", "add", switch)
        commands.run("ip", "-n", switch, "link", "set", "lo", "up")
        commands.run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        commands.run("ip", "-n", switch, "link", "set", "br0", "up")
        for host in range(self.hosts):
            space, port = self.namespace(host), f"p{host}"
            commands.run("ip", "netns", "add", space)
            commands.run("ip", "-n", space, "link", "set", "lo", "up")
            veth = ("type", "veth", "peer", "name", port, "netns", switch)
            commands.run("ip", "link", "add", "eth0", "netns", space, *veth)
            commands.run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            commands.run("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            commands.run("ip", "-n", space, "link", "set", "eth0", "up")
            if self.rate:
                for where, device in ((space, "eth0"), (switch, port)):
                    commands.run("tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket(self.rate))

    @property
    def switch(self) -> str:
        """The namespace of the switch."""
        return f"{self._required()}-{names.SWITCH}"

    def namespace(self, host: int) -> str:
        """The namespace of a host, as `ip netns` knows it."""
        return f"{self._required()}-{self._known(host)}"

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.77.0.{self._known(host) + 1}"

    def prefix(self, host: int) -> list[str]:
        """What stands before a command so that it runs on a host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def spawn(
        self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[Any]:
        """
        Starts a program on a host.

        Parameters
        ----------
        host
            Its number.
        argv
            The program and its arguments.
        env
            Its whole environment, as for `subprocess.Popen`; None: ours.
        **popen
            Anything else that `subprocess.Popen` takes. `ip netns exec` becomes the program, so that `pid` is
            the program's own.

        Returns
        -------
        subprocess.Popen
            The process. It is killed when the testbed closes.

        Raises
        ------
        OSError
            `ip` could not be started.
        """
        with self._lock:
            process = subprocess.Popen([*self.prefix(host), *argv], env=env, **popen)
            self._processes.append(process)
        return process

    def cut(self, host: int) -> None:
        """Pulls the host's cable: its port on the switch goes down, and nobody is told."""
        commands.run("ip", "-n", self.switch, "link", "set", f"p{self._known(host)}", "down")

    def mend(self, host: int) -> None:
        """Puts the cable back. Frames pass again when this returns."""
        commands.run("ip", "-n", self.switch, "link", "set", f"p{self._known(host)}", "up")

    def close(self) -> None:
        """
        Kills what runs on the hosts and removes them. Safe to call twice; in a forked child it does nothing.
        """
        with self._lock:
            if not self._prefix or self._owner != os.getpid():
                return
            spaces = [f"{self._prefix}-{part}" for part in (*range(self.hosts), names.SWITCH)]
            try:
                remove(space for space in _present() if space in spaces)
            finally:
                # Children are reaped here so that none stays a zombie; code that waits on them
                # learns the exit code.
                for process in self._processes:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_ENDS_WITHIN)
                self._processes = []
                self._prefix = ""
                _open.discard(self)

    def __repr__(self) -> str:
        rate = format_rate(self.rate) if self.rate else "not shaped"
        return f"NetworkTestbed({self.hosts} hosts, {rate}, {'open' if self._prefix else 'closed'})"

    def _required(self) -> str:
        if not self._prefix:
            raise NetworkTestbedError(
                "the testbed is closed", "use it as a context manager: with NetworkTestbed():"
            )
        return self._prefix

    def _known(self, host: int) -> int:
        if not 0 <= host < self.hosts:
            raise NetworkTestbedError(
                f"there is no host {host} in a testbed of {self.hosts}", "hosts are numbered from 0"
            )
        return host


def bucket(rate: int) -> list[str]:
    """The token bucket of a link, in the words of `tc`."""
    burst = max(LEAST_BURST, round(rate / 8 * BURST_SECONDS))
    return ["tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "limit", f"{max(LEAST_QUEUE, 4 * burst)}b"]


def clean() -> list[str]:
    """Removes what testbeds of dead processes left behind; returns the names of those namespaces."""
    left = names.abandoned(_present())
    remove(left)
    return left


def remove(spaces: Iterable[str]) -> None:
    """Kills what runs in these namespaces and removes them. One that is gone already is not an error."""
    spaces = list(spaces)
    for space in spaces:
        _kill(space)
    for space in spaces:
        commands.run("ip", "netns", "delete", space, check=False)
    left = set(spaces) & set(_present())
    if left:
        raise NetworkTestbedError(
            f"network namespaces could not be removed: {', '.join(sorted(left))}",
            "`ip netns delete NAME` says why",
        )


def _kill(space: str) -> None:
    """Kills all processes in a namespace, and those that they start meanwhile."""
    deadline = time.monotonic() + _ENDS_WITHIN
    while time.monotonic() < deadline:
        found = [int(pid) for pid in commands.run("ip", "netns", "pids", space, check=False).split()]
        if not found:
            return
        for pid in found:
            _end(pid, deadline)


def _end(pid: int, deadline: float) -> None:
    """Kills a process and waits, by an event, until it has gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return  # gone already
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(descriptor)


def _present() -> list[str]:
    """Names of all network namespaces of this machine."""
    return [line.split()[0] for line in commands.run("ip", "netns", "list").splitlines() if line.strip()]


@atexit.register
def _close_all() -> None:
    for testbed in list(_open):
        with contextlib.suppress(NetworkTestbedError):
            testbed.close()


def _watch_signals() -> None:
    """Lets SIGTERM and SIGHUP close testbeds first, where the program leaves them to the system."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _on_signal)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    _close_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
