"""Parameters of which updates are sent: the bits of those that are pulled, in every worker."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock.exceptions import OptionError, SettingsError

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.mark.parametrize("size", [1, 3])
def test_who_is_sent_updates_has_the_bits_of_who_pulls(spawn_job: Any, size: int) -> None:
    spawn_job(
        size,
        """
        import torch
        from torch import nn

        RULES = {
            "sgd": (lambda of: torch.optim.SGD(of, lr=0.05), {}),
            "momentum": (lambda of: torch.optim.SGD(of, lr=0.05, momentum=0.9, weight_decay=0.01), {}),
            "clipped": (lambda of: torch.optim.AdamW(of, lr=0.02), {"clip_norm": 0.5}),
            "adam": (lambda of: torch.optim.Adam(of, lr=0.02), {"filter": ps.Filters(push=ps.TopK(0.25))}),
        }

        def made():
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 3).double())

        def values(model):
            return [one.detach().numpy().tobytes() for one in model.parameters()]

        def loss_of(model, step, rank):
            generator = torch.Generator().manual_seed(100 * step + rank)
            x, y = torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)
            return (model[2](model[1](model[0](x)).double()) - y).square().mean()

        with ps.init() as job:
            for name, (rule, more) in RULES.items():
                pairs = []
                for how in ("pull", "update"):
                    model = made()
                    model[0].weight.requires_grad_(False)
                    pairs.append(ps.torch.distribute(
                        model, rule(model.parameters()), where="servers", propagation=how, **more
                    ))
                    assert pairs[-1][1].propagation == how
                for step in range(12):
                    if step == 4:
                        for model, _ in pairs:
                            model[0].weight.requires_grad_(True)
                    for model, optimizer in pairs:
                        optimizer.zero_grad()
                        loss_of(model, step, job.rank).backward()
                        for group in optimizer.param_groups:
                            group["lr"] = 0.05 / (1 + step)
                        optimizer.step()
                    (pulled, one), (updated, other) = pairs
                    assert values(pulled) == values(updated), (name, step)
                    if step == 7:
                        saved = updated.state_dict(), other.state_dict()
                    if step == 9:
                        for model, optimizer in pairs:
                            model.load_state_dict(saved[0])
                            optimizer.load_state_dict(saved[1])
                        assert values(pulled) == values(updated), name
                one, other = one.state_dict()["state"], other.state_dict()["state"]
                for at, state in one.items():
                    for what, array in state.items():
                        assert torch.equal(torch.as_tensor(array), torch.as_tensor(other[at][what])), what
            job.barrier()
        """,
        options={"transport": "tcp", "chunk_bytes": "4KiB"},
    )


def test_of_an_embedding_s_gradients_what_was_looked_up_comes_down_under_adam(spawn_job: Any) -> None:
    saved = spawn_job(
        2,
        """
        import torch
        from torch import nn

        with ps.init() as job:
            took = {}
            for how in ("pull", "update"):
                torch.manual_seed(3)
                model = nn.Embedding(20_000, 16, sparse=True)
                rule = torch.optim.Adagrad(model.parameters(), lr=0.1, weight_decay=0)
                model, optimizer = ps.torch.distribute(model, rule, where="servers", propagation=how)
                draw = torch.Generator().manual_seed(job.rank)
                for step in range(6):
                    if step == 1:
                        job.barrier()
                        before = job.stats()["received_bytes"]
                    optimizer.zero_grad()
                    model(torch.randint(20_000, (30,), generator=draw)).sum().backward()
                    optimizer.step()
                took[how] = (job.stats()["received_bytes"] - before) / 5
                job.barrier()
            save(**took)
        """,
        options={"transport": "tcp"},
    )
    for took in saved:
        assert took["update"] < 40_000 < took["pull"], took


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"consistency": ps.SSP(1)}, "expected bsp"),
        ({"consistency": ps.ASP()}, "expected bsp"),
        ({"filter": ps.Filters(broadcast=ps.DVF(1.0))}, "expected no filter of broadcasts"),
    ],
)
def test_what_cannot_be_had_of_updates_is_refused(options: dict[str, Any], says: str) -> None:
    with ps.init() as job:
        model = nn.Linear(3, 2)
        rule = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(SettingsError, match=says):
            ps.torch.distribute(model, rule, job=job, where="servers", propagation="update", **options)


def test_of_half_precision_and_by_who_is_none_updates_are_refused() -> None:
    with ps.init() as job:
        model = nn.Linear(3, 2).bfloat16()
        rule = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(SettingsError, match="expected float32 or float64"):
            ps.torch.distribute(model, rule, job=job, where="servers", propagation="update")
        model = nn.Linear(3, 2)
        rule = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(OptionError, match="propagation"):
            ps.torch.distribute(model, rule, job=job, where="servers", propagation="updates")
        with pytest.raises(OptionError, match="propagation"):
            ps.torch.distribute(model, job=job, propagation="update")
