"""Fixtures that compile and run C and C++ programs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from programs import build, cc, cxx, flags, libs, mpirun, port, runner

__all__ = ["build", "cc", "cxx", "flags", "libs", "mpirun", "port", "runner"]
