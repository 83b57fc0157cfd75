"""Code that comes with a model: it runs where that was asked for, and nowhere else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

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
    request: pytest.FixtureRequest, tiny_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


@pytest.fixture
def run(scene: SimpleNamespace) -> Callable[..., object]:
    def call(*words: object) -> object:
        arguments = ["run", scene.prompts, "--out", scene.out, "--model", scene.model, "--raw", "--max-tokens", 3, "--slots", 2, "--quiet"]
        return CliRunner(env={"SPECMILL_BROKER": None}).invoke(main, [str(word) for word in (*arguments, *words)])

    return call


def test_it_does_not_run_unless_it_is_trusted(scene: SimpleNamespace, run: Callable[..., SimpleNamespace]) -> None:
    refused = run()
    assert refused.exit_code == 1, refused.output
    assert "comes with code of its own, which runs only with --trust-remote-code" in refused.output
    assert not scene.marker.exists()
    assert "Traceback" not in refused.output
    done = run("--trust-remote-code")
    assert done.exit_code == 0, done.output
    assert scene.marker.exists()


def test_it_is_part_of_the_model(scene: SimpleNamespace) -> None:
    before = digest_folder(scene.model)
    (code,) = scene.model.glob("own_*.py")
    code.write_text(code.read_text() + "# changed\n")
    assert {name for name, digest in digest_folder(scene.model).items() if before[name] != digest} == {code.name}
