"""
The command line itself: help, versions, and refusals that say what was expected, what came and what to do.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock.cli import run
from penstock.cli.main import COMMANDS, main

Refused = Callable[..., tuple[str, str]]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command line that must be refused; returns its error and its hint."""

    def run(*arguments: str) -> tuple[str, str]:
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        error, blank, hint = err.splitlines()
        assert (error[:7], blank, hint[:6]) == ("error: ", "", "hint: ")
        return error[7:], hint[6:]

    return run


@pytest.fixture
def unstarted(tmp_path, monkeypatch) -> str:
    """A script in the current folder that must never be started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('started', 'w')")
    return "train.py"


@pytest.fixture(autouse=True)
def _nothing_started(tmp_path):
    yield
    assert not (tmp_path / "started").exists()


def test_the_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name}" in text
        assert command.summary in text


@pytest.mark.parametrize("name", ["run", "demo", "doctor", "bench"])
def test_each_commands_help_has_examples(capsys, name):
    assert main([name, "--help"]) == 0
    assert f"  penstock {name}" in capsys.readouterr().out


def test_the_version_is_the_cores(capsys):
    from penstock import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"penstock {__version__}\n"


def test_no_command_at_all_is_a_mistake(capsys):
    assert main([]) == 2
    assert "usage: penstock" in capsys.readouterr().out


def test_a_command_that_was_mistyped_is_guessed(refused):
    assert refused("rum") == ("there is no command 'rum'", "did you mean `penstock run`?")


def test_a_script_that_does_not_exist_is_refused(refused, unstarted):
    error, hint = refused("run", "other_name.py")
    assert error == "the script 'other_name.py' does not exist"
    assert "the path is relative to" in hint


def test_a_folder_is_no_script(refused, tmp_path):
    assert refused("run", str(tmp_path))[0] == f"{str(tmp_path)!r} is a folder, not a script"


def test_a_module_that_does_not_exist_is_refused(refused):
    assert refused("run", "-m", "no.such.module")[0] == "there is no module 'no.such.module'"


def test_a_run_without_a_script_is_refused(refused):
    assert refused("run", "--workers", "2")[0] == "no script was given"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--workers", "0"], "--workers is 0, but has to be at least 1"),
        (["--workers", "-3"], "--workers is -3, but has to be at least 1"),
        (["--workers", "two"], "--workers 'two' is not a whole number"),
        (["--workers", "1.5"], "--workers '1.5' is not a whole number"),
        (["--servers", "0"], "--servers is 0, but has to be at least 1"),
        (["--grace", "soon"], "--grace 'soon' is not a number of seconds"),
        (["--grace", "-1"], "--grace '-1' is not a number of seconds"),
        (["--grace", "nan"], "--grace 'nan' is not a number of seconds"),
        (["--wrokers", "2"], "unknown option --wrokers"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(refused, unstarted, arguments, error):
    assert refused("run", *arguments, unstarted)[0] == error


def test_an_option_that_was_mistyped_is_guessed(refused, unstarted):
    assert refused("run", "--worker", "2", unstarted)[1] == "did you mean --workers?"
    assert refused("run", "--version") == (
        "unknown option --version",
        "`penstock --version` prints the version",
    )


def test_an_option_without_its_value_is_refused(refused):
    assert "expected one argument" in refused("run", "--workers")[0]


def test_more_workers_than_the_core_allows_are_refused(refused, unstarted):
    error, hint = refused("run", "--workers", "1000000", unstarted)
    assert error.startswith("--workers is 1000000, but at most ")
    assert hint.startswith("give a number from 1 to ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("consistency", mode) for mode in ("eventually", "ssp", "ssp:-1", "ssp:1.5")),
        *(("chunk-bytes", size) for size in ("0", "-32768", "1000000007", "some", "40000.5")),
        ("deadline", "a while"),
        ("on-worker-loss", "panic"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(refused, unstarted, option, value):
    error, hint = refused("run", f"--{option}", value, unstarted)
    assert f"the option `{option.replace('-', '_')}`, got `{value}`" in error
    assert "PENSTOCK_" in hint


def test_a_wrong_value_in_the_environment_is_refused_too(refused, unstarted, monkeypatch):
    monkeypatch.setenv("PENSTOCK_DEADLINE", "a while")
    assert "the option `deadline`, got `a while`" in refused("run", unstarted)[0]


@pytest.mark.parametrize(
    "command", [["server", "--manager", "127.0.0.1:1"], ["manager", "--state", "state"]], ids=lambda it: it[0]
)
def test_a_server_or_manager_refuses_a_variable_that_is_nearly_one_of_ours(
    refused, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_LEASES", "2")
    error, hint = refused(*command)
    assert error.startswith("the environment variable PENSTOCK_LEASES sets nothing")
    assert hint.startswith("did you mean PENSTOCK_LEASE?")
    assert not (tmp_path / "state").exists()


# Each use of the stream was an AttributeError; a connection could take its place.
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_standard_stream_that_is_closed_harms_no_command(closed: tuple[int, ...]) -> None:
    # By a shell: a process that has threads, as this one may by now, is not forked in Python.
    close = " ".join(f"{number}>&-" for number in closed)
    started = ["sh", "-c", f'exec "$@" {close}', "sh", sys.executable, "-m", "penstock.cli", "secret"]
    done = subprocess.run(started, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) == (0 if 1 in closed else 65)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--optimizer", "adm"], "there is no optimizer 'adm'"),
        (["--epochs", "0"], "--epochs is 0, but has to be at least 1"),
        (["--batch", "0"], "--batch is 0, but has to be at least 1"),
        (["--seed", "-1"], "--seed '-1' is not a whole number of 0 or above"),
        (["--json", "/no/such/folder/x.json"], "'/no/such/folder/x.json' cannot be written"),
        (["--plot", "/no/such/folder/x.png"], "'/no/such/folder/x.png' cannot be written"),
        (["--workers", "64", "--batch", "1000"], "64 workers with 1000 samples each need"),
    ],
)
def test_a_demo_that_cannot_be_is_refused(refused, arguments, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("demo", *arguments)[0].startswith(error)


def test_a_package_that_is_missing_is_named_with_its_extra(capsys, monkeypatch, tmp_path):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find(name))
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "error: the demo needs scikit-learn, which is not installed\n\n"
        "hint: pip install 'penstock-ps[demo]'\n"
    )


def test_the_launcher_loads_no_package_that_it_does_not_need():
    # What is loaded here delays the first step of every run.
    heavy = ["numpy", "torch", "sklearn", "matplotlib", "rich"]
    program = (
        "import sys; from penstock.cli import main; main(['run', '--help']); import penstock.launch.local, "
        f"penstock.launch.server; sys.exit(' '.join(set({heavy}) & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["run", "-np", "2", "train.py"], "unknown option -np", "`--workers 2`"),
        (["run", "--nproc-per-node", "2", "train.py"], "unknown option --nproc-per-node", "`--workers 2`"),
        (["run", "--nproc_per_node=3", "train.py"], "unknown option --nproc_per_node", "`--workers 3`"),
        (["run", "--num-servers", "2", "train.py"], "unknown option --num-servers", "`--servers 2`"),
        (
            ["run", "python", "train.py", "--lr", "1"],
            "starts Python itself",
            "run [options] train.py --lr 1`",
        ),
        (["run", "python3.11"], "starts Python itself", "run [options] train.py`"),
        (["run", "2", "train.py"], "'2' is not a script", "`penstock run --workers 2 train.py`"),
        (["run", "train", "--lr", "1"], "'train' does not exist", "`penstock run train.py --lr 1`"),
        (["run", "tarin.py"], "'tarin.py' does not exist", "`penstock run train.py`"),
        (["run", "json.tool"], "'json.tool' does not exist", "`penstock run -m json.tool`"),
        (["run", "env", "-i"], "'env' does not exist", "/env -i`"),
        (["train.py", "-n", "2"], "there is no command 'train.py'", "`penstock run train.py -n 2`"),
    ],
)
def test_what_another_launcher_would_take_gets_what_to_write_here(refused, unstarted, arguments, error, hint):
    said = refused(*arguments)
    assert error in said[0]
    assert hint in said[1]


@pytest.mark.parametrize(
    ("source", "head", "behind", "meant"),
    [
        ("print()", "", "-n 2", "--workers 2"),
        ("print()", "", "-np 2", "--workers 2"),
        ("print()", "", "--nproc-per-node=4", "--workers 4"),
        ("print()", "--pin off", "--workers 2", "--workers 2"),
        # A script's own options.
        ("parser.add_argument('-n', type=int)", "", "-n 2", None),
        ("parser.add_argument('--workers')", "", "--workers 2", None),
        ("print()", "--workers 3", "-n 2", None),
        ("print()", "-n3", "-n 2", None),
        ("print()", "", "-n name", None),
        ("print()", "", "--number 3 -s 4 -c x", None),
    ],
)
def test_an_option_behind_the_script_is_pointed_at_unless_it_is_the_scripts_own(
    capsys, tmp_path, monkeypatch, source, head, behind, meant
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(source)
    command = ["own.py", *behind.split()]
    run.hint_at_options_behind(run.parser(), head.split(), command)
    said = capsys.readouterr().err
    assert (f"`penstock run {meant} own.py`" in said) if meant else said == ""


@pytest.mark.filterwarnings("default")  # as the command has them: pytest would raise them
@pytest.mark.parametrize(
    "source",
    ["print('\\d')", "-" * 100_000 + "1", "a" + ".b" * 100_000],
    ids=["warning", "no memory", "too deep"],
)
def test_what_python_says_of_a_script_that_is_looked_through_is_left_to_the_script(
    capsys, recwarn, tmp_path, monkeypatch, source
):
    # Its warnings came from the launcher too, and a text that the parser gives up on ended it.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(source)
    run.hint_at_options_behind(run.parser(), [], ["own.py", "--workers", "2"])
    assert "`penstock run --workers 2 own.py`" in capsys.readouterr().err
    assert not list(recwarn)
