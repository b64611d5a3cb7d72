"""General-purpose compressors behind the encodings: the same bits in fewer bytes, between hosts alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps

HERE = Path(__file__).parent


def run(transport: str, program: str) -> subprocess.CompletedProcess[str]:
    """Two workers of it."""
    command = [sys.executable, "-m", "penstock.cli", "run", "--workers", "2", "--servers", "1"]
    command += ["--transport", transport, str(HERE / program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def told(transport: str) -> dict[str, dict[str, dict[str, float]]]:
    """What became of the chunks, by filter and compressor, as rank 0 counted it."""
    ended = run(transport, "packed.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if "told" in line)
    return json.loads(line[line.index("{") :])


def test_what_is_compressed_is_the_same_in_fewer_bytes_and_its_chunks_are_counted() -> None:
    found = told("tcp")
    for kind, ways in found.items():
        for compress, counts in ways.items():
            for way in ("sent", "received"):
                chunks, raw = (counts[f"{what}_chunks_{way}"] for what in ("compressed", "uncompressed"))
                before, after = counts[f"compress_before_{way}"], counts[f"compress_after_{way}"]
                where = f"{kind}, {compress}, {way}: {counts}"
                if compress == "none":
                    assert chunks == raw == before == after == 0, where
                    continue
                assert chunks + raw > 0, where
                assert (after < before) == (chunks > 0), where
    # Seven in ten are zeros that no encoding leaves out.
    for compress in ("lz4", "zstd"):
        counts = found["all"][compress]
        assert counts["uncompressed_chunks_sent"] == 0
        assert counts["sent_bytes"] < 0.6 * found["all"]["none"]["sent_bytes"]
        assert counts["received_bytes"] < 0.9 * found["all"]["none"]["received_bytes"]
    # Threes and fours of two bits are not alike often.
    assert found["2bit"]["zstd"]["compressed_chunks_sent"] > 0


def test_on_one_host_nothing_is_compressed() -> None:
    for ways in told("auto").values():
        for counts in ways.values():
            assert not any(counts[key] for key in counts if "compress" in key), counts


@pytest.mark.parametrize("compress", ["snappy", "", "LZ4", None, 1, True, ["lz4"]])
def test_what_is_no_compressor_is_refused_and_nothing_declared(compress: object) -> None:
    with ps.init() as job:
        with pytest.raises(
            ps.exceptions.OptionError, match='expected compress "none", "lz4", "zstd" or "auto"'
        ):
            job.tensor("w", shape=3, compress=compress)
        job.tensor("w", shape=3, compress="auto")
        with pytest.raises(ps.exceptions.DeclarationConflict, match="compress"):
            job.tensor("w", shape=3, compress="lz4")


def test_models_of_torch_are_compressed_by_one_argument() -> None:
    torch = pytest.importorskip("torch")
    with ps.init():
        model = torch.nn.Linear(4, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ps.exceptions.OptionError, match="expected compress"):
            ps.torch.distribute(model, sgd, compress="snappy")
    ended = run("tcp", "packed_torch.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_is_clipped_is_compressed_both_ways() -> None:
    torch = pytest.importorskip("torch")
    with ps.init() as job:
        model = torch.nn.Linear(4, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        _, optimizer = ps.torch.distribute(model, sgd, where="servers", clip_norm=1.0, compress="lz4")
        for shared in optimizer._everything:
            shape, rule = shared.tensor.shape, shared.group.rule
            options = {"shape": shape, "optimizer": rule, "consistency": "bsp", "reduce": "sum"}
            assert job.tensor(shared.name, compress="lz4", **options) is not None
            with pytest.raises(ps.exceptions.DeclarationConflict, match="compress"):
                job.tensor(shared.name, **options)


def test_parameters_of_jax_are_compressed_by_one_argument() -> None:
    jnp = pytest.importorskip("jax.numpy")
    with ps.init():
        with pytest.raises(ps.exceptions.OptionError, match="expected compress"):
            ps.jax.distribute(jnp.zeros(2), ps.SGD(1.0), compress="snappy")
        served = ps.jax.distribute(jnp.zeros(2), ps.SGD(1.0), compress="auto")
        assert served.push_pull(jnp.ones(2)).tolist() == [-1.0, -1.0]
