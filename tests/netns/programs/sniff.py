"""
Listens at a port of the switch and counts what can be read there. Prints that it listens; when its standard
input ends, how many bytes passed, and how often each pattern (hexadecimal) was among them.

    sniff.py DEVICE PATTERN...
"""

import select
import socket
import sys

ETH_P_ALL = 3
patterns = [bytes.fromhex(word) for word in sys.argv[2:]]
counts = [0] * len(patterns)
passed = 0
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as wire:
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
    wire.bind((sys.argv[1], 0))
    print("listens", flush=True)
    open_ = True
    while True:
        ready, _, _ = select.select([wire, sys.stdin] if open_ else [wire], [], [], None if open_ else 0)
        if wire in ready:
            frame = wire.recv(1 << 17)
            passed += len(frame)
            for index, pattern in enumerate(patterns):
                counts[index] += frame.count(pattern)
        elif not open_:
            break
        if sys.stdin in ready:
            open_ = False
print("heard", passed, *counts, flush=True)
