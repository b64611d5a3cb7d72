"""penstock.h compiles everywhere by itself, and says what the library has."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from programs import ROOT, WARNINGS

from penstock import config

STANDARDS = [("c", "c99"), ("c", "c11"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++17"), ("c++", "c++20")]


@pytest.mark.parametrize(("language", "standard"), STANDARDS)
def test_the_header_compiles_by_itself(
    language: str, standard: str, tmp_path: Path, cc: str, cxx: str, flags: list[str]
) -> None:
    source = tmp_path / f"only.{'c' if language == 'c' else 'cc'}"
    # Twice, and then something that uses it: an empty translation unit is not C.
    source.write_text(
        "#include <penstock.h>\n#include <penstock.h>\n"
        "penstock_status f(void);\npenstock_status f(void) { return penstock_finish(0); }\n"
    )
    compiler = cc if language == "c" else cxx
    strict = (
        ["-Wstrict-prototypes", "-Wmissing-prototypes"] if language == "c" else ["-Wmissing-declarations"]
    )
    command = [
        compiler,
        f"-std={standard}",
        *WARNINGS,
        *strict,
        *flags,
        "-c",
        "-o",
        str(tmp_path / "o"),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def declared() -> set[str]:
    """The functions in the header."""
    text = (config.include_dir() / "penstock.h").read_text()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("///"))
    return set(re.findall(r"(?<!\w)(penstock_\w+)\(", re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)))


def test_the_library_has_every_function_of_the_header_and_no_other(libs: list[str]) -> None:
    library = next(config.library_dir().glob("libpenstock.so.*"))
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = set(re.findall(r" T (\w+)", listed.stdout))
    assert exported == declared()


def test_every_function_is_documented(flags: list[str]) -> None:
    lines = (config.include_dir() / "penstock.h").read_text().splitlines()
    found = 0
    for before, line in pairwise(lines):
        if re.match(r"[a-z].*\bpenstock_\w+\(", line):
            found += 1
            assert before.startswith("///"), line
    assert found == len(declared())


def test_the_installed_header_is_the_committed_one(flags: list[str]) -> None:
    committed = ROOT / "crates" / "penstock-capi" / "include" / "penstock.h"
    assert (config.include_dir() / "penstock.h").read_text() == committed.read_text()


def test_the_library_asks_for_no_other_than_the_systems(libs: list[str]) -> None:
    library = next(config.library_dir().glob("libpenstock.so.*"))
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.+?)\.so", dynamic))
    assert needed <= {
        "libc",
        "libm",
        "libgcc_s",
        "libdl",
        "libpthread",
        "librt",
        "ld-linux-x86-64",
        "ld-linux-aarch64",
    }
    assert re.findall(r"SONAME.*\[(.+)\]", dynamic) == [library.name]
