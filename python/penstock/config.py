"""
Where the C interface of this installation is, for building C and C++ programs with it.

`python -m penstock.config --cflags --libs` prints what a compiler needs, as `penstock config` does.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from penstock.exceptions import PenstockError

_PACKAGE = Path(__file__).resolve().parent


def include_dir() -> Path:
    """
    The folder that holds `penstock.h`.

    Raises
    ------
    PenstockError
        This installation has no C interface.

    Examples
    --------
    >>> include_dir().name
    'include'
    """
    return _holding(_PACKAGE / "include", "penstock.h")


def library_dir() -> Path:
    """
    The folder that holds `libpenstock.so`.

    Raises
    ------
    PenstockError
        This installation has no C interface.

    Examples
    --------
    >>> library_dir().name
    'lib'
    """
    return _holding(_PACKAGE / "lib", "libpenstock.so")


def pkgconfig_dir() -> Path:
    """
    The folder that holds `penstock.pc`, for PKG_CONFIG_PATH.

    Raises
    ------
    PenstockError
        This installation has no C interface.

    Examples
    --------
    >>> pkgconfig_dir().name
    'pkgconfig'
    """
    return _holding(_PACKAGE / "lib" / "pkgconfig", "penstock.pc")


def cmake_dir() -> Path:
    """
    The folder that holds `penstock-config.cmake`, for CMake's penstock_DIR.

    Raises
    ------
    PenstockError
        This installation has no C interface.

    Examples
    --------
    >>> cmake_dir().parent.name
    'cmake'
    """
    return _holding(_PACKAGE / "lib" / "cmake" / "penstock", "penstock-config.cmake")


def cflags() -> str:
    """
    What the compiler needs, quoted for a shell.

    Raises
    ------
    PenstockError
        This installation has no C interface.

    Examples
    --------
    >>> cflags().startswith("-I")
    True
    """
    return shlex.quote(f"-I{include_dir()}")


def libs() -> str:
    """
    What the linker needs, quoted for a shell. Programs find the library where it is now.

    Raises
    ------
    PenstockError
        This installation has no C interface.

    Examples
    --------
    >>> libs().endswith("-lpenstock")
    True
    """
    folder = library_dir()
    return shlex.join([f"-L{folder}", f"-Wl,-rpath,{folder}", "-lpenstock"])


def _holding(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise PenstockError(
            f"this installation has no C interface: {folder / name} does not exist",
            "in a checkout `make build` makes it; wheels include it; pkg-config finds the system's own",
        )
    return folder


if __name__ == "__main__":
    from penstock.cli.main import main

    sys.exit(main(["config", *sys.argv[1:]]))
