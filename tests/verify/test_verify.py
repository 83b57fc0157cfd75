"""`specmill verify` on datasets of a tiny model: honest ones pass in both ways, forged ones are found and named."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forgery import Row, change_row, move_to_another_chip

from producer.dataset import Dataset
from producer.row_selection import RowSelection
from producer.verification import VerifyRequest, verify
from producer.verify_report import VerifyReport
from schemas.errors import InputError

PROMPTS = ["Tell me a story.", "2 + 2 = ?", "hi", "why?", "no", "Say it again."]
EVERY = RowSelection(every=True)


@pytest.fixture(scope="module")
def made(agreeing_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, `mtp.safetensors` and the dataset `out` that they made."""
    folder = tmp_path_factory.mktemp("verified")
    shutil.copytree(agreeing_pair[0], folder / "model")
    shutil.copy(agreeing_pair[1], folder / "mtp.safetensors")
    lines = [{"id": f"p{i}", "prompt": prompt, "topic": {"n": i}} for i, prompt in enumerate(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"id": "long", "prompt": "x" * 700, "topic": {"n": 9}}])))
    words = [
        "run",
        "prompts.jsonl",
        "--out",
        "out",
        "--model",
        "model",
        "--mtp",
        "mtp.safetensors",
        "--temperature",
        "0.9",
        "--top-p",
        "0.9",
    ]
    words += ["--n", "2", "--max-tokens", "16", "--shard-size", "4", "--logprobs", "--quiet"]
    done = subprocess.run([sys.executable, "-P", "-m", "producer.cli", *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `made` to spoil, and the current folder, because the manifest's names are relative to it."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def problems(report: VerifyReport) -> str:
    return "\n".join(f"{verdict.name}: {problem}" for verdict in report.bad for problem in verdict.problems)


def flip(row: Row) -> None:
    row["token_ids"][3] = (row["token_ids"][3] + 1) % 290 + 3


def edit_prompt(row: Row) -> None:
    row["prompt"] = "Tell me another story."


def test_an_honest_dataset_is_equal_in_every_row(folder: Path) -> None:
    report = verify(folder / "out", VerifyRequest(EVERY))
    assert (report.exit_code, report.file_problems, report.blocked, problems(report)) == (0, [], [], "")
    assert [verdict.mode for verdict in report.verdicts] == ["regenerated"] * 14
    assert "14 of 14 regenerated: all equal" in report.text()
    assert any(line.startswith("at depth 1: ") for line in report.calibration)
    assert report.to_json()["exit_code"] == 0


def test_an_honest_dataset_holds_on_another_chip(folder: Path) -> None:
    move_to_another_chip(folder / "out")
    report = verify(folder / "out", VerifyRequest(EVERY))
    assert (report.exit_code, problems(report)) == (0, "")
    assert {verdict.mode for verdict in report.verdicts} == {"teacher-forced"}
    assert any("chip: another chip then" in line and "teacher-forced" in line for line in report.environment)
    assert report.surprise_z is not None


@pytest.mark.parametrize("mode", ["auto", "teacher-forced"])
def test_a_flipped_token_is_named_with_its_probability(folder: Path, mode: str) -> None:
    before = change_row(folder / "out", 2, flip, fix_digests=True)
    report = verify(folder / "out", VerifyRequest(EVERY, mode=mode))
    assert (report.exit_code, report.file_problems) == (1, [])
    assert [verdict.name for verdict in report.bad] == ["p1"]
    if mode == "auto":
        assert f"{before['token_ids'][3]} (p = 0." in problems(report)
        assert "regenerated, first at token 3" in problems(report)
    else:
        assert "impossible under the sampler" in problems(report) or "logprob_sum" in problems(report)


def test_a_careless_change_is_named_by_its_part_file(folder: Path) -> None:
    change_row(folder / "out", 2, flip, fix_digests=False)
    report = verify(folder / "out", VerifyRequest(RowSelection(ids=("p0",))))
    assert (report.exit_code, problems(report)) == (1, "")
    assert "data/part-00000.parquet was changed after it was written" in report.file_problems[0]
    assert len(report.verdicts) == 2


@pytest.mark.parametrize("mode", ["auto", "teacher-forced"])
def test_an_edited_prompt_is_named(folder: Path, mode: str) -> None:
    change_row(folder / "out", 1, edit_prompt, fix_digests=True)
    report = verify(folder / "out", VerifyRequest(EVERY, mode=mode))
    assert [verdict.name for verdict in report.bad] == ["p0, sample 1"]
    assert ("another length" if mode == "auto" else "another prompt or chat template") in problems(report)


def test_another_record_id_has_another_seed(folder: Path) -> None:
    def rename(row: Row) -> None:
        row["record_id"] = "other"

    change_row(folder / "out", 0, rename, fix_digests=True)
    report = verify(folder / "out", VerifyRequest(RowSelection(ids=("p3",))))
    assert "other: seed" in report.file_problems[0]


def test_a_swapped_head_is_named_and_rows_are_judged_without_it(folder: Path, tiny_head: Callable[..., Path]) -> None:
    shutil.copy(tiny_head(folder / "model", seed=77), folder / "mtp.safetensors")
    report = verify(folder / "out", VerifyRequest(EVERY))
    assert report.exit_code == 3
    assert "the MTP head is not the manifest's" in report.blocked[0]
    assert {verdict.mode for verdict in report.verdicts} == {"teacher-forced"}
    (folder / "mtp.safetensors").unlink()
    assert verify(folder / "out", VerifyRequest(EVERY, mode="teacher-forced")).exit_code == 0


def test_a_changed_template_is_named(folder: Path) -> None:
    path = folder / "model" / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    config["chat_template"] = config["chat_template"].replace("assistant", "helper")
    path.write_text(json.dumps(config))
    report = verify(folder / "out", VerifyRequest())
    assert (report.exit_code, report.verdicts) == (3, [])
    assert "tokenizer_config.json differs (the chat template" in report.blocked[0]


def test_a_row_that_ended_its_engine_is_not_tried_again(folder: Path) -> None:
    def crash(row: Row) -> None:
        row["error"] = {"type": "EngineCrashedError", "message": "the engine process died"}

    change_row(folder / "out", 0, crash, fix_digests=True)
    report = verify(folder / "out", VerifyRequest(RowSelection(ids=("p0",))))
    assert (report.skipped, [verdict.sample for verdict in report.verdicts], problems(report)) == (1, [1], "")


def test_rows_are_drawn_without_repetition_and_the_same_for_one_seed(folder: Path) -> None:
    dataset = Dataset.open(folder / "out")

    def drawn(count: int, seed: int) -> list[tuple[int, int]]:
        tables = [table for _, table in RowSelection(count=count, seed=seed).tables(dataset)]
        return [(row["row"], row["sample"]) for table in tables for row in table.select(["row", "sample"]).to_pylist()]

    assert len(set(drawn(9, 0))) == 9
    assert drawn(9, 0) == drawn(9, 0) == sorted(drawn(9, 0))
    assert drawn(9, 0) != drawn(9, 1)
    assert len(drawn(99, 0)) == 14


def test_a_missing_and_a_foreign_part_file_are_named(folder: Path) -> None:
    (folder / "out" / "data" / "part-00000.parquet").rename(folder / "out" / "data" / "part-00007.parquet")
    report = verify(folder / "out", VerifyRequest())
    assert report.exit_code == 1
    assert any("part-00007.parquet is not in the manifest" in problem for problem in report.file_problems)
    assert any("part-00000.parquet cannot be read" in problem for problem in report.file_problems)


def test_what_cannot_be_tried_is_exit_code_2(specmill: Any, tmp_path: Path) -> None:
    done = specmill("verify", "nothing-here")
    assert (done.returncode, "holds no dataset" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_an_unknown_id_is_told(folder: Path) -> None:
    with pytest.raises(InputError, match="no record 'nobody'"):
        verify(folder / "out", VerifyRequest(RowSelection(ids=("p1", "nobody"))))


def test_a_dataset_of_several_workers_verifies_from_the_command_line(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    words = ("prompts.jsonl", "--model", "scripted", "--mtp", "scripted", "--n", 3, "--quiet")
    done = specmill("run", *words, "--out", "out", "--shard-size", 4, "--workers", 2)
    assert done.returncode == 0, done.stderr
    checked = specmill("verify", "out", "--rows", 20)
    assert "checking files: 3 of 3 (100%)" in checked.stderr
    assert "verifying rows: 20 of 20 (100%)" in checked.stderr
    assert (checked.returncode, "20 of 30 regenerated: all equal" in checked.stdout) == (0, True), checked.stdout
