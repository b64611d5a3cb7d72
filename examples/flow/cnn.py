"""
A convolutional network in PyTorch: a small one, or AlexNet with its 61 million parameters.

    penstock run --workers 2 examples/flow/cnn.py --steps 100

prints, from worker 0, a held-out accuracy that rises above 0.9, from the 0.1 of a guess.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from common import (
    Array,
    BadInputError,
    Record,
    Split,
    agreed,
    batches,
    number,
    options,
    parse,
    parser,
    run,
    whole,
)
from torch import nn

import penstock as ps

PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
PIXELS = {"small": 32, "alexnet": 224}
"""Height and width of the images that each network is made for."""
LEAST = {"small": 8, "alexnet": 63}
"""Below this nothing is left behind the last pooling."""


class Images(Protocol):
    """Labelled images."""

    classes: int

    def __len__(self) -> int: ...

    def take(self, which: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Some of them, as a batch of RGB around 0, and their classes."""


# -- the model


def network(size: str, classes: int) -> nn.Module:
    """AlexNet with one tower (Krizhevsky 2014), or a small network with the same kinds of layers."""
    if size == "small":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, classes),
    )


def judge(model: nn.Module, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Mean cross entropy and accuracy over batches."""
    loss = right = count = 0.0
    model.eval()
    with torch.no_grad():
        for x, y in kept:
            scores = model(x)
            loss += float(nn.functional.cross_entropy(scores, y, reduction="sum"))
            right += float((scores.argmax(1) == y).sum())
            count += len(y)
    model.train()
    return {"objective": loss / count, "accuracy": right / count}


class Flat:
    """
    A model whose parameters are one tensor of the job, which the servers step.

    Beside `ps.torch.distribute` this is for what a tensor of `job.tensor` can do and a model's cannot: values
    that are broadcast, and filters of both directions.
    """

    def __init__(self, job: ps.Job, model: nn.Module, rule: ps.SGD, **chosen: Any) -> None:
        self._parameters = list(model.parameters())
        value = nn.utils.parameters_to_vector(self._parameters).detach().cpu().numpy()
        self._tensor = job.tensor("model", value, optimizer=rule, **chosen)

    def read(self, *, flush: bool = False) -> None:
        """Has the model see what the servers have; with `flush`, all that anyone has pushed."""
        if flush:
            self._tensor.flush()
        value = self._tensor.pull(slack=0 if flush else None)
        # Copied: the view changes with the next push, the model must not.
        nn.utils.vector_to_parameters(torch.tensor(value).to(self._parameters[0].device), self._parameters)

    def step(self) -> None:
        """Pushes the gradients."""
        lane = torch.from_numpy(self._tensor.lane())
        places = lane.split([parameter.numel() for parameter in self._parameters])
        for place, parameter in zip(places, self._parameters, strict=True):
            assert parameter.grad is not None, "every parameter is in the loss"
            # From whichever device it is on, which `cat` into the lane could not.
            place.copy_(parameter.grad.flatten())
        self._tensor.push()


# -- images


class Folder:
    """Image files, in a folder for each class. They are decoded when they are asked for."""

    def __init__(self, path: Path, pixels: int) -> None:
        try:
            import PIL.Image as Image
        except ImportError:
            raise BadInputError("expected PIL, which decodes images", "pip install pillow") from None
        if not path.is_dir():
            raise BadInputError(f"{path}: expected a folder with a folder of images for each class")
        self._opened: Any = Image
        self._pixels = pixels
        names = sorted(one.name for one in path.iterdir() if one.is_dir())
        self._files = [
            (file, label)
            for label, name in enumerate(names)
            for file in sorted((path / name).rglob("*"))
            if file.suffix.lower() in PICTURES
        ]
        if not self._files:
            raise BadInputError(f"{path}: expected images in a folder for each class, there are none")
        self.classes = len(names)
        if self.classes < 2:
            raise BadInputError(f"{path}: expected a folder for each class, there is only `{names[0]}`")

    def __len__(self) -> int:
        return len(self._files)

    def take(self, which: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """The middle of each image, scaled."""
        chosen = [self._files[index] for index in which]
        pixels = np.stack([self._decoded(file) for file, _ in chosen])
        # To a deviation of about 1.
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().sub_(127.5).div_(64.0)
        return x, torch.tensor([label for _, label in chosen])

    def _decoded(self, file: Path) -> Array:
        try:
            with self._opened.open(file) as image:
                image = image.convert("RGB")
        except (OSError, SyntaxError, ValueError, self._opened.DecompressionBombError) as error:
            raise BadInputError(f"{file}: cannot be decoded: {error}") from error
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        return np.asarray(image.resize((self._pixels, self._pixels), box=box, reducing_gap=2.0))


class Generated:
    """
    Images from a seed, made when they are asked for. Each class has a coarse pattern, which each of its
    images shows a little shifted and more or less bright, under a coarse pattern of the image's own, and
    noise.
    """

    def __init__(self, count: int, classes: int, pixels: int, noise: float, seed: int) -> None:
        self.classes = classes
        self._count, self._pixels, self._noise, self._seed = count, pixels, noise, seed
        chance = np.random.default_rng((seed, 0))
        self._patterns = chance.standard_normal((classes, 3, 4, 4), dtype=np.float32)

    def __len__(self) -> int:
        return self._count

    def take(self, which: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Image i is the same in every batch, and on every worker."""
        pixels = self._pixels
        images = np.empty((len(which), 3, pixels, pixels), np.float32)
        labels = np.empty(len(which), np.int64)
        # Which of the pattern's four cells a pixel is in.
        cell = np.arange(pixels) * 4 // pixels
        for at, index in enumerate(which):
            chance = np.random.default_rng((self._seed, 2, int(index)))
            labels[at] = chance.integers(self.classes)
            down, right = chance.integers(-(pixels // 16), pixels // 16 + 1, size=2)
            rows, columns = np.roll(cell, down), np.roll(cell, right)
            pattern = chance.uniform(0.5, 1.5) * self._patterns[labels[at]]
            pattern += chance.standard_normal(pattern.shape, dtype=np.float32)
            images[at] = pattern[:, rows[:, None], columns]
            images[at] += self._noise * chance.standard_normal(images[at].shape, dtype=np.float32)
        return torch.from_numpy(images), torch.from_numpy(labels)


# -- the training


def load(given: argparse.Namespace, split: Split) -> tuple[Images, Array, list[Any]]:
    """The images, which of them this worker trains on, and the batches that are kept for the objective."""
    pixels = given.pixels or PIXELS[given.size]
    if pixels < LEAST[given.size]:
        raise BadInputError(
            f"expected --pixels of {LEAST[given.size]} or more with --size {given.size}, got {pixels}"
        )
    images: Images
    if given.data is not None:
        images = Folder(given.data, pixels)
    else:
        classes = given.classes or (10 if given.size == "small" else 1000)
        images = Generated(given.examples, classes, pixels, given.noise, given.seed)
    mine, kept = split.mine(len(images)), split.kept(len(images))
    split.check(len(mine), len(kept), "images")
    parts = [kept[first : first + given.batch] for first in range(0, len(kept), given.batch)]
    return images, mine, [images.take(part) for part in parts]


def device_of(name: str) -> torch.device:
    """Where this worker computes: the workers of a host share its GPUs in turn."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BadInputError("expected a GPU for --device cuda, torch finds none")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def train(job: ps.Job, given: argparse.Namespace) -> None:
    """One worker's part."""
    split = Split(job.rank, job.size, given.held_out)
    images, mine, kept = agreed(job, lambda: load(given, split))
    device = agreed(job, lambda: device_of(given.device))
    kept = [(x.to(device), y.to(device)) for x, y in kept]
    torch.manual_seed(given.seed)
    model = network(given.size, images.classes).to(device)
    settings = {"momentum": given.momentum, "weight_decay": given.weight_decay}
    flat: Flat | None = None
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), given.lr, **settings)
    if given.flat:
        flat = Flat(job, model, ps.SGD(given.lr, **settings), **options(given))
    else:
        # Filters and broadcasts are the servers' who step; without one, the consistency says who does.
        travels = (given.push, given.broadcast, given.propagation)
        where = None if travels == (None, None, None) else "servers"
        model, optimizer = ps.torch.distribute(model, optimizer, job=job, where=where, **options(given))
    # From here on each worker's own: what dropout leaves out.
    torch.manual_seed(given.seed + 1 + job.rank)
    record = Record(job, given, f"{given.size} convolutional network", "held-out loss")
    chosen = batches(len(mine), given.batch, given.seed, job.rank)
    for step in range(given.steps):
        if flat is not None:
            flat.read()
        if record.is_due(step):
            record.note(step, lambda: judged(optimizer, model, kept))
        with record.computing():
            x, y = images.take(mine[next(chosen)])
            optimizer.zero_grad()
            scores = model(x.to(device))
            nn.functional.cross_entropy(scores, y.to(device)).backward()
        if flat is not None:
            flat.step()
            job.clock()
        else:
            optimizer.step()
    if flat is not None:
        flat.read()
    record.note(given.steps, lambda: judged(optimizer, model, kept))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    record.finish(parameters=parameters, trained_on=len(mine), kept=sum(len(y) for _, y in kept))
    if given.save is not None:
        if flat is not None:
            flat.read(flush=True)
        elif isinstance(optimizer, ps.torch.DistributedOptimizer):
            optimizer.flush()
        if job.rank == 0:
            torch.save(model.state_dict(), given.save)


def judged(optimizer: torch.optim.Optimizer, model: nn.Module, kept: list[Any]) -> Any:
    """As `judge`, of what the servers have, where they may have sent less."""
    if not isinstance(optimizer, ps.torch.DistributedOptimizer):
        return judge(model, kept)
    with optimizer.exact():
        return judge(model, kept)


def arguments() -> argparse.Namespace:
    """The command line."""
    made = parser(__doc__, steps=100, batch=32, lr=0.02, momentum=0.9)
    add = made.add_argument_group("data").add_argument
    add("--data", type=Path, metavar="FOLDER", help="a folder for each class (default: generated images)")
    add("--examples", type=whole(1), default=2000, help="images to generate (default 2000)")
    add("--classes", type=whole(2), help="classes to generate (default 10; with alexnet 1000)")
    add("--noise", type=number, default=2.0, help="deviation of the generated noise (default 2)")
    add("--pixels", type=whole(1), help="height and width of an image (default 32; with alexnet 224)")
    add = made.add_argument_group("model").add_argument
    add("--size", choices=("small", "alexnet"), default="small", help="of the network (default small)")
    add("--weight-decay", type=number, default=5e-4, help="regularisation (default 0.0005)")
    add("--flat", action="store_true", help="all parameters as one tensor, filtered together")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default cpu)")
    return parse(made)


if __name__ == "__main__":
    settings = arguments()
    sys.exit(run(lambda job: train(job, settings)))
