"""The network benchmarks as a user calls them. No time is judged: only figures, and what is wrong."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from needing import hosts

from penstock.cli import main
from penstock_bench.network import streams


def own_hosts() -> list[str]:
    """Test hosts of this process that stand."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"penstock-{os.getpid()}-")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("pushpull --hosts nets", "invalid choice: 'nets'"),
        ("pushpull --hosts netns --rate 1gigabit", "--rate '1gigabit' has the unknown unit"),
        ("pushpull --hosts netns --topology star", "there is no topology 'star'"),
        ("pushpull --hosts netns --plain --tls", "--plain and --tls exclude each other"),
        ("pushpull --hosts netns --systems penstock,nccl", "there is no system 'nccl'"),
        ("pushpull --hosts netns --workers 2,0", "--workers is 0, but has to be at least 1"),
        (
            "pushpull --hosts netns --json /no/such/folder/f.json",
            "--json /no/such/folder/f.json: No such file",
        ),
        ("loopback --hosts netns", "unknown option --hosts"),
        ("loopback --streams 0", "--streams is 0, but has to be at least 1"),
        ("loopback --size 3", "not a multiple of 4"),
        ("zero-compute --model resnet5", "there is no model 'resnet5'"),
        ("zero-compute --rate 1gbit", "--rate shapes the links of test hosts"),
        ("tenants --jobs one", "--jobs 'one' is not a whole number"),
        ("tenants --jobs 1 --greedy", "a greedy job needs another beside it"),
        ("tenants --plot figure.xyz", "has no suffix that can be drawn"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    arguments: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert printed.out == ""


@hosts
def test_all_topologies_and_peers_do_the_same_work_between_test_hosts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures, plot = tmp_path / "figures.json", tmp_path / "figures.png"
    command = "bench pushpull --hosts netns --rate 1gbit --topology all --size 100004 --rounds 1 --repeats 3"
    assert main([*command.split(), "--json", str(figures), "--plot", str(plot)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    measured = {system["system"]: system for system in case["systems"]}
    assert {f"penstock {topology}" for topology in ("ncc", "cc", "ncs", "cs")} <= set(measured)
    assert set(case["absent"]) | set(measured) >= {"gloo", "mpi"}, "who is missing is named"
    assert all(system["repeats"] == 3 and system["ideal_s"] > 0 for system in measured.values())
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "of ideal" in capsys.readouterr().out
    assert own_hosts() == []


@hosts
def test_jobs_on_one_server_are_measured_beside_one_job_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench tenants --hosts netns --rate 1gbit --jobs 2 --greedy --size 4KiB --seconds 1 --rounds 1"
    assert main([*command.split(), "--json", str(figures)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    assert case["alone"] > 0
    assert [len(run["bytes_per_second"]) for run in case["runs"]] == [2]
    assert case["alone_processor_s_per_gb"] > 0
    assert all(run["processor_s_per_gb"] > 0 for run in case["runs"])
    printed = capsys.readouterr().out
    assert "the greedy one has" in printed
    assert printed.count("processor s/GB") == 2, "of one alone, and of those together"


def test_every_layer_is_exchanged_over_the_loopback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    command = "bench zero-compute --model resnet18 --workers 2 --systems penstock --rounds 1 --repeats 3"
    assert main([*command.split(), "--json", str(figures)]) == 0
    cases = json.loads(figures.read_text())["cases"]
    assert [(case["workers"], case["bytes"]) for case in cases] == [(2, 46_758_048)]
    assert "exchanges/s" in capsys.readouterr().out


def test_the_loopback_is_measured_plain_and_under_tls_and_a_missing_iperf3_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_bench.network.streams.missing", lambda: "iperf3 was not found")
    command = "bench loopback --size 100004 --rounds 1 --repeats 3"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    assert "penstock tls" in printed
    assert "iperf3: skipped: iperf3 was not found" in printed
    assert "processor s/GB" in printed


def test_what_iperf3_used_of_the_processors_stands_beside_what_it_moved() -> None:
    end = {
        "sum_received": {"bits_per_second": 12e9},
        "sum_received_bidir_reverse": {"bits_per_second": 4e9},
        "cpu_utilization_percent": {"host_total": 60.0, "remote_total": 40.0},
    }
    before = streams.read(end)
    assert before == streams.Moved(rate=2e9, processor_per_gb=0.5)
    assert streams.mean(before, streams.Moved(4e9, 1.0)) == streams.Moved(3e9, 0.75)
