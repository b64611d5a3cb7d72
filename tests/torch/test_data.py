"""Each worker's part of a dataset: together all of it, apart none twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import OptionError

torch = pytest.importorskip("torch")

IN_TWO_WORKERS = """
import torch
job = ps.init()
data = torch.utils.data.TensorDataset(torch.arange(20))

def passes(batches, count):
    return np.stack([np.concatenate([x.numpy() for x, in batches]) for _ in range(count)])

batches = ps.torch.loader(data, batch_size=3, shuffle=True, seed=5)
several = passes(batches, 3)
batches.sampler.set_epoch(1)
again = passes(batches, 1)[0]
plain = passes(ps.torch.loader(data, batch_size=4), 2)
theirs = torch.utils.data.DistributedSampler(data, job.size, job.rank, shuffle=True, seed=5)
theirs.set_epoch(2)
processes = passes(ps.torch.loader(data, batch_size=3, shuffle=True, seed=5, num_workers=1), 2)

uneven = torch.utils.data.TensorDataset(torch.arange(7))
padded = passes(ps.torch.loader(uneven, batch_size=2), 1)[0]
cut = passes(ps.torch.loader(uneven, batch_size=2, drop_last=True), 1)[0]
save(several=several, again=again, plain=plain, theirs=list(theirs), padded=padded, cut=cut,
     processes=processes)
"""


@pytest.fixture(scope="module")
def parts(spawn_shared_job: Callable[..., Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spawn_shared_job(2, IN_TWO_WORKERS)
    return found


def test_workers_have_all_samples_together_and_none_twice(parts: list[dict[str, Any]]) -> None:
    for epoch in range(3):
        assert sorted([*parts[0]["several"][epoch], *parts[1]["several"][epoch]]) == list(range(20))
    assert [list(part["plain"][1]) for part in parts] == [list(range(0, 20, 2)), list(range(1, 20, 2))]


def test_every_pass_has_another_order_and_a_worker_other_samples(parts: list[dict[str, Any]]) -> None:
    first, second, _ = parts[0]["several"]
    assert list(first) != list(second)
    assert set(first) != set(second)


def test_the_epochs_are_those_of_torchs_own_sampler_and_set_epoch_goes_to_one(
    parts: list[dict[str, Any]],
) -> None:
    for part in parts:
        assert list(part["several"][2]) == list(part["theirs"])
        assert list(part["again"]) == list(part["several"][1])


def test_processes_that_load_ahead_do_not_change_the_order(parts: list[dict[str, Any]]) -> None:
    for part in parts:
        assert part["processes"].tolist() == part["several"][:2].tolist()


def test_what_cannot_be_divided_is_used_twice_or_left_out_but_never_uneven(
    parts: list[dict[str, Any]],
) -> None:
    padded, cut = ([list(part[name]) for part in parts] for name in ("padded", "cut"))
    assert sorted(padded[0] + padded[1]) == [0, 0, 1, 2, 3, 4, 5, 6]
    assert [len(part) for part in cut] == [2, 2], "a full batch each: the rest is left out"
    assert len({*cut[0], *cut[1]}) == 4


def test_a_script_that_calls_set_epoch_itself_has_the_orders_that_it_had(job: ps.Job) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(9))
    theirs = torch.utils.data.DistributedSampler(data, 1, 0, seed=3)
    ours = ps.torch.sampler(data, seed=3, job=job)
    for epoch in (0, 1, 2, 2):
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        assert list(ours) == list(theirs)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ps.torch.loader(Stream()), "Stream has no samples to choose from"),
        (lambda: ps.torch.sampler(object()), "object has no samples to choose from"),
        (lambda: ps.torch.sampler([]), "a dataset of 0 samples leaves nothing"),
        (lambda: ps.torch.sampler([1], seed=0.5), "expected seed as a whole number, got 0.5"),
        (lambda: ps.torch.loader([1], sampler=[0]), "expected no sampler"),
        (lambda: ps.torch.loader([1], batch_sampler=[[0]]), "expected no batch_sampler"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_what_to_do(
    call: Callable[[], Any], said: str, job: ps.Job
) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        call()
    assert raised.value.hint
