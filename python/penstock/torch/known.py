"""
Parameters and modules that are known, and not kept: what averages them hangs on hooks of theirs, beneath
which Python's collector does not see, so it must not hold them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch


class Known:
    """A set of parameters, by which object they are. Who is gone is in it no more."""

    def __init__(self, parameters: Iterable[torch.Tensor] = ()) -> None:
        self._by_id: dict[int, weakref.ref[torch.Tensor]] = {}
        for parameter in parameters:
            self.add(parameter)

    def add(self, parameter: torch.Tensor) -> None:
        """Takes it in."""
        by_id, number = self._by_id, id(parameter)
        # Another object may get its number.
        by_id[number] = weakref.ref(parameter, lambda _: by_id.pop(number, None))

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._by_id

    def __iter__(self) -> Iterator[torch.Tensor]:
        for held in list(self._by_id.values()):
            if (parameter := held()) is not None:
                yield parameter


class Parts:
    """
    What there is of a model. The script may drop it, such as a list that only `distribute` was given, and
    keep its parts: what is added to these still counts as the model's.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # Each before those inside it.
        self._modules = [(name, weakref.ref(module)) for name, module in model.named_modules()]

    def parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """All that it has now, by their names in it: of the outermost modules that there are."""
        within = None
        for name, held in self._modules:
            if within is not None and name.startswith(within):
                continue
            module = held()
            if module is not None:
                within = f"{name}." if name else ""
                yield from module.named_parameters(prefix=name)
