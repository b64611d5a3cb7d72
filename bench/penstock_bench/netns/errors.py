"""What can go wrong with a testbed."""

from __future__ import annotations

from penstock.exceptions import PenstockError


class NetworkTestbedError(PenstockError, RuntimeError):
    """Test hosts cannot be had here, or a command that makes or changes them failed."""
