"""Heads as the families store them: each layout, read from where it lies, drafts what our own layout of the same weights drafts."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from engine_support import PROMPTS, make_spec, run
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save_file
from tiny_qwen import KINDS, make_qwen_head_weights, make_tiny_qwen

from schemas.errors import HeadError
from schemas.sampler import SamplerConfig
from worker.engine import model_store
from worker.engine.head_contract import HeadContract
from worker.engine.head_file import HeadFile
from worker.engine.mtp_head import MTPHead
from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk

LLAMA_LAYOUTS: dict[str, tuple[str, dict[str, str], HeadContract]] = {
    "qwen": (
        "mtp.",
        {"ne": "pre_fc_norm_embedding", "nh": "pre_fc_norm_hidden", "fc": "fc", "block": "layers.0", "norm": "norm"},
        HeadContract(),
    ),
    "deepseek": (
        "model.layers.2.",
        {"ne": "enorm", "nh": "hnorm", "fc": "eh_proj", "block": "", "norm": "shared_head.norm"},
        HeadContract(),
    ),
    "mimo": (
        "model.mtp_layers.0.",
        {"ne": "token_layernorm", "nh": "hidden_layernorm", "fc": "input_proj", "block": "", "norm": "final_layernorm"},
        HeadContract(concat="hidden_embedding"),
    ),
}


def in_layout(weights: dict[str, np.ndarray], prefix: str, names: dict[str, str]) -> dict[str, np.ndarray]:
    renamed = {}
    for name, tensor in weights.items():
        part, rest = name.split(".", 1)
        renamed[prefix + ".".join(filter(None, (names[part], rest)))] = tensor
    return renamed


def draft_states(head: MTPHead, width: int) -> np.ndarray:
    hidden = mx.random.normal((1, 5, width), key=mx.random.key(3))
    cursor = Cursor(mx.array([0], mx.int32), tokens=5, window=16)
    return np.array(head.forward(hidden, mx.array([[5, 9, 17, 4, 31]]), StaticCache(16), cursor)[0])


@pytest.mark.parametrize("layout", LLAMA_LAYOUTS)
def test_every_layout_of_one_head_drafts_the_same(tiny: tuple[Path, Path], tmp_path: Path, layout: str) -> None:
    prefix, names, contract = LLAMA_LAYOUTS[layout]
    trunk = Trunk.load(tiny[0], mx.float32)
    ours = load_file(tiny[1])
    theirs = in_layout(ours, prefix, names)
    if layout == "mimo":
        width = trunk.width
        fc = f"{prefix}input_proj.weight"
        theirs[fc] = np.concatenate([theirs[fc][:, width:], theirs[fc][:, :width]], axis=1)
    if layout == "deepseek":
        theirs[f"{prefix}embed_tokens.weight"] = np.zeros((300, trunk.width), np.float32)
        theirs[f"{prefix}shared_head.head.weight"] = np.zeros((300, trunk.width), np.float32)
    save_file(theirs, tmp_path / "head.safetensors")
    file = HeadFile.read(tmp_path / "head.safetensors")
    assert (file.layout, file.contract) == (layout, contract)
    expected = draft_states(MTPHead.load(tiny[1], trunk, mx.float32), trunk.width)
    received = draft_states(MTPHead.load(tmp_path / "head.safetensors", trunk, mx.float32), trunk.width)
    np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-5)  # MiMo's fc adds its halves in the other order


def test_a_files_own_contract_wins(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    own = HeadContract(base_hidden="pre_norm")
    prefix, names, _ = LLAMA_LAYOUTS["mimo"]
    save_file(in_layout(load_file(tiny[1]), prefix, names), tmp_path / "h.safetensors", metadata={"contract": own.to_json()})
    assert HeadFile.read(tmp_path / "h.safetensors").contract == own


def test_quantized_modules_are_recognised_one_by_one(
    tiny_llama: Callable[..., Path], tiny_head: Callable[..., Path], tmp_path: Path
) -> None:
    trunk_folder = tiny_llama(vocab_size=300, hidden=64, layers=1, heads=4, kv_heads=2, seed=30)
    trunk = Trunk.load(trunk_folder, mx.float32)
    plain = MTPHead.load(tiny_head(trunk_folder, seed=31), trunk, mx.float32)
    reference = draft_states(plain, trunk.width)
    bits = {"block.mlp.gate_proj": (32, 4), "block.mlp.up_proj": (64, 8), "block.self_attn.q_proj": (64, 8)}
    nn.quantize(
        plain, class_predicate=lambda path, _: dict(zip(("group_size", "bits"), bits[path], strict=True)) if path in bits else False
    )
    mx.save_safetensors(str(tmp_path / "q.safetensors"), dict(tree_flatten(plain.parameters())))
    loaded = MTPHead.load(tmp_path / "q.safetensors", trunk, mx.float32)
    assert (loaded.block.mlp.gate_proj.group_size, loaded.block.mlp.gate_proj.bits) == (32, 4)
    assert (loaded.block.mlp.up_proj.group_size, loaded.block.mlp.up_proj.bits) == (64, 8)
    assert isinstance(loaded.fc, nn.Linear)
    np.testing.assert_array_equal(draft_states(loaded, trunk.width), draft_states(plain, trunk.width))
    assert np.abs(draft_states(loaded, trunk.width) - reference).max() < 0.5


@pytest.fixture(scope="module", params=KINDS)
def qwen(request: pytest.FixtureRequest, tiny_llama: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A hybrid trunk and its head as a sidecar."""
    folder = make_tiny_qwen(tmp_path_factory.mktemp(request.param), request.param, tokenizer_from=tiny_llama(vocab_size=300), seed=21)
    head = tmp_path_factory.mktemp("head") / "mtp.safetensors"
    save_file(make_qwen_head_weights(load_model(folder)[0], seed=22), head)
    return folder, head


@pytest.mark.parametrize("depth", [1, 3])
def test_greedy_with_a_qwen_head_is_plain_greedy(qwen: tuple[Path, Path], depth: int) -> None:
    plain = run(make_spec(qwen[0], None, depth=0, max_tokens=12), PROMPTS[:4])
    for slots in (1, 3):
        completions = run(make_spec(*qwen, depth=depth, slots=slots, max_tokens=12), PROMPTS[:4])
        assert [completion.token_ids for completion in completions] == [completion.token_ids for completion in plain]


def test_rows_with_a_qwen_head_do_not_depend_on_neighbours(qwen: tuple[Path, Path]) -> None:
    spec = make_spec(*qwen, depth=2, slots=3, max_tokens=8, sampler=SamplerConfig(temperature=0.8, top_k=40))
    together = [completion.token_ids for completion in run(spec)]
    assert [run(spec, [prompt])[0].token_ids for prompt in PROMPTS] == together


def test_a_head_among_the_models_own_weights_is_found(qwen: tuple[Path, Path], tmp_path: Path) -> None:
    folder, head = qwen
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model-00001-of-00002.safetensors")
    save_file(load_file(head), tmp_path / "model-00002-of-00002.safetensors")
    assert model_store.resolve_head(str(tmp_path)) == tmp_path
    assert list(model_store.digest_head(tmp_path)) == ["model-00002-of-00002.safetensors"]
    trunk = Trunk.load(folder, mx.float32)
    expected = draft_states(MTPHead.load(head, trunk, mx.float32), trunk.width)
    np.testing.assert_array_equal(draft_states(MTPHead.load(tmp_path, trunk, mx.float32), trunk.width), expected)


def test_the_zero_centred_norms_of_an_original_repository_are_shifted(qwen: tuple[Path, Path], tmp_path: Path) -> None:
    """The original keeps convolutions as [C, 1, K] and norms minus one; where it lies decides, not its values."""
    folder, head = qwen
    trunk_weights = load_file(folder / "model.safetensors")
    raw = {name: np.moveaxis(tensor, 1, 2) if name.endswith("conv1d.weight") else tensor for name, tensor in trunk_weights.items()}
    norms = ("norm.weight", "norm_embedding.weight", "norm_hidden.weight")
    shifted = {name: tensor - 1 if name.endswith(norms) and tensor.ndim == 1 else tensor for name, tensor in load_file(head).items()}
    save_file({**raw, **shifted}, tmp_path / "model.safetensors")
    received = HeadFile.read(tmp_path).weights
    expected = HeadFile.read(head).weights
    assert received.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(np.array(received[name]), np.array(tensor), atol=1e-6, err_msg=name)


def test_half_a_head_names_what_is_missing(qwen: tuple[Path, Path], tmp_path: Path) -> None:
    weights = load_file(qwen[1])
    del weights["mtp.layers.0.self_attn.k_proj.weight"]
    save_file(weights, tmp_path / "half.safetensors")
    with pytest.raises(HeadError, match=r"missing tensors \['block.self_attn.k_proj.weight'\]"):
        MTPHead.load(tmp_path / "half.safetensors", Trunk.load(qwen[0], mx.float32), mx.float32)


def test_two_heads_in_one_file_and_none_at_all_are_refused(tmp_path: Path) -> None:
    marker = "mtp.pre_fc_norm_embedding.weight"
    save_file({name: np.zeros(2, np.float32) for name in (marker, f"model.{marker}")}, tmp_path / "two.safetensors")
    with pytest.raises(HeadError, match=r"one head; received several in the qwen layout, with the prefixes 'model\.mtp\.', 'mtp\.'"):
        HeadFile.read(tmp_path / "two.safetensors")
    save_file({"model.norm.weight": np.zeros(2, np.float32)}, tmp_path / "none.safetensors")
    with pytest.raises(HeadError, match="no MTP head of a known layout"):
        HeadFile.read(tmp_path / "none.safetensors")
