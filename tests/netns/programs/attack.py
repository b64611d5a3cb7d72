"""
What a hostile host does to a server's port, on and on. Prints "begun" once its first wave has broken.

    attack.py KIND ADDRESS PORT     KIND: one of those below
"""

import contextlib
import itertools
import os
import resource
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable

import penstock as ps
from penstock import _core

MANY = 10_000
"""Half-open connections."""
DRIPPING = 200
"""Connections that send one byte a second."""
PAUSE = 0.005
"""Seconds between two blows: the honest job and its server share this machine's cores."""

kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])


def begun() -> None:
    print("begun", flush=True)


def dial() -> socket.socket:
    one = socket.socket()
    one.settimeout(5)
    one.connect((address, port))
    return one


def record(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def garbage() -> None:
    """Bytes that mean nothing, in every layer that a stranger can reach: plain, records, TLS, inside TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def within_tls(said: bytes) -> None:
        with dial() as plain, context.wrap_socket(plain) as secure:
            secure.sendall(said)
            secure.recv(4096)

    def openly(said: bytes) -> None:
        with dial() as one:
            one.sendall(said)
            one.recv(4096)

    for wave in itertools.count():
        for blow, said in (
            (openly, os.urandom(4096)),
            (openly, b"P" + os.urandom(4096)),
            (openly, b"P" + b"\xff" * 4096),
            (openly, b"P" + record(b"PSTK" + os.urandom(100))),
            (openly, b"\x16\x03\x01" + os.urandom(4096)),
            (openly, b"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n"),
            (within_tls, os.urandom(4096)),
            (within_tls, b"\xff\xff\xff\x7f"),
            (within_tls, record(b"PSTK" + os.urandom(100))),
            (within_tls, record(b"") * 100),
        ):
            with contextlib.suppress(OSError):
                blow(said)
            time.sleep(PAUSE)
        if wave == 0:
            begun()


def silent() -> None:
    """Connections that say nothing, until so many are held; then each is made anew."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MANY + 500, MANY + 500))
    held = [dial() for _ in range(MANY)]
    begun()
    for place in itertools.cycle(range(MANY)):
        with contextlib.suppress(OSError):
            held[place].close()
            held[place] = dial()
        time.sleep(PAUSE)


def syn() -> None:
    """The first third of a TCP handshake, of hosts that do not exist: the answer has no echo."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    target = socket.inet_aton(address)

    def checksum(data: bytes) -> int:
        total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
        total = (total >> 16) + (total & 0xFFFF)
        return ~(total + (total >> 16)) & 0xFFFF

    def first(number: int) -> bytes:
        source = socket.inet_aton(f"10.77.0.{100 + number % 100}")
        ports = (1024 + number // 100 % 60_000, port)
        tcp = struct.pack("!HHIIBBHHH", *ports, number, 0, 5 << 4, 2, 65535, 0, 0)
        pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, 6, 0, source, target) + tcp

    for number in itertools.count():
        with contextlib.suppress(OSError):
            raw.sendto(first(number), (address, 0))
        if number == MANY:
            begun()
        if number > MANY:
            time.sleep(PAUSE)


def drip() -> None:
    """The start of a plausible hello, a byte a second, on many connections at once."""
    said = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(400)
    held: dict[int, tuple[socket.socket, int]] = {}
    for wave in itertools.count():
        for place in range(DRIPPING):
            with contextlib.suppress(OSError):
                one, sent = held.get(place) or (dial(), 0)
                held.pop(place, None)
                one.send(said[sent : sent + 1])
                held[place] = (one, sent + 1)
        if wave == 0:
            begun()
        time.sleep(1)


def guess() -> None:
    """Real workers with a wrong secret, for a job that exists, one that does not, and another tenant's."""
    evil, wrong = os.environ["EVIL"], "5" * 64
    heard = set()
    for wave in itertools.count():
        for name, secret in (("good", wrong), ("good", evil), ("nothing", wrong), ("nothing", evil)):
            try:
                _core.Job.connect([f"tcp://{address}:{port}"], name, secret, 0, 2, {"deadline": "10"})
                raise SystemExit(f"job {name!r} let a stranger in")
            except ps.exceptions.AuthenticationError as error:
                heard.add(str(error))
            except ps.PenstockError:
                pass  # no room at the acceptor for now
            time.sleep(PAUSE)
        assert len(heard) <= 1, f"the answers tell which jobs exist: {heard}"
        if wave == 0:
            begun()


def greedy() -> None:
    """The other tenant, in its own right: takes all the memory and bandwidth that it can get."""
    servers = [f"tcp://{address}:{port}"]
    job = ps.Job(_core.Job.connect(servers, "evil", os.environ["EVIL"], 0, 2, {"deadline": "40"}))
    try:
        job.tensor("huge", shape=1 << 28, timeout=10)
        raise SystemExit("a tensor of 1 GiB was let into 64 MiB")
    except ps.PenstockError:
        pass
    w = job.tensor("w", shape=1 << 20, consistency="asp")
    for wave in itertools.count():
        w.push(w.pull(slack=0))
        job.clock()
        if wave == 0:
            begun()


kinds: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (garbage, silent, syn, drip, guess, greedy)
}
os.nice(10)
kinds[kind]()
