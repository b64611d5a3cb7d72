"""What workers that differ are told of rank 0's list, whatever stands in it."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from typing import Any

import numpy as np
import pytest

from penstock.exceptions import DeclarationConflict, GatherConflict

pytest.importorskip("torch")

# The package has the function by this name.
broadcast = importlib.import_module("penstock.torch.broadcast")


class Worker:
    """Worker 1 of a job."""

    rank, size = 1, 2


def told(monkeypatch: pytest.MonkeyPatch, mine: list[str], packed: bytes, digest: bytes = bytes(32)) -> None:
    """Compares a list with that of rank 0, which gave these bytes."""
    page = np.zeros(broadcast.LIST_BYTES, np.uint8)
    page[: 32 + len(packed)] = np.frombuffer(digest + packed, np.uint8)

    class Channel:
        def load(self, **_: Any) -> None:
            pass

        def pull(self, **_: Any) -> Any:
            return page.view(np.float32)

    monkeypatch.setattr(broadcast, "_channel", lambda *_: Channel())
    broadcast._agree(Worker(), "model/start/list", mine, None)


# An escape sequence cleared the terminal, and what looks like a line's end made lines of its own.
def test_the_others_words_are_shown_as_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = "a: float32 (2,)\nb\x1b[2J\u2028Traceback (most recent call last):\r" + "x" * 10000
    with pytest.raises(DeclarationConflict) as caught:
        told(monkeypatch, ["a: float32 (2,)", "b: float32 (3,)"], zlib.compress(theirs.encode()))
    said = str(caught.value).split("\nhint")[0]
    assert "worker 1 has b: float32 (3,), worker 0 has b\ufffd[2J\ufffdTraceback" in said
    assert said.isprintable()
    assert len(said) < 3000


@pytest.mark.parametrize(
    "packed",
    [b"no list", zlib.compress(b"\xff"), zlib.compress(bytes(64 << 20), 9)[:16000], zlib.compress(b"a")],
)
def test_what_is_no_list_cannot_be_read(monkeypatch: pytest.MonkeyPatch, packed: bytes) -> None:
    with pytest.raises(GatherConflict, match="what worker 0 gave to a gather cannot be read"):
        told(monkeypatch, ["a"], packed)


def test_a_list_without_anything_differs_and_the_same_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeclarationConflict, match="worker 1 has other tensors than worker 0: 1 of them"):
        told(monkeypatch, ["a: float32 (2,)"], zlib.compress(b""))
    told(monkeypatch, ["a"], b"", hashlib.sha256(b"a").digest())
