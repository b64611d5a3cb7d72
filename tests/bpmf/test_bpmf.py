"""Matrix factorisation: files that are read and refused, the sampler against formulas, bits over workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "bpmf"
DATA = "synthetic:90x60x1500:4"


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def train(workers: int, *arguments: object, environment: dict[str, str] | None = None) -> str:
    """The last line of a run."""
    import os

    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "run",
        "--workers",
        str(workers),
        str(EXAMPLE / "train.py"),
    ]
    command += ["--data", DATA, "--latent", "6", "--iterations", "12", *map(str, arguments)]
    done = subprocess.run(
        command, text=True, capture_output=True, timeout=120, env={**os.environ, **(environment or {})}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def final(output: str) -> str:
    return output.split("final RMSE ")[1].split()[0]


def test_files_of_every_kind_give_the_same_ratings(tmp_path: Path) -> None:
    from ratings import read

    (tmp_path / "u.data").write_text("1\t2\t3\t881250949\n4\t1\t5\t881250949\n")
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,3.0,9\n4,1,5,9\n")
    header = "%%MatrixMarket matrix coordinate real general\n% a comment\n4 2 2\n"
    (tmp_path / "r.mtx").write_text(header + "1 2 3\n4 1 5.0\n")
    for name in ("u.data", "ratings.csv", "r.mtx"):
        ratings = read(tmp_path / name)
        got = (ratings.users.tolist(), ratings.movies.tolist(), ratings.values.tolist())
        assert got == ([1, 4], [2, 1], [3.0, 5.0]), name


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("u.data", "1\t2\t3\t4\n1\tx\t3\t4\n", "line 2: expected user, movie and rating, got"),
        ("u.data", "", "expected ratings, got none"),
        ("u.data", "1.5 2 3\n", "whole numbers"),
        ("ratings.csv", "a,b,c\n", "line 1: expected userId,movieId,rating"),
        ("r.mtx", "%%MatrixMarket matrix array real general\n", "matrix coordinate real general"),
        (
            "r.mtx",
            "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n",
            "expected 3 entries, got 1",
        ),
        ("r.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1\n", "rows from 1 to 2, got 3"),
    ],
)
def test_a_file_without_ratings_is_refused_by_name(tmp_path: Path, name: str, text: str, said: str) -> None:
    from ratings import BadRatingsError, read

    (tmp_path / name).write_text(text)
    with pytest.raises(BadRatingsError) as caught:
        read(tmp_path / name)
    assert said in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_and_a_bad_description_are_refused(tmp_path: Path) -> None:
    from ratings import BadRatingsError, load

    for data in (str(tmp_path / "none"), "synthetic:3x3x99", "synthetic:3xx3"):
        with pytest.raises(BadRatingsError):
            load(data, None, 0.2, 0)


def test_normals_depend_on_their_row_only_and_are_normal() -> None:
    import chance

    all_rows = chance.normals(7, 3, 1, np.arange(4000), 9)
    some = chance.normals(7, 3, 1, np.array([17, 5]), 9)
    assert (some == all_rows[[17, 5]]).all()
    assert not np.isclose(all_rows, chance.normals(7, 4, 1, np.arange(4000), 9)).any(axis=1).all()
    assert abs(all_rows.mean()) < 0.02
    assert abs(all_rows.std() - 1) < 0.02
    assert abs(np.corrcoef(all_rows.T) - np.eye(9)).max() < 0.08


def test_philox_gives_the_published_numbers() -> None:
    import chance

    # Salmon et al. 2011, the reference's known answers.
    ones = tuple(np.array([0xFFFFFFFF]) for _ in range(4))
    zeros = tuple(np.array([0]) for _ in range(4))
    got = [int(word[0]) for word in chance.philox(zeros, (0, 0))]
    assert got == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    got = [int(word[0]) for word in chance.philox(ones, (0xFFFFFFFF, 0xFFFFFFFF))]
    assert got == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_a_row_is_drawn_around_the_mean_that_the_formula_gives() -> None:
    import chance
    from sampler import ALPHA, Side

    draw = np.random.default_rng(1)
    own, other, values = draw.integers(0, 5, 40), draw.integers(0, 8, 40), draw.normal(size=40)
    features, mean = draw.normal(size=(8, 3)), draw.normal(size=3)
    root = draw.normal(size=(3, 3))
    precision = root @ root.T + np.eye(3)
    rows = Side(range(5), own, other, values, 3).sample(2, 4, 0, features, mean, precision)
    for row in range(5):
        seen = features[other[own == row]]
        exact = precision + ALPHA * seen.T @ seen
        centre = np.linalg.solve(exact, precision @ mean + ALPHA * seen.T @ values[own == row])
        factor = np.linalg.cholesky(exact)
        noise = np.linalg.solve(factor.T, chance.normals(2, 4, 0, np.array([row]), 3)[0])
        np.testing.assert_allclose(rows[row], centre + noise, rtol=1e-9)
    half = Side(range(2, 4), own, other, values, 3).sample(2, 4, 0, features, mean, precision)
    assert (half == rows[2:4]).all(), "rows do not depend on which others are sampled with them"


def test_hyper_parameters_are_near_the_moments_of_many_rows() -> None:
    from sampler import block_sums, bounds, hyper

    rows = np.random.default_rng(3).normal(loc=[1.0, -2.0], scale=[0.5, 2.0], size=(20_000, 2))
    cuts = bounds(np.ones(len(rows)), 64)
    mean, precision = hyper(0, 1, 0, block_sums(rows, cuts), len(rows), 2)
    np.testing.assert_allclose(mean, [1.0, -2.0], atol=0.05)
    np.testing.assert_allclose(np.diag(precision), [4.0, 0.25], rtol=0.05)


def test_without_slack_all_numbers_of_workers_give_the_same_to_the_last_digit() -> None:
    results = {final(train(workers)) for workers in (1, 2, 4)}
    assert len(results) == 1, results


@pytest.mark.parametrize("propagation", ["eager", "lazy", "bounded"])
def test_and_so_does_every_propagation_over_the_network(tmp_path: Path, propagation: str) -> None:
    import os
    import secrets

    secret = secrets.token_hex(32)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment = {**clean, "PENSTOCK_SECRET": secret, "PENSTOCK_DEADLINE": "40"}
    reading, writing = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", "penstock.launch.server", "tcp://127.0.0.1:0", "0", "1", "2"],
        env={**environment, "PENSTOCK_ANNOUNCE_FD": str(writing)},
        pass_fds=[writing],
    )
    os.close(writing)
    with os.fdopen(reading) as line:
        environment["PENSTOCK_SERVERS"] = line.readline().strip()
    command = [
        sys.executable,
        str(EXAMPLE / "train.py"),
        "--data",
        DATA,
        "--latent",
        "6",
        "--iterations",
        "12",
    ]
    command += ["--quiet", "--propagation", propagation]
    workers = []
    try:
        for rank in (0, 1):
            given = {**environment, "PENSTOCK_RANK": str(rank), "PENSTOCK_SIZE": "2"}
            workers.append(subprocess.Popen(command, env=given, text=True, stdout=subprocess.PIPE))
        said = [worker.communicate(timeout=90)[0] for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0]
    finally:
        for process in (*workers, server):
            process.kill()
            process.wait()
    assert final(said[0]) == final(train(1))


@pytest.mark.parametrize("straggler", ["1:0.002", "any:0.002"])
def test_slack_stays_near_and_says_what_happened(tmp_path: Path, straggler: str) -> None:
    path = tmp_path / "run.json"
    exact = float(final(train(2, "--iterations", 40)))
    output = train(
        2, "--iterations", 40, "--slack", "4", "--hyper-slack", "2", "--straggler", straggler, "--json", path
    )
    assert abs(float(final(output)) - exact) < 0.05
    assert output.count("iteration ") >= 40
    report = json.loads(path.read_text())
    assert len(report["by_iteration_average"]) == 40
    assert report["ratings"][0] + report["ratings"][1] == 1500


def test_rmse_counts_every_test_rating_wherever_it_is(tmp_path: Path) -> None:
    # All test ratings are the last user's: some workers have none.
    lines = [f"{user} {movie} {(user * movie) % 5 + 1}" for user in range(1, 30) for movie in range(1, 20)]
    (tmp_path / "train").write_text("\n".join(lines))
    (tmp_path / "test").write_text("\n".join(f"29 {movie} 3" for movie in range(1, 20)))
    files = ("--data", tmp_path / "train", "--test", tmp_path / "test")
    results = {final(train(workers, *files)) for workers in (1, 4)}
    assert len(results) == 1, results


def test_clamped_predictions_stay_on_the_rating_scale_and_so_nearer_to_the_ratings(tmp_path: Path) -> None:
    # Each rating is the least or the greatest there is: a prediction off the scale is further off.
    lines = [f"{u} {m} {1 if (u * 7 + m * 3) % 5 < 2 else 5}" for u in range(1, 30) for m in range(1, 20)]
    (tmp_path / "data").write_text("\n".join(lines))
    given = ("--data", tmp_path / "data", "--latent", 24)
    free, clamped, automatic, narrow = (
        float(final(train(1, *given, *clamp)))
        for clamp in ((), ("--clamp", "1:5"), ("--clamp", "auto"), ("--clamp", "2.99:3.01"))
    )
    assert clamped == automatic
    assert clamped < free
    assert 1.9 < narrow < 2.1, "each is 2 away from what it is cut to"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--clamp", "5:1"],
        ["--clamp", "much"],
        ["--data", "nowhere"],
        ["--slack", "much"],
        ["--straggler", "x"],
        ["--straggler", "any:x"],
        ["--iterations", "0"],
        ["--split", "2"],
    ],
)
def test_wrong_input_is_refused_with_a_sentence(wrong: list[str]) -> None:
    given = wrong if "--data" in wrong else ["--data", DATA, *wrong]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), *given], text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr
