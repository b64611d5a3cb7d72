"""
The limit over TCP: a plain connection from the producer to each consumer, on the loopback.

All rows of an iteration are one stream, whatever the batch: no headers, no checks, no calls a row. A round
trip is one send and one receive on each side.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import numpy as np

from penstock_bench.items.ranks import Rank, Way
from penstock_bench.items.work import Rows, Work, fill

RANK, SIZE = "PENSTOCK_BENCH_RANK", "PENSTOCK_BENCH_SIZE"
_PART = 256 << 10
"""Bytes that are sent to one consumer before the next one's turn, so that all of them work at once."""
_DEADLINE = 60.0


class Stream(Way):
    """Connections that stand."""

    def __init__(self, connections: list[socket.socket], work: Work) -> None:
        self._connections = connections
        self._rows: Rows = np.empty((work.rows, work.width))
        fill(self._rows)
        self._memory = self._rows.reshape(-1).view(np.uint8).data
        self._row = memoryview(bytearray(work.row_bytes))

    def values(self) -> Rows:
        """Sent bytes have left them."""
        return self._rows

    def produce(self, _iteration: int) -> None:
        """Parts in turn."""
        for at in range(0, len(self._memory), _PART):
            for connection in self._connections:
                connection.sendall(self._memory[at : at + _PART])

    def consume(self, _iteration: int) -> Rows:
        """As much as comes."""
        _receive(self._connections[0], self._memory)
        return self._rows

    def ping(self, _number: int) -> None:
        """A row there, a row back."""
        self._connections[0].sendall(self._row)
        _receive(self._connections[0], self._row)

    def pong(self, _number: int) -> None:
        """The answer."""
        _receive(self._connections[0], self._row)
        self._connections[0].sendall(self._row)


def _receive(connection: socket.socket, memory: memoryview) -> None:
    at = 0
    while at < len(memory):
        got = connection.recv_into(memory[at:])
        if got == 0:
            raise EOFError("the other end has closed")
        at += got


class SocketRank(Rank):
    """
    Connects once.

    Parameters
    ----------
    folder
        Where rank 0 says its port.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(int(os.environ[RANK]), int(os.environ[SIZE]))
        port = folder / "port"
        self._connections = self._accept(port) if self.rank == 0 else [_connect(port)]
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_DEADLINE)

    def _accept(self, port: Path) -> list[socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(_DEADLINE)
            temporary = port.with_suffix(".new")
            temporary.write_text(str(listener.getsockname()[1]))
            temporary.rename(port)
            came: dict[int, socket.socket] = {}
            while len(came) < self.size - 1:
                connection = listener.accept()[0]
                came[connection.recv(1)[0]] = connection
        return [came[rank] for rank in sorted(came)]

    def way(self, _name: str, work: Work) -> Way:
        """One."""
        return Stream(self._connections, work)


def _connect(port: Path) -> socket.socket:
    deadline = time.monotonic() + _DEADLINE
    while not port.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not say its port within {_DEADLINE:g} s")
        time.sleep(0.01)
    connection = socket.create_connection(("127.0.0.1", int(port.read_text())), _DEADLINE)
    connection.sendall(bytes([int(os.environ[RANK])]))
    return connection


if __name__ == "__main__":
    SocketRank(Path(sys.argv[1])).serve()
