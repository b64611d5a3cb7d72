"""The command line: one command a file, imported only when it is called."""

import sys

import penstock
from penstock.distribution import REMEDY, unmixed

if (_wrong := unmixed(penstock)) is not None:
    sys.stderr.write(f"error: {_wrong}\n\nhint: {REMEDY}\n")
    raise SystemExit(1)

from penstock.cli.main import main

__all__ = ["main"]
