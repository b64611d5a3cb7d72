"""
A worker that does what it is told, a line each on standard input, and says what came of it; every element of
every version is compared with what arithmetic says it is.

    sharing.py ELEMENTS [CONSISTENCY]

    run COUNT RANKS   iterations in which these ranks (0,1,2) push; each is pulled and compared
    hold              keeps the view that a pull gives
    held              whether what was held is as it was
    memory            resident KiB of mirrors: in memory that this process may write, and in all that it sees
    borrows           whether the value is read in another worker's memory
    traffic           bytes that have come
    fork              a child that keeps the view; `child` asks it whether that is as it was
    close             leaves the job
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np

import penstock as ps

elements = int(sys.argv[1])
consistency = sys.argv[2] if len(sys.argv) > 2 else "bsp"
job = ps.init()
start = np.arange(elements, dtype=np.float32) % 1000
w = job.tensor(
    "w",
    value=start,
    optimizer=ps.SGD(1.0),
    consistency=consistency,
    propagation="broadcast",
    reduce="sum",
)
expected = start.copy()
done = 0
view: np.ndarray | None = None
copy: np.ndarray | None = None
asks: tuple[int, int] | None = None


def gradient(rank: int, iteration: int) -> np.ndarray:
    """What a worker pushes: whole numbers, of which every sum is exact."""
    pushed = np.full(elements, float(rank + 1), dtype=np.float32)
    pushed[(iteration * 7919 + rank) % elements] += 3
    return pushed


def run(count: int, ranks: list[int]) -> None:
    """Iterations."""
    global done, expected
    for _ in range(count):
        w.push(gradient(job.rank, done))
        total = np.zeros(elements, dtype=np.float32)
        for rank in ranks:
            total += gradient(rank, done)
        expected = expected - total
        done += 1
        job.clock()
        if consistency == "bsp":
            seen = w.pull()
            if not np.array_equal(seen, expected):
                wrong = np.flatnonzero(seen != expected)
                print(f"wrong {done} {len(wrong)} from {wrong[0]}", flush=True)
                os._exit(3)
        else:
            w.pull()


def memory() -> tuple[int, int]:
    """Resident KiB of mirrors."""
    kept = seen = 0
    writable = mirror = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+\s*(.*)", line):
            writable, mirror = "w" in found[1], "memfd:penstock-mirror" in found[2]
        elif mirror and line.startswith("Rss:"):
            kibibytes = int(line.split()[1])
            seen += kibibytes
            kept += kibibytes if writable else 0
    return kept, seen


def child(asked: int, answers: int, kept: np.ndarray, as_it_was: np.ndarray) -> None:
    """Until nobody asks."""
    while os.read(asked, 1):
        os.write(answers, b"y" if np.array_equal(kept, as_it_was) else b"n")
    os._exit(0)


w.pull()
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    match words:
        case ["run", count, ranks]:
            run(int(count), [int(rank) for rank in ranks.split(",")])
            print(f"ran {done}", flush=True)
        case ["hold"]:
            view = w.pull()
            copy = view.copy()
            print("holds", flush=True)
        case ["held"]:
            assert view is not None
            assert copy is not None
            print(f"held {np.array_equal(view, copy)}", flush=True)
        case ["memory"]:
            print("memory", *memory(), flush=True)
        case ["borrows"]:
            print("borrows", w.borrowed, flush=True)
        case ["traffic"]:
            print("traffic", int(job.stats()["received_bytes"]), flush=True)
        case ["fork"]:
            asked, ask = os.pipe()
            answers, answer = os.pipe()
            kept = w.pull()
            was = kept.copy()
            if os.fork() == 0:
                os.close(ask)
                child(asked, answer, kept, was)
            os.close(asked)
            asks = (ask, answers)
            print("forked", flush=True)
        case ["child"]:
            assert asks is not None
            os.write(asks[0], b"?")
            print("child", os.read(asks[1], 1).decode(), flush=True)
        case ["close"]:
            job.close()
            print("closed", flush=True)
        case ["end"]:
            break
