"""`specmill diff` and `specmill manifest` on scripted datasets, and the documented schema of the manifest."""

import json
from pathlib import Path
from typing import Any

import pytest
from forgery import Row, change_row

from producer.dataset_diff import DatasetDiff
from schemas.json_schema import json_schema
from schemas.manifest import Manifest

RUN = ("run", "prompts.jsonl", "--model", "scripted", "--mtp", "scripted", "--n", 2, "--max-tokens", 16, "--quiet")


def test_the_same_run_cut_up_otherwise_is_the_same_rows(specmill: Any, prompts: Path) -> None:
    assert specmill(*RUN, "--out", "a", "--shard-size", 3).returncode == 0
    assert specmill(*RUN, "--out", "b", "--shard-size", 7).returncode == 0
    done = specmill("diff", "a", "b")
    assert (done.returncode, "a / b: the same rows" in done.stdout, "shard_size: 3 / 7" in done.stdout) == (0, True, True), done.stdout


def test_different_missing_and_new_rows_are_counted_and_named(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    assert specmill(*RUN, "--out", "a").returncode == 0
    lines = prompts.read_text().splitlines()
    prompts.write_text("\n".join([*lines[:-1], json.dumps({"id": "new", "prompt": "Another.", "topic": "t"})]))
    assert specmill(*RUN, "--out", "b").returncode == 0

    def flip(row: Row) -> None:
        row["token_ids"][0] += 1

    before = change_row(tmp_path / "b", 5, flip, fix_digests=True)
    diff = DatasetDiff.of(tmp_path / "a", tmp_path / "b")
    assert (diff.exit_code, diff.equal, diff.different) == (1, 17, 1)
    assert (diff.only_left, diff.only_right) == (["r9", "r9, sample 1"], ["new", "new, sample 1"])
    (row,) = diff.shown
    assert (row.name, row.token, row.fields) == ("r2, sample 1", 0, ("token_ids",))
    assert row.text == f"token_ids: {before['token_ids'][0]} / {before['token_ids'][0] + 1} at 0"
    told = specmill("diff", "a", "b", "--json")
    assert (told.returncode, json.loads(told.stdout)["different"]) == (1, 1)
    assert specmill("diff", "a", "nothing").returncode == 2


def test_the_manifest_is_shown_to_people_and_programs(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    assert specmill(*RUN, "--out", "a", "--stop", "w7", "--shard-size", "64").returncode == 0
    shown = specmill("manifest", "a", "--shards", "--files").stdout
    for text in (
        "complete, 1 of 1 shard, 20 rows, 0 failed",
        "10 records × 2 samples",
        "stop at 'w7'",
        "data/part-00000.parquet  20 rows",
    ):
        assert text in shown
    manifest = json.loads(specmill("manifest", "a", "--json").stdout)
    assert manifest == json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert set(manifest) == set(json_schema(Manifest)["required"])  # type: ignore[arg-type]
    assert specmill("manifest", "nothing").returncode == 1


def test_the_documented_schema_is_that_of_the_code() -> None:
    path = Path(__file__).parents[2] / "docs" / "manifest.schema.json"
    if not path.parent.is_dir():
        pytest.skip("an installed package has no docs")
    assert json.loads(path.read_text()) == json_schema(Manifest), "run `python -m schemas.json_schema > docs/manifest.schema.json`"
