"""BSP gives the same bits in every run, however the work is cut and whoever does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trajectory as t

WORKERS = 3
SCRIPT = """
sys.argv.append(os.environ["TEST_OUT"])
sys.path.insert(0, sys.argv.pop(1))
import trajectory
trajectory.main()
"""

first: dict[str, str] = {}


def digests(spawn_job: Any, servers: int, options: dict[str, str]) -> dict[str, str]:
    saved = spawn_job(
        WORKERS,
        SCRIPT,
        servers=servers,
        options=options,
        arguments=(str(Path(t.__file__).parent), "bits", "mean", "bsp"),
    )
    names = [f"{name}/{dtype}/digest" for name, dtype in t.BITS.items()]
    found = [{name: str(result[name]) for name in names} for result in saved]
    assert all(other == found[0] for other in found), "two workers of one run saw different bits"
    return found[0]


@pytest.mark.parametrize(
    ("servers", "options"),
    [
        (1, {}),
        (1, {"shards": "0"}),  # the default: the same again, since arrival orders differ from run to run
        (1, {"chunk_bytes": "4096", "shards": "2"}),
        (1, {"chunk_bytes": "131072", "shards": "3"}),
        (2, {"chunk_bytes": "32768", "shards": "1"}),
        (2, {"chunk_bytes": "4096", "shards": "3"}),
    ],
)
def test_runs_agree_bit_for_bit_whatever_the_chunks_shards_and_servers(
    spawn_job: Any, servers: int, options: dict[str, str]
) -> None:
    found = digests(spawn_job, servers, options)
    first.update(first or found)
    assert found == first
