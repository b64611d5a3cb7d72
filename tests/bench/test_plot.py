"""The picture is drawn for one case and for a sweep, whoever is missing."""

from pathlib import Path

import pytest

from penstock_bench import plot
from penstock_bench.runner import Case, Round

pytest.importorskip("matplotlib")


def case(nbytes: int, workers: int, *names: str) -> Case:
    times = {
        name: [(index + 1) * nbytes * 1e-9, (index + 2) * nbytes * 1e-9] for index, name in enumerate(names)
    }
    return Case(nbytes, workers, rounds=[Round((50.0, 50.0), times)])


@pytest.mark.parametrize(
    "names", [("penstock", "limit", "gloo+sgd", "mpi+sgd"), ("penstock",), ("gloo+sgd", "limit")]
)
@pytest.mark.parametrize("sizes", [[4096], [4096, 16384, 65536]])
def test_a_picture_comes_out(names: tuple[str, ...], sizes: list[int], tmp_path: Path) -> None:
    plot.draw([case(size, workers, *names) for workers in (1, 2) for size in sizes], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
