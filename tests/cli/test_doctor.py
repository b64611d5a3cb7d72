"""`penstock doctor`: says what is, what to change, and fails only where Penstock cannot run."""

from __future__ import annotations

import json

import pytest

from penstock.cli import doctor
from penstock.cli.main import main


def test_every_line_gives_a_verdict_and_every_note_says_what_to_do(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in lines[: lines.index("")]:
        assert line.split()[0] in ("ok", "note", "->")


def test_the_json_holds_what_the_lines_say(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["sealed memory"]["verdict"] == "ok"
    assert checks["transports"]["data"] == {"shm": True, "tcp": True, "rdma": False}
    assert {"cores", "NUMA nodes", "memory", "/dev/shm", "huge pages", "locked memory", "open files"} <= set(
        checks
    )
    assert {"cpu features", "core distance", "kernel", "wake-ups", "python", "numpy", "torch", "jax"} <= set(
        checks
    )


def test_the_exit_code_is_1_only_for_what_keeps_penstock_from_running(monkeypatch, capsys):
    note = doctor.Finding("huge pages", "note", "never", "say advise")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: note,))
    assert main(["doctor"]) == 0
    problem = doctor.Finding("sealed memory", "problem", "refused", "allow it")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: problem, lambda: note))
    assert main(["doctor"]) == 1
    assert "-> allow it" in capsys.readouterr().out


def test_a_check_that_cannot_be_made_stops_no_other(monkeypatch, capsys):
    def missing():
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(doctor, "CHECKS", (missing, doctor.transports))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "unknown (FileNotFoundError: /proc/meminfo)" in out
    assert "shm: yes" in out


def test_heavy_packages_are_found_without_being_imported():
    import subprocess
    import sys

    program = (
        "import sys; from penstock.cli import doctor; doctor.packages(); "
        "sys.exit(int('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [("always [advise] never", "advise"), ("[never]", "never"), ("no brackets", None), (None, None)],
)
def test_the_chosen_word_of_a_kernel_setting_is_the_one_in_brackets(text, word):
    assert doctor.chosen(text) == word
