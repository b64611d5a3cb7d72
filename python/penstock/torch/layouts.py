"""Gradients that are dense, or name rows: those of layers with `sparse=True`, of layout COO."""

from __future__ import annotations

import torch

from ..exceptions import DtypeError

TAKEN = (torch.strided, torch.sparse_coo)
"""Layouts that gradients may have."""


def refusal(gradient: torch.Tensor, name: str) -> DtypeError | None:
    """Why the gradient of the parameter of that name is not taken; None if it is, by its layout."""
    if gradient.layout in TAKEN:
        return None
    return DtypeError(
        f"the gradient of `{name}` has layout {gradient.layout}, expected a dense one or torch.sparse_coo",
        "build the layer with sparse=False, or call `to_sparse_coo()` in a hook of the parameter",
    )


def is_any(gradient: torch.Tensor) -> bool:
    """Whether an element of it is not 0."""
    held = gradient.detach()
    return bool((held if held.layout is torch.strided else held.coalesce().values()).any())
