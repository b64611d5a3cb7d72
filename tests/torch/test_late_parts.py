"""Layers that a model gets after `distribute`, where the servers step."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")


def test_a_late_group_begins_with_rank_0s_values_frozen_ones_too_and_its_loads_are_told(
    spawn_job: Any,
) -> None:
    """Frozen ones began with each worker's own, and the next step undid a load without a word."""
    spawn_job(
        2,
        """
        import torch, penstock as ps
        from torch import nn

        with ps.init() as job:
            torch.manual_seed(job.rank)
            model = nn.Sequential(nn.Linear(2, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = ps.torch.distribute(model, optimizer, where="servers", check=False)

            def step():
                optimizer.zero_grad()
                model(torch.full((3, 2), 1.0 + job.rank)).sum().backward()
                optimizer.step()

            step()
            late = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
            late[0].requires_grad_(False)
            model.append(late)
            optimizer.add_param_group({"params": list(late.parameters())})
            for _ in range(2):
                mine, other = job.all_gather([parameter.tolist() for parameter in model.parameters()])
                assert mine == other, (mine, other)
                step()
            zeros = {name: torch.zeros_like(one) for name, one in late[1].state_dict().items()}
            late[1].load_state_dict(zeros)
            try:
                step()
            except ps.exceptions.OptionError as error:
                assert "1.1" in str(error), error
            else:
                raise AssertionError("the load was lost without a word")
        """,
    )


def test_workers_may_order_a_late_group_differently(spawn_job: Any) -> None:
    """Parameters were paired by their places: those of one shape were mixed without a word."""
    spawn_job(
        2,
        """
        import torch, penstock as ps
        from torch import nn

        with ps.init() as job:
            torch.manual_seed(job.rank)
            model = nn.Sequential(nn.Linear(2, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = ps.torch.distribute(model, optimizer, where="servers")
            late = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
            late[2:].requires_grad_(False)
            model.append(late)
            parameters = list(late.parameters())
            optimizer.add_param_group({"params": parameters[::-1] if job.rank else parameters})
            for _ in range(2):
                mine, other = job.all_gather([parameter.tolist() for parameter in model.parameters()])
                assert mine == other, (mine, other)
                optimizer.zero_grad()
                model(torch.full((3, 2), 1.0 + job.rank)).sum().backward()
                optimizer.step()
        """,
    )


def test_a_layer_that_replaces_another_has_values_and_state_of_its_own(spawn_job: Any) -> None:
    """It went on from those of the layer that had its name before, without a word."""
    spawn_job(
        2,
        """
        import torch, penstock as ps
        from torch import nn

        def fresh(shape, fill):
            layer = nn.Linear(*shape)
            for one in layer.parameters():
                nn.init.constant_(one, fill)
            return layer

        def train(model, optimizer, alone):
            rank = 0 if alone else job.rank

            def step():
                optimizer.zero_grad()
                batches = (1.0, 2.0) if alone else (1.0 + job.rank,)
                sum(model(torch.full((1, 2), x)).sin().sum() for x in batches).div(len(batches)).backward()
                optimizer.step()

            step(), step()
            # Of the same shape, then of another; the third is kept frozen for a while.
            for shape, frozen in ((2, 1), False), ((2, 3), False), ((2, 3), True):
                model[1] = fresh(shape, 0.5 + rank).requires_grad_(not frozen)
                optimizer.add_param_group({"params": list(model[1].parameters())})
                step()
                model[1].requires_grad_(True)
                step(), step()
            return [one.detach().clone() for one in model.parameters()]

        def made():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(2, 2), fresh((2, 1), 0.1))
            return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        with ps.init() as job:
            alone = train(*made(), alone=True)
            for clip_norm in (None, float("inf")):
                options = {"where": "servers", "clip_norm": clip_norm}
                together = train(*ps.torch.distribute(*made(), **options), alone=False)
                for one, other in zip(together, alone, strict=True):
                    torch.testing.assert_close(one, other)
        """,
    )
