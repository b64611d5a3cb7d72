"""
The way between a GPU and the servers. On a host without one, its order of events is followed on stand-ins for
streams and events; the copies themselves need the real thing, and are skipped aloud.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps

torch = pytest.importorskip("torch")


class Recorder:
    """Stands for CUDA: notes what is asked of streams, events and page-locks, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        recorder = self

        class Stream:
            def __init__(self, *_: Any) -> None:
                pass

            def wait_stream(self, _: Any) -> None:
                recorder.log.append("side waits for backward")

        class Event:
            def record(self, _: Any) -> None:
                recorder.log.append("event")

            def synchronize(self) -> None:
                recorder.log.append("wait for the event")

        class Inside:
            def __init__(self, _: Any) -> None:
                pass

            def __enter__(self) -> None:
                recorder.log.append("on the side stream")

            def __exit__(self, *_: Any) -> None:
                pass

        class Runtime:
            def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
                recorder.log.append(f"lock {size}")
                return 0

            def cudaHostUnregister(self, address: int) -> int:
                recorder.log.append("unlock")
                return 0

        self.parts = {
            "Stream": Stream,
            "Event": Event,
            "stream": Inside,
            "current_stream": lambda _: Stream(),
            "cudart": Runtime,
        }


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    for name, part in recorder.parts.items():
        monkeypatch.setattr(torch.cuda, name, part)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: recorder.log.append("keep the gradient"))
    from penstock.torch import pinned

    monkeypatch.setattr(pinned, "_streams", {})
    return recorder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("check", [True, False])
def test_a_lane_is_announced_only_after_its_copy_is_through(
    job: ps.Job, recorder: Recorder, dtype: str, check: bool
) -> None:
    from penstock.torch.servers.cuda import CudaTransfer

    parameter = torch.arange(6, dtype=getattr(torch, dtype)).reshape(2, 3)
    tensor = job.tensor("w", parameter)
    transfer = CudaTransfer(parameter, tensor, check)
    transfer.send(torch.full((2, 3), 3, dtype=parameter.dtype))
    transfer.settle()
    # The thread that announces may be faster than the one that keeps the gradient.
    recorder.log.remove("keep the gradient")
    assert recorder.log == [
        f"lock {parameter.nbytes}",
        f"lock {parameter.nbytes}",
        "side waits for backward",
        "on the side stream",
        "event",
        "wait for the event",
    ]
    job.clock()
    transfer.receive(parameter, moves=True)
    np.testing.assert_array_equal(parameter.float().numpy(), np.arange(6).reshape(2, 3) + 3)
    recorder.log.clear()
    transfer.receive(parameter, moves=True)
    assert recorder.log[0] == "wait for the event", (
        "the mirror is not overwritten while it is still being copied"
    )
    del transfer
    assert recorder.log.count("unlock") == 2


def test_gradients_whose_step_waits_for_a_norm_go_to_the_mean(job: ps.Job, recorder: Recorder) -> None:
    from penstock.torch.servers.cuda import CudaTransfer

    parameter = torch.zeros(3)
    tensor, mean = job.tensor("w", parameter), job.tensor("mean", shape=3, optimizer=ps.optim.Replace())
    transfer = CudaTransfer(parameter, tensor, True, mean)
    transfer.send(torch.tensor([1.0, 2.0, 3.0]))
    transfer.settle()
    job.clock()
    np.testing.assert_array_equal(mean.pull(), [1, 2, 3])
    transfer.receive(parameter, moves=False)
    assert torch.equal(parameter, torch.zeros(3))


def test_what_left_and_what_came_are_known_by_copies_on_the_device(job: ps.Job, recorder: Recorder) -> None:
    from penstock.torch.servers.cuda import CudaTransfer

    parameter = torch.zeros(3)
    transfer = CudaTransfer(parameter, job.tensor("w", parameter), True)
    gradient = torch.tensor([1.0, torch.nan, 3.0])
    transfer.hold(gradient)
    assert transfer.holds(gradient)
    gradient[0] = 2.0
    assert not transfer.holds(gradient)
    transfer.send(gradient)
    assert transfer.holds(gradient)
    gradient.neg_()
    assert not transfer.holds(gradient)
    transfer.settle()
    job.clock()
    transfer.receive(parameter, moves=True)
    assert transfer.received(parameter)
    parameter[2] += 1
    assert not transfer.received(parameter)


def test_what_a_filter_sends_is_not_what_a_gradient_is_compared_with(job: ps.Job, recorder: Recorder) -> None:
    from penstock.torch.servers.cuda import CudaTransfer

    parameter = torch.zeros(3)
    tensor = job.tensor("w", parameter, filter=ps.Filters(push=ps.DVF(2.0, decay=None)))
    transfer = CudaTransfer(parameter, tensor, True)
    assert transfer.keeps_sent
    gradient = torch.tensor([1.0, 4.0, -1.0])
    for value, held in (([0, 4, 0], 2), ([0, 8, 0], 2), ([3, 12, -3], 0)):
        transfer.send(gradient)
        transfer.settle()
        assert transfer.holds(gradient)
        assert tensor.held_back.elements == held
        job.clock()
        transfer.receive(parameter, moves=True)
        assert parameter.tolist() == value


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: the copies were not run here")
@pytest.mark.parametrize("overlap", ["auto", False])
def test_a_model_on_a_gpu_ends_where_the_plain_one_ends(job: ps.Job, overlap: Any) -> None:
    def net() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)).cuda()

    def train(model: Any, optimizer: Any) -> Any:
        generator = torch.Generator().manual_seed(1)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(32, 64, generator=generator).cuda()).square().mean().backward()
            optimizer.step()
        return model

    plain, model = net(), net()
    train(plain, torch.optim.Adam(plain.parameters(), lr=0.01))
    train(
        *ps.torch.distribute(model, torch.optim.Adam(model.parameters(), lr=0.01), job=job, overlap=overlap)
    )
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
