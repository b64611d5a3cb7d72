"""
Which distribution installed this package: `penstock-ps`. The name `penstock` on the package index belongs to
another project, which installs into the same folder, so that each overwrites files of the other.

This module imports nothing of this package, since its other files may be the other project's.
"""

from __future__ import annotations

OURS = "penstock-ps"
OTHER = "penstock"
REMEDY = f"pip uninstall {OTHER} {OURS}, then pip install {OURS}"


def other() -> str | None:
    """What is wrong, if the other project is installed too."""
    # Loaded only here: it costs more than all the rest of this package's import.
    from importlib import metadata

    try:
        found = metadata.distribution(OTHER)
    except metadata.PackageNotFoundError:
        return None
    # A checkout of ours that was installed under the old name owns no file of the package.
    if not any(file.parts[:1] == ("penstock",) for file in found.files or ()):
        return None
    return (
        f"the distribution `{OTHER}` {found.version} is installed, which is another project; "
        f"its files and those of `{OURS}` are in the same folder and overwrite each other"
    )


def unmixed(package: object) -> str | None:
    """What is wrong with the imported package, if it is not ours."""
    if "PenstockError" in getattr(package, "__all__", ()):
        return None
    return other() or f"the package at {getattr(package, '__file__', None)} is not that of `{OURS}`"
