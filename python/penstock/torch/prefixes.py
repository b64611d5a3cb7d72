"""
The prefixes of models' tensors, and those of calls of `distribute` that have not returned.

A call that raised is made again, as other workers may be in it still: then it has its prefix again, if all is
as it was. If anything differs, its tensors cannot be declared so, and it is another call.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch

from ..exceptions import DeadlineExceeded, OptionError
from ..job import Job

FIRST = "model"
"""That of the first model without one."""


class _Begun(NamedTuple):
    """A call that has not returned."""

    model: weakref.ref[torch.nn.Module]
    kind: str | None
    """The same for two calls that declare the same tensors; None before any was declared."""


class Prefixes:
    """Those of one job."""

    def __init__(self) -> None:
        self._begun: dict[str, _Begun] = {}
        self._used: set[str] = set()
        self._number = 0
        """Of the models without a prefix: all below are taken."""

    def choose(self, model: torch.nn.Module, kind: str) -> str:
        """For a model without one: that of the same call, if it has failed before; else the next free one."""
        for prefix, begun in self._begun.items():
            if begun.model() is model and begun.kind in (None, kind) and prefix not in self._used:
                return prefix
        while (prefix := _numbered(self._number)) in self._used or prefix in self._begun:
            self._number += 1
        return prefix

    def begin(self, prefix: str, model: torch.nn.Module, kind: str | None) -> bool:
        """
        Notes that a call begins; with a `kind`, it is about to declare tensors. Returns whether one for this
        model has failed before. Raises OptionError if the prefix is that of another.
        """
        before = self._begun.get(prefix)
        if prefix in self._used or (before is not None and before.model() is not model):
            raise OptionError(
                f"prefix `{prefix}` was used before in this job: its tensors have the values and the "
                "optimizer state of that model",
                "pass another prefix, or none: then each model has its own",
            )
        # What was declared stays declared, however early this call fails.
        self._begun[prefix] = _Begun(weakref.ref(model), kind or (before and before.kind))
        return before is not None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within a wait for the other workers' calls: why they may not come, if a call failed before."""
        has_failed = bool(self._begun)
        try:
            yield
        except DeadlineExceeded as error:
            if has_failed:
                error.add_note(
                    "hint: a call of `distribute` has raised before, so workers may have chosen different "
                    "prefixes: give this one the same new `prefix=` on every worker"
                )
            raise

    def end(self, prefix: str) -> None:
        """Notes that the call has returned."""
        self._used.add(prefix)
        self._begun.pop(prefix, None)


_prefixes: weakref.WeakKeyDictionary[Job, Prefixes] = weakref.WeakKeyDictionary()


def prefixes_of(job: Job) -> Prefixes:
    """The job's own."""
    return _prefixes.setdefault(job, Prefixes())


def _numbered(number: int) -> str:
    """The prefix of a model without one."""
    return f"{FIRST}.{number}" if number else FIRST
