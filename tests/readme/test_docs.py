"""The pages in docs/ tell the truth about the code: options, paths, invariants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import _core

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    spans = re.findall(r"`((?:crates|python|tests|docs|examples|benchmarks)/[\w./-]+)`", text)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    for path in [ROOT / span for span in spans] + [page.parent / link for link in links]:
        assert path.exists(), f"{page.name} names {path}"


def test_the_options_page_is_the_table_of_options() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    for option in _core.options():
        cells = (option["name"], option["env"], option["default"], option["doc"])
        unit = option["unit"] or "-"
        row = f"| `{cells[0]}` | `{cells[1]}` | `{cells[2]}` | {unit} | {cells[3]} |"
        assert row in page, row


def test_every_numbered_invariant_is_cited_where_it_is_kept_or_checked() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    numbers = re.findall(r"^\| ([A-Z]-\d+) \|", page, re.MULTILINE)
    assert len(numbers) >= 9
    sources = "".join(path.read_text() for path in (ROOT / "crates").rglob("*.rs"))
    for number in numbers:
        assert number in sources, number
