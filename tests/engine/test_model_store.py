"""References to models and heads become files, or an error that says what to do; digests follow the content."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import HeadError, ModelError
from worker.distill.distillation import read_distillation
from worker.engine import model_store


def as_folder(path: Path, **files: str | bytes) -> Path:
    """A folder with these files; `__` in a name stands for a dot."""
    path.mkdir(parents=True)
    for name, content in files.items():
        target = path / name.replace("__", ".")
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


WHOLE: dict[str, str | bytes] = {"config__json": '{"model_type": "llama"}', "model__safetensors": b"", "tokenizer__json": "{}"}
EMPTY_SAFETENSORS = (2).to_bytes(8, "little") + b"{}"


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECMILL_CACHE", str(tmp_path / "here"))
    assert model_store.cache_dir() == tmp_path / "here"
    monkeypatch.delenv("SPECMILL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert model_store.cache_dir() == tmp_path / ".cache" / "specmill"
    monkeypatch.setattr("sys.platform", "darwin")
    assert model_store.cache_dir() == tmp_path / "Library" / "Caches" / "specmill"


def test_local_folder_is_taken_as_it_is(tiny_llama: Callable[..., Path], own_cache: Path) -> None:
    folder = tiny_llama()
    assert model_store.resolve_model(str(folder)) == folder
    assert not own_cache.exists()


def test_cached_model_needs_no_network(own_cache: Path) -> None:
    folder = as_folder(own_cache / "models" / "smollm2-135m", **WHOLE)
    assert model_store.resolve_model("smollm2-135m", offline=True) == folder


def test_offline_and_not_cached_says_how_to_fetch(own_cache: Path) -> None:
    with pytest.raises(ModelError, match="specmill model fetch smollm2-135m"):
        model_store.resolve_model("smollm2-135m", offline=True)
    with pytest.raises(ModelError, match="not on this disk and the network is off"):
        model_store.resolve_model("nobody-here/no-such-model", offline=True)


@pytest.mark.parametrize("reference", ["smollm3", "./nothing", "/nothing/at/all", "a/b/c", "", "owner/name@"])
def test_reference_of_no_known_form_is_refused(reference: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"smollm2-135m, a local folder with a config\.json, or a Hugging Face id"):
        model_store.resolve_model(reference)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config__json": None}, "has no config.json"),
        ({"config__json": "{"}, "not valid JSON"),
        ({"config__json": "[]"}, "with a model_type"),
        ({"model__safetensors": None, "pytorch_model__bin": b""}, r"no model\*.safetensors"),
        ({"tokenizer__json": None}, "holds no tokenizer"),
        (
            {"model__safetensors__index__json": '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'},
            "lacks 1 of .* model-2.safetensors",
        ),
        ({"model__safetensors__index__json": "{}"}, "not a weight index"),
    ],
)
def test_folder_that_lacks_something_names_it(change: dict[str, str | bytes | None], message: str, tmp_path: Path) -> None:
    files = {name: content for name, content in (WHOLE | change).items() if content is not None}
    folder = as_folder(tmp_path / "model", **files)
    with pytest.raises(ModelError, match=message):
        model_store.resolve_model(str(folder))


def test_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="is a file; a model is a folder"):
        model_store.resolve_model(str(tmp_path / "model.gguf"))


def test_head_is_found_as_file_and_in_every_usual_place(tmp_path: Path) -> None:
    for name in ("any-name.safetensors", "model-mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors", "own/deep.safetensors"):
        folder = tmp_path / name.replace("/", "-")
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_bytes(EMPTY_SAFETENSORS)
        assert model_store.resolve_head(str(file)) == file
        if name.startswith("own"):
            (folder / "config.json").write_text(json.dumps({"mlx_lm_extra_tensors": {"mtp_file": name}}))
        if not name.startswith("any"):
            assert model_store.resolve_head(str(folder)) == file


def test_the_head_that_comes_along_is_found_by_its_name_and_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = model_store.resolve_head("smollm2-mtp", offline=True)
    assert shipped.name == "smollm2-mtp.safetensors"
    assert shipped.stat().st_size <= 10_000_000
    assert (made := read_distillation(shipped)) is not None
    assert made.command in shipped.with_suffix(".md").read_text()
    with pytest.raises(HeadError, match="no MTP head at"):
        model_store.resolve_head("../heads/smollm2-mtp")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-mtp").mkdir()
    (tmp_path / "smollm2-mtp" / "mtp.safetensors").write_bytes(EMPTY_SAFETENSORS)
    assert model_store.resolve_head("smollm2-mtp") == Path("smollm2-mtp/mtp.safetensors"), "a path that exists is a path"


def test_no_head_is_a_head_error(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="no MTP head at"):
        model_store.resolve_head(str(tmp_path / "missing.safetensors"))
    with pytest.raises(HeadError, match=r"holds no MTP head: expected one of mtp\.safetensors"):
        model_store.resolve_head(str(tmp_path))
    for content in (b"", b"not safetensors at all", (1 << 40).to_bytes(8, "little") + b"{}"):
        (tmp_path / "mtp.safetensors").write_bytes(content)
        with pytest.raises(HeadError, match="not a safetensors file"):
            model_store.resolve_head(str(tmp_path))


def test_digests_cover_what_can_change_a_row_and_nothing_else(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "model", **WHOLE, chat_template__jinja="x", README__md="y", tokenizer_config__json="{}")
    digests = model_store.digest_folder(folder)
    assert list(digests) == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert digests["chat_template.jinja"] == hashlib.sha256(b"x").hexdigest()


def big_file(path: Path, fill: bytes) -> Path:
    path.write_bytes(fill * (model_store.SMALL_FILE + 1))
    return path


def test_big_digest_is_remembered_until_the_file_changes(own_cache: Path, tmp_path: Path) -> None:
    file = big_file(tmp_path / "model.safetensors", b"a")
    first = model_store.digest_file(file)
    assert first == hashlib.sha256(file.read_bytes()).hexdigest()
    status = file.stat()

    big_file(file, b"b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert model_store.digest_file(file) == first, "same path, size and time: the remembered digest, without reading the file"

    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert model_store.digest_file(file) == hashlib.sha256(file.read_bytes()).hexdigest() != first


def test_digest_follows_a_link_to_the_file_itself(own_cache: Path, tmp_path: Path) -> None:
    file = big_file(tmp_path / "blob", b"a")
    (tmp_path / "link").symlink_to(file)
    model_store.digest_file(tmp_path / "link")
    cached = json.loads((own_cache / "digests.json").read_text())["files"]
    assert list(cached) == [os.path.realpath(file)]


@pytest.mark.parametrize("broken", ["", "{", "[]", "null", '{"v": 99, "files": {}}', '{"v": 1}', '{"v": 1, "files": {"%s": [1, 2]}}'])
def test_broken_digest_cache_is_ignored_and_rewritten(broken: str, own_cache: Path, tmp_path: Path) -> None:
    file = big_file(tmp_path / "blob", b"a")
    own_cache.mkdir()
    (own_cache / "digests.json").write_text(broken.replace("%s", os.path.realpath(file)))
    digest = model_store.digest_file(file)
    assert digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert json.loads((own_cache / "digests.json").read_text())["files"][os.path.realpath(file)][2] == digest


def test_digest_cache_forgets_files_that_are_gone(own_cache: Path, tmp_path: Path) -> None:
    gone, kept = big_file(tmp_path / "gone", b"a"), big_file(tmp_path / "kept", b"b")
    model_store.digest_file(gone)
    gone.unlink()
    model_store.digest_file(kept)
    assert list(json.loads((own_cache / "digests.json").read_text())["files"]) == [os.path.realpath(kept)]
    assert [path.name for path in own_cache.iterdir()] == ["digests.json"]


def test_cache_that_cannot_be_written_costs_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "occupied").write_text("a file where the cache folder should be")
    monkeypatch.setenv("SPECMILL_CACHE", str(tmp_path / "occupied"))
    file = big_file(tmp_path / "blob", b"a")
    assert model_store.digest_file(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(ModelError, match="set SPECMILL_CACHE to another folder"):
        model_store.resolve_model("smollm2-135m")


def test_combined_digest_depends_on_names_and_content_but_not_on_order() -> None:
    one = model_store.combined_digest({"a": "1", "b": "2"})
    assert one == model_store.combined_digest({"b": "2", "a": "1"})
    assert one != model_store.combined_digest({"a": "2", "b": "1"})
    assert one != model_store.combined_digest({"a": "1"})
