"""
Clipping by the norm of all gradients together (`clip_norm=`), as torch's `clip_grad_norm_` does it to the
average.

No step may be taken before the norm of every average is known, so each parameter has a second tensor, of
which the servers only take the mean, and a step is two of the job's iterations:

1. Each worker's gradients go to the means, during backward as ever.
2. Each parameter's owner, one of the workers, reads its mean and tells the norm of it. From the norms of all,
   every worker computes the same factor. The owner gives factor times mean, which the servers step by.

Beside what a step moves without, that is the model's size once from the servers to the owners and once back,
the N-th part for each of N workers, and two more rounds. Owners are chosen by size among the workers that are
there; nothing is split, so a parameter that is larger than the N-th part makes its owner the slowest.

The servers hear of one worker's settings for each parameter, its owner's, and cannot compare them with the
others'. So with its norms each worker tells a checksum of the settings that the step is to be taken with;
where those differ, all give a step, and the servers end the job as they do without `clip_norm=`.

A worker that is lost in the second half may have left its parameters without their step. Where the others go
on without it, they compare the steps that its tensors have taken with those that they should have.
"""

from __future__ import annotations

import numbers
import struct
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ... import _core
from ...arrays import Array
from ...exceptions import OptionError, SettingsConflict, WorkerLost
from ...job import Job
from ...optim import Replace, Settings
from ...tensor import Tensor
from .bits import over

if TYPE_CHECKING:
    from .delivery import Shared

EPSILON = 1e-6
"""What torch adds to the norm before it divides by it."""
TOKENS = 2**50
"""Of checksums: float64 holds each of them exactly. Two that differ are alike once in so many."""


def check_limit(limit: object) -> float:
    """The limit as a number. Raises OptionError if no norm can be clipped to it."""
    is_number = isinstance(limit, numbers.Real) and not isinstance(limit, bool | np.bool_)
    if not is_number or not float(limit) > 0:  # type: ignore[arg-type]
        raise OptionError(
            f"expected clip_norm as a number above 0, got {limit!r}",
            "it is the largest norm that all gradients together may have, max_norm of clip_grad_norm_",
        )
    return float(limit)  # type: ignore[arg-type]


class Clipping:
    """The clipped steps of one distributed optimizer, under BSP."""

    def __init__(self, job: Job, prefix: str, limit: float, timeout: float | None) -> None:
        self._job = job
        self._prefix = prefix
        self.limit = limit
        self._timeout = timeout
        self._all: list[Shared] = []
        self._places: dict[int, _Place] = {}
        self._owners: dict[tuple[int, ...], list[int]] = {}
        # The places whose step was taken last, with those that took it.
        self._last: list[tuple[_Place, int]] = []
        # The settings that were told last, and what tells them.
        self._told: tuple[list[Settings], int] = [], _token([])
        self.total_norm: float | None = None
        """Of the last step's average, before it was clipped."""

    def mean_of(self, parameter: torch.Tensor, name: str, declaration: dict[str, Any]) -> Tensor:
        """The tensor that takes the mean of a parameter's gradients."""
        return self._job.tensor(
            f"{self._prefix}/mean/{name}",
            shape=tuple(parameter.shape),
            dtype=parameter.dtype,
            optimizer=Replace(),
            consistency="bsp",
            timeout=self._timeout,
            **declaration,
        )

    def take_in(self, everything: Sequence[Shared]) -> None:
        """From now on the parameters are these. Collective."""
        self._all = list(everything)
        self._places = {id(shared): self._places.get(id(shared)) or _Place(shared) for shared in self._all}
        self._owners = {}
        count = len(self._all)
        # Norms of any type fit into float64. Behind them each worker's settings: 0 if it is not there.
        self._norms = self._job.tensor(
            f"{self._prefix}/norms of {count}",
            shape=count + self._job.size,
            dtype="float64",
            optimizer=Replace(),
            consistency="bsp",
            reduce="sum",
            timeout=self._timeout,
        )

    def forget_steps(self) -> None:
        """A state is loaded, and with it the number of steps."""
        self._last = []
        for place in self._places.values():
            place.steps = None

    @torch.no_grad()
    def step(self, there: Sequence[int], used: Array) -> None:
        """
        The second half, up to its clock. `there`: the workers that took part in the first; `used`: which
        parameters one of them has a gradient of.
        """
        owners = self._owners_among(there)
        found = [int(number) for number in np.flatnonzero(used)]
        stepped = [(self._places[id(self._all[number])], owners[number]) for number in found]
        rank, count = self._job.rank, len(self._all)
        settings = self._settings([place.shared for place, _ in stepped])
        lane = self._norms.lane()
        lane[:] = 0
        lane[count + rank] = self._told[1]
        for number, (place, owner) in zip(found, stepped, strict=True):
            place.count()
            if owner == rank:
                lane[number] = place.norm()
        self._norms.push()
        norms = self._norms.pull()
        if missing := [one for one in there if not norms[count + one]]:
            raise _lost(missing[0], self._prefix)
        if others := [one for one in there if norms[count + one] != norms[count + rank]]:
            self._refuse(stepped, settings, others)
        factor = self._factor([place.shared.parameter.dtype for place, _ in stepped], norms[found])
        for (place, owner), its in zip(stepped, settings, strict=True):
            if owner == rank:
                place.push(factor, its)
        self._last = stepped

    def _settings(self, used: list[Shared]) -> list[Settings]:
        """
        What each of these is to be stepped with. Parameters that nobody has a gradient of may differ in them.
        """
        for group in {shared.group for shared in used}:
            group.refresh()
        settings = [shared.tensor._optimizer._packed for shared in used]
        if settings != self._told[0]:
            self._told = settings, _token(settings)
        return settings

    def _refuse(self, stepped: list[tuple[_Place, int]], settings: list[Settings], others: list[int]) -> None:
        """
        Has the servers find what is different, and end the job for all with it: a worker that raised by
        itself, and left, might have the others hear of that first. What is stepped meanwhile is by zeros.
        """
        for (place, _), its in zip(stepped, settings, strict=True):
            place.push(None, its)
        for place, _ in stepped:
            place.shared.tensor._core.pull(None, None)
        # Nothing came, as one of them was lost meanwhile.
        raise SettingsConflict(
            f"worker {self._job.rank} and workers {others} disagree about the optimizer's settings in a step "
            f"of `{self._prefix}`: it was taken by zeros in place of gradients, with anyone's settings",
            "make the same change of learning rates on every worker, in the same iteration; start again from "
            "a checkpoint",
        )

    def _factor(self, dtypes: list[torch.dtype], norms: Any) -> torch.Tensor:
        """As torch computes it: infinite norms give 0, and NaN gives NaN."""
        if not dtypes:
            self.total_norm = 0.0
            return torch.tensor(1.0, device="cpu")
        pairs = zip(norms, dtypes, strict=True)
        each = [torch.tensor(float(norm), dtype=dtype, device="cpu") for norm, dtype in pairs]
        total = torch.linalg.vector_norm(torch.stack(each))
        self.total_norm = float(total)
        return torch.clamp(self.limit / (total + EPSILON), max=1.0)

    def _owners_among(self, there: Sequence[int]) -> list[int]:
        """Who owns each parameter: the largest first, each to whoever has least."""
        found = self._owners.get(tuple(there))
        if found is None:
            found = [0] * len(self._all)
            loads = dict.fromkeys(there, 0)
            sizes = [shared.tensor.nbytes for shared in self._all]
            for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
                found[number] = min(loads, key=lambda rank: loads[rank])
                loads[found[number]] += sizes[number]
            self._owners[tuple(there)] = found
        return found

    def account(self, there: Sequence[int]) -> None:
        """
        Raises WorkerLost if one that is not there any more has not given all that it owned in the last step.
        """
        for place, owner in self._last:
            if owner not in there and place.has_missed():
                raise _lost(owner, self._prefix)


class _Place:
    """One parameter's mean and step."""

    def __init__(self, shared: Shared) -> None:
        assert shared.mean is not None
        self.shared = shared
        self._mean = shared.mean
        self._value = over(shared.mean._core.model(), shared.parameter)
        self._lane: torch.Tensor | None = None
        self.steps: int | None = None
        """That the parameter should have taken; None: not known."""

    def count(self) -> None:
        """It takes a step."""
        if self.steps is None:
            self.steps = self.shared.tensor._core.steps(None)
        self.steps += 1

    def has_missed(self) -> bool:
        """Whether it has taken fewer, once nothing can come any more."""
        core = self.shared.tensor._core
        core.pull(None, None)
        return self.steps is not None and core.steps(None) < self.steps

    def norm(self) -> float:
        """Of the mean, for which it waits."""
        self._mean._core.pull(None, None)
        return float(torch.linalg.vector_norm(self._value))

    def push(self, factor: torch.Tensor | None, settings: Settings) -> None:
        """Has the servers step by factor times mean, or by zeros."""
        tensor = self.shared.tensor
        memory = tensor._core.lane_until_push()
        if self._lane is None:
            self._lane = over(memory, self.shared.parameter)
        if factor is None:
            self._lane.zero_()
        else:
            torch.mul(self._value, factor, out=self._lane)
        tensor._core.push(None, settings, False, None)


def _token(settings: list[Settings]) -> int:
    """A number above 0 for what these are, however they are grouped."""
    runs = [(its, len(list(same))) for its, same in groupby(settings)]
    # -0.0 is 0.0 to the servers too.
    parts = [struct.pack("<5dq", *(number + 0.0 for number in its), length) for its, length in runs]
    return 1 + _core.checksum(b"".join(parts)) % TOKENS


def _lost(rank: int, prefix: str) -> WorkerLost:
    return WorkerLost(
        f"worker {rank} was lost within a step of `{prefix}`: with clip_norm, each worker gives the step of "
        "the parameters that it owns, and this one's may not have been taken",
        "start again from a checkpoint",
        rank=rank,
    )
