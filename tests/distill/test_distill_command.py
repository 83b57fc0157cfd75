"""The command from a dataset folder to a head that the engine loads: what it writes, what it refuses, how it goes on."""

import json
import shutil
import signal

import mlx.core as mx
import pytest
from click.testing import CliRunner
from scripted_dataset import make_dataset

from producer.cli import main
from worker.distill.distillation import read_distillation
from worker.engine.mtp_head import MTPHead

RECIPE = ("--steps", 6, "--draft-vocab", 40, "--batch-tokens", 256, "--evaluations", 2, "--held-out", 0.3, "--depth", 2)


def specmill(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def pairs(own_rows, tmp_path):
    """Rows of the tiny model as a file of token ids."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"p": sequence.ids[: sequence.prompt_tokens].tolist(), "g": sequence.ids[sequence.prompt_tokens :].tolist()}) + "\n"
            for sequence in own_rows.sequences[:60]
        )
    )
    return path


def test_a_head_its_card_and_its_line_in_the_list(own_cache, distilled_model, distilled_trunk, pairs, tmp_path):
    out = tmp_path / "heads" / "head.safetensors"
    words = ("distill", pairs, "--model", distilled_model, "--out", out, *RECIPE)
    result = specmill(*words)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.parent.iterdir()} == {"head.safetensors", "head.md"}
    head = MTPHead.load(out, distilled_trunk, mx.float32)
    assert len(head.draft_ids) == 40
    made = read_distillation(out)
    assert (made.recipe.steps, made.recipe.depth, len(made.evaluation.acceptance)) == (6, 2, 3)
    assert [choice.size for choice in made.vocabularies] == [10, 20, 40]
    assert made.vocabularies[-1].mass == pytest.approx(made.evaluation.mass, abs=0.05)
    card = out.with_suffix(".md").read_text()
    assert made.command in card
    assert f"{made.evaluation.at(1.0).overlap[0]:.3f} ±" in card
    listed = specmill("model", "list", out.parent)
    assert str(out) in listed.stdout
    assert f"{made.evaluation.at(0.6).overlap[1]:.3f}" in listed.stdout
    before = out.read_bytes()
    assert specmill(*words).exit_code == 0, "the same command again changes nothing"
    assert out.read_bytes() == before
    refused = specmill(*words, "--seed", 3)
    assert (refused.exit_code, "is not what this command would train" in refused.stderr) == (1, True)
    out.unlink()
    again = specmill(*made.command.split()[1:])
    assert again.exit_code == 0, again.output
    assert out.read_bytes() == before, "the card's command makes the same bytes"


def test_a_stop_leaves_a_checkpoint_from_which_the_same_command_ends_with_the_same_head(
    own_cache, distilled_model, pairs, tmp_path, monkeypatch
):
    whole, stopped = tmp_path / "whole" / "head.safetensors", tmp_path / "stopped" / "head.safetensors"
    words = ("distill", pairs, "--model", distilled_model, *RECIPE)
    assert specmill(*words, "--out", whole).exit_code == 0

    from worker.distill import trainer

    steps = 0
    real = trainer.Trainer._step

    def step_then_ctrl_c(self):
        nonlocal steps
        steps += 1
        if steps == 4:
            signal.raise_signal(signal.SIGINT)
        return real(self)

    monkeypatch.setattr(trainer.Trainer, "_step", step_then_ctrl_c)
    result = specmill(*words, "--out", stopped)
    assert result.exit_code == 130, result.output
    assert [path.name for path in stopped.parent.iterdir()] == ["head.checkpoint.safetensors"]
    refused = specmill(*words, "--out", stopped, "--clip", 2)
    assert "clip: 1.0 / 2.0" in refused.stderr
    refused = specmill(*words, "--out", stopped, "--dtype", "bfloat16")
    assert "belongs to a training with another dtype" in refused.stderr
    finished = tmp_path / "finished" / "head.safetensors"
    finished.parent.mkdir()
    shutil.copy(stopped.with_name("head.checkpoint.safetensors"), finished.parent)
    result = specmill(*words, "--out", finished, "--finish")
    assert result.exit_code == 0, result.output
    assert "cut short with `--finish`" in finished.with_suffix(".md").read_text()
    assert read_distillation(finished).steps == 3
    result = specmill(*words, "--out", stopped)
    assert result.exit_code == 0, result.output
    assert "going on at step 4 of 6" in result.stderr
    assert steps == 6
    mine, theirs = mx.load(str(stopped)), mx.load(str(whole))
    assert mine.keys() == theirs.keys()
    assert all(mx.array_equal(mine[name], theirs[name]) for name in mine)


def test_a_head_goes_on_from_an_earlier_one_with_its_ids(own_cache, distilled_model, pairs, tmp_path):
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    words = ("distill", pairs, "--model", distilled_model)
    assert specmill(*words, "--out", first, *RECIPE[:-1], 1).exit_code == 0
    result = specmill(*words, "--out", second, *RECIPE, "--init", first, "--warmup", 0)
    assert result.exit_code == 0, result.output
    begun, made = read_distillation(first), read_distillation(second)
    assert "init" not in begun.encode(), "as heads that were trained before the field joined say it"
    assert made.untrained.at(1.0).overlap[0] == pytest.approx(begun.evaluation.at(1.0).overlap[0], abs=1e-6), (
        "it starts where the first one ended"
    )
    assert mx.array_equal(mx.load(str(first))["draft_vocab"], mx.load(str(second))["draft_vocab"])
    before = second.read_bytes()
    second.unlink()
    assert specmill(*made.command.split()[1:]).exit_code == 0
    assert second.read_bytes() == before, "the card's command makes the same bytes"
    refused = specmill(*words, "--out", second, *RECIPE)
    assert (refused.exit_code, "is not what this command would train" in refused.stderr) == (1, True)
    refused = specmill(*words, "--out", tmp_path / "third.safetensors", *RECIPE[:2], "--draft-vocab", 30, "--init", first)
    assert "drafts 40 ids, which --init keeps; received --draft-vocab 30" in refused.stderr


def test_minutes_become_steps_and_a_checkpoint_can_be_finished(own_cache, distilled_model, pairs, tmp_path):
    out = tmp_path / "head.safetensors"
    words = ("distill", pairs, "--model", distilled_model, "--out", out, *RECIPE[2:])
    assert "no checkpoint" in specmill(*words, "--finish").stderr
    result = specmill(*words, "--minutes", 0.02)
    assert result.exit_code == 0, result.output
    assert "steps fit into 0.02 min" in result.stderr
    assert f"--steps {read_distillation(out).recipe.steps}" in read_distillation(out).command


def test_rows_of_a_dataset_are_what_is_learned(own_cache, distilled_model, tmp_path, monkeypatch):
    """A dataset whose tokens another model made is refused; a prompts file is told what to do first."""
    dataset = make_dataset(tmp_path, [{"prompt": f"prompt {i}"} for i in range(10)])
    result = specmill("distill", dataset, "--model", distilled_model, "--out", tmp_path / "h.safetensors")
    assert (result.exit_code, "whose tokens are not those of --model" in result.stderr) == (1, True)
    result = specmill("distill", tmp_path / "prompts.jsonl", "--model", distilled_model, "--out", tmp_path / "h.safetensors")
    assert (result.exit_code, f"specmill run {tmp_path / 'prompts.jsonl'} --out DIR" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--minutes", 1, "--steps", 1), "received both"),
        (("--held-out", 2), "held_out must be in [0, 0.9]; received 2.0"),
        (("--depth", 8), "8 is not in the range 1<=x<=7"),
    ],
)
def test_bad_options_are_usage_errors(pairs, tmp_path, words, says):
    result = specmill("distill", pairs, "--out", tmp_path / "h.safetensors", *words)
    assert (result.exit_code, says in result.stderr) == (2, True), result.output
    assert "must end in .safetensors" in specmill("distill", pairs, "--out", tmp_path / "h").stderr
