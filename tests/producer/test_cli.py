import errno
import subprocess
import sys

import pytest
from click.testing import CliRunner

from producer.cli import main
from producer.counted import counted
from schemas import errors

HEAVY = ("numpy", "mlx", "mlx_lm", "celery", "redis", "pyarrow", "rich", "transformers")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    return path


def specmill(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_help_imports_nothing_heavy():
    code = f"import sys, producer.cli; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_imports_click_and_few_modules_of_ours():
    foreign = "[name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names and not name.startswith('_')]"
    code = f"import sys, producer.cli; print(*{foreign})"
    names = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in names} <= {"click", "producer", "sampling", "schemas", "worker"}
    assert len([name for name in names if not name.startswith("click")]) <= 60


@pytest.mark.parametrize("words", [(), ("run",), ("worker",), ("demo",), ("model",), ("model", "fetch"), ("model", "path")])
def test_every_command_has_help(words):
    result = specmill(*words, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")


def test_help_shows_the_defaults():
    text = " ".join(specmill("run", "--help").output.split())
    for shown in (
        "[default: smollm2-135m]",
        "[default: 1.0]",
        "default: 256",
        "2 with a drafter, else 0",
        "[default: float32]",
        "64, less where the file is small",
        "[default: refuse]",
    ):
        assert shown in text


BAD_VALUES = {
    ("--temperature", "nan"): "temperature must be finite (<= 0 means greedy); received nan",
    ("--temperature", "inf"): "temperature must be finite (<= 0 means greedy); received inf",
    ("--temperature", "hot"): "'hot' is not a valid float",
    ("--top-p", "0"): "top_p must be in (0, 1]; received 0.0",
    ("--top-p", "1.5"): "top_p must be in (0, 1]; received 1.5",
    ("--top-k", "-1"): "top_k must be an integer >= 0 (0 = off); received -1",
    ("--presence-penalty", "2.1"): "presence_penalty must be in [-2, 2]; received 2.1",
    ("--frequency-penalty", "-3"): "frequency_penalty must be in [-2, 2]; received -3.0",
    ("--max-tokens", "0"): "0 is not in the range 1<=x<=1000000",
    ("--n", "0"): "0 is not in the range 1<=x<=10000",
    ("-n", "10001"): "10001 is not in the range 1<=x<=10000",
    ("--seed", "-1"): "-1 is not in the range 0<=x<=18446744073709551615",
    ("--seed", str(2**64)): "18446744073709551616 is not in the range 0<=x<=18446744073709551615",
    ("--min-p", "1.5"): "min_p must be in [0, 1]; received 1.5",
    ("--repetition-penalty", "0"): "repetition_penalty must be in [0.01, 100]; received 0.0",
    ("--logit-bias", "7"): "must be ID=BIAS with a token id and a number in [-100, 100]; received '7'",
    ("--logit-bias", "7=101"): "logit_bias of token 7 must be in [-100, 100]; received 101.0",
    ("--min-tokens", "-1"): "min_tokens must be an integer >= 0 (0 = off); received -1",
    ("--stop", ""): "a stop string must have at least one character and be UTF-8 text; received ''",
    ("--stop", "\udcff"): "a stop string must have at least one character and be UTF-8 text; received '\\udcff'",
    ("--slots", "257"): "257 is not in the range 1<=x<=256",
    ("--depth", "8"): "8 is not in the range 0<=x<=7",
    ("--dtype", "int8"): "'int8' is not one of 'float32', 'bfloat16', 'float16'",
    ("--shard-size", "0"): "0 is not in the range 1<=x<=10000",
    ("--workers", "-1"): "-1 is not in the range 0<=x<=64",
    ("--on-bad-input", "ignore"): "'ignore' is not one of 'refuse', 'error-row'",
}


@pytest.mark.parametrize("option", BAD_VALUES, ids="=".join)
def test_a_bad_value_is_a_usage_error_with_option_interval_and_value(prompts, tmp_path, option):
    result = specmill("run", prompts, "--out", tmp_path / "out", *option)
    assert result.exit_code == 2
    assert "Invalid value for '" in result.stderr
    assert f"'{option[0]}'" in result.stderr
    assert BAD_VALUES[option] in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--depth", 2), "--depth must be 0 without --mtp, --draft-model or --drafter lookup; received 2"),
        (("--workers", 0), "--workers 0 needs --broker"),
        (("--drafter", "auto"), "--drafter auto needs --mtp or --draft-model"),
        (("--mtp", "a", "--draft-model", "b"), "one of them drafts; received both"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(prompts, tmp_path, words, says):
    result = specmill("run", prompts, "--out", tmp_path / "out", *words)
    assert (result.exit_code, says in result.stderr) == (2, True)


def test_what_specmill_refuses_is_one_message_and_no_traceback(tmp_path, prompts):
    out = tmp_path / "out"
    cases = {
        (tmp_path / "none.jsonl",): "cannot read",
        (prompts, "--id-column", "a["): "a column must be a name",
        (prompts, "--prompt-column", "question"): "line 1: no column 'question'",
        (prompts, "--model", "no-such-model"): "no model 'no-such-model'",
        (prompts, "--model", "scripted", "--mtp", tmp_path / "none.safetensors"): "no MTP head",
    }
    for words, says in cases.items():
        result = specmill("run", *words, "--out", out)
        assert (result.exit_code, result.stderr.count("Error: "), "Traceback" in result.output) == (1, 1, False), words
        assert says in result.stderr
        assert not out.exists()


def test_every_error_of_the_tree_ends_as_a_message(monkeypatch):
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SpecmillError)]
    assert len(kinds) > 15
    for kind in kinds:
        error = kind(1, 1, 1) if kind is errors.NonFiniteLogitsError else kind("says why")
        monkeypatch.setattr("worker.engine.model_store.resolve_model", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        result = specmill("model", "path", "x")
        assert (result.exit_code, result.stderr) == (1, f"Error: {error}\n")


def test_model_path_prints_where_the_model_is(monkeypatch, tmp_path):
    monkeypatch.setattr("worker.engine.model_store.resolve_model", lambda name, offline: tmp_path / name if offline else None)
    assert specmill("model", "path", "m").output == f"{tmp_path / 'm'}\n"


def test_model_fetch_keeps_progress_off_standard_output(monkeypatch, tmp_path):
    def resolve(name, report):
        report("fetching")
        return tmp_path / name

    monkeypatch.setattr("worker.engine.model_store.resolve_model", resolve)
    result = specmill("model", "fetch", "m")
    assert (result.stdout, result.stderr) == (f"{tmp_path / 'm'}\n", "fetching\n")


def test_the_worker_takes_the_broker_from_the_environment(monkeypatch):
    seen = []

    class Supervisor:
        def __init__(self, count, broker_url, settings):
            seen.append((count, broker_url, settings.name, settings.models))

        def run(self):
            return 3

    monkeypatch.setattr("producer.worker_supervisor.WorkerSupervisor", Supervisor)
    result = CliRunner(env={"SPECMILL_BROKER": "redis://here"}).invoke(main, ["worker", "--name", "w", "--models", "a,b"])
    assert (result.exit_code, seen) == (3, [(1, "redis://here", "w", ("a", "b"))])
    assert CliRunner().invoke(main, ["worker"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "cannot use /x: permission denied; give a place that you may read and"),
        (OSError(errno.ENOSPC, "No space left on device"), "the system refuses: no space left on device; free some space"),
        (OSError("odd"), "the system refuses: odd"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(monkeypatch, error, says):
    def refuse(name, offline):
        raise error

    monkeypatch.setattr("worker.engine.model_store.resolve_model", refuse)
    result = specmill("model", "path", "m")
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {says}")


def test_numbers_of_things_have_their_plural():
    assert [counted(count, "row") for count in (0, 1, 2, 4096)] == ["0 rows", "1 row", "2 rows", "4,096 rows"]
