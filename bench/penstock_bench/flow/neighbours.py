"""
Competing flows, as in a shared cluster: they come and go by a script that a seed gives.

Each host of the job has a neighbour of its own on the switch. Between the two, a flow runs for a while, to
the one or the other, and then none does. So every link of the job is at times shared, each at its own, and
what a flow takes of it TCP decides.

`python -m penstock_bench.flow.neighbours OWN PEER SEED HOST SIDE` is one end of one pair: it receives what
comes, says that it does, is told when the script starts, and sends when the script says that its side does.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Literal

import numpy as np

from penstock_bench.netns import NetworkTestbed
from penstock_bench.network.places import Layout
from penstock_bench.systems import BenchError

Side = Literal["in", "out"]
"""Which way a flow runs, seen from the job's host."""

STREAMS = 4
"""Connections of a flow, as a shuffle has several: by TCP's rules they get more of a link than one."""
MEAN = 1.0
"""Seconds that a flow lasts, and that none runs, on average."""
PORT = 7077
_PIECE = bytes(256 << 10)
_LOOK = 0.1
"""Seconds after which a sender that is held up looks whether its time is over."""


def script(seed: int, host: int) -> Iterator[tuple[float, float, Side]]:
    """
    The flows beside one host of the job, without end: seconds from the start to when each begins and ends,
    and which way it runs.

    Examples
    --------
    >>> flows = script(seed=0, host=1)
    >>> first, second = next(flows), next(flows)
    >>> 0 < first[0] < first[1] < second[0] < second[1]
    True
    """
    chance = np.random.default_rng((seed, host))
    now = 0.0
    while True:
        begin = now + float(chance.exponential(MEAN))
        now = begin + float(chance.exponential(MEAN))
        yield begin, now, "in" if chance.random() < 0.5 else "out"


@contextlib.contextmanager
def running(testbed: NetworkTestbed, layout: Layout, seed: int) -> Iterator[None]:
    """
    Competing flows, as long as the context lasts: host i's neighbour is on host i + the job's hosts.

    The script starts when all ends are there. They take seconds for it, in which a training that sends little
    would be over.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for host in range(layout.hosts):
            beside = layout.hosts + host
            for own, peer, side in ((host, beside, "out"), (beside, host, "in")):
                ends = [testbed.address(own), testbed.address(peer)]
                command = [sys.executable, "-m", __name__, *ends, str(seed), str(host), side]
                process = testbed.spawn(own, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                started.append(process)
        for process in started:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise BenchError(f"a competing flow's end ended with {process.wait()}")
        start = time.monotonic()
        for process in started:
            assert process.stdin is not None
            process.stdin.write(f"{start!r}\n".encode())
            process.stdin.flush()
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            # Closes the pipes as well.
            process.communicate()


def main() -> None:
    """One end."""
    own, peer, seed, host, side = sys.argv[1:]
    listener = socket.create_server((own, PORT))
    threading.Thread(target=_receive, args=(listener,), daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    start = float(sys.stdin.readline())
    for begin, end, way in script(int(seed), int(host)):
        if way != side:
            continue
        time.sleep(max(0.0, start + begin - time.monotonic()))
        streams = [
            threading.Thread(target=_send, args=(peer, start + end), daemon=True) for _ in range(STREAMS)
        ]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()


def _receive(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_drain, args=(connection,), daemon=True).start()


def _drain(connection: socket.socket) -> None:
    buffer = bytearray(len(_PIECE))
    with connection, contextlib.suppress(OSError):
        while connection.recv_into(buffer):
            pass


def _send(peer: str, end: float) -> None:
    # The peer may be gone.
    with contextlib.suppress(OSError), socket.create_connection((peer, PORT), _LOOK) as stream:
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                stream.send(_PIECE)


if __name__ == "__main__":
    main()
