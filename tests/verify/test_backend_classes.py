"""A dataset whose parts were made on two backend classes: each row is verified in the way that its own class allows."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from producer.manifest_file import read_manifest
from producer.row_selection import RowSelection
from producer.verification import VerifyRequest, verify
from worker.engine import blas


def test_rows_of_the_own_class_are_regenerated_and_others_are_teacher_forced(
    specmill: Any, agreeing_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Linux CPU has two classes: OpenBLAS and the reference BLAS round differently."""
    if blas.prepare() in ("", "reference"):
        if os.environ.get("CI") and sys.platform == "linux":
            raise AssertionError("CI needs an OpenBLAS that is row-invariant")
        pytest.skip("this machine has one backend class only")
    model, head = agreeing_pair
    lines = [{"id": f"p{i}", "prompt": f"Number {i}: tell me more."} for i in range(8)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("run", "p.jsonl", "--out", "out", "--model", model, "--mtp", head, "--max-tokens", 12, "--shard-size", 4, "--quiet")
    made = specmill(*words)
    assert made.returncode == 0, made.stderr
    (tmp_path / "out" / "data" / "part-00001.parquet").unlink()
    elsewhere = specmill(*words, SPECMILL_BLAS="reference")
    assert elsewhere.returncode == 0, elsewhere.stderr
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    ours, other = (shard.backend.class_name or "" for shard in manifest.shards)
    assert other.endswith("/reference")
    assert ours.startswith(other.removesuffix("reference") + "openblas-")
    report = verify(tmp_path / "out", VerifyRequest(RowSelection(every=True)))
    assert report.exit_code == 0, report.text()
    modes = {verdict.name: verdict.mode for verdict in report.verdicts}
    assert modes == {f"p{i}": "regenerated" if i < 4 else "teacher-forced" for i in range(8)}
    assert any("blas: reference then, openblas" in line and "teacher-forced" in line for line in report.environment)
    refused = specmill(*words, "--backend", "same")
    assert refused.returncode == 1
    assert f"data/part-00001.parquet was computed on {other}; --backend same wants {ours}" in refused.stderr
