"""The figures of the kernels' benchmark as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock_bench import kernels


def wrote(folder: Path, what: str, given: str, *, ns: float, nbytes: int) -> None:
    """What criterion writes of a benchmark."""
    place = folder / "pushes" / what / given / "new"
    place.mkdir(parents=True)
    about = {"function_id": what, "value_str": given, "throughput": {"Bytes": nbytes}}
    (place / "benchmark.json").write_text(json.dumps(about))
    bounds = {"lower_bound": ns * 0.98, "upper_bound": ns * 1.02}
    (place / "estimates.json").write_text(
        json.dumps({"median": {"point_estimate": ns, "confidence_interval": bounds}})
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sizes, of which the larger one was written first."""
    for size, kib in (("1024KiB", 1024), ("32KiB", 32)):
        wrote(tmp_path, "copy", size, ns=kib * 51.2, nbytes=kib << 10)
        wrote(tmp_path, "select+encode", f"{size}, 90%", ns=kib * 102.4, nbytes=kib << 10)
    wrote(tmp_path, "decode+apply", "32KiB, 90%", ns=32 * 204.8, nbytes=32 << 10)
    return tmp_path


def test_a_row_a_size_with_rates_and_what_they_are_of_a_copys(folder: Path) -> None:
    assert kernels.table(kernels.figures(folder)).splitlines() == [
        "| size | held back | a copy | `select+encode` | `decode+apply` |",
        "|---|---|---|---|---|",
        "| 32 KiB | 90 % | 20.0 | 10.0 (0.50) ± 2 % | 5.0 (0.25) ± 2 % |",
        "| 1 MiB | 90 % | 20.0 | 10.0 (0.50) ± 2 % | - |",
    ]


def test_it_goes_into_its_place_of_a_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n\n<!-- pushes -->\n<!-- /pushes -->\n\nb\n")
    assert kernels.main([str(folder), "--into", str(page)]) == 0
    assert "| 32 KiB | 90 % |" in page.read_text()


def test_without_figures_it_says_how_they_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        kernels.main([str(tmp_path)])
    assert ended.value.code == 2
    assert "cargo bench -p penstock-kernels --bench pushes" in capsys.readouterr().err
