"""The circle as people close it: a run makes rows, the rows train a head, the next run drafts with it."""

import json
import subprocess
import sys

import pyarrow.dataset as ds
import pytest

from worker.distill.distillation import read_distillation

PATIENCE_SECONDS = 120.0


@pytest.mark.slow
def test_a_run_trains_a_head_and_the_head_speeds_a_run_that_stays_the_same(distilled_model, own_cache, tmp_path):
    def specmill(*words):
        command = [sys.executable, "-P", "-m", "producer.cli", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
        return done

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"r{i}", "prompt": f"tell me of {i}"}) + "\n" for i in range(40)))
    common = ("--model", distilled_model, "--temperature", 1, "--max-tokens", 40, "--n", 2, "--coupling", "shared-noise", "--quiet")
    specmill("run", prompts, "--out", tmp_path / "rows", *common)
    head = tmp_path / "head.safetensors"
    recipe = ("--steps", 60, "--learning-rate", 3e-3, "--draft-vocab", 40, "--batch-tokens", 512, "--evaluations", 3, "--depth", 2)
    told = specmill("distill", tmp_path / "rows", "--model", distilled_model, "--out", head, *recipe)
    assert "acceptance 1:" in told.stderr
    assert "T = 0.6" in told.stdout
    made = read_distillation(head)
    assert made.sampled_at == 1.0
    assert made.evaluation.at(1.0).tokens_per_cycle > made.untrained.at(1.0).tokens_per_cycle
    assert 1.0 < made.replayed_tokens_per_cycle < 3.0
    specmill("run", prompts, "--out", tmp_path / "drafted", *common, "--mtp", head, "--depth", 2)
    plain, drafted = (ds.dataset(tmp_path / name / "data").to_table().to_pylist() for name in ("rows", "drafted"))
    assert [row["token_ids"] for row in drafted] == [row["token_ids"] for row in plain]
    assert sum(row["acceptance"]["cycles"] for row in drafted) < 0.8 * sum(row["acceptance"]["cycles"] for row in plain)
