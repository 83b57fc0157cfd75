"""The promise of the product, end to end: the same command gives the same rows, whatever runs it and however it is cut up."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

PROMPTS = [
    "Tell me a story about the sea.",
    "2 + 2 = ?",
    "hi",
    "List three colours, and say why each of them is liked by people who paint.",
    *(f"Write line number {number}." for number in range(14)),
]
COMPARED = ("record_id", "row", "sample", "token_ids", "completion", "finish_reason", "seed", "acceptance", "logprob_sum")
VARIATIONS = {
    "again": (),
    "two workers": ("--workers", "2"),
    "shards of 4": ("--shard-size", "4"),
    "shards of 16, two workers": ("--shard-size", "16", "--workers", "2"),
    "one slot": ("--slots", "1"),
    "eight slots, shards of 4": ("--slots", "8", "--shard-size", "4"),
}


def specmill_run(prompts: Path, out: Path, *options: str, blas: str) -> list[dict[str, Any]]:
    """Run the command and return the dataset's rows as far as they are compared."""
    command = [sys.executable, "-m", "producer.cli", "run", str(prompts), "--out", str(out), "--quiet", *options]
    result = subprocess.run(command, env={**os.environ, "SPECMILL_BLAS": blas}, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return pq.read_table(out / "data", columns=list(COMPARED)).to_pylist()


def require_row_invariance(out: Path, blas: str) -> None:
    """Skip where the machine itself said no; the reference BLAS must always say yes."""
    backends = [shard["backend"] for shard in json.loads((out / "manifest.json").read_text())["shards"]]
    if blas == "auto" and any(not backend["blas"].startswith("openblas") for backend in backends):
        pytest.skip(f"no row-invariant OpenBLAS here: {backends[0]['blas'] or backends[0]['device']}")
    assert all(backend["row_invariant"] for backend in backends)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": f"p{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(PROMPTS)))
    return file


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="BLAS is chosen on Linux CPUs only")
@pytest.mark.parametrize("blas", ["auto", "reference"])
def test_workers_shards_and_slots_change_no_row(agreeing_pair: tuple[Path, Path], prompts: Path, tmp_path: Path, blas: str) -> None:
    trunk, head = agreeing_pair
    options = ("--model", str(trunk), "--mtp", str(head), "--depth", "2", "--temperature", "0.8", "--top-p", "0.95", "--max-tokens", "12")
    base = specmill_run(prompts, tmp_path / "base", *options, "--n", "2", "--seed", "11", "--slots", "4", blas=blas)
    require_row_invariance(tmp_path / "base", blas)
    assert len(base) == 2 * len(PROMPTS)
    assert sum(row["acceptance"]["accepted"] for row in base) > 0
    for name, variation in VARIATIONS.items():
        fixed = ("--n", "2", "--seed", "11", *(() if "--slots" in variation else ("--slots", "4")))
        assert specmill_run(prompts, tmp_path / name, *options, *fixed, *variation, blas=blas) == base, name


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="BLAS is chosen on Linux CPUs only")
def test_the_real_model_gives_the_same_rows_in_one_slot_and_in_eight(smollm2_folder: Path, prompts: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text("".join(prompts.read_text().splitlines(keepends=True)[:6]))
    options = ("--model", str(smollm2_folder), "--temperature", "0.7", "--top-p", "0.95", "--max-tokens", "6")
    base = specmill_run(short, tmp_path / "base", *options, "--slots", "1", "--shard-size", "4", blas="auto")
    require_row_invariance(tmp_path / "base", "auto")
    assert specmill_run(short, tmp_path / "eight", *options, "--slots", "8", "--shard-size", "16", blas="auto") == base
