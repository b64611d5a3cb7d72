"""The networks whose parameters are exchanged: their published size, and the buckets they fill."""

import math

import pytest

from penstock_bench.network import exchange, layers

TENSORS = {"alexnet": 16, "resnet18": 62, "resnet50": 161, "vgg19": 38}
"""Parameter tensors of torchvision's models: weights and biases, those of batch normalization too."""


@pytest.mark.parametrize(("model", "parameters"), layers.PUBLISHED.items())
def test_a_network_has_as_many_parameters_as_is_published(model: str, parameters: int) -> None:
    shapes = layers.shapes(model)
    assert sum(map(math.prod, shapes)) == parameters
    assert len(shapes) == TENSORS[model]
    assert shapes[-2:] == [(1000, shapes[-2][1]), (1000,)], "a thousand classes, weight and bias last"


@pytest.mark.parametrize("model", layers.PUBLISHED)
def test_buckets_hold_every_layer_once_and_no_more_than_they_may(model: str) -> None:
    sizes = [4 * math.prod(shape) for shape in layers.shapes(model)]
    buckets = exchange.buckets(sizes)
    assert sum(buckets) == sum(sizes)
    assert all(bucket <= exchange.BUCKET or bucket in sizes for bucket in buckets)
    # Two neighbours that fit into one bucket would have been one.
    backward = iter(reversed(sizes))
    for bucket in buckets:
        filled = 0
        while filled < bucket:
            filled += next(backward)
        assert filled == bucket, "a layer is not cut"


def test_layers_come_from_the_environment_and_else_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(exchange.LAYERS, raising=False)
    assert exchange.layers_of(400) == [400]
    monkeypatch.setenv(exchange.LAYERS, "[4, 8, 388]")
    assert exchange.layers_of(400) == [4, 8, 388]
