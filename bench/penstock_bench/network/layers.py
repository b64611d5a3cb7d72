"""
The parameters of networks that everyone knows, as torchvision defines them: shapes in forward order.

Written down as the rules that make them; the totals are the published counts, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

Shape = tuple[int, ...]

PUBLISHED = {"alexnet": 61_100_840, "resnet18": 11_689_512, "resnet50": 25_557_032, "vgg19": 143_667_240}
"""Parameters of each network, as torchvision's documentation counts them."""

_CLASSES = 1000


def shapes(model: str) -> list[Shape]:
    """
    The shape of each parameter.

    Parameters
    ----------
    model
        alexnet, resnet18, resnet50 or vgg19.

    Examples
    --------
    >>> shapes("resnet18")[0]
    (64, 3, 7, 7)
    """
    makers = {
        "alexnet": _alexnet,
        "resnet18": lambda: _resnet((2, 2, 2, 2), bottleneck=False),
        "resnet50": lambda: _resnet((3, 4, 6, 3), bottleneck=True),
        "vgg19": _vgg19,
    }
    return list(makers[model]())


def _convolution(to: int, of: int, size: int) -> Iterator[Shape]:
    yield (to, of, size, size)


def _with_bias(*shape: int) -> Iterator[Shape]:
    yield shape
    yield (shape[0],)


def _normalization(width: int) -> Iterator[Shape]:
    yield (width,)
    yield (width,)


def _alexnet() -> Iterator[Shape]:
    for to, of, size in ((64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3)):
        yield from _with_bias(to, of, size, size)
    for of, to in pairwise((256 * 6 * 6, 4096, 4096, _CLASSES)):
        yield from _with_bias(to, of)


def _vgg19() -> Iterator[Shape]:
    of = 3
    for width, times in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(times):
            yield from _with_bias(width, of, 3, 3)
            of = width
    for of, to in pairwise((512 * 7 * 7, 4096, 4096, _CLASSES)):
        yield from _with_bias(to, of)


def _resnet(blocks: tuple[int, ...], *, bottleneck: bool) -> Iterator[Shape]:
    yield from _convolution(64, 3, 7)
    yield from _normalization(64)
    growth = 4 if bottleneck else 1
    of = 64
    for stage, times in enumerate(blocks):
        width = 64 << stage
        for block in range(times):
            sizes = ((width, of, 1), (width, width, 3), (width * growth, width, 1))
            for to, source, size in sizes if bottleneck else ((width, of, 3), (width, width, 3)):
                yield from _convolution(to, source, size)
                yield from _normalization(to)
            if block == 0 and (stage > 0 or bottleneck):
                yield from _convolution(width * growth, of, 1)
                yield from _normalization(width * growth)
            of = width * growth
    yield from _with_bias(_CLASSES, of)
