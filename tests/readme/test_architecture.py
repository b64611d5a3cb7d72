"""docs/ARCHITECTURE.md: invariants have a number each and what checks them; ways are as long as it says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def files(path: str) -> list[Path]:
    """The file, or all Rust files of a folder."""
    at = ROOT / path
    return sorted(at.rglob("*.rs")) if at.is_dir() else [at]


FUNCTION = re.compile(
    r"^(?:[ ]*(?:///?|#)[^\n]*\n)*"  # what stands directly above it: comments, attributes
    r"([ ]*)(?:pub(?:\([a-z]+\))? )?(?:def|fn) \w+[^\n]*\n"
    r"(?:\1[ )}][^\n]*\n|\n)*",  # its lines, and the end of its signature
    re.MULTILINE,
)
"""A function as the formatters lay it out, with what it is told about it."""
TESTS_BEGIN = re.compile(r"^#\[cfg\((?:all\()?test\b", re.MULTILINE)


def cases_of(text: str, *, all_of_it: bool) -> str:
    """
    The functions of a file's tests. A number that stands elsewhere, or above a test that is no longer there,
    checks nothing.
    """
    begins = 0 if all_of_it else next((found.start() for found in TESTS_BEGIN.finditer(text)), len(text))
    return "\n".join(found.group() for found in FUNCTION.finditer(text, begins))


def cases_in(path: str) -> str:
    """The same of a file, or of all Rust files of a folder."""
    return "\n".join(
        cases_of(file.read_text(), all_of_it="/tests/" in f"/{path}" or file.suffix == ".py")
        for file in files(path)
    )


def test_a_number_counts_only_where_a_test_cites_it() -> None:
    source = """//! A-1
fn code() {
    // A-2
}

#[cfg(all(test, loom))]
mod tests {
    /// A-3, of a test that was deleted.

    /// A-4.
    #[test]
    fn kept() {
        assert!(true, "A-5");

        if a {
            b(); // A-6
        }
    }
    // A-7
}
"""
    assert re.findall(r"A-\d", cases_of(source, all_of_it=False)) == ["A-4", "A-5", "A-6"]
    python = 'X = "A-1"\n\n\ndef test_it(\n    a,\n) -> None:\n    """A-2."""\n\n    a()\n\n\nY = "A-3"\n'
    assert re.findall(r"A-\d", cases_of(python, all_of_it=True)) == ["A-2"]


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
        cites = {path for path in before if re.search(rf"\b{number}\b", cases_in(path))}
        lacking += [(number, path) for path in named - cites] or ([] if cites else [(number, "likewise")])
    assert lacking == []
    ignored = [path for path in every_check() if any("#[ignore" in file.read_text() for file in files(path))]
    assert ignored == []


def test_invariants_that_the_code_cites_are_on_the_page() -> None:
    known = {number for number, _ in INVARIANT.findall(PAGE)}
    cited = {
        number
        for path in (ROOT / "crates").glob("*/src/**/*.rs")
        for number in re.findall(r"\b([CPRDSEINMTK]-\d{1,2})\b", path.read_text())
    }
    assert cited - known == set()


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables beneath a heading, up to the next one."""
    text = PAGE.split(f"\n### {heading}\n", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    lines = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


TESTS_OF_A_FILE = re.compile(
    r"^#\[cfg\((?:all\()?(?:test|loom)\b[^\n]*\n(?:#[^\n]*\n)*mod \w+ \{", re.MULTILINE
)


def lines_of(file: Path) -> int:
    """Comments included, and no tests."""
    return TESTS_OF_A_FILE.split(file.read_text())[0].count("\n")


def ways() -> dict[str, list[Path]]:
    """The files that a value passes, by the way that it takes."""
    found: dict[str, list[Path]] = {}
    for way, named in (row for row in rows(VALUES_PASS) if len(row) == 2 and row[0] != "way"):
        kind = way.partition(", ")[0]
        found[way] = [*found[f"{kind}, one host"]] if named.startswith("those of one host") else []
        folder = ""
        for name in re.findall(r"`([^`]+)`", named):
            if name.endswith("/"):
                folder = name
            else:
                found[way].append(ROOT / folder / name)
    return found


VALUES_PASS = "How many files a value passes"


def test_a_way_has_as_many_files_and_about_as_many_lines_as_the_page_says() -> None:
    listed = ways()
    assert [file for files in listed.values() for file in files if not file.is_file()] == []
    said = {
        row[0]: [int(figure.replace(",", "")) for figure in row[2].split(", ")]
        for row in rows(VALUES_PASS)
        if len(row) == 3 and row[0] != "way"
    }
    assert len(said) > 4
    counted = {
        way: [len(set(files)), sum(lines), max(lines)]
        for way, files in listed.items()
        if (lines := [lines_of(file) for file in files])
    }
    assert {way: figures[0] for way, figures in said.items()} == {
        way: figures[0] for way, figures in counted.items()
    }
    assert all(len(set(files)) == len(files) for files in listed.values()), "each is named once"
    # Small changes do not make the page wrong.
    off = {
        way: (figures, counted[way])
        for way, figures in said.items()
        if any(abs(here - there) > there / 10 for here, there in zip(counted[way], figures, strict=True))
    }
    assert off == {}


USE = re.compile(r"(?<!pub )(?<!\) )\buse\s+([^;]+);|\b(crate::[\w:]+)")


def leaves(tree: str, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of a `use`: `a::{b, c::d}` has a::b and a::c::d."""
    head, brace, inside = tree.strip().partition("{")
    path = prefix + tuple(word for word in head.strip().split("::") if word)
    if not brace:
        yield path
        return
    depth, begin = 0, 0
    inside = inside[: inside.rindex("}")] + ","
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if part := inside[begin:at].strip():
                yield from leaves(part, path)
            begin = at + 1


def needs(crate: str) -> dict[str, set[str]]:
    """By module, a file each: what it uses outside its tests, but for the files of its own folder."""
    source = ROOT / "crates" / crate / "src"
    named = {
        "::".join(
            part for part in path.relative_to(source).with_suffix("").parts if part not in ("mod", "lib")
        ): path
        for path in source.rglob("*.rs")
    }

    def module(path: tuple[str, ...]) -> str | None:
        return next((name for n in range(len(path), 0, -1) if (name := "::".join(path[:n])) in named), None)

    found: dict[str, set[str]] = {}
    for name, file in named.items():
        text = re.split(r"#\[cfg\((?:all\()?test", file.read_text())[0]
        text = re.sub(r"//.*", "", text)
        here = tuple(filter(None, name.split("::")))
        used = set()
        for tree, inline in USE.findall(text):
            for path in leaves(re.sub(r" as \w+", "", tree or inline)):
                up = len([word for word in path if word == "super"])
                whole = path[1:] if path[0] == "crate" else here[: len(here) - up] + path[up:]
                used.add(module(whole))
        others = {other for other in used if other and other != name}
        found[name] = {
            other
            for other in others
            if not name.startswith(f"{other}::") and not other.startswith(f"{name}::")
        }
    return found


@pytest.mark.parametrize("crate", ["penstock-proto", "penstock-kernels"])
def test_no_two_files_need_each_other(crate: str) -> None:
    graph = needs(crate)
    assert sum(map(len, graph.values())) > len(graph), "their uses are found"
    while free := [name for name, others in graph.items() if not others & graph.keys()]:
        for name in free:
            del graph[name]
    assert graph == {}, "these need each other, in a circle, or what does"
