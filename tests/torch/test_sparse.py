"""Layers with `sparse=True`: several workers train them as one process does on the joined batch."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps

torch = pytest.importorskip("torch")

TRAIN = '''
import torch
from torch import nn

SIZES, WIDTH, STEPS = (6000, 3), 8, 7
RULES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05, lr_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.02),
}


class Words(nn.Module):
    """Two tables of which each step touches some rows, and a dense layer behind them."""

    def __init__(self, sparse):
        super().__init__()
        self.words = nn.Embedding(SIZES[0], WIDTH, sparse=sparse)
        self.bags = nn.EmbeddingBag(SIZES[1], WIDTH, sparse=sparse, mode="sum")
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, batch, with_bags):
        found = self.words(batch).sum(1)
        if with_bags:
            found = found + self.bags(batch % SIZES[1])
        return self.out(found).squeeze(1)


def made(sparse):
    torch.manual_seed(3)
    return Words(sparse)


def batch_of(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randint(0, SIZES[0], (4, 5), generator=generator)
    # Some rows come twice, in a batch and on two workers: gradients are not coalesced.
    batch[0, :] = 7 + step
    return batch


def used(step, rank):
    """Whether this worker's second table has a gradient: in some steps on one worker, on all, on none."""
    return {0: True, 1: rank == 0, 2: False}[step % 3]


def loss_of(model, step, rank):
    return model(batch_of(step, rank), used(step, rank)).square().mean()


def alone(name, size):
    """One process, on what all workers have: dense layers, as torch's Adam takes no sparse gradients."""
    model = made(sparse=False)
    optimizer = RULES[name](model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (loss_of(model, step, rank) / size).backward()
        optimizer.step()
    return model


with ps.init() as job:
    for where in ("servers", "gradients"):
        for name, rule in RULES.items():
            for overlap in ("auto", False) if name == "adagrad" else ("auto",):
                model = made(sparse=True)
                optimizer = rule(model.parameters())
                model, optimizer = ps.torch.distribute(model, optimizer, where=where, overlap=overlap)
                for step in range(STEPS):
                    optimizer.zero_grad()
                    loss_of(model, step, job.rank).backward()
                    if where == "servers":
                        assert model.words.weight.grad.is_sparse
                        assert not model.words.weight.grad.is_coalesced()
                    optimizer.step()
                expected = alone(name, job.size)
                for (what, got), wanted in zip(model.named_parameters(), expected.parameters()):
                    torch.testing.assert_close(
                        got, wanted, rtol=2e-5, atol=2e-6, msg=lambda said: f"{where} {name} {what}: {said}"
                    )
                job.barrier()
'''


@pytest.mark.parametrize(("workers", "transport"), [(3, "auto"), (2, "tcp")])
def test_sparse_layers_train_as_in_one_process(spawn_job: Any, workers: int, transport: str) -> None:
    spawn_job(workers, TRAIN, servers=2, options={"transport": transport, "chunk_bytes": "4KiB"})


def test_between_hosts_the_servers_are_sent_the_rows_that_are_touched(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import torch
        with ps.init() as job:
            model = torch.nn.Embedding(40_000, 16, sparse=True)
            rule = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = ps.torch.distribute(model, rule, where="servers", check=False)
            before = job.stats()["sent_bytes"]
            for step in range(5):
                optimizer.zero_grad()
                model(torch.tensor([step, 7])).sum().backward()
                optimizer.step()
            # Of 79 chunks one.
            assert job.stats()["sent_bytes"] - before < 5 * (32 * 1024 + 8000)
            job.barrier()
        """,
        options={"transport": "tcp"},
    )


def test_adding_to_a_sparse_gradient_before_step_and_clipping_its_average(job: ps.Job) -> None:
    model = torch.nn.Embedding(50, 3, sparse=True)
    torch.nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = ps.torch.distribute(model, optimizer, where="servers", clip_norm=1.0, job=job)
    for _ in range(4):
        optimizer.zero_grad()
        # Two passes: what they come to is one gradient.
        model(torch.tensor([3, 3])).sum().backward()
        model(torch.tensor([3, 4])).sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
        moved = (before - model.weight).detach()
        assert moved[:3].abs().max() == 0
        torch.testing.assert_close(moved[3], 3 * moved[4])
        torch.testing.assert_close(moved.norm(), torch.tensor(1.0))


def test_what_is_held_back_of_sparse_gradients_comes_with_later_ones(job: ps.Job) -> None:
    model = torch.nn.Embedding(40, 2, sparse=True)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    filters = ps.Filters(push=ps.TopK(0.1))
    model, optimizer = ps.torch.distribute(model, optimizer, where="servers", filter=filters, job=job)
    for step in range(6):
        optimizer.zero_grad()
        (model(torch.arange(20)) * (step + 1)).sum().backward()
        optimizer.step()
    optimizer.flush()
    torch.testing.assert_close(model.weight[:20].detach(), torch.full((20, 2), -21.0))
    assert model.weight[20:].abs().max() == 0


def test_a_sparse_gradient_that_is_changed_after_it_left_is_noticed(job: ps.Job) -> None:
    model = torch.nn.Embedding(5, 3, sparse=True)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = ps.torch.distribute(model, rule, where="servers", overlap=1, job=job)
    model(torch.tensor([1])).sum().backward()
    model.weight.grad.mul_(2)
    with pytest.raises(ps.exceptions.OptionError, match="was changed after it had left"):
        optimizer.step()


def test_sparse_adam_is_refused_by_name(spawn_job: Any) -> None:
    spawn_job(
        2,
        """
        import torch
        with ps.init() as job:
            for where, says in (("gradients", "SparseAdam steps the rows"), ("servers", "got SparseAdam")):
                model = torch.nn.Embedding(5, 3, sparse=True)
                rule = torch.optim.SparseAdam(model.parameters())
                try:
                    ps.torch.distribute(model, rule, where=where)
                except ps.exceptions.OptionError as error:
                    assert says in str(error), error
                else:
                    raise AssertionError(where)
            job.barrier()
        """,
    )
