"""
What is the same of parameters on the servers, whichever framework has them: `ps.torch.distribute` and
`ps.jax.distribute`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .exceptions import OptionError
from .filters import Filters, OwnFilter, meant, spelled
from .tensor import Tensor, described


def filters_of(given: Filters | Literal["auto"] | None, *, replaces: bool = False) -> Filters | None:
    """
    What `filter` means for parameters, None if all is sent. Raises OptionError if it is none that they may
    have. `replaces`: the servers' rule is `ps.Replace`.
    """
    chosen = meant(given, replaces=replaces)
    spelled(chosen)
    if chosen is not None and isinstance(chosen.push, OwnFilter):
        raise OptionError(
            f"expected a filter that Penstock has, got {chosen.push!r}: gradients of parameters go to the "
            "servers without the program's code, and small ones may share one array",
            "a tensor of job.tensor may have it; for parameters there are ps.DVF, ps.TopK, ps.RandomK and "
            "ps.Quantize",
        )
    return None if chosen == Filters() else chosen


def propagation_of(tensors: Iterable[Tensor], asked: str) -> tuple[str, str]:
    """
    Who moves the values of these, which were declared alike: in a word, and with the reason where "auto" has
    chosen. Of none of them: what was `asked`, of which "auto" is no answer.
    """
    for tensor in tensors:
        return tensor.propagation, described(tensor._core)
    if asked == "auto":
        return "pull", "'pull' (\"auto\": there is nothing to be broadcast)"
    return asked, repr(asked)
