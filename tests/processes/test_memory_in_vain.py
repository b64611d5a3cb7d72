"""What a job has had cleared and gives back, beside another job in the same server process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVICE = """
import os, secrets, subprocess, sys
from penstock import _core

_core.warn_on_stderr()
service = _core.Service(["127.0.0.1:0"], {})

def worker(name, code):
    secret = secrets.token_hex(32)
    service.create(name, secret, 0, 1, 1, {}, 2 << 30, 1.0)
    named = {"SERVERS": service.endpoint, "JOB": name, "SECRET": secret, "RANK": "0", "SIZE": "1"}
    env = {**os.environ, **{f"PENSTOCK_{key}": value for key, value in named.items()}}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe)

HONEST = '''
import sys, threading, numpy as np, penstock as ps
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with ps.init() as job:
    w = job.tensor("w", shape=(8,), optimizer=ps.Add())
    print("in", flush=True)
    while not over.wait(0.02):
        w.push(np.ones(8, np.float32)); job.clock(); w.pull()
'''
WASTEFUL = '''
import time, penstock as ps
with ps.init() as job:
    table = job.table("t", rows=4096, width=1 << 16, dtype="u1", produce="all")
    since = time.monotonic()
    table.drop(); del table
    job.tensor("w", shape=(8,), optimizer=ps.Add())
    print(time.monotonic() - since, flush=True)
'''
if sys.argv[1] == "beside":
    beside = worker("honest", HONEST)
    beside.stdout.readline()
wasteful = worker("wasteful", WASTEFUL)
print(float(wasteful.stdout.readline()), flush=True)
wasteful.communicate()
if sys.argv[1] == "beside":
    beside.communicate()
service.stop()
"""


@pytest.mark.parametrize("where", ["alone", "beside"])
def test_what_is_declared_after_much_memory_was_given_back_waits_beside_another_job(where: str) -> None:
    """512 MiB: 256 at once, and 64 a second. Then the server says that its workers are kept waiting."""
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, where], capture_output=True, text=True, timeout=120, check=True
    )
    waited = float(done.stdout)
    # Who is alone waits for no other job, however long clearing takes.
    assert waited > 2 or where == "alone", waited
    said = "they had much memory cleared that they did not keep" in done.stderr
    assert said == (where == "beside"), done.stderr
