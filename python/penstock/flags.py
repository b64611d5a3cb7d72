"""Settings that are true or false."""

from __future__ import annotations

import numpy as np

from .exceptions import OptionError


def flag(what: str, value: object) -> bool:
    """`value` as a boolean; what only counts as one, such as the word "no", is refused."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise OptionError(f"expected {what} as True or False, got {value!r}")
