"""
`penstock doctor`: what this host offers, and what to change.

Each check is a function that returns what it found. `problem` is for what keeps Penstock from running; `note`
for what makes it slower, smaller or poorer than it could be, with what to do about it.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock import distribution
from penstock.cli import terminal
from penstock.demo.units import size

Verdict = Literal["ok", "note", "problem"]

MIN_KERNEL = (5, 1)
"""F_SEAL_FUTURE_WRITE, by which models are mapped read-only into workers, came with Linux 5.1."""
MIN_OPEN_FILES = 1024
MIN_MEMORY = 1 << 30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 1033, 1, 2, 4, 16
_PACKAGES = (
    ("numpy", "numpy", "needed"),
    ("torch", "torch", "`penstock.torch`, `penstock demo --torch`: pip install 'penstock-ps[torch]'"),
    ("jax", "jax", "arrays are exchanged through DLPack: pip install jax"),
    ("mpi4py", "mpi4py", "Python scripts under mpirun, and `penstock bench`: pip install 'penstock-ps[mpi]'"),
    ("sklearn", "scikit-learn", "`penstock demo`: pip install 'penstock-ps[demo]'"),
    ("matplotlib", "matplotlib", "plots: pip install 'penstock-ps[demo]'"),
    ("rich", "rich", "live progress of `penstock demo`: pip install 'penstock-ps[demo]'"),
)


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    name: str
    verdict: Verdict
    value: str
    advice: str | None = None
    """What to change; None where nothing has to be."""
    data: Any = None
    """The figure in `value`, for programs."""


def parser() -> terminal.Parser:
    """The command's arguments."""
    result = terminal.Parser(
        "penstock doctor",
        "Shows what this host offers to Penstock, and what to change.\n"
        "The exit code is 1 if something keeps Penstock from running, else 0.",
        "  penstock doctor\n  penstock doctor --json | jq '.checks[] | select(.verdict != \"ok\")'",
    )
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    given = parser().parse_args(arguments)
    findings = examine()
    broken = any(finding.verdict == "problem" for finding in findings)
    if given.json:
        terminal.say(
            json.dumps({"ok": not broken, "checks": [asdict(finding) for finding in findings]}, indent=2)
        )
    else:
        show(findings)
    return int(broken)


def examine() -> list[Finding]:
    """Runs all checks. One that cannot be made on this host says so, and does not stop the others."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            found = check()
        except Exception as error:  # a host that lacks a file or a call is what this command is for
            found = Finding(
                check.__name__.replace("_", " "), "note", f"unknown ({type(error).__name__}: {error})"
            )
        findings.extend(found if isinstance(found, list) else [found])
    return findings


def show(findings: Sequence[Finding]) -> None:
    """Prints the findings, one per line, each followed by what to change."""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        terminal.say(f"{finding.verdict:<8} {finding.name:<{width}}  {finding.value}")
        if finding.advice:
            terminal.say(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    counts = {
        verdict: sum(finding.verdict == verdict for finding in findings) for verdict in ("problem", "note")
    }
    if counts["problem"]:
        terminal.say(
            f"\nPenstock cannot run here: {counts['problem']} of the lines above begin with `problem`"
        )
    else:
        terminal.say(f"\nPenstock runs here; {counts['note']} notes")


# The checks


def core() -> list[Finding]:
    """The compiled part, and what it finds about the processor."""
    try:
        from penstock import _core
    except ImportError as error:
        return [
            Finding(
                "core",
                "problem",
                f"cannot be loaded: {error}",
                "install it again: pip install --force-reinstall penstock-ps",
            )
        ]
    mixed = distribution.other()
    if mixed is not None:
        return [Finding("core", "problem", mixed, distribution.REMEDY)]
    features = _core.cpu_features()
    advice = (
        "the portable variant of the kernels is in use: slower, but correct"
        if features == "generic"
        else None
    )
    found = [
        Finding("core", "ok", f"penstock {_core.__version__}"),
        Finding("cpu features", "note" if advice else "ok", features, advice, features),
    ]
    if len(os.sched_getaffinity(0)) < 2:
        found.append(Finding("core distance", "note", "not measured: one core only"))
    else:
        distance = _core.core_distance()
        far = distance > 200
        found.append(
            Finding(
                "core distance",
                "note" if far else "ok",
                f"{distance:.0f} ns for a cache line to another core and back ({'far' if far else 'near'})",
                "cores of one socket or cache are nearer: choose them with `taskset` or the host's placement"
                if far
                else None,
                distance,
            )
        )
    return found


def kernel() -> Finding:
    """The kernel's version."""
    release = platform.release()
    if sys.platform != "linux":
        return Finding("kernel", "problem", platform.platform(), "Penstock needs Linux (memfd, futex)")
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if numbers < MIN_KERNEL:
        return Finding(
            "kernel", "problem", release, "Linux 5.1 or newer is needed (F_SEAL_FUTURE_WRITE)", release
        )
    return Finding("kernel", "ok", f"Linux {release}", data=release)


def cores() -> Finding:
    """Cores this process may use."""
    usable, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = cpu_quota()
    text = f"{usable} of {all_cores} usable" + (
        f", limited by the cgroup to the time of {quota:.1f}" if quota else ""
    )
    advice = None
    if usable < 2 or (quota and quota < 2):
        advice = (
            "workers and servers share one core: slow; allow more with `taskset` or the container's settings"
        )
    return Finding("cores", "note" if advice else "ok", text, advice, usable)


def cpu_quota() -> float | None:
    """Cores' worth of time that the cgroup allows."""
    for folder in cgroups():
        file = folder / "cpu.max"
        if file.is_file():
            quota, period = file.read_text().split()
            if quota != "max":
                return int(quota) / int(period)
    return None


def numa_nodes() -> Finding:
    """Memory nodes."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    advice = (
        "keep a job on one node if it fits: `numactl --cpunodebind=0 --membind=0 penstock run ...`"
        if nodes > 1
        else None
    )
    return Finding("NUMA nodes", "note" if advice else "ok", str(nodes), advice, nodes)


def memory() -> Finding:
    """Memory that is free, and the cgroup's limit."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    limits = [
        int(text) for folder in cgroups() for text in [read(folder / "memory.max")] if text and text != "max"
    ]
    text = f"{size(free)} free of {size(total)}"
    if limits:
        text += f"; the cgroup allows {size(min(limits))}"
    usable = min([free, *limits])
    advice = (
        "a model needs its own size once, and again for each worker's lane and each optimizer array"
        if usable < MIN_MEMORY
        else None
    )
    return Finding("memory", "note" if advice else "ok", text, advice, usable)


def shared_memory() -> Finding:
    """The size of /dev/shm: Penstock's memory has no name there, but torch's data loaders and MPI use it."""
    status = os.statvfs(_SHARED_MEMORY)
    total = status.f_frsize * status.f_blocks
    free = status.f_frsize * status.f_bavail
    advice = None
    if free < 256 << 20:
        advice = "Penstock needs none of it, but torch's data loaders and MPI do: `docker run --shm-size=8g`"
    return Finding(
        _SHARED_MEMORY, "note" if advice else "ok", f"{size(free)} free of {size(total)}", advice, free
    )


def sealed_memory() -> Finding:
    """Whether memory can be shared that a worker cannot write."""
    descriptor = os.memfd_create("penstock-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, resource.getpagesize())
        fcntl.fcntl(
            descriptor, _F_ADD_SEALS, _F_SEAL_FUTURE_WRITE | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL
        )
        try:
            os.pwrite(descriptor, b"x", 0)
        except PermissionError:
            return Finding("sealed memory", "ok", "memfd with F_SEAL_FUTURE_WRITE")
        return Finding(
            "sealed memory",
            "problem",
            "seals are accepted, but not enforced",
            "this kernel (or sandbox) cannot run Penstock",
        )
    except OSError as error:
        return Finding(
            "sealed memory",
            "problem",
            f"refused: {error.strerror}",
            "allow memfd_create and its seals in the sandbox (seccomp)",
        )
    finally:
        os.close(descriptor)


def huge_pages() -> Finding:
    """Whether shared memory may use huge pages: fewer page faults, better bandwidth."""
    setting = chosen(read(Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")))
    if setting is None:
        return Finding(
            "huge pages",
            "note",
            "not offered by this kernel",
            "a kernel with transparent huge pages is faster for big models",
        )
    if setting in ("never", "deny"):
        return Finding(
            "huge pages",
            "note",
            f"shmem_enabled is `{setting}`",
            "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
            setting,
        )
    return Finding("huge pages", "ok", f"shmem_enabled is `{setting}`", data=setting)


def locked_memory() -> Finding:
    """RLIMIT_MEMLOCK: page-locked lanes (CUDA) and huge rings count against it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else size(soft)
    return Finding(
        "locked memory",
        "ok",
        text,
        "with CUDA or RDMA: `ulimit -l unlimited`" if text != "unlimited" else None,
        soft,
    )


def open_files() -> Finding:
    """RLIMIT_NOFILE: each worker takes a few descriptors in each server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft < MIN_OPEN_FILES
    return Finding(
        "open files",
        "note" if few else "ok",
        str(soft),
        f"ulimit -n {min(hard, 65536)}" if few else None,
        soft,
    )


def wake_ups() -> Finding:
    """What sleeping processes are woken by."""
    descriptor = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        os.eventfd_read(descriptor)
    finally:
        os.close(descriptor)
    return Finding("wake-ups", "ok", "futex, eventfd")


def transports() -> Finding:
    """How bytes can travel."""
    return Finding(
        "transports",
        "ok",
        "shm: yes (one host); tcp: yes (TLS between hosts); rdma: not in this version",
        data={"shm": True, "tcp": True, "rdma": False},
    )


def packages() -> list[Finding]:
    """Python and the packages that serve with it, found without importing them."""
    version = platform.python_version()
    found = [Finding("python", "ok", f"{version} ({sys.executable})", data=version)]
    for module, name, use in _PACKAGES:
        if importlib.util.find_spec(module) is not None:
            found.append(
                Finding(name, "ok", importlib.metadata.version(name), data=importlib.metadata.version(name))
            )
        elif use == "needed":
            found.append(Finding(name, "problem", "not installed", f"pip install {name}"))
        else:
            found.append(Finding(name, "note", "not installed", use))
    return found


CHECKS: tuple[Callable[[], Finding | list[Finding]], ...] = (
    kernel,
    core,
    cores,
    numa_nodes,
    memory,
    shared_memory,
    sealed_memory,
    huge_pages,
    locked_memory,
    open_files,
    wake_ups,
    transports,
    packages,
)


def cgroups() -> list[Path]:
    """This process's cgroup (v2) and those above it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            own = Path("/sys/fs/cgroup", line[3:].lstrip("/"))
            return [own, *(parent for parent in own.parents if parent.is_relative_to("/sys/fs/cgroup"))]
    return []


def read(path: Path) -> str | None:
    """A small file's text; None if there is no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def chosen(setting: str | None) -> str | None:
    """The word in brackets of a kernel setting such as `always [advise] never`."""
    return setting.partition("[")[2].partition("]")[0] if setting and "[" in setting else None
