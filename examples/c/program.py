"""
Runs a program in place of this process: `penstock run` starts Python scripts, and by this one C programs.

    penstock run --workers 2 examples/c/program.py ./tensor
"""

import os
import sys

if __name__ == "__main__":
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606
