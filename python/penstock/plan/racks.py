"""
Whether workers of several racks should reduce inside their rack first (PHub, 3.4).

The paper's condition, per byte of the model, with n workers in each of R racks:

    n (R - 1) / (R B_core)  >  max(n / B_server, 1 / B_worker) + C,    C = (R - 1) / (R min(B_server, B_core))

On the left the flat exchange, in which every worker sends to the servers of the other racks; on the right a
reduction inside the rack, then one between the racks.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.exceptions import OptionError
from penstock.plan.model import Job


@dataclass(frozen=True)
class Racks:
    """The two sides of the condition, in seconds for the whole model."""

    racks: int
    workers_each: int
    """Workers of the fullest rack."""
    core: int
    """Bits a second between a rack and the network's core, in each direction."""
    flat: float
    local: float
    between: float

    @property
    def hierarchical(self) -> float:
        """Inside the rack, then between racks."""
        return self.local + self.between

    @property
    def pays(self) -> bool:
        """Whether the hierarchical reduction is the shorter one."""
        return self.flat > self.hierarchical


def judge(job: Job, racks: int, core: int) -> Racks:
    """
    Both sides of the condition for `job`, spread evenly over `racks`.

    Raises
    ------
    OptionError
        There are more racks than workers.
    """
    if racks > job.workers:
        raise OptionError(
            f"--racks is {racks}, but there are only {job.workers} workers",
            hint=f"give a number of racks from 1 to {job.workers}",
        )
    each = -(-job.workers // racks)
    bits = 8 * job.nbytes
    others = (racks - 1) / racks
    return Racks(
        racks=racks,
        workers_each=each,
        core=core,
        flat=bits * each * others / core,
        local=bits * max(each / job.server_link, 1 / job.link),
        between=bits * others / min(job.server_link, core),
    )
