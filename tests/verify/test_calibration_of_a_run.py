"""A run stops when its engine contradicts itself, and goes on only when told to."""

import json
from pathlib import Path
from typing import Any

RUN = ("run", "prompts.jsonl", "--out", "out", "--mtp", "scripted", "--n", 30, "--max-tokens", 64, "--shard-size", 1, "--quiet")


def test_a_broken_engine_stops_the_run_with_an_explanation(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    done = specmill(*RUN, "--model", "scripted:claims=0.9")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    for word in ("not calibrated on worker", "at depth 1" if "at depth 1" in done.stderr else "in total", "--ignore-calibration"):
        assert word in done.stderr
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] != "complete"


def test_it_goes_on_when_told_to_and_the_dataset_stays_marked(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    done = specmill(*RUN, "--model", "scripted:claims=0.9", "--ignore-calibration")
    assert (done.returncode, "BROKEN in total" in done.stdout) == (0, True), done.stderr
    checked = specmill("verify", "out", "--quiet", "--json")
    assert checked.returncode == 1
    assert any("BROKEN" in line for line in json.loads(checked.stdout)["calibration"])


def test_an_honest_engine_is_left_alone(specmill: Any, prompts: Path, tmp_path: Path) -> None:
    done = specmill(*RUN, "--model", "scripted")
    assert (done.returncode, "as exact sampling expects; by depth 1: " in done.stdout) == (0, True), done.stderr + done.stdout
