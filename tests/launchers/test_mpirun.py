"""The example under Open MPI's mpirun, with mpi4py and without."""

from __future__ import annotations

import sys

import pytest
from groups import BIN, LINEAR, Group, learned

pytest.importorskip("mpi4py")
if not (BIN / "mpirun").exists():
    pytest.skip("there is no mpirun beside this Python", allow_module_level=True)

# Tests may run as root, on fewer cores than ranks.
PERMITTED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
NO_MPI4PY = (
    "import sys; sys.modules['mpi4py'] = None; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
)


@pytest.mark.parametrize("ranks", ["2", "4"])
def test_the_ranks_become_one_job(group: Group, ranks: str) -> None:
    done = group.run(["mpirun", "-n", ranks, sys.executable, LINEAR], **PERMITTED)
    assert (done.code, learned(done.out)) == (0, True), done


def test_one_rank_trains_alone(group: Group) -> None:
    done = group.run(["mpirun", "-n", "1", sys.executable, "-c", NO_MPI4PY, LINEAR], **PERMITTED)
    assert (done.code, learned(done.out)) == (0, True), done


def test_without_mpi4py_the_ranks_meet_where_they_are_told(group: Group, secret: str, port: int) -> None:
    told = {"PENSTOCK_RENDEZVOUS": f"127.0.0.1:{port}", "PENSTOCK_SECRET": secret}
    done = group.run(["mpirun", "-n", "2", sys.executable, "-c", NO_MPI4PY, LINEAR], **PERMITTED, **told)
    assert (done.code, learned(done.out)) == (0, True), done


def test_without_either_the_ranks_are_told_what_is_missing(group: Group) -> None:
    done = group.run(["mpirun", "-n", "2", sys.executable, "-c", NO_MPI4PY, LINEAR], **PERMITTED)
    assert done.code == 1
    assert "NotUnderLauncher: OMPI_COMM_WORLD_SIZE says that 2 processes were started" in done.err
    assert "docs/launchers/mpirun.md" in done.err


def test_mpi4py_of_another_mpi_is_found_out(group: Group) -> None:
    # What MPICH's mpiexec would say to a process whose mpi4py was built for Open MPI.
    done = group.run([sys.executable, LINEAR], PMI_RANK="1", PMI_SIZE="2", **PERMITTED)
    assert done.code == 1
    assert "built for another MPI than the launcher's" in done.err


def test_a_rank_that_never_joins_is_named_by_those_who_waited(group: Group, script) -> None:
    path = script("""
        from mpi4py import MPI
        import penstock as ps

        rank = MPI.COMM_WORLD.Get_rank()
        try:
            if rank != 1:
                ps.init(deadline=5)
        except ps.exceptions.DeadlineExceeded as error:
            print(f"missing {error.missing} for {rank}", flush=True)
        MPI.COMM_WORLD.Barrier()
    """)
    done = group.run(["mpirun", "-n", "3", sys.executable, path], **PERMITTED)
    assert done.code == 0, done
    assert sorted(done.out.splitlines()) == ["missing [1] for 0", "missing [1] for 2"]


def test_messages_of_the_script_are_not_mistaken_for_ours(group: Group, script) -> None:
    path = script("""
        from mpi4py import MPI
        import penstock as ps

        world = MPI.COMM_WORLD
        other = 1 - world.Get_rank()
        world.isend("hello", other, tag=1)
        with ps.init() as job:
            w = job.tensor("w", shape=(2,), reduce="sum")
            w.push([1, 1])
            job.clock()
            print(world.recv(source=other, tag=1), w.pull()[0], flush=True)
    """)
    done = group.run(["mpirun", "-n", "2", sys.executable, path], **PERMITTED)
    assert (done.code, done.out) == (0, "hello 2.0\n" * 2), done
