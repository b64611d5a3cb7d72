"""What launchers' variables mean."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest

import penstock as ps
from penstock import _core
from penstock.limit import Limit
from penstock.rendezvous import choose, environment, slurm, tcp

STEP = {
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "2"}, ("penstock", 0, 2)),
        (TORCHRUN, ("torchrun", 5, 8)),
        (OPEN_MPI, ("mpirun", 1, 2)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, ("mpirun", 2, 3)),
        (STEP, ("srun", 3, 4)),
        # Launchers that were started by launchers: the inner one counts.
        ({**STEP, **OPEN_MPI}, ("mpirun", 1, 2)),
        ({**STEP, **TORCHRUN}, ("torchrun", 5, 8)),
        ({**TORCHRUN, "PENSTOCK_RANK": "1", "PENSTOCK_SIZE": "3"}, ("penstock", 1, 3)),
        # A RANK that any program may set, and a rendezvous address that is exported everywhere, say nothing
        # of this process.
        ({"RANK": "1"}, None),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, None),
        # A batch script and an allocation have Slurm's count, but are one process.
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}, None),
    ],
)
def test_the_place_of_a_process_is_what_its_own_launcher_says(variables, expected) -> None:
    found = environment.place(variables)
    assert (None if found is None else (found.launcher, found.rank, found.size)) == expected


@pytest.mark.parametrize(
    ("variables", "error", "says"),
    [
        ({"WORLD_SIZE": "4"}, ps.exceptions.NotUnderLauncher, "RANK does not say which"),
        # Each of them trained alone, as rank 0 of 1, and ended with 0.
        (
            {"PENSTOCK_RANK": "1"},
            ps.exceptions.NotUnderLauncher,
            "number 1 of several, but PENSTOCK_SIZE is not set",
        ),
        ({**OPEN_MPI, "PENSTOCK_RANK": "1"}, ps.exceptions.NotUnderLauncher, "PENSTOCK_SIZE is not set"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, ps.exceptions.NotUnderLauncher, "OMPI_COMM_WORLD_SIZE is not set"),
        ({"PMI_RANK": "1"}, ps.exceptions.NotUnderLauncher, "PMI_SIZE is not set"),
        ({"RANK": "1", "MASTER_ADDR": "a"}, ps.exceptions.NotUnderLauncher, "WORLD_SIZE is not set"),
        ({"RANK": "x", "WORLD_SIZE": "4"}, ps.exceptions.OptionError, "RANK to be a whole number, got `x`"),
        ({"PENSTOCK_RANK": "-1", "PENSTOCK_SIZE": "4"}, ps.exceptions.OptionError, "whole number"),
        # They too, where the size said one or none.
        (
            {"PENSTOCK_RANK": "1", "PENSTOCK_SIZE": "1"},
            ps.exceptions.JobFull,
            "which PENSTOCK_SIZE says is 1",
        ),
        (
            {"PENSTOCK_RANK": "3", "PENSTOCK_SIZE": "0"},
            ps.exceptions.JobFull,
            "rank 3 is outside the job's size",
        ),
        ({"RANK": "1", "WORLD_SIZE": "1"}, ps.exceptions.JobFull, "which WORLD_SIZE says is 1"),
    ],
)
def test_a_place_that_cannot_be_is_refused(variables, error, says) -> None:
    with pytest.raises(error, match=says) as caught:
        environment.place(variables)
    assert caught.value.hint


@pytest.mark.parametrize("value", ["abc", "0" * 63, "0" * 65, "g" * 64])
def test_a_secret_that_is_none_is_refused_without_being_shown(value: str) -> None:
    with pytest.raises(ps.exceptions.OptionError, match="64 hex digits") as caught:
        environment.secret({"PENSTOCK_SECRET": value})
    assert value not in str(caught.value)
    assert "penstock secret" in str(caught.value.hint)


def test_topologies_that_need_hosts_without_workers_say_how_to_get_them() -> None:
    assert environment.topology({}) == "cs"
    assert environment.topology({"PENSTOCK_TOPOLOGY": "cc"}) == "cc"
    with pytest.raises(
        ps.exceptions.OptionError, match="ncs asks for servers on hosts without workers"
    ) as caught:
        environment.topology({"PENSTOCK_TOPOLOGY": "ncs"})
    assert "penstock server" in str(caught.value.hint)
    with pytest.raises(ps.exceptions.OptionError, match="got `ring`"):
        environment.topology({"PENSTOCK_TOPOLOGY": "ring"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node7,node8", "node7"),
        ("node[07-12]", "node07"),
        ("node[3,07-12],login", "node3"),
        ("login,node[3]", "login"),
        ("rack[2-3]n[1-4]-ib,x", "rack2n1-ib"),
        ("a-b-1.cluster.example", "a-b-1.cluster.example"),
    ],
)
def test_the_first_host_of_a_list_of_slurm_is_found(nodes: str, first: str) -> None:
    assert slurm.first_host(nodes) == first


def test_the_tasks_of_a_step_agree_on_where_they_meet_and_two_steps_meet_elsewhere() -> None:
    step = {**STEP, "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    places = [slurm.rendezvous_address({**step, "SLURM_PROCID": str(rank)}) for rank in range(4)]
    assert set(places) == {places[0]}
    assert places[0][0] == "n1"
    assert 20000 <= places[0][1] < 30000
    assert slurm.rendezvous_address({**step, "SLURM_STEP_ID": "1"})[1] != places[0][1]
    assert slurm.rendezvous_address({**step, "SLURM_JOB_ID": "4712"})[1] != places[0][1]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT do not say where they meet"),
        ({"PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "2"}, "nothing says where they meet"),
        ({"PENSTOCK_RENDEZVOUS": "h:1"}, "PENSTOCK_RANK and PENSTOCK_SIZE are not set"),
        ({"PENSTOCK_RENDEZVOUS": "h:1", "PENSTOCK_RANK": "1"}, "PENSTOCK_SIZE is not set"),
        ({"SLURM_NTASKS": "3"}, "srun did not start this one"),
        ({**STEP, "SLURM_JOB_ID": "1"}, "PENSTOCK_SECRET is not set"),
        ({"PENSTOCK_MANAGER": "h:1"}, "PENSTOCK_JOB is not set"),
        ({"PENSTOCK_MANAGER": "h:1", "PENSTOCK_JOB": "j"}, "PENSTOCK_SECRET is not set"),
    ],
)
def test_a_process_that_cannot_find_its_job_says_what_its_launcher_needs(
    variables, says, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ps.exceptions.NotUnderLauncher, match=says) as caught:
        ps.init()
    assert caught.value.hint


def test_a_rank_outside_the_size_is_refused_before_anybody_is_waited_for(monkeypatch) -> None:
    for name, value in {"RANK": "4", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ps.exceptions.JobFull, match="rank 4 is outside the job's size, which WORLD_SIZE says is 4"
    ):
        ps.init()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CONSISTENY", "CONSISTENCY"),
        ("SERVER", "SERVERS"),
        ("RENDEZVOUZ", "RENDEZVOUS"),
        ("DEADLNE", "DEADLINE"),
    ],
)
def test_a_variable_that_is_nearly_one_of_ours_is_refused_with_the_one_that_was_meant(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PENSTOCK_{name}", "asp")
    with pytest.raises(ps.exceptions.OptionError, match=f"PENSTOCK_{name} sets nothing") as caught:
        ps.init()
    assert f"did you mean PENSTOCK_{meant}?" in str(caught.value.hint)


def test_a_variable_that_nobody_reads_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="PENSTOCK_TIMEOUT sets nothing"):
        environment.check_names({"PENSTOCK_TIMEOUT": "5"})


def test_names_that_are_no_text_are_anybodys_but_ours() -> None:
    # ps.init() failed with a UnicodeEncodeError.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.check_names({os.fsdecode(b"OTHER_\xff"): "1", os.fsdecode(b"\xff"): ""})
    with pytest.warns(UserWarning, match=r"PENSTOCK_\\xff\\xc3 sets nothing"):
        environment.check_names({os.fsdecode(b"PENSTOCK_\xff\xc3"): "1"})


@pytest.mark.parametrize("address", ["localhost:7700", "[::1]:7700"])
def test_an_address_without_tcp_is_refused_with_what_was_meant(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SERVERS": address, "RANK": "0", "SIZE": "1", "SECRET": "ab" * 32}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    with pytest.raises(ps.exceptions.OptionError, match="a socket's path or tcp://HOST:PORT") as caught:
        ps.init()
    assert f"give tcp://{address};" in str(caught.value.hint)


def test_every_variable_that_the_package_reads_or_kubernetes_makes_is_known() -> None:
    package = Path(ps.__file__).parent
    read = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"""["'](PENSTOCK_[A-Z_]+)["']""", path.read_text())
    }
    assert {"PENSTOCK_RANK", "PENSTOCK_REPORT_FD"} < read
    read |= {str(option["env"]) for option in _core.options()}
    made = {
        "PENSTOCK_PORT",
        "PENSTOCK_PORT_7701_TCP_ADDR",
        "PENSTOCK_SERVICE_PORT_GRPC",
        "PENSTOCK_MANAGER_PORT",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.check_names(dict.fromkeys(read | made, "x"))


def test_a_topology_that_is_none_is_refused_where_one_process_is_alone_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_TOPOLOGY", "ccc")
    with pytest.raises(ps.exceptions.OptionError, match="got `ccc`"):
        ps.init()


# Each was a UnicodeEncodeError.
@pytest.mark.parametrize(("name", "launcher"), [("MASTER_ADDR", "torchrun"), ("SLURM_STEP_NODELIST", "srun")])
def test_a_launcher_s_host_that_is_no_text_is_refused(
    name: str, launcher: environment.Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", "ab" * 32)
    monkeypatch.setenv(name, os.fsdecode(b"a\xff:70"))
    place = environment.Place(launcher, 0, 2, "PENSTOCK_SIZE")
    way = environment.Way("launcher", place, [], None)
    with pytest.raises(ps.exceptions.OptionError, match=rf"expected {name} to be UTF-8, got `a\\xff:70`"):
        choose.exchange(way, place, Limit(1.0))


def test_a_rendezvous_that_is_no_text_is_refused() -> None:
    variables = {
        "PENSTOCK_RENDEZVOUS": os.fsdecode(b"a\xff:70"),
        "PENSTOCK_SECRET": "ab" * 32,
        "PENSTOCK_RANK": "0",
        "PENSTOCK_SIZE": "2",
    }
    way = environment.way(variables)
    assert way.place is not None
    with pytest.raises(
        ps.exceptions.OptionError, match="expected PENSTOCK_RENDEZVOUS to be HOST:PORT, got `a"
    ):
        choose.exchange(way, way.place, Limit(1.0))


# What the way has found is not looked for again: the variables may have changed since, and C programs do not.
def test_where_processes_meet_is_what_the_way_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RENDEZVOUS", "nowhere")
    monkeypatch.delenv("PENSTOCK_SECRET", raising=False)
    place = environment.Place("penstock", 1, 2, "PENSTOCK_SIZE")
    way = environment.Way("rendezvous", place, ["127.0.0.1:70"], "ab" * 32)
    exchange = choose.exchange(way, place, Limit(1.0))
    assert isinstance(exchange, tcp.Visitor)
    assert exchange.rendezvous_host == "127.0.0.1"
    exchange.close()


def test_a_number_of_processes_beyond_all_bounds_is_refused() -> None:
    beyond = {"PENSTOCK_RANK": "0", "PENSTOCK_SIZE": "5000000000"}
    with pytest.raises(ps.exceptions.OptionError, match="PENSTOCK_SIZE"):
        environment.place(beyond)
