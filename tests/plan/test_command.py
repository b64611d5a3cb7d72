"""`penstock plan` as a user calls it."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

GOOD = ["--model", "resnet50", "--workers", "8", "--link", "10gbit"]
SIZED = ["--bytes", "100MB", "--workers", "8", "--link", "10gbit", "--compute", "100ms"]


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def replaced(option: str, value: str, arguments: list[str] = SIZED) -> list[str]:
    """The arguments with another value of one option, at the end where it is not among them."""
    result = list(arguments)
    if option in result:
        result[result.index(option) + 1] = value
        return result
    return [*result, option, value]


def without(option: str, arguments: list[str] = SIZED) -> list[str]:
    at = arguments.index(option)
    return [*arguments[:at], *arguments[at + 2 :]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no model was given"),
        (without("--bytes"), "no model was given"),
        (without("--workers"), "--workers is missing"),
        (without("--link"), "--link is missing"),
        (without("--compute"), "--compute is missing"),
        ([*SIZED, "--model", "an"], "--bytes and --model name a model each"),
        (replaced("--workers", "0"), "--workers '0' is not above zero"),
        (replaced("--workers", "-1"), "--workers '-1' is negative"),
        (replaced("--workers", "2.5"), "--workers '2.5' is not a whole number"),
        (replaced("--workers", "many"), "--workers 'many' is not a valid number"),
        (replaced("--workers", "1M"), "at most 1024 are allowed"),
        (replaced("--servers", "0"), "--servers '0' is not above zero"),
        (replaced("--servers", "1000"), "at most 64 are allowed"),
        (replaced("--link", "-1gbit"), "--link '-1gbit' is negative"),
        (["-n", "-1", *without("--workers")], "--workers '-1' is negative"),
        (replaced("--link", "0bit"), "--link '0bit' is below one bit"),
        (replaced("--link", "10"), "--link '10' has no unit"),
        (replaced("--link", "10Gb"), "--link '10Gb' has the unknown unit 'Gb'"),
        (replaced("--server-link", "fast"), "--server-link 'fast' is not a valid rate"),
        (replaced("--compute", "161"), "--compute '161' has no unit"),
        (replaced("--compute", "0s"), "--compute '0s' is not above zero"),
        (replaced("--batch", "0"), "--batch '0' is not above zero"),
        (replaced("--bytes", "much"), "--bytes 'much' is not a valid size"),
        (replaced("--bytes", "97M"), "--bytes '97M' has the unknown unit 'M'"),
        (replaced("--dtype", "float32"), "--dtype has no meaning with --bytes"),
        (replaced("--dtype", "int3", GOOD), "--dtype 'int3' is not an element type"),
        (replaced("--model", "resnet51", GOOD), "there is no model 'resnet51'"),
        (replaced("--racks", "2"), "--racks needs --core"),
        (replaced("--core", "1gbit"), "--core needs --racks"),
        ([*SIZED, "--racks", "9", "--core", "1gbit"], "--racks is 9, but at most 8"),
        ([*SIZED, "--racks", "2", "--core", "1furlong"], "--core '1furlong' has the unknown unit"),
        (replaced("--gpu-price", "-1"), "--gpu-price '-1' is negative"),
        (replaced("--server-nic-price", "cheap"), "--server-nic-price 'cheap' is not a valid price"),
        (replaced("--gpus", "0"), "--gpus '0' is not above zero"),
        (replaced("--oversubscription", "0.5"), "--oversubscription '0.5' is out of range"),
        (replaced("--oversubscription", "nan"), "--oversubscription 'nan' is out of range"),
        (replaced("--oversubscription", "half"), "--oversubscription 'half' is not a number"),
        (["--paper", "table3"], "--paper 'table3' is not one of the tables"),
        (["--paper", "table2", "--link", "1gbit"], "--link has no meaning with --paper"),
        ([*SIZED, "--linkk", "3"], "unknown option --linkk"),
        ([*SIZED, "more"], "unexpected argument 'more'"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_to_write_instead(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    printed = capsys.readouterr()
    error, blank, hint = printed.err.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert (blank, hint[:6], printed.out) == ("", "hint: ", "")


def test_a_plan_says_for_each_topology_what_it_needs_and_whether_the_link_hides_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned(capsys, *SIZED)
    rows = {row["topology"]: row for row in plan["topologies"]}
    # 100 MB in 100 ms are 8 Gbit/s.
    needs = {name: row["needed_each_way_bits_per_s"] / 8e9 for name, row in rows.items()}
    assert needs == pytest.approx({"cc": 7, "cs": 1.75, "ncc": 8, "ncs": 1})
    assert {name: row["needed_both_ways_bits_per_s"] / 16e9 for name, row in rows.items()} == pytest.approx(
        needs
    )
    assert {name for name, row in rows.items() if row["hidden"]} == {"ncs"}
    assert rows["cs"]["step_s"] == pytest.approx(0.14)
    assert rows["cs"]["step_without_overlap_s"] == pytest.approx(0.24)
    assert rows["cs"]["throughput_per_s"] == pytest.approx(8 / 0.14)
    assert plan["throughput_unit"] == "batches"
    assert {name: row["hosts"] for name, row in rows.items()} == {"cc": 8, "cs": 8, "ncc": 9, "ncs": 16}
    assert plan["recommended"]["topology"] in rows


def test_a_network_of_the_paper_brings_its_size_time_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, *GOOD)
    assert (plan["model"]["bytes"], plan["compute_s"], plan["batch"]) == (97 << 20, 0.161, 32)
    assert plan["throughput_unit"] == "samples"
    half = planned(capsys, *GOOD, "--dtype", "bfloat16", "--compute", "80ms", "--batch", "64")
    assert (half["model"]["bytes"], half["compute_s"], half["batch"]) == (97 << 19, 0.08, 64)


def test_parameters_take_the_bytes_of_their_element_type(capsys: pytest.CaptureFixture[str]) -> None:
    given = replaced("--parameters", "25M", without("--bytes"))
    assert planned(capsys, *given)["model"]["bytes"] == 100_000_000
    assert planned(capsys, *given, "--dtype", "bf16")["model"]["bytes"] == 50_000_000


def test_prices_are_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--worker-price", "1000", "--gpu-price", "100", "--gpus", "2", "--server-price", "500"]
    prices += ["--nic-price", "10", "--server-nic-price", "20", "--cable-price", "1", "--port-price", "2"]
    plan = planned(capsys, *SIZED, *prices, "--oversubscription", "2:1")
    assert (plan["prices"]["worker_host"], plan["prices"]["server_host"]) == (1218, 528)
    row = next(row for row in plan["topologies"] if row["topology"] == "ncc")
    assert row["cost"] == 8 * 1218 + 528
    assert row["throughput_per_1000"] == pytest.approx(1000 * row["throughput_per_s"] / row["cost"])


def test_where_everything_is_free_there_is_a_plan_without_throughput_for_money(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("worker", "gpu", "server", "nic", "server-nic", "cable", "port")
    free = [word for name in names for word in (f"--{name}-price", "0")]
    assert all(row["throughput_per_1000"] is None for row in planned(capsys, *SIZED, *free)["topologies"])
    assert main(["plan", *SIZED, *free]) == 0


def test_racks_are_judged_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "racks" not in planned(capsys, *SIZED)
    assert planned(capsys, *SIZED, "--racks", "2", "--core", "1gbit")["racks"]["hierarchical_pays"]
    assert not planned(capsys, *SIZED, "--racks", "2", "--core", "1tbit")["racks"]["hierarchical_pays"]


def test_a_core_that_is_slower_than_the_hosts_links_is_not_passed_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for core, slower in (("1gbit", True), ("1tbit", False)):
        assert main(["plan", *GOOD, "--racks", "2", "--core", core]) == 0
        assert ("the core is slower" in " ".join(capsys.readouterr().out.split())) is slower


def test_more_workers_than_a_job_has_servers_rule_out_a_server_on_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned(capsys, *replaced("--workers", "100"))
    rows = {row["topology"]: row for row in plan["topologies"]}
    assert not rows["cs"]["startable"]
    assert rows["ncs"]["servers"] == 64
    assert plan["recommended"]["topology"] != "cs"
    assert main(["plan", *replaced("--workers", "100")]) == 0
    assert "cs would take 100 servers; a job has at most 64" in capsys.readouterr().out


def test_bytes_a_second_are_told_apart_from_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *replaced("--link", "10gbps")]) == 0
    assert "--link 10gbps is 80gbit: bps are bytes per second" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        GOOD,
        SIZED,
        [*SIZED, "--racks", "2", "--core", "1gbit", "--server-link", "560gbit"],
        replaced("--workers", "1024"),
        replaced("--compute", "1ms", replaced("--bytes", "100GB", replaced("--link", "1gbit"))),
        ["--paper", "table2"],
        ["--paper", "table5"],
    ],
)
def test_what_is_printed_fits_eighty_columns(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(("table", "cells"), [("table2", 16), ("table5", 12)])
def test_a_table_of_the_paper_stands_beside_ours(
    table: str, cells: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(planned(capsys, "--paper", table)["cells"]) == cells
    assert main(["plan", "--paper", table]) == 0
    text = capsys.readouterr().out
    for value in ("1408", "122") if table == "table2" else ("57.71", "84.95"):
        assert value in text


DOCS = Path(__file__).parents[2] / "docs" / "plan.md"


def test_the_docs_show_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"```console\n\$ penstock (.+)\n((?s:.*?))```", DOCS.read_text())
    assert shown
    for command, output in shown:
        assert main(command.split()) == 0
        assert capsys.readouterr().out == output


@pytest.mark.parametrize("table", ["table2", "table5"])
def test_the_docs_tables_hold_the_figures_that_the_command_prints(
    table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--paper", table]) == 0
    # The page prints its rows another way round; the figures are the same ones.
    figures = set(re.findall(r"\d+\.\d+", capsys.readouterr().out.split("\n\n")[0]))
    page = set(re.findall(r"\d+\.\d+", DOCS.read_text()))
    assert figures
    assert figures <= page


# Torch modules


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module into the current folder; returns its name, which no other test has."""
    monkeypatch.chdir(tmp_path)
    names = []

    def write(code: str) -> str:
        names.append(f"planned_{uuid.uuid4().hex}")
        (tmp_path / f"{names[-1]}.py").write_text(code)
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


def torch_plan(name: str) -> list[str]:
    return ["--torch", name, "--workers", "2", "--link", "1gbit", "--compute", "1ms"]


def test_a_torch_module_counts_with_what_it_trains(
    module: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    name = module(
        "import torch\n"
        "print('loading')\n"
        "def make():\n"
        "    print('making')\n"
        "    first, second = torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 5).half()\n"
        "    frozen = torch.nn.Linear(1000, 1000).requires_grad_(False)\n"
        "    return torch.nn.Sequential(first, second, frozen, first)\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self): super().__init__(3, 1)\n"
        "ready = Net()\n"
    )
    # What the module prints must not stand in the JSON.
    assert planned(capsys, *torch_plan(f"{name}:make"))["model"]["bytes"] == 4 * 100 + 2 * 55
    wide = planned(capsys, *torch_plan(f"{name}:make"), "--dtype", "float64")
    assert wide["model"]["bytes"] == 8 * 155
    assert planned(capsys, *torch_plan(f"{name}:Net"))["model"]["bytes"] == 16
    assert planned(capsys, *torch_plan(f"{name}:ready"))["model"]["bytes"] == 16


@pytest.mark.parametrize(
    ("code", "attribute", "said"),
    [
        ("import no_such_thing_anywhere", ":make", "does not import: ModuleNotFoundError"),
        ("raise RuntimeError('no\\nGPU')", ":make", "does not import: RuntimeError: no GPU"),
        ("import sys; sys.exit(3)", ":make", "does not import: SystemExit: 3"),
        ("this is no Python", ":make", "does not import: SyntaxError"),
        ("", ":make", "there is no 'make'"),
        ("", "", "is not of the form module:callable"),
        ("", ":", "is not of the form module:callable"),
        ("make = 3", ":make", "neither a torch module nor callable"),
        ("def make(): raise KeyError('size')", ":make", "failed: KeyError: 'size'"),
        ("def make(size): pass", ":make", "failed: TypeError"),
        ("def make(): return 3", ":make", "gave a int, not a torch module"),
        ("class make:\n  def parameters(self): return [3]", ":make", "cannot be counted: AttributeError"),
        ("class make:\n  def parameters(self): return []", ":make", "has no parameters to train"),
    ],
)
def test_a_module_that_cannot_be_planned_with_is_refused_by_name(
    code: str, attribute: str, said: str, module: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = module(code)
    before = list(sys.path)
    assert main(["plan", *torch_plan(name + attribute)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err.splitlines()[0]
    assert "hint: " in printed.err
    assert (printed.out, sys.path) == ("", before)


def test_a_module_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *torch_plan("no.such.module:make")]) == 2
    assert "'no.such.module' does not import" in capsys.readouterr().err
