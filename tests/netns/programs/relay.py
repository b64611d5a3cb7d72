"""
A machine in the middle: workers are told that the server is here. Prints its port.

    relay.py pass ADDRESS SERVER PORT               what comes goes on, both ways
    relay.py tear ADDRESS SERVER PORT BYTES         each connection is reset after so many bytes of the worker
    relay.py replay ADDRESS SERVER PORT             says to the server again what workers have said
    relay.py decrypt ADDRESS SERVER PORT PEM KEY    speaks TLS to both, and reads what passes

On standard input, a line asks what was done so far; the answer is one line.
"""

import asyncio
import collections
import contextlib
import socket
import ssl
import struct
import sys

RECORDED = 1 << 20
"""Bytes of a connection that are kept to be said again."""
LONGEST = 20.0
"""Seconds that the server may take to hang up on a connection that was replayed."""

what, address, server, port = sys.argv[1:5]
counts: collections.Counter[str] = collections.Counter()
recordings: list[bytearray] = []
recorded = asyncio.Event()


def reset(writer: asyncio.StreamWriter) -> None:
    """Breaks a connection off, whatever is under way on it."""
    end = writer.get_extra_info("socket")
    if end is not None:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: object) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            if callable(note) and note(data):
                break
            writer.write(data)
            await writer.drain()
    for end in ends[writer]:
        reset(end)


ends: dict[asyncio.StreamWriter, tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}


async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    counts["connections"] += 1
    theirs = None
    if what == "decrypt":
        theirs = ssl.create_default_context()
        theirs.check_hostname, theirs.verify_mode = False, ssl.CERT_NONE
    try:
        far_reader, far_writer = await asyncio.open_connection(server, int(port), ssl=theirs)
    except OSError:
        reset(writer)
        return
    ends[writer] = ends[far_writer] = (writer, far_writer)
    recording = bytearray()
    passed = 0

    def note(data: bytes) -> bool:
        nonlocal passed
        passed += len(data)
        if what == "replay":
            if not recording:
                recordings.append(recording)
            if len(recording) < RECORDED:
                recording.extend(data)
            recorded.set()
        if what == "tear" and passed > int(sys.argv[5]):
            counts["torn"] += 1
            return True
        return False

    await asyncio.gather(carry(reader, far_writer, note), carry(far_reader, writer, None))


async def say_again(said: bytes) -> None:
    """One replay: whole, then listens until the server hangs up."""
    reader, writer = await asyncio.open_connection(server, int(port))
    try:
        async with asyncio.timeout(LONGEST):
            with contextlib.suppress(OSError):
                writer.write(said)
                await writer.drain()
                while await reader.read(1 << 16):
                    pass
        counts["hung up on"] += 1
    except TimeoutError:
        counts["let in"] += 1
    finally:
        reset(writer)


async def replay() -> None:
    await recorded.wait()
    while True:
        said = [bytes(recording) for recording in recordings]
        await asyncio.gather(*(say_again(one) for one in said), return_exceptions=True)
        await asyncio.sleep(0.01)  # the honest job shares this machine's cores


async def answer() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print("done", *(f"{name}={count}" for name, count in sorted(counts.items())), sep=";", flush=True)


async def main() -> None:
    ours = None
    if what == "decrypt":
        ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ours.load_cert_chain(sys.argv[5], sys.argv[6])
    listening = await asyncio.start_server(meet, address, 0, ssl=ours)
    print("listens", listening.sockets[0].getsockname()[1], flush=True)
    tasks = [answer(), listening.serve_forever()]
    if what == "replay":
        tasks.append(replay())
    await asyncio.gather(*tasks)


asyncio.run(main())
