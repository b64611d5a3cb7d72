"""The names of a model's tensors, where the servers step: they are never those of another model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")


def made(fill: float = 0.0) -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, fill)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_prefix_that_another_model_had_is_refused(job: ps.Job, is_kept: bool) -> None:
    """The second model silently got the first one's values, and its momentum."""
    first = ps.torch.distribute(*made(1.0), where="servers", prefix="trial")
    if not is_kept:
        del first
    model, optimizer = made(5.0)
    with pytest.raises(ps.exceptions.OptionError, match="`trial` was used before") as caught:
        ps.torch.distribute(model, optimizer, where="servers", prefix="trial")
    assert "another prefix" in str(caught.value.hint)
    ps.torch.distribute(model, optimizer, where="servers", prefix="trial 2")
    assert model.weight.tolist() == [[5.0, 5.0]]


def test_a_prefix_that_we_choose_is_free(job: ps.Job) -> None:
    for fill, prefix in (1.0, "model"), (2.0, None), (3.0, "model.2"), (4.0, None):
        model, _ = ps.torch.distribute(*made(fill), where="servers", prefix=prefix)
        assert model.weight.tolist() == [[fill, fill]]


def test_a_wrong_argument_does_not_take_the_prefix(job: ps.Job) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="clip_norm"):
        ps.torch.distribute(*made(), where="servers", prefix="trial", clip_norm=-1.0)
    ps.torch.distribute(*made(), where="servers", prefix="trial")


def test_an_interrupted_call_is_made_again_with_the_values_of_then(spawn_job: Any) -> None:
    """What the first call had declared kept its value, which the second call's model got."""
    spawn_job(
        2,
        """
        import torch, penstock as ps
        from penstock.torch import DistributedOptimizer

        with ps.init() as job:
            for prefix in ("mine", None):
                model = torch.nn.Linear(2, 1)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                pull = DistributedOptimizer._pull_all

                def interrupted(*_):
                    raise KeyboardInterrupt

                DistributedOptimizer._pull_all = interrupted
                try:
                    ps.torch.distribute(model, optimizer, where="servers", prefix=prefix)
                except KeyboardInterrupt:
                    DistributedOptimizer._pull_all = pull
                torch.nn.init.constant_(model.weight, 3.0 + job.rank)
                _, stepped = ps.torch.distribute(model, optimizer, where="servers", prefix=prefix)
                assert model.weight.tolist() == [[3.0, 3.0]], model.weight
                model(torch.ones(1, 2)).sum().backward()
                stepped.step()
                torch.testing.assert_close(model.weight.detach(), torch.full((1, 2), 2.9))
        """,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_call_that_the_others_had_not_begun_is_the_same_again(spawn_job: Any, rank: int) -> None:
    """It took the next prefix, and waited under that for workers that waited for it under the first."""
    spawn_job(
        2,
        f"""
        import torch, penstock as ps

        with ps.init(deadline=20) as job:
            for count in range(2):
                model = torch.nn.BatchNorm1d(2)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                if job.rank == {rank}:
                    try:
                        ps.torch.distribute(model, optimizer, where="servers", timeout=0.2)
                        raise AssertionError("the other one came")
                    except ps.exceptions.DeadlineExceeded:
                        pass
                job.barrier()
                torch.nn.init.constant_(model.weight, 3.0 + job.rank)
                _, stepped = ps.torch.distribute(model, optimizer, where="servers")
                assert model.weight.tolist() == [3.0, 3.0], model.weight
                assert stepped._prefix == ("model", "model.1")[count], stepped._prefix
        """,
    )


def test_a_tensor_that_something_else_declared_is_not_the_models(job: ps.Job) -> None:
    """The model silently started from its value, and its momentum."""
    job.tensor("model/weight", [[6.9, 6.9]], optimizer=ps.SGD(0.1, momentum=0.9))
    model, optimizer = made(1.0)
    for _ in range(2):
        with pytest.raises(ps.exceptions.OptionError, match="`model/weight` was declared before"):
            ps.torch.distribute(model, optimizer, where="servers", prefix="model")
    np.testing.assert_array_equal(
        job.tensor("model/weight", optimizer=ps.SGD(0.1, momentum=0.9), shape=(1, 2)).pull(),
        np.full((1, 2), np.float32(6.9)),
    )
    named = torch.nn.ParameterDict({"b/w": torch.nn.Parameter(torch.ones(2))})
    ps.torch.distribute(named, torch.optim.SGD(named.parameters(), 0.1), where="servers", prefix="a")
    other = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(2))})
    with pytest.raises(ps.exceptions.OptionError, match="`a/b/w` was declared before"):
        ps.torch.distribute(other, torch.optim.SGD(other.parameters(), 0.1), where="servers", prefix="a/b")


@pytest.mark.parametrize("overlap", ["auto", 1])
@pytest.mark.parametrize("place", ["_broadcast_rest", "_hook_parts"])
@pytest.mark.parametrize("then", ["servers", "gradients", "alone"])
def test_a_call_that_failed_has_no_part_in_what_the_script_does_next(
    job: ps.Job, monkeypatch: pytest.MonkeyPatch, overlap: Any, place: str, then: str
) -> None:
    """Its hooks stayed on the parameters: they refused the steps of the next call, or of torch alone."""
    from penstock.torch import DistributedOptimizer

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    def trained(model: Any, optimizer: Any) -> Any:
        for number in range(20):
            optimizer.zero_grad()
            model(torch.full((1, 2), float(number % 3))).square().sum().backward()
            optimizer.step()
        return model.weight.detach()

    model, optimizer = made(1.0)
    with monkeypatch.context() as patched:
        patched.setattr(DistributedOptimizer, place, fails)
        with pytest.raises(KeyboardInterrupt):
            ps.torch.distribute(model, optimizer, where="servers", overlap=overlap)
    expected, alone = made(1.0)
    expected.load_state_dict(model.state_dict())
    if then == "servers":
        _, optimizer = ps.torch.distribute(model, optimizer, where="servers", overlap=overlap)
    elif then == "gradients":
        _, optimizer = ps.torch.distribute(model, optimizer, where="gradients")
    torch.testing.assert_close(trained(model, optimizer), trained(expected, alone))
