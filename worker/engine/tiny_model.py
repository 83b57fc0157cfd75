"""Tiny random Llama folders and MTP heads, made with numpy alone: real enough for mlx-lm to load, small enough for a checkup or a test.

`tests/conftest.py` offers them as the fixtures `tiny_llama` and `tiny_head`.
"""

import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

IM_START, IM_END, UNKNOWN = "<|im_start|>", "<|im_end|>", "<|unknown|>"  # ids 0, 1 (the end token) and 2
SPECIAL = (IM_START, IM_END, UNKNOWN)
FREQUENT = " etaoinshrdlucmfwypvbgkqjxz\n.,0123456789?!'-:"
RMS_EPS = 1e-5

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role ' + message['role']) }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Weights = dict[str, NDArray[np.float32] | NDArray[np.int32]]


def make_tiny_llama(
    folder: Path,
    *,
    vocab_size: int = 300,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    tie: bool = True,
    context: int = 512,
) -> Path:
    """Write a random Llama model, float32, with a byte-level tokenizer and a chat template; the same arguments give the same bytes.

    Args:
        folder: created when missing.
        vocab_size: 4 or more. Three special tokens, then single bytes with the most frequent letters first, then pairs of ASCII characters.
        hidden: width D; the feed-forward width is 2 D.
        layers: decoder layers.
        heads: query heads, each of D / heads.
        kv_heads: key and value heads, a divisor of `heads`.
        seed: of the weights.
        tie: whether the embedding is the output matrix too; otherwise there is an `lm_head.weight`.
        context: most positions, as the config states it.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": context,
        "rms_norm_eps": RMS_EPS,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tie,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    rng = np.random.default_rng(seed)
    # Rows of this length give logits of about unit deviation after a norm: neither flat nor certain.
    weights: Weights = {"model.embed_tokens.weight": _matrix(rng, vocab_size, hidden), "model.norm.weight": _norm(rng, hidden)}
    for layer in range(layers):
        weights |= _decoder_layer(rng, config, f"model.layers.{layer}.")
    if not tie:
        weights["lm_head.weight"] = _matrix(rng, vocab_size, hidden)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", _tokenizer(vocab_size))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(context))
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def make_tiny_head(path: Path, trunk_folder: Path, *, seed: int = 0, draft_vocab: int | list[int] | None = None) -> Path:
    """Write a random MTP head, float32, that fits a trunk: `ne`, `nh` (norms), `fc` [D, 2D], `block.*` (a decoder layer) and `norm`.

    Args:
        path: the file to write, or a folder to write `mtp.safetensors` into.
        trunk_folder: model folder whose config gives the sizes.
        seed: of the weights.
        draft_vocab: the ids the head may draft, or how many of the lowest; None for the whole vocabulary.

    Returns:
        The file.
    """
    config = json.loads((trunk_folder / "config.json").read_text(encoding="utf-8"))
    hidden = config["hidden_size"]
    rng = np.random.default_rng([seed, 1])  # not the trunk's stream of the same seed
    weights: Weights = {name: _norm(rng, hidden) for name in ("ne.weight", "nh.weight", "norm.weight")}
    weights["fc.weight"] = _matrix(rng, hidden, 2 * hidden)
    weights |= _decoder_layer(rng, config, "block.")
    if draft_vocab is not None:
        ids = range(draft_vocab) if isinstance(draft_vocab, int) else draft_vocab
        weights["draft_vocab"] = np.array(list(ids), dtype=np.int32)
    file = path if path.suffix == ".safetensors" else path / "mtp.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, file)
    return file


def _decoder_layer(rng: np.random.Generator, config: dict[str, object], prefix: str) -> Weights:
    """The tensors of one Llama decoder layer under Hugging Face's names."""
    hidden, inner, head_dim = (int(str(config[key])) for key in ("hidden_size", "intermediate_size", "head_dim"))
    heads, kv_heads = (int(str(config[key])) for key in ("num_attention_heads", "num_key_value_heads"))
    shapes = {
        "self_attn.q_proj": (heads * head_dim, hidden),
        "self_attn.k_proj": (kv_heads * head_dim, hidden),
        "self_attn.v_proj": (kv_heads * head_dim, hidden),
        "self_attn.o_proj": (hidden, heads * head_dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    weights: Weights = {f"{prefix}{name}.weight": _matrix(rng, *shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{prefix}{name}.weight"] = _norm(rng, hidden)
    return weights


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return (rng.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)


def _norm(rng: np.random.Generator, size: int) -> NDArray[np.float32]:
    return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)


def _tokenizer(vocab_size: int) -> dict[str, object]:
    """A byte-level BPE of exactly `vocab_size` tokens; bytes without a token of their own become the unknown token."""
    letters = list(dict.fromkeys([_symbol(ord(letter)) for letter in FREQUENT] + [_symbol(byte) for byte in range(256)]))
    ascii_letters = [_symbol(byte) for byte in range(33, 127)]
    pairs = [(first, second) for first in ascii_letters for second in ascii_letters]
    least, most = len(SPECIAL) + 1, len(SPECIAL) + len(letters) + len(pairs)
    if not least <= vocab_size <= most:
        raise ValueError(f"vocab_size must be in [{least}, {most}]; received {vocab_size}")
    letters = letters[: vocab_size - len(SPECIAL)]
    pairs = pairs[: vocab_size - len(SPECIAL) - len(letters)]
    tokens = [*SPECIAL, *letters, *(first + second for first, second in pairs)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [f"{first} {second}" for first, second in pairs],
        },
    }


def _tokenizer_config(context: int) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": IM_START,
        "eos_token": IM_END,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }


def _symbol(byte: int) -> str:
    """The character that stands for a byte in a byte-level vocabulary: itself if printable, else the next free one from U+0100 on."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    if byte in printable:
        return chr(byte)
    others = [b for b in range(256) if b not in printable]
    return chr(256 + others.index(byte))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
