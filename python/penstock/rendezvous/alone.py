"""
A script that was started without a launcher trains alone, which is what few mean: one line says so.
"""

from __future__ import annotations

import os
import sys

from penstock.rendezvous import hints

_said = False


def say() -> None:
    """
    Says once, on standard error, that this process trains alone, and how to start more.

    Not in a session, a notebook or a test, which are alone by nature, and not with PENSTOCK_HINTS=off.
    """
    global _said
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    if _said or script is None or hasattr(sys, "ps1") or sys.flags.interactive or "pytest" in sys.modules:
        return
    if not hints.are_wanted():
        return
    _said = True
    spec = getattr(main, "__spec__", None)
    name = os.path.basename(script)  # noqa: PTH119 (pathlib would be loaded for this alone)
    if spec is not None:
        name = f"-m {spec.name.removesuffix('.__main__')}"
    if sys.stderr is not None:
        sys.stderr.write(f"penstock: 1 worker; to start more: penstock run --workers N {name}\n")
