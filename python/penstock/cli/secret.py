"""`penstock secret`: a new secret for a job."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from penstock.cli import terminal

EXAMPLES = """\
  export PENSTOCK_SECRET=$(penstock secret)
  srun python train.py"""


def main(arguments: Sequence[str]) -> int:
    """Runs the command."""
    terminal.Parser(
        "penstock secret",
        "Prints a new secret for a job: 32 random bytes as 64 hex digits. All processes of the job are given "
        "it "
        "in PENSTOCK_SECRET, by their environment, never by their command line.",
        EXAMPLES,
    ).parse_args(arguments)
    terminal.say(secrets.token_hex(32))
    return 0
