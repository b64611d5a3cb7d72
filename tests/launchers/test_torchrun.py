"""
What torchrun and variables like its own make of jobs. One agent and two, with the examples, stand on
docs/launchers/torchrun.md: `test_pages.py` runs them.
"""

from __future__ import annotations

import re

import pytest
from groups import Group

pytest.importorskip("torch")


def test_a_job_that_torchrun_starts_anew_is_a_new_job(group: Group, script, tmp_path) -> None:
    path = script("""
        import os, sys
        import penstock as ps

        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        job = ps.init()
        w = job.tensor("w", shape=(2,), reduce="sum")
        w.push([1, 1])
        job.clock()
        value = w.pull()[0]
        if attempt == 0 and job.rank == 1:
            sys.exit("fails the first time")
        print(f"attempt {attempt} rank {job.rank} value {value}")
        job.close()
    """)
    done = group.run(["torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", path])
    assert done.code == 0, done
    # The ranks share one descriptor, unbuffered: their lines may run into each other.
    second = sorted(re.findall(r"attempt 1 rank \d value \d\.\d", done.out))
    assert second == ["attempt 1 rank 0 value 2.0", "attempt 1 rank 1 value 2.0"]


def test_a_process_that_never_joins_is_named_by_those_who_waited(group: Group, script) -> None:
    path = script("""
        import os, sys
        import torch.distributed  # slow, and not what is waited for here
        import penstock as ps

        try:
            if os.environ["RANK"] != "1":
                ps.init(deadline=5)
        except ps.exceptions.DeadlineExceeded as error:
            # In one write: the ranks share one descriptor, perhaps unbuffered.
            sys.stdout.write(f"missing {error.missing} for {os.environ['RANK']}\\n")
        # Nobody ends before all have said what they found: torchrun would end the others.
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    """)
    done = group.run(["torchrun", "--standalone", "--nproc-per-node", "3", path])
    assert done.code == 0, done
    found = sorted(line for line in done.out.splitlines() if line.startswith("missing"))
    assert found == ["missing [1] for 0", "missing [1] for 2"]


def test_variables_set_by_hand_need_no_agent_and_leave_room_for_a_process_group(
    group: Group, script, port: int
) -> None:
    path = script("""
        import penstock as ps
        import torch.distributed

        with ps.init() as job:
            w = job.tensor("w", shape=(2,), reduce="sum")
            w.push([1, 1])
            job.clock()
            torch.distributed.init_process_group("gloo")
            both = torch.tensor([w.pull()[0]])
            torch.distributed.all_reduce(both)
            print("sum", both.item())
            torch.distributed.destroy_process_group()
    """)
    done = group.ranks(
        path,
        2,
        lambda rank: {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        },
    )
    assert [(one.code, one.out) for one in done] == [(0, "sum 4.0\n")] * 2, done
