"""The command line: one command a file, imported only when it is called."""

from penstock.cli.main import main

__all__ = ["main"]
