"""
Runs the tests of all crates, several programs at a time: most of them wait more than they compute, and
`cargo test` runs one behind the other. What is compiled, and where and with what each runs, is as cargo
has it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Program(NamedTuple):
    """Tests of a crate in one program."""

    path: Path
    name: str
    crate: Path


class Done(NamedTuple):
    """What came of it."""

    program: Program
    failure: str | None
    said: str
    seconds: float


def compiled() -> list[Program]:
    """Compiles all of them. The last come first: simulations compute, and what waits runs beside them."""
    argv = ["cargo", "test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"]
    said = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    programs = []
    for line in said.splitlines():
        told = json.loads(line)
        if told.get("reason") == "compiler-artifact" and told["executable"] and told["profile"]["test"]:
            crate = Path(told["manifest_path"]).parent
            name = f"{crate.name} {Path(told['target']['src_path']).relative_to(crate)}"
            programs.append(Program(Path(told["executable"]), name, crate))
    return programs[::-1]


def environment(program: Program) -> dict[str, str]:
    """The crate's folder, and where a program finds the libraries that it was linked with."""
    sysroot = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip()
    libraries = [str(program.path.parent), f"{sysroot}/lib", os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "CARGO_MANIFEST_DIR": str(program.crate),
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
    }


# Groups of processes that are running, to be ended with this one.
RUNNING: set[int] = set()


def end(group: int) -> None:
    """Ends a program, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def run(program: Program, limit: float) -> Done:
    """Runs one; what it started is ended with it where it takes too long."""
    begun = time.monotonic()
    popen = subprocess.Popen(
        [program.path, "--quiet"],
        cwd=program.crate,
        env=environment(program),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(popen.pid)
    failure = None
    try:
        said, _ = popen.communicate(timeout=limit)
        if popen.returncode:
            failure = f"exit status {popen.returncode}"
    except subprocess.TimeoutExpired:
        end(popen.pid)
        said, _ = popen.communicate()
        failure = f"it was still running after {limit:.0f} s"
    finally:
        RUNNING.discard(popen.pid)
    return Done(program, failure, said, time.monotonic() - begun)


def main() -> int:
    """Runs all, and then what stands in documentation; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=3, help="programs at a time (default: 3)")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one may take (default: 600)")
    asked = parser.parse_args()
    if not (programs := compiled()):
        parser.error("cargo named no program that it has compiled")
    # `timeout` ends this process, and what it has started is in groups of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all tests had run"))
    failed = []
    pool = ThreadPoolExecutor(max(asked.jobs, 1))
    try:
        for future in as_completed([pool.submit(run, program, asked.limit) for program in programs]):
            done = future.result()
            print(f"{done.program.name}: {done.seconds:.1f} s\n{done.said.strip()}\n", flush=True)
            if done.failure:
                failed.append(f"{done.program.name}: {done.failure}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for group in tuple(RUNNING):
            end(group)
    argv = ["cargo", "test", "--workspace", "--doc", "--quiet"]
    if status := subprocess.run(argv, cwd=ROOT, check=False).returncode:
        failed.append(f"documentation: exit status {status}")
    print(*(f"FAILED: {what}" for what in failed), sep="\n", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
