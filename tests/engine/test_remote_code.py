"""Code that comes with a model: it runs where that was asked for, and nowhere else."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from producer.cli import main
from worker.engine.model_store import digest_folder

CODE = "from pathlib import Path\nPath({marker!r}).touch()\nfrom mlx_lm.models.llama import Model, ModelArgs\n"
TOKENIZER = """from pathlib import Path
Path({marker!r}).touch()
from transformers import PreTrainedTokenizerFast
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture(params=["model", "tokenizer"])
def scene(
    request: pytest.FixtureRequest, tiny_llama: Callable[..., Path], own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """A model folder with code in it, and the file that the code makes when it runs."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, marker = tmp_path / "model", tmp_path / "has-run"
    shutil.copytree(tiny_llama(vocab_size=300, hidden=32, layers=1, heads=4, kv_heads=2, seed=8), model)
    if request.param == "model":
        (model / "own_model.py").write_text(CODE.format(marker=str(marker)))
        change(model / "config.json", model_file="own_model.py")
    else:
        (model / "own_tokenizer.py").write_text(TOKENIZER.format(marker=str(marker)))
        own = {"AutoTokenizer": [None, "own_tokenizer.OwnTokenizer"]}
        change(model / "tokenizer_config.json", auto_map=own, tokenizer_class="OwnTokenizer")
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    return SimpleNamespace(model=model, marker=marker, prompts=tmp_path / "prompts.txt", out=tmp_path / "out")


def change(path: Path, **values: object) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | values))


def specmill(*words: object) -> Result:
    return CliRunner(env={"SPECMILL_BROKER": None}).invoke(main, [str(word) for word in words])


def run_words(scene: SimpleNamespace) -> list[object]:
    return ["run", scene.prompts, "--out", scene.out, "--model", scene.model, "--raw", "--max-tokens", 3, "--slots", 2, "--quiet"]


def runs_only_trusted(scene: SimpleNamespace, *words: object, refusal: int = 1) -> None:
    """Give a command without the option, and then with it."""
    scene.marker.unlink(missing_ok=True)
    refused = specmill(*words)
    assert refused.exit_code == refusal, refused.output
    assert "comes with code of its own, which runs only with --trust-remote-code" in refused.output
    assert not scene.marker.exists()
    assert "Traceback" not in refused.output
    done = specmill(*words, "--trust-remote-code")
    assert done.exit_code == 0, done.output
    assert scene.marker.exists()


@pytest.fixture
def dataset(scene: SimpleNamespace) -> Path:
    done = specmill(*run_words(scene), "--logprobs", "--trust-remote-code")
    assert done.exit_code == 0, done.output
    return scene.out


def test_it_does_not_run_unless_it_is_trusted(scene: SimpleNamespace) -> None:
    runs_only_trusted(scene, *run_words(scene))


def test_verify_asks_too(scene: SimpleNamespace, dataset: Path) -> None:
    runs_only_trusted(scene, "verify", dataset, "--all", "--quiet", refusal=2)


only_the_model = pytest.mark.parametrize("scene", ["model"], indirect=True)  # the way to it is the tokenizer's too


@only_the_model
def test_what_makes_a_dataset_again_or_looks_into_it_asks_too(scene: SimpleNamespace, dataset: Path, tmp_path: Path) -> None:
    runs_only_trusted(scene, "rerun", dataset, "--out", tmp_path / "again", "--quiet")
    runs_only_trusted(scene, "show", dataset, "--row", "0", "--origins")


@only_the_model
def test_what_measures_asks_too(scene: SimpleNamespace) -> None:
    runs_only_trusted(scene, *run_words(scene), "--drafter", "lookup", "--depth", "auto")
    runs_only_trusted(scene, "tune", "--model", scene.model, "--slots", 1, "--max-tokens", 2, "--prompts", scene.prompts)


@only_the_model
def test_what_trains_and_judges_a_head_asks_too(scene: SimpleNamespace, dataset: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.safetensors"
    few = ("--steps", 1, "--draft-vocab", 40, "--evaluations", 1, "--held-out", 0.5, "--depth", 1)
    runs_only_trusted(scene, "distill", dataset, "--model", scene.model, "--out", head, *few, "--quiet")
    runs_only_trusted(scene, "model", "acceptance", head, dataset, "--model", scene.model, "--depth", 1, "--quiet")


@pytest.mark.parametrize("scene", ["tokenizer"], indirect=True)
def test_a_row_is_shown_without_it_and_coloured_with_it(scene: SimpleNamespace, dataset: Path) -> None:
    def show(*words: str) -> "subprocess.CompletedProcess[str]":
        """In a process of its own, whose modules are not ours."""
        command = [sys.executable, "-P", "-m", "producer.cli", "show", str(dataset), "--row", "0", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    scene.marker.unlink()
    plain = show()
    assert "tokens are not coloured" in plain.stderr
    assert "which runs only with --trust-remote-code" in plain.stderr
    assert "assistant" in plain.stdout
    assert not scene.marker.exists()
    assert "probability of a token" in show("--trust-remote-code").stdout
    assert scene.marker.exists()


def test_it_is_part_of_the_model(scene: SimpleNamespace) -> None:
    before = digest_folder(scene.model)
    (code,) = scene.model.glob("own_*.py")
    code.write_text(code.read_text() + "# changed\n")
    assert {name for name, digest in digest_folder(scene.model).items() if before[name] != digest} == {code.name}
