"""`penstock config`, pkg-config, CMake and what `make install` installs lead to programs that run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import EXAMPLES, ROOT, Runner

import penstock
from penstock import config
from penstock.cli.main import main

LEARNED = "weights 2.00 -1.00 0.50 3.00"


def test_what_was_asked_for_comes_on_one_line_in_its_order(
    flags: list[str], libs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "--libs", "--cflags"]) == 0
    assert capsys.readouterr().out == " ".join([*libs, *flags]) + "\n"


def test_the_module_says_what_the_command_says(flags: list[str], runner: Runner) -> None:
    module = runner.run([sys.executable, "-m", "penstock.config", "--cflags", "--libs"])
    command = runner.run(["penstock", "config", "--cflags", "--libs"])
    assert (module.code, module.out) == (0, command.out), module


def test_everything_is_there_as_json(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert all(Path(answer[name]).is_dir() for name in ("includedir", "libdir", "pkgconfig", "cmake"))


def test_asking_for_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 2
    assert "nothing was asked for" in capsys.readouterr().err


def test_an_installation_without_the_library_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "_PACKAGE", tmp_path)
    assert main(["config", "--cflags"]) == 1
    said = capsys.readouterr().err
    assert "this installation has no C interface" in said
    assert "hint: " in said


def test_pkg_config_leads_to_a_program_that_runs(flags: list[str], runner: Runner, tmp_path: Path) -> None:
    if not shutil.which("pkg-config") or not shutil.which("make"):
        pytest.skip("there is no pkg-config or no make")
    made = runner.run(
        ["make", "-C", EXAMPLES, f"OUT={tmp_path}", tmp_path / "tensor"],
        PKG_CONFIG_PATH=str(config.pkgconfig_dir()),
    )
    assert made.code == 0, made
    assert runner.run([tmp_path / "tensor"]) == (0, f"{LEARNED}\n", "")


def test_cmake_leads_to_a_program_that_runs(flags: list[str], runner: Runner, tmp_path: Path) -> None:
    if not shutil.which("cmake"):
        pytest.skip("there is no cmake")
    made = runner.run(["cmake", "-S", EXAMPLES, "-B", tmp_path, f"-Dpenstock_DIR={config.cmake_dir()}"])
    assert made.code == 0, made
    made = runner.run(["cmake", "--build", tmp_path, "--target", "tensor"])
    assert made.code == 0, made
    assert runner.run([tmp_path / "tensor"]) == (0, f"{LEARNED}\n", "")


def test_library_header_and_package_are_of_one_version(libs: list[str], runner: Runner) -> None:
    library = next(config.library_dir().glob("libpenstock.so.*"))
    ask = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).penstock_version; f.restype = ctypes.c_char_p"
    done = runner.run([sys.executable, "-c", f"{ask}; print(f().decode())", library])
    pc = (config.pkgconfig_dir() / "penstock.pc").read_text()
    assert (done.code, done.out) == (0, f"{penstock.__version__}\n"), done
    assert f"Version: {penstock.__version__}\n" in pc


def built() -> Path:
    """Where cargo left the libraries; skips where it did not."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    if not (folder / "libpenstock.a").is_file():
        pytest.skip(f"{folder / 'libpenstock.a'} does not exist: `make library` makes it")
    return folder


def test_what_was_installed_may_be_moved_and_linked_both_ways(
    cc: str, runner: Runner, tmp_path: Path
) -> None:
    subprocess.run(
        [ROOT / "crates" / "penstock-capi" / "install.sh", built(), tmp_path / "first"], check=True
    )
    prefix = tmp_path / "second"
    (tmp_path / "first").rename(prefix)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    asked = ["pkg-config", "--cflags", "--libs", "penstock"]
    words = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout.split()
    shared = tmp_path / "shared"
    subprocess.run([cc, "-std=c99", EXAMPLES / "tensor.c", "-o", shared, *words], check=True)
    done = runner.run([shared], LD_LIBRARY_PATH=str(prefix / "lib"))
    assert done == (0, f"{LEARNED}\n", "")

    extra = subprocess.run([*asked, "--static"], env=environment, capture_output=True, text=True, check=True)
    system = [word for word in extra.stdout.split() if word.startswith("-l") and word != "-lpenstock"]
    static = tmp_path / "static"
    source = ["-I", prefix / "include", EXAMPLES / "tensor.c", prefix / "lib" / "libpenstock.a"]
    subprocess.run([cc, "-std=c99", *source, "-o", static, *system], check=True)
    assert runner.run([static]) == (0, f"{LEARNED}\n", "")


CARGO = """\
#!/bin/sh
echo "$@" >> "$NOTES"
case "$*" in
    *" -p penstock-server") cp "$SERVER" "$CARGO_TARGET_DIR/release/penstock-server" ;;
esac
"""
"""Stands in for the compiler: notes what it is asked for, and has a program ready as the server."""


def test_make_install_puts_each_part_where_a_system_looks_for_it(tmp_path: Path) -> None:
    """`penstock-server` was not among them. What is compiled, and how, other tests know: it takes minutes."""
    program = shutil.which("true")
    if not shutil.which("make") or program is None:
        pytest.skip("there is no make")
    (tmp_path / "target" / "release").mkdir(parents=True)
    for name in ("libpenstock.so", "libpenstock.a"):
        shutil.copy(built() / name, tmp_path / "target" / "release")
    cargo = tmp_path / "path" / "cargo"
    cargo.parent.mkdir()
    cargo.write_text(CARGO)
    cargo.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment = {
        **kept,
        "PATH": f"{cargo.parent}{os.pathsep}{os.environ['PATH']}",
        "CARGO_TARGET_DIR": str(tmp_path / "target"),
        "NOTES": str(tmp_path / "notes"),
        "SERVER": program,
    }
    words = ["make", "install", f"DESTDIR={tmp_path / 'root'}", "PREFIX=/usr"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = (tmp_path / "notes").read_text().splitlines()
    assert "build --release --quiet -p penstock-server" in asked
    assert os.access(tmp_path / "root" / "usr" / "bin" / "penstock-server", os.X_OK)
    for name in (
        "include/penstock.h",
        "lib/libpenstock.so",
        "lib/libpenstock.a",
        "lib/pkgconfig/penstock.pc",
    ):
        assert (tmp_path / "root" / "usr" / name).is_file(), name
