"""
What is trained: a network, a batch that differs by rank, and a loss. Written out, so that nothing but torch
is needed; small enough that four workers on two cores take some tens of steps in a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.units import format_size

CLASSES = 1000
WORDS = 8192


@dataclass(frozen=True)
class Task:
    """A network and its batches."""

    what: str
    """In words, with batch and sizes."""
    network: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]


def task_of(name: str) -> Task:
    """The task of this name: one of `MODELS`, or `tensors:64` and the like, of `OVERHEADS`."""
    sweep, _, amount = name.partition(":")
    return _SWEEPS[sweep](int(amount)) if amount else _TASKS[name]


class Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, of: int, to: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(of, to, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(to)
        self.second = nn.Conv2d(to, to, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(to)
        self.past = (
            nn.Sequential(nn.Conv2d(of, to, 1, stride, bias=False), nn.BatchNorm2d(to))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.first_norm(self.first(x)))
        h = self.second_norm(self.second(h))
        return functional.relu(h + self.past(x))


class ResNet18(nn.Module):
    """He et al. 2016, table 1, as torchvision has it: 11,689,512 parameters in 62 tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = (64, 64, 128, 256, 512)
        blocks = []
        for stage in range(4):
            of, to = widths[stage], widths[stage + 1]
            blocks += [Block(of, to, 1 if stage == 0 else 2), Block(to, to, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return answer


class Layer(nn.Module):
    """Attention to what came before, then a network of two layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.told = nn.Linear(width, width)
        self.thought = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.asked(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.told(seen.transpose(1, 2).reshape(batch, length, width))
        answer: Tensor = x + self.thought(self.norm_after(x))
        return answer


class Transformer(nn.Module):
    """A language model of GPT-2's kind: 10.5 million parameters in 101 tensors."""

    def __init__(self, width: int = 256, layers: int = 8, heads: int = 8, length: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.norm(self.layers(self.words(x) + self.places[: x.shape[1]])))
        return answer.flatten(0, 1)


class Small(nn.Module):
    """452 matrices of 32x32, one after the other: what costs is the number of tensors."""

    def __init__(self, count: int = 452, width: int = 32) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(width, width) / width for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for matrix in self.matrices:
            # Past each matrix too: through 452 of them alone, gradients would become denormal numbers.
            x = x + 0.1 * torch.tanh(x @ matrix)
        return x


class Large(nn.Module):
    """Four matrices of as many bytes together: what costs is the bytes."""

    def __init__(self, nbytes: int, width: int = 512) -> None:
        super().__init__()
        rows = nbytes // (4 * 4 * width)
        self.matrices = nn.ParameterList(torch.randn(rows, width) / rows for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x @ matrix for matrix in self.matrices]).sum(0)


def _images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, 64, 64, generator=generator), torch.randint(CLASSES, (8,), generator=generator)


def _sentences(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (4, 65), generator=generator)
    return words[:, :-1], words[:, 1:].flatten()


def _vectors(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(8, 32, generator=generator), torch.randn(8, 32, generator=generator)


def _tensors(count: int) -> Task:
    what = f"{count} tensors of 32x32, batch 8 a worker"
    return Task(what, lambda: Small(count), _vectors, functional.mse_loss)


def _bytes(nbytes: int) -> Task:
    def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = nbytes // (4 * 4 * 512)
        return torch.randn(2, rows, generator=generator), torch.randn(2, 512, generator=generator)

    what = f"4 tensors of {format_size(nbytes // 4)}, batch 2 a worker"
    return Task(what, lambda: Large(nbytes), batch, functional.mse_loss)


_SWEEPS = {"tensors": _tensors, "bytes": _bytes}

_TASKS = {
    "resnet18": Task("ResNet-18, batch 8 of 64x64 a worker", ResNet18, _images, functional.cross_entropy),
    "transformer": Task(
        "transformer of 10.5 M parameters, batch 4 of 64 words a worker",
        Transformer,
        _sentences,
        functional.cross_entropy,
    ),
    "small": Task("452 tensors of 32x32, batch 8 a worker", Small, _vectors, functional.mse_loss),
}
