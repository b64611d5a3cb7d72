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
