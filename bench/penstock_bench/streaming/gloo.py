"""
One rank of Gloo's broadcast: `python -m penstock_bench.streaming.gloo FOLDER`.

Rank 0 stands on the server's host and broadcasts, the others on the workers' hosts. Timed as `rank` does it;
in the clear.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from penstock.launch import ranks as launched
from penstock_bench.ranks import WrongAnswerError


def main() -> None:
    """One rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/gloo", rank=rank, world_size=size)
    values: list[torch.Tensor] = []
    done = 0

    def opened(command: dict[str, Any]) -> dict[str, Any]:
        values.append(torch.zeros(command["bytes"] // 4))
        return {"pid": os.getpid()}

    def run(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal done
        began, ended = [], []
        for _ in range(command["iterations"]):
            done += 1
            if rank == 0:
                values[0].fill_(done)
            dist.barrier()
            began.append(time.monotonic_ns())
            dist.broadcast(values[0], src=0)
            ended.append(time.monotonic_ns())
            if not bool((values[0] == done).all()):
                raise WrongAnswerError(f"an element is not {done} after as many broadcasts")
        return {"began": began, "ended": ended}

    launched.serve(rank, {"open": opened, "run": run})


if __name__ == "__main__":
    main()
