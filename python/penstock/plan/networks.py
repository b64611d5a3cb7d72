"""
The networks of PHub's table 3: model size, time of a batch on one GPU, and samples of a batch.

The paper's MB are powers of 1024: 548 of them are the 143,667,240 float32 parameters of VGG 19 (575 MB by
powers of 1000), and 97 are the 25.6 million of ResNet 50.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.exceptions import OptionError

MEBI = 1 << 20


@dataclass(frozen=True)
class Network:
    """A row of table 3."""

    name: str
    short: str
    mebibytes: int
    """Size of the model in float32, as MXNet reports it."""
    milliseconds: int
    """Forward and backward pass of a batch on a GTX 1080 Ti."""
    batch: int

    @property
    def nbytes(self) -> int:
        """Bytes of the model."""
        return self.mebibytes * MEBI

    @property
    def compute(self) -> float:
        """Seconds of a batch."""
        return self.milliseconds / 1000


TABLE_3 = (
    Network("AlexNet", "AN", 194, 16, 32),
    Network("VGG 11", "V11", 505, 121, 32),
    Network("VGG 19", "V19", 548, 268, 32),
    Network("GoogleNet", "GN", 38, 100, 32),
    Network("Inception V3", "I3", 91, 225, 32),
    Network("ResNet 18", "RN18", 45, 54, 32),
    Network("ResNet 50", "RN50", 97, 161, 32),
    Network("ResNet 269", "RN269", 390, 350, 16),
    Network("ResNext 269", "RX269", 390, 386, 8),
)


def find(name: str) -> Network:
    """
    The network of that name or abbreviation; case, spaces and dashes do not matter.

    Raises
    ------
    OptionError
        The paper has no such network.

    Examples
    --------
    >>> find("resnet-50").mebibytes
    97
    """
    known = {_plain(key): network for network in TABLE_3 for key in (network.name, network.short)}
    found = known.get(_plain(name))
    if found is not None:
        return found
    names = ", ".join(_plain(network.name) for network in TABLE_3)
    raise OptionError(
        f"there is no model {name!r} in the paper's table",
        hint=f"there are {names}; for any other give --parameters, --bytes or --torch, and --compute",
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())
