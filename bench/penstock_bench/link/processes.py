"""
What runs on test hosts: `python -m penstock_bench.link.processes PART ...`. Each part prints one line of JSON
when it is ready, and ends when its standard input does or its work is done.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock_bench.cli.common import progress
from penstock_bench.link import listen, measure, report
from penstock_bench.link.streams import ETHERNET, PACKET, UDP_IP

TICK = 5e-4
"""Seconds between the competing flow's messages: 25 KB of 400 Mbit/s."""
MADE_UP = 5e-3
"""Seconds of it that are made up for when it was held up."""
TOGETHER = 44
UDP_SEGMENT = 103
"""Of the kernel's uapi/linux/udp.h; Python has no name for it."""
BLOCK = 1 << 20


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _over(seconds: float) -> bool:
    """Whether standard input has ended; waits so long for it."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _listen(address: str, rate: str, seconds: str) -> None:
    listener = listen.Listener(address, 0, listen.Limits(float(rate), float(seconds)))
    _say(port=listener.port)
    listener.serve(lambda _: None)


def _measure(address: str, port: str, settings: str) -> None:
    result = measure.measure(address, int(port), measure.Settings(**json.loads(settings)), progress)
    progress("")
    _say(**report.document(result))


def _sink(address: str) -> None:
    """Takes what the competing flow and TCP send: each connection to its end, then one byte back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.create_server((address, 0)) as tcp:
        port = tcp.getsockname()[1]
        # Nothing is fetched from it: the kernel throws away what comes, and tells nobody.
        udp.bind((address, port))
        _say(port=port)
        while True:
            ready = select.select([sys.stdin, tcp], [], [])[0]
            if sys.stdin in ready:
                return
            connection, _ = tcp.accept()
            with connection:
                buffer = bytearray(BLOCK)
                while connection.recv_into(buffer):
                    pass
                connection.sendall(b".")


def _flow(address: str, port: str, rate: str) -> None:
    """A constant rate, in frames, until standard input ends."""
    payload = PACKET - UDP_IP[4]
    frame = 8 * (PACKET + ETHERNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((address, int(port)))
        together = TOGETHER
        try:
            udp.setsockopt(socket.SOL_UDP, UDP_SEGMENT, payload)
        except OSError:
            together = 1
        filler = bytes(payload * together)
        _say(ready=True)
        start = last = time.monotonic()
        sent, due = 0, 0.0
        while not _over(TICK):
            now = time.monotonic()
            due = min(due + float(rate) * (now - last), float(rate) * MADE_UP)
            last = now
            while due >= frame:
                count = min(int(due / frame), together)
                with contextlib.suppress(ConnectionRefusedError):
                    udp.send(filler[: count * payload])
                due -= count * frame
                sent += count
        _say(rate=sent * frame / (time.monotonic() - start))


def _transfer(address: str, port: str, size: str) -> None:
    """Sends so many bytes by TCP; what that took, until the other end has them all."""
    filler, left = bytes(BLOCK), int(size)
    with socket.create_connection((address, int(port))) as connection:
        start = time.monotonic()
        while left:
            left -= connection.send(filler[: min(left, BLOCK)])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        _say(rate=8 * int(size) / (time.monotonic() - start))


PARTS: dict[str, Callable[..., None]] = {
    "listen": _listen,
    "measure": _measure,
    "sink": _sink,
    "flow": _flow,
    "transfer": _transfer,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
