"""
The site: `make docs` builds it into target/site. Sphinx reads the pages as they are in docs/.

A page is where its readers look for it in the repository. Its room (tutorial, how-to, reference,
explanation) is the one whose own page lists it in a table: the navigation is made from these tables.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import penstock
from penstock.cli.main import COMMANDS, main, server

DOCS = Path(__file__).parent
HEADER = DOCS.parent / "crates" / "penstock-capi" / "include" / "penstock.h"
ROOMS = ("how-to", "reference/index", "explanation")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")

project = "Penstock"
author = "The Penstock developers"
project_copyright = f"{author}; Apache-2.0"
version = release = penstock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["figures", "style"]
highlight_language = "text"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Docstrings are NumPy's, with names in single backticks as everywhere in the project.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["torch", "jax", "lightning"]
autodoc_type_aliases = {
    name: name for name in ("Array", "ArrayLike", "Consistency", "DtypeLike", "Rows", "Shape")
}
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "Penstock"
html_sidebars = {"tutorial": []}
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "Penstock"},
    "navbar_align": "left",
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "pygments_light_style": "github-light",
    "pygments_dark_style": "github-dark",
}
html_static_path = ["style"]
html_css_files = ["site.css"]


def navigation(text: str) -> str:
    """The pages in the tables of a room's page, as Sphinx wants them."""
    rows = "".join(line for line in text.splitlines() if line.startswith("|"))
    pages = [f"{label} <{path}>" for label, path, _ in LINK.findall(rows)]
    return "\n".join(["", "```{toctree}", ":hidden:", "", *pages, "```", ""])


def unmarked(comment: str) -> str:
    """A comment of the header without its slashes, as Markdown."""
    text = re.sub(r"^ */// ?", "", comment, flags=re.M)
    text = re.sub(r"^@param (\w+) +", r"- `\1`: ", text, flags=re.M)
    return re.sub(r"`?\b(penstock_\w+)\(\)`?", r"[`\1`](#\1)", text)


def narrow(comment: re.Match[str]) -> str:
    """A comment inside a declaration, in lines short enough to need no scrolling."""
    first = f"{comment[1]}/// "
    text = re.sub(r"^ */// ?", "", comment[0], flags=re.M)
    return "".join(
        textwrap.fill(part, 88, initial_indent=first, subsequent_indent=first) + "\n"
        for part in text.split("\n\n")
    )


def interface(header: str) -> str:
    """The C interface's page: a heading for each declaration, with what the header says above it."""
    _, rules = header[: header.index("*/")].split("What holds for every call\n")
    rules = re.sub(r"^ \* {0,3}", "", rules, flags=re.M)
    types, calls = ["## Constants and types"], ["## Calls"]
    for comment, declaration in re.findall(r"((?:^///.*\n)+)((?:^[^\n/#].*\n|^#define.*\n)+)", header, re.M):
        code = re.sub(r"^( +)///.*\n(?:\1///.*\n)*", narrow, declaration, flags=re.M).rstrip()
        if code.startswith("#define"):
            page, name = types, code.split()[1]
        elif code.startswith("typedef"):
            page, name = types, re.split(r"\W+", code)[-2]
        else:
            page, name = calls, re.findall(r"(\w+)\(", code)[0]
        page += ["", f"### {name}", "", "```c", code, "```", "", unmarked(comment)]
    return "\n".join(["## What holds for every call", "", rules, *types, "", *calls])


def helped(name: str, command: Callable[[Sequence[str]], int], *words: str) -> Iterator[str]:
    """The `--help` of a command under its name, followed by that of the commands that it has itself."""
    with redirect_stdout(StringIO()) as out:
        command([*words, "--help"])
    text = out.getvalue().strip()
    yield from ("", f"{'#' * (2 + len(words[1:]))} {name}", "", "```text", text, "```")
    # `usage: penstock bench {pushpull,pull} ...`, `usage: penstock job (create | list) [NAME]`
    inner = re.match(rf"usage: {name} [({{](\w[\w ,|-]*)[)}}]", text)
    for word in re.findall(r"[\w-]+", inner[1]) if inner else ():
        yield from helped(f"{name} {word}", command, *words, word)


def commands() -> str:
    """The page of the command line."""
    parts = [line for name in COMMANDS for line in helped(f"penstock {name}", main, name)]
    return "\n".join([*parts, *helped("penstock-server", server)])


def outside(text: str, folder: Path) -> str:
    """A link to a file of the repository that is not a page of the site becomes its name; it has to exist."""

    def name(link: re.Match[str]) -> str:
        label, path, _ = link.groups()
        target = (folder / path).resolve()
        if target.is_relative_to(DOCS) or not target.exists():
            return link[0]
        path = str(target.relative_to(DOCS.parent))
        if label == path:
            return f"`{path}`"
        return label if label.startswith("`") else f"{label} (`{path}`)"

    return LINK.sub(name, text)


def read(_: Any, page: str, source: list[str]) -> None:
    """Between a page's file and Sphinx."""
    text = outside(source[0], (DOCS / page).parent)
    if page in ROOMS:
        text += navigation(text)
    if page == "reference/c":
        text += interface(HEADER.read_text())
    if page == "reference/commands":
        text += commands()
    source[0] = text


def whole(_: Any, what: str, *about: Any) -> None:
    """Keeps napoleon from reading `its clock: iterations` of a property as a type and a description."""
    if what == "property":
        about[-1].insert(0, "\\ ")


def named(*about: Any) -> tuple[str | None, ...]:
    """Types by the names that the source gives them; exceptions without a signature: nobody calls them."""
    if about[1] == "exception":
        return "", None
    return tuple(part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part) for part in about[-2:])


def setup(app: Any) -> None:
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", whole, priority=400)
    app.connect("autodoc-process-signature", named)
