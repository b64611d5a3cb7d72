"""
What is done together, in step: averages and broadcasts of pytrees.

| step of an average | moves |
|---|---|
| leaves into the lanes | each once |
| what everybody does, by a gather | a digest: where it differs is an error on every worker |
| the mean from the servers | each leaf once |
| the job's clock | one iteration |
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from ..arrays import Array
from ..exceptions import DeclarationConflict, GatherConflict, OptionError
from ..gather import Gathering, lines_of
from ..job import Job
from ..optim import Add, Replace
from ..tensor import Tensor
from ..turn import Ticket, Turn
from .leaves import Group, Layout, Tensors, difference, digest_of

Result = TypeVar("Result")

WINDOW_BYTES = 16 << 20
"""Bytes that a broadcast sends at a time: more would cost shared memory, less more barriers."""

MOST_LEAVES_BYTES = 64 << 20
"""Of what a worker says of its leaves, to tell where trees differ."""


class _Averages:
    """A job's averages of one kind of tree."""

    def __init__(self) -> None:
        self.tensors: Tensors | None = None
        self.pushed = -1
        """The iteration in which it has contributed last."""
        self.agreed = -1
        """The iteration in which all have said the same last."""


class Together:
    """What a job's workers do in step, in calls of which each has its turn."""

    def __init__(self) -> None:
        # Not the job's own: a compiled program may be here while the script calls `job.mean`. Averages go on
        # without workers that have left, as tensors do.
        self._gathering = Gathering("penstock/jax", all_needed=False)
        self._averages: dict[str, _Averages] = {}
        self._turn = Turn()

    def in_turn(self, call: str, act: Callable[[], Result]) -> Result:
        """
        What `act` gives. Raises OptionError while another call is under way: JAX orders the calls of one
        thread; those of several come in another order on each worker, whose values would be mixed.
        """
        # No context manager: a signal handler may raise behind its beginning, before `with` knows of it.
        ticket = Ticket()
        try:
            if not self._turn.take(ticket, 0):
                raise OptionError(
                    f"{call} was called while another thread of this worker was in such a call",
                    "make these calls from one thread: their order must be the same on every worker",
                )
            return act()
        finally:
            if self._turn.holder is ticket:
                del self._turn.holder
                self._turn.wake()

    def average(
        self,
        job: Job,
        layout: Layout,
        lines: Sequence[str],
        flats: Sequence[Array],
        means: Sequence[Array],
        timeout: float | None,
    ) -> None:
        """Fills the mean of each flat array over the workers."""
        if job.size == 1:
            job.clock()
            _copy(flats, means)
            return
        digest = digest_of(lines)
        averages = self._averages.setdefault(digest, _Averages())
        iteration = job.iteration
        words = f"average of a pytree in iteration {iteration}"
        if averages.tensors is None:
            self.agree(job, "ps.jax.average", words, lines, timeout)
            averages.agreed = iteration
            averages.tensors = Tensors(layout, _averaged(job, f"average/{digest}", timeout))
        # After a timeout the call is repeated: what it gave then counts.
        if averages.pushed != iteration:
            averages.tensors.push(flats, timeout)
            averages.pushed = iteration
        if averages.agreed != iteration:
            # After the push, so that the servers fold meanwhile.
            self.agree(job, "ps.jax.average", words, lines, timeout)
            averages.agreed = iteration
        averages.tensors.pull(means, None, timeout)
        job.clock()

    def broadcast(
        self,
        job: Job,
        lines: Sequence[str],
        arrays: Sequence[Array],
        results: Sequence[Array],
        timeout: float | None,
    ) -> None:
        """Fills the results with rank 0's arrays, bit by bit."""
        self.agree(job, "ps.jax.broadcast", "broadcast of a pytree", lines, timeout)
        if job.size == 1:
            _copy(arrays, results)
            return
        total = sum(array.nbytes for array in arrays)
        # float32 is only a wrapper: values are set and read, never computed with, so all bits survive.
        stream = np.zeros(-(-total // 4) * 4, np.uint8)
        parts = np.split(stream[:total], np.cumsum([array.nbytes for array in arrays])[:-1])
        if job.rank == 0:
            for part, array in zip(parts, arrays, strict=True):
                part[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        words = stream.view(np.float32)
        for start in range(0, len(words), WINDOW_BYTES // 4):
            self._send(job, words[start : start + WINDOW_BYTES // 4], timeout)
        if total:
            # No worker may overwrite the window, in a later call, before all have read it.
            job._barrier_with_first(timeout, "broadcast", "nothing was broadcast")
        for part, result in zip(parts, results, strict=True):
            result[...] = part.view(result.dtype).reshape(result.shape)

    def _send(self, job: Job, words: Array, timeout: float | None) -> None:
        """Overwrites the words with rank 0's, through a tensor that is long enough for them."""
        length = 1 << (len(words) - 1).bit_length()
        window = job.tensor(
            f"broadcast/{length}",
            shape=length,
            optimizer=Add(),
            consistency="bsp",
            reduce="sum",
            timeout=timeout,
        )
        page = np.zeros(length, np.float32)
        page[: len(words)] = words
        window.load(value=page, timeout=timeout)
        words[:] = window.pull(slack=0, timeout=timeout)[: len(words)]

    def agree(
        self,
        job: Job,
        call: str,
        words: str,
        lines: Sequence[str],
        timeout: float | None,
        again: bool = False,
    ) -> bool:
        """
        Returns when every worker has said the same: whether this is `again` for any of them.

        Raises GatherConflict where another makes another call, DeclarationConflict where its tree differs:
        then the iteration is over, on all workers, with whatever some have contributed in it.
        """
        try:
            return self._compare(job, call, words, lines, timeout, again)
        except (GatherConflict, DeclarationConflict):
            job.clock()
            raise

    def _compare(
        self, job: Job, call: str, words: str, lines: Sequence[str], timeout: float | None, again: bool
    ) -> bool:
        gather = self._gathering.bytes_of_all
        digest = digest_of(lines).encode()
        said = digest + (b"+" if again else b"-")
        heard = [one for one in gather(job, call, words, said, len(said), timeout) if one is not None]
        is_again = any(one.endswith(b"+") for one in heard)
        if all(one[:-1] == digest for one in heard):
            return is_again
        text = zlib.compress("\n".join(lines).encode())
        lists = [
            None if one is None else lines_of(rank, one, MOST_LEAVES_BYTES)
            for rank, one in enumerate(
                gather(job, call, "the leaves of a pytree", text, MOST_LEAVES_BYTES, timeout)
            )
        ]
        mine = lists[job.rank] or []
        for rank, theirs in enumerate(lists):
            if theirs is not None and theirs != mine:
                raise difference(job.rank, mine, rank, theirs)
        return is_again


def _copy(arrays: Sequence[Array], results: Sequence[Array]) -> None:
    """Fills the results with the arrays, where they are not in their memory already."""
    for array, result in zip(arrays, results, strict=True):
        if array.__array_interface__["data"][0] != result.__array_interface__["data"][0]:
            np.copyto(result, array)


def together(job: Job) -> Together:
    """The job's own."""
    found: Together = job._beside.setdefault("jax", Together())
    return found


def _averaged(job: Job, prefix: str, timeout: float | None) -> Callable[[Group], Tensor]:
    def declare(group: Group) -> Tensor:
        return job.tensor(
            f"{prefix}/{group.name}",
            shape=group.elements,
            dtype=group.dtype,
            optimizer=Replace(),
            consistency="bsp",
            timeout=timeout,
        )

    return declare
