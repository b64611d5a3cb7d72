"""What can go wrong with a laboratory."""

from __future__ import annotations

from penstock.exceptions import PenstockError


class LaboratoryError(PenstockError, RuntimeError):
    """Test hosts cannot be had here, or a command that makes or changes them failed."""
