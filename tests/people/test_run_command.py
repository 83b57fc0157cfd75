"""`specmill run --dry-run` and `--config`."""

import json

import pytest
from click.testing import CliRunner

from producer.cli import main


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}", "topic": "sea"}) + "\n" for i in range(20)))
    return path


def run(*words):
    return CliRunner().invoke(main, ["run", *map(str, words)])


def test_a_dry_run_shows_three_prompts_and_starts_nothing(prompts, tmp_path):
    done = run(prompts, "--out", tmp_path / "out", "--model", "scripted", "--n", 3, "--max-tokens", 10, "--dry-run")
    assert done.exit_code == 0
    assert [f"[user] question {i}\n" in done.output for i in range(4)] == [True, True, True, False]
    assert "20 records × 3 = 60 rows in 4 part files" in done.output
    assert "at most 600 tokens to generate" in done.output
    assert not (tmp_path / "out").exists()


def test_a_dry_run_without_the_model_says_so_and_fetches_nothing(prompts, tmp_path, own_cache):
    done = run(prompts, "--out", tmp_path / "out", "--dry-run")
    assert (done.exit_code, "is not on this machine yet" in done.stderr, own_cache.exists()) == (0, True, False)


@pytest.mark.model
def test_a_dry_run_counts_tokens_as_the_model_will_see_them(prompts, tmp_path, smollm2_folder):
    done = run(prompts, "--out", tmp_path / "out", "--system", "Be brief.", "--dry-run", "--model", smollm2_folder)
    assert "<|im_start|>system\nBe brief.<|im_end|>" in done.output
    assert "tokens of prompts" in done.output


def test_a_config_file_gives_options_and_the_command_line_wins(prompts, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(f'prompts = "{prompts}"\nout = "{tmp_path / "out"}"\nmodel = "scripted"\nmax-tokens = 10\nn = 2\nstop = ["a", "b"]\n')
    assert "at most 400 tokens" in run("--config", config, "--dry-run").output
    assert "at most 800 tokens" in run("--config", config, "--dry-run", "--max-tokens", 20).output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max-tokns = 5", "'max-tokns' is no option; options: "),
        ("max-tokens = ", "is not TOML"),
        ("max-tokens = 0", "0 is not in the range"),
        ('temperature = "hot"', "not a valid float"),
        ("[sampler]\ntemperature = 1", "'sampler' is no option"),
        ("[seed]\nx = 1", "'seed' must be a value; received a table"),
    ],
)
def test_a_bad_config_file_is_a_usage_error(prompts, tmp_path, text, says):
    config = tmp_path / "run.toml"
    config.write_text(text)
    done = run(prompts, "--out", tmp_path / "out", "--config", config)
    assert (done.exit_code, says in done.stderr) == (2, True)


@pytest.mark.parametrize("words", [("--template", "x", "--prompt-column", "y"), ("--raw", "--system", "x")])
def test_options_that_exclude_each_other_are_usage_errors(prompts, tmp_path, words):
    assert run(prompts, "--out", tmp_path / "out", *words).exit_code == 2
