"""
What a demo run is made of: settings that its processes share, and each optimizer's settings that suit the
task.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """
    An optimizer: its class and its settings, which have the same names in `penstock.optim` and `torch.optim`.
    """

    name: str
    settings: dict[str, Any]


RULES: dict[str, Rule] = {
    "sgd": Rule("SGD", {"lr": 0.2}),
    "momentum": Rule("SGD", {"lr": 0.05, "momentum": 0.9}),
    "nesterov": Rule("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adagrad": Rule("Adagrad", {"lr": 0.03}),
    "rmsprop": Rule("RMSprop", {"lr": 0.001}),
    "adam": Rule("Adam", {"lr": 0.002}),
    "adamw": Rule("AdamW", {"lr": 0.002, "weight_decay": 0.01}),
}


@dataclass(frozen=True)
class Settings:
    """Settings of one demo run."""

    workers: int
    epochs: int
    batch: int
    """Samples of one worker in one step."""
    seed: int
    optimizer: str
    torch: bool

    @property
    def rule(self) -> Rule:
        """The optimizer."""
        return RULES[self.optimizer]

    def to_bytes(self) -> bytes:
        """For `from_bytes` in another process."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Settings:
        """What `to_bytes` wrote."""
        return cls(**json.loads(data))
