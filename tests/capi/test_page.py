"""docs/c.md: its program compiles and its commands do what the page says they do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from programs import EXAMPLES, PERMITTED, ROOT, WARNINGS, Runner

PAGE = (ROOT / "docs" / "c.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
FIRST, BY_STRUCTURE, OPTIONS, FILTERS = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)


def commands(block: str) -> list[tuple[str, list[str]]]:
    """What follows each prompt, and the lines below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_commands_print_what_the_page_shows(
    number: int, tmp_path: Path, flags: list[str], runner: Runner, mpirun: list[str | Path]
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(EXAMPLES, folder)
    (folder / "hello.c").write_text(FIRST)
    for command, lines in commands(BLOCKS[number]):
        if (tool := command.split()[0]) in ("cc", "cmake") and not shutil.which(tool):
            pytest.skip(f"there is no {tool}")
        done = runner.run(["bash", "-c", f"cd {folder} && {command}"], **PERMITTED)
        assert done.code == 0, (command, done)
        for line in lines:
            assert line in done.out, (command, done)


def test_the_programs_are_without_warnings(tmp_path: Path, cc: str, flags: list[str], runner: Runner) -> None:
    head = "#include <penstock.h>\nvoid check(penstock_status s);\nvoid f(void);\n"
    within = f"{head}void f(void)\n{{penstock_job *job;\n"
    for name, text in {
        "first": FIRST,
        "options": f"{within}{OPTIONS}check(penstock_finish(job));}}\n",
        "filters": (
            f"{within}penstock_tensor *tensor; const uint64_t shape[1] = {{9}};\n"
            f"check(penstock_init(NULL, &job));\n{FILTERS}}}\n"
        ),
        "structure": f"{within}{BY_STRUCTURE}}}\n",
    }.items():
        source = tmp_path / f"{name}.c"
        source.write_text(text)
        done = runner.run([cc, "-std=c99", *WARNINGS, *flags, "-c", source, "-o", tmp_path / f"{name}.o"])
        assert done == (0, "", ""), done


def test_the_page_names_every_example() -> None:
    for source in [*EXAMPLES.glob("*.c"), *EXAMPLES.glob("*.cpp")]:
        assert f"`{source.name}`" in PAGE
