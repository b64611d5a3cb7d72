"""
docs/tutorial.md, step by step, as it stands there.

Blocks are read as in test_pages.py. `checkout$` is what this test was built with, and is not built again. The
two hosts of the last step are test hosts where there can be some, else two addresses of this host's loopback,
over TCP.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from groups import ROOT, Group
from test_pages import program

from penstock_bench.netns import NetworkTestbed, missing

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HERE = [block for block in BLOCKS if block.startswith("$ ") and "node1" not in block]
(INSTALLING,) = [block for block in BLOCKS if block.startswith("checkout$ ")]
(BETWEEN_HOSTS,) = [block for block in BLOCKS if "node1$" in block]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the reader works: the page's program is there."""
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def hosts() -> Iterator[NetworkTestbed | None]:
    """Two test hosts, or None."""
    with ExitStack() as stack:
        yield None if missing() else stack.enter_context(NetworkTestbed(hosts=2, rate=None))


def test_every_block_of_the_tutorial_is_run() -> None:
    assert len(HERE) == 3
    assert sorted([*HERE, INSTALLING, BETWEEN_HOSTS]) == sorted(BLOCKS)


def test_what_installs_is_there() -> None:
    build, activate = re.findall(r"^checkout\$ (.*)$", INSTALLING, re.MULTILINE)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run([*build.split(), "--dry-run"], cwd=ROOT, env=ours, check=True, capture_output=True)
    assert activate == ". .venv/bin/activate"
    assert "VENV := .venv" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("block", HERE)
def test_a_step_prints_what_it_says(group: Group, folder: Path, block: str) -> None:
    text, expected, _ = program(block)
    done = group.run(["bash", "-c", f"cd {folder}\n{text}"])
    assert done.code == 0, done
    assert sorted(done.out.splitlines()) == expected, done


def test_the_job_on_two_hosts_prints_what_it_says(
    group: Group, folder: Path, port: int, hosts: NetworkTestbed | None
) -> None:
    common = "\n".join(re.findall(r"^\$ (.*)$", BETWEEN_HOSTS, re.MULTILINE))
    expected = re.findall(r"^worker .*$", BETWEEN_HOSTS, re.MULTILINE)
    started = []
    for number, command in re.findall(r"^node(\d)\$ (.*)$", BETWEEN_HOSTS, re.MULTILINE):
        host = int(number) - 1
        first = "127.0.0.1" if hosts is None else hosts.address(0)
        text = f"cd {folder}\n{common}\n{command}".replace("node1:7070", f"{first}:{port}")
        # Made once, as the page says.
        text = text.replace("$(penstock secret)", "5" * 64)
        bash = [*(hosts.prefix(host) if hosts else ()), "bash", "-c", text]
        more = {} if hosts else {"PENSTOCK_ADDRESS": f"127.0.0.{number}", "PENSTOCK_TRANSPORT": "tcp"}
        started.append(group.start(bash, **more))
    done = [group.ends(one) for one in started]
    assert [one.code for one in done] == [0, 0], done
    assert [one.out.rstrip() for one in done] == expected, done
