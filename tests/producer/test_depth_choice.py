"""`--depth auto`: measured, frozen, written down, and the same on a resume."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from producer.cli import main
from producer.depth_choice import best_depth
from producer.manifest_file import read_manifest
from schemas.depth_trial import DepthTrial


def trial(depth: int, rate: float) -> DepthTrial:
    return DepthTrial(depth=depth, slots=4, tokens=100, tokens_per_second=rate, tokens_per_cycle=1.0)


def test_the_most_tokens_per_second_win_and_of_equals_the_smallest_depth() -> None:
    assert best_depth([trial(0, 10.0), trial(1, 12.0), trial(2, 12.0), trial(3, 11.0)]) == 1
    assert best_depth([trial(0, 10.0), trial(1, 9.0)]) == 0


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Write line {number}."}) + "\n" for number in range(6)))
    return file


def test_a_run_measures_once_and_keeps_what_it_found(prompts: Path, tmp_path: Path, agreeing_pair: tuple[Path, Path]) -> None:
    words = [str(prompts), "--out", str(tmp_path / "out"), "--model", str(agreeing_pair[0]), "--mtp", str(agreeing_pair[1])]
    words += ["--depth", "auto", "--max-tokens", "8", "--slots", "2", "--quiet"]
    first = CliRunner().invoke(main, ["run", *words])
    assert first.exit_code == 0, first.output
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert [trial.depth for trial in manifest.depth_trials] == [0, 1, 2, 3]
    assert manifest.spec.profile.depth == best_depth(manifest.depth_trials)
    assert all(trial.tokens > 0 and trial.tokens_per_second > 0 for trial in manifest.depth_trials)
    again = CliRunner().invoke(main, ["run", *words])
    assert again.exit_code == 0, again.output
    assert read_manifest(tmp_path / "out") == manifest


def test_somebody_must_draft(prompts: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run", str(prompts), "--out", str(tmp_path / "out"), "--model", "scripted", "--depth", "auto"])
    assert (result.exit_code, "--depth auto needs somebody who drafts" in result.output) == (2, True)
