"""The pages in docs/ tell the truth about the code: options, paths, invariants, the API. The site builds."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from penstock import _core
from penstock.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "bench" / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    spans = re.findall(r"`((?:crates|python|bench|tests|docs|examples)/[\w./-]+)`", text)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    for path in [ROOT / span for span in spans] + [page.parent / link for link in links]:
        assert path.exists(), f"{page.name} names {path}"


def test_every_test_that_a_page_names_exists() -> None:
    sources = [
        path.read_text()
        for folder, ending in (("crates", "rs"), ("tests", "py"))
        for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    defined = set(re.findall(r"^\s*(?:fn|def) (\w+)\(", "\n".join(sources), re.MULTILINE))
    # Options and functions of the interface have fewer words than what a test promises.
    named = {
        page.name: set(re.findall(r"`([a-z\d]+(?:_[a-z\d]+){4,})`", page.read_text()))
        for page in PAGES
        if page.name != "CHANGELOG.md"
    }
    assert len(named["threat_model.md"]) >= 60
    assert {page: names - defined for page, names in named.items() if names - defined} == {}


def test_no_page_or_hint_installs_the_other_project_of_our_name() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip(f"which files are ours is not known: {listed.stderr.strip()}")
    # `pip uninstall` is another word. Behind the installer come options and names, up to the command's end.
    wrong = re.compile(r"""\binstall\b[^`;&|,#)\n]*(?<![\w./-])penstock(?!-ps\b)(?![\w./])""")
    installers = re.compile(r"\b(?:pip[\d.]*|pipx|uv|uv pip|conda)(?= install\b)")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or path.is_symlink() or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [
                f"{name}:{number}: {line.strip()}"
                for installer in installers.finditer(line)
                if wrong.match(line, installer.end() + 1)
            ]
    assert found == []


def test_the_options_page_is_the_table_of_options() -> None:
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
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


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    # What is raised is on a page of its own, which takes the whole module.
    public = {name for name in ps.__all__ if not name.startswith("_")} - set(vars(ps.exceptions))
    assert {name for name in public if not re.search(rf"penstock\.{name}\b", page)} == set()
    # Read, not imported: neither framework needs to be here.
    for adapter in ("torch", "jax"):
        source = (ROOT / "python" / "penstock" / adapter / "__init__.py").read_text()
        listed = re.search(r"__all__ = \[(.*?)\]", source, re.DOTALL)
        assert listed
        names = re.findall(r'"(\w+)"', listed[1])
        assert {name for name in names if not re.search(rf"penstock\.{adapter}\.{name}\b", page)} == set()
    assert "automodule:: penstock.exceptions" in (ROOT / "docs" / "reference" / "errors.md").read_text()


def test_the_site_is_built_without_a_dead_link_and_every_page_has_a_room(tmp_path: Path) -> None:
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("Sphinx is not installed: pip install 'penstock-ps[docs]'")
    site = tmp_path / "site"

    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", ROOT / "docs", site]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "penstock.Table.get" in (site / "reference" / "python.html").read_text()
    assert 'id="penstock-get"' in (site / "reference" / "c.html").read_text()
    commands = (site / "reference" / "commands.html").read_text()
    for name in (*COMMANDS, "job create", "bench pushpull"):
        assert f'id="penstock-{name.replace(" ", "-")}"' in commands, name
