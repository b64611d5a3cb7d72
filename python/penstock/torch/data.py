"""
Every worker its own part of the data: torch's DistributedSampler, by the job's rank and size.

Its epoch moves on by itself. With torch's own a script must call `set_epoch` before each pass, and without
it every epoch has the same order; such a script works here as it is. Epochs that moved on by themselves are
counted: a worker that has looked at its data once more than the others shuffles otherwise from then on, and
hears of it in a backward pass (`where="gradients"`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from ..exceptions import OptionError
from ..job import Job, current

T = TypeVar("T")


_moved_on: weakref.WeakKeyDictionary[Job, int] = weakref.WeakKeyDictionary()


def epochs_of(job: Job) -> int:
    """How often the epoch of a sampler that shuffles has moved on by itself, in this worker."""
    return _moved_on.get(job, 0)


class Sampler(DistributedSampler[T]):
    """A `DistributedSampler` whose epoch moves on. Made by `ps.torch.sampler`."""

    job: weakref.ref[Job] | None = None
    """The job that it counts for."""
    _moved = 0
    """Since the script said which epoch it is."""

    def __iter__(self) -> Iterator[T]:
        """The indices of this worker's part, in the order of this epoch; the next call is the next epoch."""
        order = super().__iter__()
        self.epoch += 1
        self._count(1)
        return order

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next is."""
        super().set_epoch(epoch)
        self._count(-self._moved)

    def _count(self, more: int) -> None:
        job = self.job() if self.job is not None else None
        if job is not None and self.shuffle:
            self._moved += more
            _moved_on[job] = epochs_of(job) + more

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, as for a process that loads: it counts for nobody."""
        return {**vars(self), "job": None}


def sampler(
    dataset: Dataset[Any],
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    *,
    job: Job | None = None,
) -> Sampler[int]:
    """
    Which samples of a dataset are this worker's, for a `torch.utils.data.DataLoader`.

    Parameters
    ----------
    dataset
        With a length, and the same on every worker.
    shuffle
        In another order in each epoch, the same on all workers.
    seed
        Of that order: the same on every worker.
    drop_last
        When the samples cannot be divided evenly. False: some are used twice. True: some are left out, others
        in each epoch if they are shuffled.
    job
        Default: the open job of this process, or a new `ps.init()`.

    Returns
    -------
    torch.utils.data.DistributedSampler
        Each iteration over it is the next epoch, so every worker must go through it equally often; with
        `where="gradients"`, backward warns once where they have not. `set_epoch(n)` says which one the next
        is.

    Raises
    ------
    OptionError
        The dataset has no length, or too few samples; the seed is no whole number.

    Examples
    --------
    >>> data = torch.utils.data.TensorDataset(torch.arange(4))
    >>> batches = torch.utils.data.DataLoader(data, batch_size=2, sampler=ps.torch.sampler(data))
    >>> sum(len(x) for x, in batches)
    4
    """
    job = job or current()
    length = _length(dataset)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise OptionError(f"expected seed as a whole number, got {seed!r}", "the same on every worker")
    if not length or (drop_last and length < job.size):
        raise OptionError(
            f"a dataset of {length} samples leaves nothing for a worker of {job.size}",
            "train on more samples or with fewer workers" + (", or pass drop_last=False" if length else ""),
        )
    made: Sampler[int] = Sampler(
        dataset, num_replicas=job.size, rank=job.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    made.job = weakref.ref(job)
    return made


def loader(
    dataset: Dataset[T],
    batch_size: int | None = 1,
    shuffle: bool = False,
    *,
    seed: int = 0,
    drop_last: bool = False,
    job: Job | None = None,
    **options: Any,
) -> DataLoader[T]:
    """
    A `torch.utils.data.DataLoader` over this worker's part of a dataset: a script puts it in DataLoader's
    place.

    Parameters
    ----------
    dataset
        With a length, and the same on every worker.
    batch_size
        Samples of a batch on each worker: all together take as many times this as there are workers.
    shuffle, seed
        As in `sampler`; every pass over the loader is the next epoch.
    drop_last
        Leave out the last batch if it is not full, and samples that cannot be divided evenly.
    job
        Default: the open job of this process, or a new `ps.init()`.
    **options
        DataLoader's others, such as `num_workers`.

    Returns
    -------
    torch.utils.data.DataLoader
        Every worker's has the same number of batches. `loader.sampler.set_epoch(n)` says which epoch the next
        pass is.

    Raises
    ------
    OptionError
        As `sampler`; or a sampler is among the options.

    Examples
    --------
    >>> data = torch.utils.data.TensorDataset(torch.arange(4))
    >>> [len(x) for x, in ps.torch.loader(data, batch_size=2, shuffle=True)]
    [2, 2]
    """
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise OptionError(
                f"expected no {name}: which samples are this worker's is what ps.torch.loader decides",
                f"DataLoader(dataset, {name}=...) with one that leaves out what other workers take, by "
                "job.rank and job.size",
            )
    part = sampler(dataset, shuffle, seed, drop_last, job=job)
    return DataLoader(dataset, batch_size=batch_size, sampler=part, drop_last=drop_last, **options)


def _length(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise OptionError(
            f"{type(dataset).__name__} has no samples to choose from: it yields them one after the other",
            "have it yield this worker's only, as by itertools.islice(stream, job.rank, None, job.size), and "
            "equally many on every worker, and give it to torch's DataLoader",
        )
    return len(dataset)
