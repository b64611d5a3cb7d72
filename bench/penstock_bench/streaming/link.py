"""
One end of a plain TCP stream over one link: `python -m penstock_bench.streaming.link OWN PEER`.

Rank 0 stands on the server's host and sends, rank 1 on a worker's host and receives. One connection for all
transfers, as ours are; in the clear. A transfer runs from the first `send` until the last byte has come.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from penstock.launch import ranks as launched

PORT = 7078
_PIECE = 1 << 20
_PATIENCE = 60.0
"""Seconds for the other end to be there."""


def main() -> None:
    """One end."""
    rank, (own, peer) = int(os.environ["RANK"]), sys.argv[1:]
    stream: list[socket.socket] = []

    def opened(_: dict[str, Any]) -> dict[str, Any]:
        stream.append(_listen(own) if rank else _connect(peer))
        return {"pid": os.getpid()}

    def run(command: dict[str, Any]) -> dict[str, Any]:
        began, ended = [], []
        piece = bytearray(_PIECE)
        for _ in range(command["iterations"]):
            # The receiver says that it waits: transfers do not overlap.
            if rank:
                stream[0].sendall(b"!")
            else:
                stream[0].recv(1)
            began.append(time.monotonic_ns())
            left = command["bytes"]
            while left:
                part = memoryview(piece)[: min(left, _PIECE)]
                if rank:
                    got = stream[0].recv_into(part)
                    if not got:
                        raise EOFError("the sender has gone")
                    left -= got
                else:
                    stream[0].sendall(part)
                    left -= len(part)
            ended.append(time.monotonic_ns())
        return {"began": began, "ended": ended}

    launched.serve(rank, {"open": opened, "run": run})


def _listen(own: str) -> socket.socket:
    with socket.create_server((own, PORT)) as listener:
        listener.settimeout(_PATIENCE)
        connection, _ = listener.accept()
    connection.settimeout(None)
    return connection


def _connect(peer: str) -> socket.socket:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return socket.create_connection((peer, PORT))
        except ConnectionRefusedError:
            # Both are told to open at once; the other end may not listen yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    main()
