"""The workloads of examples/flow: what they read and generate; two workers train as NumPy alone does."""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FLOW = Path(__file__).parents[2] / "examples" / "flow"
SMALL = {
    "lr.py": ["--features", "300", "--examples", "3000", "--batch", "40", "--lr", "1", "--l2", "0.01"],
    "mf.py": ["--users", "80", "--items", "50", "--ratings", "1000", "--rank", "1", "--batch", "50"],
    "cnn.py": ["--examples", "120", "--batch", "8", "--classes", "3", "--pixels", "16"],
}
"""Options for a run of a second or two."""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FLOW))
    yield
    for name in ("common", "lr", "mf", "cnn"):
        sys.modules.pop(name, None)


def start(script: str, *arguments: object, workers: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", str(workers), str(FLOW / script)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [*command, *map(str, arguments)],
        text=True,
        capture_output=True,
        timeout=240,
        env={**kept, "OMP_NUM_THREADS": "1"},
    )


def trained(script: str, folder: Path, *arguments: object, workers: int = 2) -> dict[str, Any]:
    """What `--json` of a run says."""
    if script == "cnn.py":
        pytest.importorskip("torch")
    path = folder / "run.json"
    done = start(script, *SMALL[script], "--json", path, *arguments, workers=workers)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(path.read_text())
    report["output"] = done.stdout
    return report


def defaults(module: Any, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> argparse.Namespace:
    monkeypatch.setattr(sys, "argv", ["example", *map(str, arguments)])
    given: argparse.Namespace = module.arguments()
    return given


# -- the split


def test_each_example_has_one_owner_and_what_is_kept_does_not_depend_on_the_workers() -> None:
    from common import Split

    for size in (1, 2, 3):
        splits = [Split(rank, size, 4) for rank in range(size)]
        parts = [split.mine(23) for split in splits]
        assert splits[0].kept(23).tolist() == [3, 7, 11, 15, 19]
        assert sorted(np.concatenate([*parts, splits[0].kept(23)]).tolist()) == list(range(23))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        owners = splits[0].owners(np.arange(23)).tolist()
        assert owners == [splits[0].owner(example) for example in range(23)]
        assert all(len(split.kept(23)) == 0 for split in splits[1:])


def test_batches_go_over_all_examples_in_each_epoch_and_depend_on_seed_and_rank() -> None:
    from common import batches

    def first(seed: int, rank: int) -> list[int]:
        drawn = batches(10, 4, seed, rank)
        return np.concatenate([next(drawn) for _ in range(5)]).tolist()

    epochs = first(1, 0)
    assert sorted(epochs[:10]) == sorted(epochs[10:]) == list(range(10))
    assert epochs == first(1, 0)
    assert len({tuple(first(seed, rank)) for seed in (1, 2) for rank in (0, 1)}) == 4
    assert len(next(batches(3, 7, 0, 0))) == 7


def test_rows_are_added_as_often_as_they_are_named() -> None:
    from common import add_rows

    chance = np.random.default_rng(0)
    rows, values = chance.integers(0, 6, 50), chance.standard_normal((50, 3))
    found, expected = np.ones((8, 3)), np.ones((8, 3))
    add_rows(found, rows, values)
    np.add.at(expected, rows, values)
    np.testing.assert_allclose(found, expected)
    add_rows(found, rows[:0], values[:0])
    np.testing.assert_allclose(found, expected)


# -- logistic regression


def dense(rows: Any, features: int) -> np.ndarray:
    matrix = np.zeros((len(rows), features))
    np.add.at(matrix, (rows.row_of_each(), rows.columns), rows.values)
    return matrix


def test_libsvm_lines_become_rows_with_a_constant(tmp_path: Path) -> None:
    import lr
    from common import Split

    text = "+1 1:0.5 4:2 # a comment\n\n-1\n0 2:1e-3\n1 3:-1\n"
    (tmp_path / "a.txt").write_text(text)
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(text)
    for name in ("a.txt", "a.txt.gz"):
        mine, kept, features = lr.read(tmp_path / name, "auto", 0, Split(0, 1, 4))
        assert features == 6
        expected = [[1, 0, 0.5, 0, 0, 2], [1, 0, 0, 0, 0, 0], [1, 0, 0, 0.001, 0, 0]]
        np.testing.assert_allclose(dense(mine, 6), expected, rtol=1e-6)
        assert mine.labels.tolist() == [1, 0, 0]
        assert (dense(kept, 6).tolist(), kept.labels.tolist()) == ([[1, 0, 0, 0, -1, 0]], [1])


def criteo_line(label: str, counts: dict[int, str], categories: dict[int, str]) -> str:
    fields = [counts.get(place, "") for place in range(13)] + [
        categories.get(place, "") for place in range(26)
    ]
    return "\t".join([label, *fields]) + "\n"


def test_criteo_lines_become_logarithms_hashes_and_what_is_missing(tmp_path: Path) -> None:
    import lr
    from common import Split

    path = tmp_path / "day_0"
    lines = [criteo_line("1", {0: "7", 2: "-2"}, {0: "68fd1e64", 1: "68fd1e64"}), criteo_line("0", {}, {})]
    path.write_text("".join(lines))
    features = 100_000
    mine, _, found = lr.read(path, "auto", features, Split(0, 1, 10))
    assert found == features
    full, empty = dense(mine, features)
    assert mine.labels.tolist() == [1, 0]
    assert full[0] == empty[0] == 1
    np.testing.assert_allclose(full[1:4], [np.log(8), 0, -np.log(3)], rtol=1e-6)
    assert full[14:27].tolist() == [0, 1, 0] + [1] * 10
    assert (empty[1:14] == 0).all()
    assert (empty[14:27] == 1).all()
    # A category of each column, or that there is none; the same word in two columns is two features.
    assert full[27:].sum() == empty[27:].sum() == 26
    assert np.flatnonzero((full[27:] > 0) & (empty[27:] == 0)).size == 2
    again, _, _ = lr.read(path, "criteo", features, Split(0, 1, 10))
    assert (again.columns == mine.columns).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 1:1\n3 1:1\n", "line 2: expected a label of -1 or 1, or of 0 or 1, got '3 1:1'"),
        ("1 1:1\n\n1 1\n", "line 3: expected `index:value` behind the label, got '1 1'"),
        ("1 -1:1\n", "line 1: expected `index:value`"),
        ("1 1:nan\n", "line 1: expected `index:value`"),
        ("1 99999999999:1\n", "line 1: expected indices below"),
        (criteo_line("1", {0: "x"}, {}), "line 1: expected a whole number, or nothing, in column 2, got"),
        (criteo_line("0", {}, {}) + "0\t1\n", "line 2: expected a label of 0 or 1 and 39 columns behind it"),
        (criteo_line("0", {}, {})[2:], "line 1: expected a label of 0 or 1 and 39 columns behind it"),
    ],
)
def test_a_line_that_is_no_example_is_refused_by_file_and_number(
    tmp_path: Path, text: str, said: str
) -> None:
    import lr
    from common import BadInputError, Split

    path = tmp_path / "examples.txt"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        lr.read(path, "auto", 1000, Split())
    assert str(caught.value).startswith(f"{path}, {said}"), str(caught.value)


@pytest.mark.parametrize("module", ["lr", "mf"])
def test_a_packed_file_that_is_cut_or_damaged_is_refused_by_its_name(tmp_path: Path, module: str) -> None:
    from common import BadInputError, Split

    loader = importlib.import_module(module)
    text = "".join(f"1 {k}:1\n" if module == "lr" else f"{k}::{k}::3\n" for k in range(1, 20_000))
    packed = gzip.compress(text.encode())
    middle = len(packed) // 2
    for damaged in (packed[:middle], packed[:middle] + b"\xff" * 40 + packed[middle + 40 :], b"no archive"):
        path = tmp_path / "data.gz"
        path.write_bytes(damaged)
        with pytest.raises(BadInputError) as caught:
            _ = loader.read(path, "auto", 0, Split()) if module == "lr" else loader.read(path)
        assert str(caught.value).startswith(str(path))


def test_generated_examples_depend_on_the_seed_alone_and_not_on_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import lr
    from common import Split

    size = ["--examples", 9000, "--features", 3000, "--seed", 5]
    given = defaults(lr, monkeypatch, *size)
    alone, kept = lr.generated(given, Split(0, 1, 10))
    halves = [lr.generated(given, Split(rank, 2, 10)) for rank in (0, 1)]
    assert (len(alone), len(kept)) == (8100, 900)
    for rank, (half, _) in enumerate(halves):
        expected = alone.take(np.arange(rank, 8100, 2))
        assert all((vars(half)[name] == vars(expected)[name]).all() for name in vars(expected))
    assert all((vars(halves[0][1])[name] == vars(kept)[name]).all() for name in vars(kept))
    given.seed = 6
    other, _ = lr.generated(given, Split(0, 1, 10))
    assert (other.columns != alone.columns).any()
    # A power law: the most frequent feature far above the median, which is scattered over the numbers.
    counts = np.bincount(alone.columns[alone.columns > 0], minlength=3000)
    assert counts.max() > 100 * np.median(counts[1:])
    assert 0.3 < alone.labels.mean() < 0.7


def test_the_gradient_is_that_of_the_loss() -> None:
    import lr

    chance = np.random.default_rng(2)
    starts = np.array([0, 3, 3, 7, 9])
    labels = np.array([1.0, 0.0, 0.0, 1.0], np.float32)
    rows = lr.Rows(starts, chance.integers(0, 6, 9), chance.standard_normal(9).astype(np.float32), labels)
    weights = chance.standard_normal(6)
    gradient = np.empty(6)
    lr.fill_gradient(gradient, rows, weights, 0.3)
    for feature in range(6):
        step = np.zeros(6)
        step[feature] = 1e-5
        slope = (lr.loss(rows, weights + step, 0.3) - lr.loss(rows, weights - step, 0.3)) / 2e-5
        assert slope == pytest.approx(gradient[feature], abs=1e-6)


def test_two_workers_fit_the_regression_that_one_process_fits_on_both_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lr
    from common import Split, batches

    saved = tmp_path / "w.npz"
    report = trained("lr.py", tmp_path, "--steps", 25, "--every", 1, "--save", saved)
    given = defaults(lr, monkeypatch, *SMALL["lr.py"])
    parts, held = [], None
    for rank in (0, 1):
        mine, kept = lr.generated(given, Split(rank, 2, 10))
        held = held or kept
        parts.append((dense(mine, 300), mine.labels, batches(len(mine), 40, 0, rank)))
    x_kept, y_kept = dense(held, 300), held.labels
    w, expected = np.zeros(300), []
    for _ in range(26):
        scores = x_kept @ w
        loss = np.mean(np.log1p(np.exp(scores)) - y_kept * scores) + 0.5 * 0.01 * w @ w
        expected.append(loss)
        gradients = []
        before = w
        for x, y, drawn in parts:
            which = next(drawn)
            error = 1 / (1 + np.exp(-x[which] @ w)) - y[which]
            gradients.append(x[which].T @ error / 40 + 0.01 * w)
        w = w - 1.0 * (gradients[0] + gradients[1]) / 2
    points = report["trajectory"]
    assert [point["step"] for point in points] == list(range(26))
    assert [point["objective"] for point in points] == pytest.approx(expected, abs=2e-6)
    np.testing.assert_allclose(np.load(saved)["w"], before, atol=2e-6)
    assert expected[-1] < expected[0] - 0.01


# -- matrix factorisation


def test_the_three_formats_of_movielens_give_the_same_ratings(tmp_path: Path) -> None:
    import mf

    (tmp_path / "u.data").write_text("10\t7\t3\t881250949\n4\t9\t5\t881250949\n10\t9\t1\t8\n")
    (tmp_path / "ratings.dat").write_text("10::7::3::97\n4::9::5::97\n10::9::1::97\n")
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n10,7,3.0,9\n4,9,5,9\n10,9,1.0,9\n"
    )
    (tmp_path / "two.csv").write_text("10,7,3.0\n4,9,5\n10,9,1.0\n")
    for name in ("u.data", "ratings.dat", "ratings.csv", "two.csv"):
        found = mf.read(tmp_path / name)
        assert found.shape == (2, 2), name
        assert (found.users.tolist(), found.items.tolist()) == ([1, 0, 1], [0, 1, 1]), name
        assert found.values.tolist() == [3.0, 5.0, 1.0], name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": expected ratings, the file is empty"),
        ("userId,movieId,rating,timestamp\n", ": expected ratings, there are none"),
        ("1,2,3\n1,x,3\n", ", line 2: expected user,item,rating, got '1,x,3'"),
        ("1::2::3::4\n1::2\n", ", line 2: expected user::item::rating, got '1::2'"),
        ("1\t2\tnan\t4\n", ", line 1: expected user TAB item TAB rating, got"),
        ("1\t2\t3\n1.5\t2\t3\n", ", line 2: expected user TAB item TAB rating, got"),
        ("1 2 3\n", ", line 1: expected user TAB item TAB rating, got '1 2 3'"),
    ],
)
def test_a_file_without_ratings_is_refused_by_its_name_and_line(tmp_path: Path, text: str, said: str) -> None:
    import mf
    from common import BadInputError

    path = tmp_path / "ratings"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        mf.read(path)
    assert str(caught.value).startswith(f"{path}{said}"), str(caught.value)


def test_generated_ratings_depend_on_the_seed_and_name_each_pair_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import mf
    from common import BadInputError

    for options in ([], ["--power", 3]):
        given = defaults(mf, monkeypatch, "--users", 80, "--items", 50, "--ratings", 1000, *options)
        one, two = mf.generated(given), mf.generated(given)
        assert all((vars(one)[name] == vars(two)[name]).all() for name in ("users", "items", "values"))
        assert len(np.unique(one.users * 50 + one.items)) == len(one) == 1000
        assert 0 <= one.users.min() <= one.users.max() < 80
        assert np.bincount(one.items).max() > 1.5 * 1000 / 50
        given.seed = 1
        assert (mf.generated(given).values != one.values).any()
    given.ratings = 1001
    with pytest.raises(BadInputError, match="at most 1000 ratings"):
        mf.generated(given)


def test_two_workers_factorise_as_one_process_does_on_both_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mf
    from common import batches

    saved = tmp_path / "model.npz"
    report = trained("mf.py", tmp_path, "--steps", 30, "--every", 1, "--save", saved)
    given = defaults(mf, monkeypatch, *SMALL["mf.py"])
    every = mf.generated(given)
    numbers = np.arange(1000)
    kept = numbers[numbers % 10 == 9]
    train = numbers[numbers % 10 != 9]
    mean = every.values[train].mean(dtype=np.float64)
    sides = [mf.first_values(rows, 16, 0, side).astype(np.float64) for side, rows in enumerate((80, 50))]
    (p, b), (q, c) = ((side[:, :16], side[:, 16]) for side in sides)
    drawn = [batches(len(train[rank::2]), 50, 0, rank) for rank in (0, 1)]
    expected = []
    for step in range(31):
        predicted = np.array(
            [mean + p[u] @ q[i] + b[u] + c[i] for u, i in zip(every.users, every.items, strict=True)]
        )
        expected.append(np.sqrt(np.mean((predicted - every.values)[kept] ** 2)))
        if step == 30:
            break
        now = [side.copy() for side in (p, q, b, c)]
        for rank in (0, 1):
            for at in train[rank::2][next(drawn[rank])]:
                u, i, error = every.users[at], every.items[at], predicted[at] - every.values[at]
                now[0][u] -= 0.02 * (error * q[i] + 0.02 * p[u])
                now[1][i] -= 0.02 * (error * p[u] + 0.02 * q[i])
                now[2][u] -= 0.02 * (error + 0.02 * b[u])
                now[3][i] -= 0.02 * (error + 0.02 * c[i])
        p, q, b, c = now
    points = report["trajectory"]
    assert [point["step"] for point in points] == list(range(31))
    assert [point["objective"] for point in points] == pytest.approx(expected, abs=1e-5)
    model = np.load(saved)
    np.testing.assert_allclose(model["users"], np.column_stack((p, b)), atol=2e-5)
    np.testing.assert_allclose(model["items"], np.column_stack((q, c)), atol=2e-5)
    assert expected[-1] < expected[0] - 0.05


# -- the network


def test_alexnet_has_the_parameters_of_the_paper_and_both_networks_take_their_images() -> None:
    torch = pytest.importorskip("torch")
    import cnn

    with torch.device("meta"):
        for size, classes, parameters in (("alexnet", 1000, 61_100_840), ("small", 10, 72_042)):
            model = cnn.network(size, classes)
            assert sum(parameter.numel() for parameter in model.parameters()) == parameters
            for pixels in (cnn.PIXELS[size], cnn.LEAST[size]):
                assert model(torch.empty(2, 3, pixels, pixels)).shape == (2, classes)


def test_generated_images_depend_on_seed_and_number_alone() -> None:
    torch = pytest.importorskip("torch")
    import cnn

    images = cnn.Generated(100, 4, 16, 0.5, seed=3)
    x, y = images.take(np.array([7, 42, 7]))
    assert (x.shape, y.shape) == ((3, 3, 16, 16), (3,))
    assert torch.equal(x[0], x[2])
    again, labels = cnn.Generated(100, 4, 16, 0.5, seed=3).take(np.array([42]))
    assert torch.equal(again[0], x[1])
    assert labels[0] == y[1]
    other, _ = cnn.Generated(100, 4, 16, 0.5, seed=4).take(np.array([42]))
    assert not torch.equal(other[0], x[1])
    assert set(images.take(np.arange(100))[1].tolist()) == {0, 1, 2, 3}


def test_an_image_folder_has_a_class_for_each_directory(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    import cnn

    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        (tmp_path / name).mkdir()
        image.new("RGB", (20, 12), colour).save(tmp_path / name / "one.png")
    image.new("L", (9, 30), 255).save(tmp_path / "blue" / "grey.jpg")
    (tmp_path / "blue" / "notes.txt").write_text("no image")
    images = cnn.Folder(tmp_path, 8)
    assert (len(images), images.classes) == (3, 2)
    x, y = images.take(np.arange(3))
    assert x.shape == (3, 3, 8, 8)
    assert y.tolist() == [0, 0, 1]
    middle = (x[:, :, 4, 4] * 64 + 127.5).round().int().tolist()
    assert middle[0] == [255, 255, 255]
    assert middle[1:] == [[0, 0, 255], [255, 0, 0]]


def test_a_folder_without_images_one_that_cannot_be_decoded_and_no_pil_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    import cnn
    from common import BadInputError

    with pytest.raises(BadInputError, match="expected a folder with a folder of images for each class"):
        cnn.Folder(tmp_path / "none", 8)
    with pytest.raises(BadInputError, match="there are none"):
        cnn.Folder(tmp_path, 8)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(BadInputError, match="there is only `a`"):
        cnn.Folder(tmp_path, 8)
    (tmp_path / "b").mkdir()
    image.new("RGB", (8, 8)).save(tmp_path / "b" / "good.png")
    with pytest.raises(BadInputError, match=r"bad\.png: cannot be decoded"):
        cnn.Folder(tmp_path, 8).take(np.array([0]))
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(BadInputError) as caught:
        cnn.Folder(tmp_path, 8)
    assert caught.value.hint == "pip install pillow"


def test_an_image_that_cannot_be_decoded_ends_the_training_with_its_name(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    images = tmp_path / "images"
    for name in ("a", "b"):
        (images / name).mkdir(parents=True)
        for number in range(10):
            colour = tuple(map(int, np.random.default_rng(number).integers(0, 255, 3)))
            image.new("RGB", (16, 16), colour).save(images / name / f"{number}.png")
    report = trained("cnn.py", tmp_path, "--data", images, "--steps", 3)
    assert (report["trained_on"], report["kept"]) == (9, 2)
    # The second image is worker 1's.
    (images / "a" / "1.png").write_bytes(b"no picture")
    done = start("cnn.py", *SMALL["cnn.py"], "--data", images, "--steps", 3)
    assert done.returncode != 0
    assert f"[worker 1] error: {images}/a/1.png: cannot be decoded: " in done.stderr


# -- runs


@pytest.mark.parametrize("script", SMALL)
def test_a_run_of_two_workers_says_how_it_goes_and_writes_trajectory_and_picture(
    script: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.png"
    report = trained(script, tmp_path, "--steps", 7, "--every", 3, "--plot", picture)
    points = report["trajectory"]
    assert [point["step"] for point in points] == [0, 3, 6, 7]
    assert (report["workers"], report["consistency"]) == (2, "bsp")
    assert all(before["seconds"] < after["seconds"] for before, after in pairwise(points))
    assert all(np.isfinite(point["objective"]) for point in points)
    assert points[0]["pushed_bytes"] == 0 or script == "cnn.py"
    assert points[-1]["pushed_bytes"] > points[1]["pushed_bytes"] > 0
    lines = report["output"].splitlines()
    assert len(lines) == 4
    assert all(line.startswith("[worker 0] step ") and line.endswith(" examples/s") for line in lines)
    assert f"{report['objective']} {points[-1]['objective']:.5f}" in lines[-1]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("script", "consistency"),
    [
        ("lr.py", ["ssp"]),
        ("lr.py", ["asp"]),
        ("mf.py", ["asp"]),
    ],
)
def test_workers_may_run_ahead(script: str, consistency: list[str], tmp_path: Path) -> None:
    report = trained(script, tmp_path, "--steps", 40, "--consistency", *consistency)
    assert report["consistency"] == {"ssp": "ssp:4", "asp": "asp"}[" ".join(consistency)]
    points = report["trajectory"]
    assert points[-1]["objective"] < points[0]["objective"]


def test_an_example_that_one_worker_cannot_read_is_said_once_and_ends_the_job(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    # The second example is worker 1's.
    path.write_text("1 1:1\n0 1\n" + "1 1:1\n0 2:1\n" * 10)
    done = start("lr.py", "--data", path)
    assert done.returncode == 2
    said = f"error: {path}, line 2: expected `index:value` behind the label, got '0 1'"
    assert f"[worker 0] {said}" in done.stderr
    assert f"[worker 1] {said}" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_either_kind_is_trained_on(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    lines = "".join(
        f"{label} {1 + 2 * label}:1 {9 + k}:1\n" for k, label in enumerate(chance.integers(0, 2, 300))
    )
    (tmp_path / "examples.txt").write_text(lines)
    report = trained("lr.py", tmp_path, "--data", tmp_path / "examples.txt", "--steps", 20)
    assert report["features"] == 9 + 299 + 2
    assert report["trajectory"][-1]["objective"] < 0.5
    ratings = "".join(f"{k % 20}::{k % 30}::{1 + k % 5}::0\n" for k in range(400))
    (tmp_path / "ratings.dat").write_text(ratings)
    report = trained("mf.py", tmp_path, "--data", tmp_path / "ratings.dat", "--steps", 20)
    assert report["shape"] == [20, 30]
    assert (report["trained_on"], report["kept"]) == (180, 40)


@pytest.mark.parametrize(
    ("script", "wrong", "said"),
    [
        ("lr.py", ["--steps", "0"], "argument --steps: expected a whole number of 1 or more, got '0'"),
        ("lr.py", ["--features", "0"], "expected at least 2 features, the constant and another, got 0"),
        ("lr.py", ["--data", "/nowhere/at/all"], "/nowhere/at/all: expected a file, there is none"),
        ("lr.py", ["--data", str(FLOW)], "expected a file, there is a folder"),
        (
            "lr.py",
            ["--examples", "5"],
            "expected at least 10 examples, so that one is kept for the objective",
        ),
        ("lr.py", ["--plot", "x.doc"], "argument --plot: expected a name that ends in .png, .svg or .pdf"),
        ("lr.py", ["--slack", "2"], "argument --slack: expected --consistency ssp beside it"),
        ("lr.py", ["--lr", "-1"], "argument --lr: expected a number of 0 or more, got '-1'"),
        ("mf.py", ["--data", "/nowhere/at/all"], "/nowhere/at/all: expected a file, there is none"),
        ("mf.py", ["--json", "/nowhere/at/all"], "argument --json: expected a file in a folder that exists"),
        ("lr.py", ["--push", "topk"], "expected a filter, got 'topk'"),
        ("cnn.py", ["--pixels", "4"], "expected --pixels of 8 or more with --size small, got 4"),
        ("cnn.py", ["--data", "/nowhere/at/all"], "expected a folder with a folder of images for each class"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_a_sentence(
    script: str, wrong: list[str], said: str
) -> None:
    if script == "cnn.py":
        pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, str(FLOW / script), *wrong],
        text=True,
        capture_output=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_filters_are_named_by_words() -> None:
    from common import filter_of

    import penstock as ps
    from penstock.filters import meant

    expected = {
        "topk:0.01": ps.TopK(0.01),
        "randomk:0.5": ps.RandomK(0.5),
        "dvf:1e-3": ps.DVF(1e-3),
        "dvf:1e-3..0.002": ps.DVF(1e-3, 0.002),
        "dvf:0..2,relative": ps.DVF(0.0, 2.0, relative=True),
        "auto": ps.DVF(0.0, 2.0, decay=None, relative=True),
        "dvf:1,relative,constant": ps.DVF(1.0, decay=None, relative=True),
        "int8": ps.Quantize("int8"),
        "2bit:0.25": ps.Quantize("2bit", threshold=0.25),
    }
    assert {text: filter_of(text) for text in expected} == expected
    both = ps.Filters(push=filter_of("auto"), broadcast=filter_of("auto"))
    assert both == meant("auto"), "as the word of `filter`"
    wrong_words = ["", "top", "topk:2", "topk:x", "topk:0.1,relative", "dvf", "dvf:1,fast", "int8:1"]
    for wrong in [*wrong_words, "dvf:2..1", "dvf:1..", "dvf:..1", "dvf:1..2..3", "topk:0.1..0.2", "auto:1"]:
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"got {wrong!r}")):
            filter_of(wrong)


@pytest.mark.parametrize(
    ("script", "options"), [("lr.py", ["--l2", 0]), ("mf.py", []), ("mf.py", ["--propagation", "broadcast"])]
)
def test_sparse_pushes_train_as_dense_ones_do(script: str, options: list[object], tmp_path: Path) -> None:
    runs = [trained(script, tmp_path, "--steps", 12, *options, *more) for more in ([], ["--sparse"])]
    dense_run, sparse_run = ([point["objective"] for point in run["trajectory"]] for run in runs)
    assert sparse_run == pytest.approx(dense_run, rel=1e-5)
    assert sparse_run[-1] != sparse_run[0]


def test_one_tensor_for_all_parameters_trains_as_a_tensor_for_each(tmp_path: Path) -> None:
    runs = [trained("cnn.py", tmp_path, "--steps", 8, *more) for more in ([], ["--flat"])]
    each, flat = ([point["objective"] for point in run["trajectory"]] for run in runs)
    assert flat == pytest.approx(each, rel=1e-4)
    assert flat[-1] != flat[0]


def test_what_filters_hold_back_is_in_the_model_that_is_saved(tmp_path: Path) -> None:
    few = ["--push", "topk:0.1", "--broadcast", "topk:0.1", "--propagation", "broadcast"]
    saved = []
    for name, more in (("whole", []), ("few", few)):
        path = tmp_path / f"{name}.npz"
        trained("lr.py", tmp_path, "--steps", 1, "--l2", 0, "--save", path, *more)
        saved.append(np.load(path)["w"])
    whole, filtered = saved
    # After one step from zero, nothing was computed from what a filter let pass.
    np.testing.assert_allclose(filtered, whole, rtol=1e-6)
    assert np.count_nonzero(whole) > 100


def test_gradients_of_any_device_come_into_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("NO GPU ON THIS MACHINE")
    from cnn import Flat

    import penstock as ps

    model = torch.nn.Linear(3, 2).to("cuda")
    with ps.init() as job:
        flat = Flat(job, model, ps.SGD(1.0))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        flat.step()
        flat.read()
    for parameter, first in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), first - 1)


@pytest.mark.parametrize("more", [["--flat"], [], ["--consistency", "ssp"]])
def test_filters_and_broadcasts_reach_the_servers(more: list[str], tmp_path: Path) -> None:
    few = ["--push", "topk:0.05", "--broadcast", "dvf:0.001", "--propagation", "broadcast", *more]
    report = trained("cnn.py", tmp_path, "--steps", 4, "--save", tmp_path / "model.pt", *few)
    assert report["arguments"]["push"] == "TopK(fraction=0.05)"
    assert all(np.isfinite(point["objective"]) for point in report["trajectory"])
    assert report["trajectory"][-1]["computing_seconds"] > 0


def test_the_page_shows_options_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (FLOW / "README.md").read_text()
    shown = re.findall(r"penstock run .*examples/flow/(\w+)\.py(.*)", page)
    assert {name for name, _ in shown} == {"lr", "mf", "cnn"}
    monkeypatch.chdir(tmp_path)
    for name, rest in shown:
        if name == "cnn":
            pytest.importorskip("torch")
        defaults(importlib.import_module(name), monkeypatch, *rest.partition("#")[0].split())
    for name in ("lr", "mf", "cnn"):
        parsed = vars(defaults(importlib.import_module(name), monkeypatch))
        assert all(f"`--{option.replace('_', '-')}" in page for option in parsed), name
