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
    assert "20 records × 3 = 60 rows in 4 shards" in done.output
    assert "at most 600 tokens to generate" in done.output
    assert not (tmp_path / "out").exists()


def test_a_dry_run_notes_blank_prompts_by_their_rows(tmp_path):
    def notes(name, content, *words):
        (tmp_path / name).write_text(content)
        done = run(tmp_path / name, "--out", tmp_path / "out", "--model", "scripted", "--dry-run", *words)
        assert done.exit_code == 0, done.output
        return [line for line in done.stdout.splitlines() if line.startswith("note: ")]

    assert notes("a.csv", 'prompt,n\nhello,1\n"  ",2\n\nbye,2\n\t,1\n', "--per-row", "n") == ["note: 2 prompts are blank: row 2, row 4"]
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "\n"}]
    messages = "".join(json.dumps({"messages": turn}) + "\n" for turn in (turns, turns[:1]))
    assert notes("b.jsonl", messages) == ["note: 1 prompt is blank: line 1"]
    assert notes("c.jsonl", '{"prompt": ""}\n' * 12, "--system", "be brief")[0].endswith("line 9, line 10 and 2 more")
    assert notes("d.txt", "hello\n\nbye\n") == [], "blank lines of a text are no prompts"


def test_a_dry_run_without_the_model_says_so_and_fetches_nothing(prompts, tmp_path, own_cache):
    done = run(prompts, "--out", tmp_path / "out", "--dry-run")
    assert (done.exit_code, "is not on this machine yet" in done.stderr, own_cache.exists()) == (0, True, False)


@pytest.mark.model
def test_a_dry_run_counts_tokens_as_the_model_will_see_them(prompts, tmp_path, smollm2_folder):
    done = run(prompts, "--out", tmp_path / "out", "--system", "Be brief.", "--dry-run", "--model", smollm2_folder)
    assert "<|im_start|>system\nBe brief.<|im_end|>" in done.output
    assert "tokens of prompts" in done.output


@pytest.mark.model
def test_a_dry_run_names_the_prompts_that_cannot_run_and_says_why(tmp_path, smollm2_folder):
    path = tmp_path / "p.jsonl"
    lines = [
        {"id": "short", "prompt": "hi", "budget": 7},
        {"id": "long", "prompt": "word " * 9000},
        {"id": "greedy", "prompt": "hi", "budget": 9000},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [path, "--out", tmp_path / "out", "--dry-run", "--model", smollm2_folder, "--per-row", "max_tokens=budget"]
    done = run(*words)
    assert "2 of the 3 prompts cannot run and become error rows:\n  long: PromptTooLongError" in done.output
    assert (
        "greedy: PromptTooLongError: prompt and completion must fit 8192 tokens; received a prompt of 31 with max_tokens 9000"
        in done.output
    )
    assert "at most 9,263 tokens to generate (7 to 9,000 per row)" in done.output
    assert "Token indices" not in done.output + done.stderr
    told = run(*words, "--chat-template-arg", "enable_thinking=false")
    assert "TemplateError: the chat template reads no argument 'enable_thinking'; it reads none" in told.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("enable_thinking", "must be NAME=VALUE, each name once; received 'enable_thinking'"),
        ("messages=1", "'messages' is no argument that can be given"),
        ("x=[1]", "x must be true, false, null, a number or text; received [1]"),
    ],
)
def test_a_chat_template_argument_that_cannot_be_is_refused(prompts, tmp_path, text, says):
    done = run(prompts, "--out", tmp_path / "out", "--model", "scripted", "--chat-template-arg", text)
    assert (done.exit_code, says in " ".join(done.stderr.replace("│", " ").split())) == (2, True), done.stderr


def test_a_config_file_holds_any_option(prompts, tmp_path):
    """Whatever `run` has, under the name of its option, and what a list holds."""
    config = tmp_path / "run.toml"
    config.write_text(
        f'prompts = ["{prompts}"]\nout = "{tmp_path / "out"}"\nmodel = "scripted"\nsample = 4\nlimit = 10\nseed = 3\n'
        'logit-bias = ["7=1.5"]\nchat-template-arg = ["enable_thinking=false"]\nper-row = ["max_tokens=budget"]\nstop = ["a"]\n'
    )
    prompts.write_text("".join(json.dumps({"prompt": f"question {i}", "budget": i + 1}) + "\n" for i in range(20)))
    done = run("--config", config, "--dry-run")
    assert "4 records × 1 = 4 rows" in done.output, done.output + done.stderr
    assert "1 record × 1" in run("--config", config, "--dry-run", "--sample", 1).output


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
