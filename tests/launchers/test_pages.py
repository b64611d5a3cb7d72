"""
The commands of the pages in docs/launchers, run as they stand there.

`$` is run; lines that follow a command without a prompt have to be part of what the block prints. `node1$`
and `node2$` are run at the same time, as processes of this host. `cluster$` needs a cluster: only the files
that it names are looked at. Slurm's commands are stand-ins that set what Slurm sets.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
from pathlib import Path

import pytest
from groups import BIN, ROOT, Group, learned
from test_mpirun import PERMITTED

FOLDER = ROOT / "docs" / "launchers"
PAGES = sorted(FOLDER.glob("*.md"))
BLOCKS = [
    (f"{page.stem}-{number}", block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL))
]
PROMPT = re.compile(r"(?:(node\d|cluster))?\$ (.*)")

SRUN = """#!/bin/bash
# What srun does, on one host: so many tasks, each told who it is.
tasks=${SLURM_NTASKS}
started=()
for rank in $(seq 0 $((tasks - 1))); do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NODEID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost \\
        SLURM_STEP_NUM_TASKS=$tasks "$@" &
    started+=($!)
done
for one in "${started[@]}"; do wait "$one" || exit $?; done
"""
SBATCH = r"""#!/bin/bash
# What sbatch does, on one host that counts as all nodes.
value() { sed -n "s/^#SBATCH --$1=//p" "$script"; }
script=$1
nodes=$(value nodes) each=$(value ntasks-per-node)
export SLURM_JOB_ID=$$ SLURM_JOB_NODELIST=localhost SLURM_JOB_NUM_NODES=$nodes
export SLURM_NTASKS=$((nodes * each)) SLURM_PROCID=0
exec bash "$@"
"""
SCONTROL = "#!/bin/bash\necho localhost\n"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with stand-ins for Slurm's commands."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in {"srun": SRUN, "sbatch": SBATCH, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def program(block: str) -> tuple[str, list[str], list[str]]:
    """A block as a shell program, what it has to print, and the commands for a cluster."""
    lines, expected, cluster, parallel = ["set -euo pipefail", "started=()"], [], [], 0
    for line in block.splitlines():
        found = PROMPT.fullmatch(line)
        if found is None:
            expected.append(line)
        elif found[1] == "cluster":
            cluster.append(found[2])
        elif found[1] is not None:
            lines += [f"( {found[2]} ) & started+=($!)"]
            parallel += 1
        else:
            lines.append(found[2])
    if parallel:
        lines.append('for one in "${started[@]}"; do wait "$one"; done')
    return "\n".join(lines).replace("node1", "127.0.0.1"), expected, cluster


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_the_commands_of_a_page_do_what_it_says(
    group: Group, tools: Path, tmp_path: Path, port: int, name: str, block: str
) -> None:
    if "torchrun" in block and shutil.which("torchrun", path=str(BIN)) is None:
        pytest.skip("torch is not installed")
    if "mpirun" in block and shutil.which("mpirun", path=str(BIN)) is None:
        pytest.skip("there is no mpirun beside this Python")
    text, expected, cluster = program(re.sub(r"\b(7070|7071|29500)\b", str(port), block))
    for command in cluster:
        for path in re.findall(r"(?:docs|deploy|examples)/[\w./-]+", command):
            assert (ROOT / path).exists(), command
    # What the commands write goes into a folder of the test's own.
    for folder in ("docs", "deploy", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    path = f"{tools}{os.pathsep}{BIN}{os.pathsep}{os.environ['PATH']}"
    done = group.run(["bash", "-c", f"cd {tmp_path}\n{text}"], **PERMITTED, PATH=path)
    assert done.code == 0, done
    for line in expected:
        assert line in done.out, done
    if "torchrun" in block:
        assert learned(done.out), done
    if "torch_digits" in block:
        assert float(re.findall(r"accuracy (\S+)", done.out)[0]) > 0.9, done


def test_every_launcher_has_its_page() -> None:
    from penstock.rendezvous.environment import PAGES as NAMED

    assert {page.stem for page in PAGES} == {
        "penstock-run",
        "torchrun",
        "mpirun",
        "slurm",
        "ray",
        "kubernetes",
    }
    for page in NAMED.values():
        assert (ROOT / page).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("name", ["limit", "rendezvous.assemble", "rendezvous.slurm"])
def test_the_examples_in_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(f"penstock.{name}")
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0
