"""docs/ARCHITECTURE.md: an invariant has one number, and what checks it is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
INVARIANT = re.compile(r"^\| ([A-Z]-\d+) \|(.*)\|$", re.MULTILINE)


def test_every_invariant_has_a_number_of_its_own() -> None:
    numbers = Counter(number for number, _ in INVARIANT.findall(PAGE))
    assert len(numbers) > 15
    assert [number for number, times in numbers.items() if times > 1] == []


def test_the_numbers_of_a_kind_have_no_gaps() -> None:
    numbers = {number for number, _ in INVARIANT.findall(PAGE)}
    for kind in {number[0] for number in numbers}:
        count = sum(number.startswith(kind) for number in numbers)
        assert {f"{kind}-{at}" for at in range(1, count + 1)} <= numbers


def every_check() -> list[str]:
    """The files, and folders, that the page names as checking an invariant."""
    return sorted(
        {path for _, row in INVARIANT.findall(PAGE) for path in re.findall(r"`([^`]+/[^`]+)`", row)}
    )


def text_of(path: str) -> str:
    """What stands in a file, or in all Rust files of a folder."""
    at = ROOT / path
    return "".join(file.read_text() for file in (at.rglob("*.rs") if at.is_dir() else [at]))


def test_what_checks_an_invariant_is_there() -> None:
    named = every_check()
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_what_checks_an_invariant_says_which_and_is_run() -> None:
    lacking = []
    before: set[str] = set()
    for number, row in INVARIANT.findall(PAGE):
        checks = row.rsplit("|", 1)[1]
        named = set(re.findall(r"`([^`]+/[^`]+)`", checks))
        # "Likewise" is what the row above has, of which one is enough: not all of it need be about both.
        before = named | (before if "likewise" in checks else set())
        cites = {path for path in before if re.search(rf"\b{number}\b", text_of(path))}
        lacking += [(number, path) for path in named - cites] or ([] if cites else [(number, "likewise")])
    assert lacking == []
    assert [path for path in every_check() if "#[ignore" in text_of(path)] == []


def test_invariants_that_the_code_cites_are_on_the_page() -> None:
    known = {number for number, _ in INVARIANT.findall(PAGE)}
    cited = {
        number
        for path in (ROOT / "crates").glob("*/src/**/*.rs")
        for number in re.findall(r"\b([CPRDSINMTK]-\d{1,2})\b", path.read_text())
    }
    assert cited - known == set()
