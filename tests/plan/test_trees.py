"""`penstock plan --tree` as a user calls it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.exceptions import OptionError

GOOD = ["--tree", "auto", "--hosts", "8", "--bytes", "256MiB"]
DOCS = Path(__file__).parents[2] / "docs" / "trees.md"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def ratios(plan: Any) -> dict[str, float]:
    return {row["shape"].split()[0].strip(","): row["ratio"] for row in plan["shapes"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tree", "bush", *GOOD[2:]], "there is no shape 'bush'"),
        (["--tree", "stra", *GOOD[2:]], "there is no shape 'stra'"),
        (["--tree", "star", "--bytes", "1MB"], "--hosts is missing"),
        (["--tree", "star", "--hosts", "8"], "--bytes is missing"),
        ([*GOOD[:3], "0", *GOOD[4:]], "--hosts '0' is not above zero"),
        ([*GOOD[:3], "-3", *GOOD[4:]], "--hosts '-3' is negative"),
        ([*GOOD[:3], "1025", *GOOD[4:]], "at most 1024 are allowed"),
        ([*GOOD[:3], "2.5", *GOOD[4:]], "--hosts '2.5' is not a whole number"),
        ([*GOOD[:3], "a,b,a", *GOOD[4:]], "--hosts has 'a' twice"),
        ([*GOOD[:3], "a,,b", *GOOD[4:]], "has an empty name"),
        ([*GOOD[:3], "node[1-3]", *GOOD[4:]], "is no host's name"),
        ([*GOOD[:3], "10.0.0.1", *GOOD[4:]], "is one address"),
        ([*GOOD[:3], "", *GOOD[4:]], "--hosts '' is not a valid number"),
        ([*GOOD, "--racks", "9"], "--racks is 9, but at most 8"),
        ([*GOOD, "--racks", "0"], "--racks '0' is not above zero"),
        ([*GOOD, "--racks", "r1,r2"], "--racks has 2 labels for 8 hosts"),
        ([*GOOD[:3], "a,b", *GOOD[4:], "--racks", "/r,q"], "--racks has the label '/r'"),
        ([*GOOD[:3], "a,b", *GOOD[4:], "--racks", "z/,q"], "--racks has the label 'z/'"),
        ([*GOOD, "--degree", "0"], "the degree is 0"),
        ([*GOOD, "--degree", "-1"], "--degree '-1' is negative"),
        ([*GOOD, "--degree", "two"], "--degree 'two' is not a valid number"),
        ([*GOOD, "--degree", "5000M"], "--degree is 5000000000, but at most"),
        ([*GOOD, "--depth", "0"], "a tree of degree 2 and depth 0 reaches 0 hosts, not 8"),
        ([*GOOD, "--degree", "2", "--depth", "2"], "a tree of degree 2 and depth 2 reaches 6 hosts, not 8"),
        ([*GOOD, "--leaf-penalty", "-0.5"], "--leaf-penalty '-0.5' is out of range"),
        ([*GOOD, "--leaf-penalty", "nan"], "--leaf-penalty 'nan' is out of range"),
        ([*GOOD, "--leaf-penalty", "much"], "--leaf-penalty 'much' is not a number"),
        ([*GOOD, "--stripes", "9"], "--stripes is 9, but at most 8"),
        ([*GOOD, "--stripes", "0"], "--stripes '0' is not above zero"),
        ([*GOOD, "--rate", "0bit"], "--rate '0bit' is below one bit"),
        ([*GOOD, "--rate", "10"], "--rate '10' has no unit"),
        ([*GOOD, "--rate", "nan"], "--rate 'nan' is not a valid rate"),
        ([*GOOD, "--rate", "1gbit,2gbit"], "--rate has 2 rates for 8 hosts"),
        ([*GOOD, "--servers", "65"], "--servers is 65, but at most 64"),
        ([*GOOD, "--servers", "9", "--colocated"], "--servers is 9, but at most 8"),
        ([*GOOD, "--block", "2MiB"], "--block '2MiB' is above 1MiB"),
        ([*GOOD, "--block", "0"], "--block '0' is not above zero"),
        ([*GOOD, "--hop", "-1us"], "--hop '-1us' is negative"),
        ([*GOOD[:5], "0"], "--bytes '0' is not above zero"),
        ([*GOOD, "--draw", "tree.doc"], "--draw 'tree.doc' does not end in .png or .svg"),
        ([*GOOD, "--draw", "/no/such/folder/tree.png"], "is in a folder that is not there"),
        ([*GOOD, "--link", "1gbit"], "--link has no meaning with --tree"),
        ([*GOOD, "--model", "an"], "--model has no meaning with --tree"),
        ([*GOOD, "--paper", "table2"], "has no meaning with --paper"),
        (["--degree", "2", "--bytes", "1MB"], "--degree needs --tree"),
        (["--colocated"], "--colocated needs --tree"),
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


def test_every_shape_has_its_time_as_a_ratio_to_one_transfer(capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, *GOOD)
    assert plan["one_transfer_s"] == pytest.approx((256 << 20) / 1.25e9)
    found = ratios(plan)
    assert found["star"] == pytest.approx(8)
    assert 1 <= found["chain"] <= 1.25
    assert 1 <= found["striped"] <= 1.25
    assert found["tree"] == pytest.approx(2, rel=0.02)
    assert plan["planned"]["ratio"] == min(found.values())


def test_a_thousand_hosts_get_stripes_where_a_chain_takes_five_transfers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = ratios(planned(capsys, "--tree", "auto", "--hosts", "1000", "--racks", "25", "--bytes", "256MiB"))
    assert found["striped"] <= 1.25
    assert found["chain"] == pytest.approx(4.9, abs=0.1)


def test_the_printed_trees_reach_every_host_in_every_stripe(capsys: pytest.CaptureFixture[str]) -> None:
    names = ",".join("abcdefg")
    arguments = ["--tree", "striped", "--hosts", names, "--bytes", "1GB", "--stripes", "3"]
    assert main(["plan", *arguments]) == 0
    _, *stripes = re.split(r"stripe \d of 3, [\d.]+% of the bytes\n", capsys.readouterr().out)
    assert len(stripes) == 3
    for stripe in stripes:
        server, *lines = stripe.rstrip().splitlines()
        assert server == "server0 (server)"
        assert sorted(re.findall(r"\w+", " ".join(lines))) == list("abcdefg")
    trees = planned(capsys, *arguments)["planned"]["trees"]
    assert sum(tree["share"] for tree in trees) == pytest.approx(1)
    assert all(sorted(tree["parents"]) == list("abcdefg") for tree in trees)


def test_racks_decide_who_sends_to_whom(capsys: pytest.CaptureFixture[str]) -> None:
    racks = "z1/r1,z2/r2,z1/r1,z2/r2,z1/r3,z2/r2"
    arguments = ["--hosts", "a,b,c,d,e,f", "--racks", racks, "--bytes", "1GB"]
    chain = planned(capsys, "--tree", "chain", *arguments)["planned"]["trees"][0]["parents"]
    # The server stands in r1; then the rack of its zone, then the other zone.
    assert chain == {"a": None, "c": "a", "e": "c", "b": "e", "d": "b", "f": "d"}


def test_measured_rates_make_the_fast_hosts_pass_on(capsys: pytest.CaptureFixture[str]) -> None:
    rates = "1gbit,1gbit,25gbit,1gbit,1gbit,1gbit"
    arguments = ["--hosts", "6", "--bytes", "1GB", "--rate", rates, "--degree", "3", "--depth", "3"]
    plan = planned(capsys, "--tree", "tree", *arguments)
    parents = plan["planned"]["trees"][0]["parents"]
    assert plan["costs"] == "measured"
    assert list(parents.values()).count("host2") == 3


def test_servers_have_trees_with_other_inner_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tree", "tree", "--hosts", "12", "--bytes", "1GB", "--servers", "4"]
    trees = planned(capsys, *arguments)["planned"]["trees"]
    assert [tree["server"] for tree in trees] == ["server0", "server1", "server2", "server3"]
    inner = [frozenset(tree["parents"].values()) - {None} for tree in trees]
    assert not frozenset.intersection(*inner)
    assert main(["plan", *arguments]) == 0
    assert "those of 3 others are alike" in " ".join(capsys.readouterr().out.split())
    shared = planned(capsys, *arguments, "--colocated")["planned"]["trees"]
    assert [tree["parents"][tree["server"]] for tree in shared] == [None] * 4


@pytest.mark.parametrize(
    "arguments",
    [
        GOOD,
        ["--tree", "chain", "--hosts", "200", "--bytes", "1MB"],
        ["--tree", "tree", "--hosts", "1000", "--racks", "9", "--bytes", "1GB", "--servers", "3"],
        ["--tree", "star", "--hosts", "300", "--bytes", "4kB", "--hop", "30us", "--block", "1kB"],
        ["--tree", "auto", "--hosts", "1", "--bytes", "1", "--colocated"],
    ],
)
def test_what_is_printed_fits_eighty_columns_and_is_the_same_again(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert main(["plan", *arguments]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plan_is_drawn(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"tree.{suffix}"
    assert main(["plan", *GOOD, "--racks", "2", "--draw", str(picture)]) == 0
    start = picture.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if suffix == "png" else start.startswith(b"<?xml")


def test_where_matplotlib_is_missing_drawing_says_so_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plan", *GOOD, "--draw", str(tmp_path / "tree.png")]) == 2
    printed = capsys.readouterr()
    assert "--draw needs matplotlib" in printed.err
    assert printed.out == ""
    assert main(["plan", *GOOD]) == 0


def test_the_docs_show_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"```console\n\$ penstock (.+)\n((?s:.*?))```", DOCS.read_text())
    assert shown
    for command, output in shown:
        assert main(command.split()) == 0
        assert capsys.readouterr().out == output


# The core's planner, for whoever calls it without the command line.


def planner(*hosts: tuple[int, int, int, float], **other: Any) -> Any:
    from penstock import _core

    server = other.get("server", (0, 0, 99, 1e9))
    return _core.OverlayPlanner([server], list(hosts), False, other.get("traffic", (1 << 28, 1 << 20, 0.0)))


def test_trees_that_somebody_else_made_are_predicted_or_refused() -> None:
    made = planner((0, 0, 0, 1e9), (0, 0, 1, 1e9), (0, 0, 2, 1e9))
    assert made.predict([[(1.0, [(0, 1), (0, 2), (0, 3)])]])[1] == pytest.approx(3)
    for overlays, said in [
        ([[(1.0, [(0, 1), (2, 3), (3, 2)])]], "send to each other in a circle"),
        ([[(1.0, [(0, 1), (0, 2)])]], "nobody sends to node 3"),
        ([[(1.0, [(0, 1), (0, 2), (0, 3), (1, 3)])]], "nodes 0 and 1 both send to node 3"),
        ([[(1.0, [(0, 1), (0, 2), (0, 4)])]], "there is no node 4"),
        ([[(0.5, [(0, 1), (0, 2), (0, 3)])]], "shares of the stripes"),
        ([], "0 overlays were given for 1 servers"),
    ]:
        with pytest.raises(OptionError, match=said) as refused:
            made.predict(overlays)
        assert refused.value.hint


def test_a_cluster_that_cannot_be_is_refused_by_the_core_too() -> None:
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="uplink of host 0 has a rate of"):
            planner((0, 0, 0, rate))
    with pytest.raises(OptionError, match="host 1 is given twice"):
        planner((0, 0, 1, 1e9), (0, 0, 1, 1e9))
    with pytest.raises(OptionError, match="there are no hosts"):
        planner()
    with pytest.raises(OptionError, match="penalty on leaves is NaN"):
        planner((0, 0, 0, 1e9)).plan("tree", (2, 2, float("nan")), None)
    with pytest.raises(OptionError, match='there is no shape "bush"'):
        planner((0, 0, 0, 1e9)).plan("bush", (2, 2, 0.0), None)


def test_a_rate_in_bytes_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--tree", "star", "--hosts", "2", "--bytes", "1MB", "--rate", "10gbit,10Gbps"]
    assert main(command) == 0
    assert "--rate 10Gbps is 80gbit: bps are bytes per second" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert "80gbit" in json.loads(capsys.readouterr().out)["notes"][0]
