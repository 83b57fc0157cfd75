"""Heads of several MTP layers: draft i is layer i mod n's, computed as if every layer had read the whole text anew."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from engine_support import PROMPTS, load_engine, make_requests, make_spec, run
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save_file
from tiny_qwen import make_qwen_head_weights, make_tiny_qwen

from schemas.errors import HeadError
from schemas.sampler import SamplerConfig
from worker.engine.head_file import HeadFile
from worker.engine.mtp_head import MTPHead
from worker.engine.session import Session
from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk

DEEPSEEK = {"ne": "enorm", "nh": "hnorm", "fc": "eh_proj", "norm": "shared_head.norm"}


def several_layers(tiny_head: Any, trunk: Path, count: int, target: Path) -> Path:
    """Random layers in DeepSeek's layout, behind the trunk's own layers."""
    weights = {}
    for layer in range(count):
        for name, tensor in load_file(tiny_head(trunk, seed=40 + layer)).items():
            part, rest = name.split(".", 1)
            weights[f"model.layers.{2 + layer}." + (rest if part == "block" else f"{DEEPSEEK[part]}.{rest}")] = tensor
    save_file(weights, target)
    return target


def drafts_from_scratch(trunk: Trunk, layers: tuple[MTPHead, ...], text: list[int], drafts: list[int]) -> np.ndarray:
    """The logits behind which each of the drafts was chosen, [K, V], every layer having read the whole text in one pass."""
    hidden = trunk.read(text, 64)[:-1]
    states = layers[0].base_hidden(hidden, trunk.norm(hidden))[None]
    following, caches, logits = text[1:], [StaticCache(512) for _ in layers], []
    last = states
    for step in range(len(drafts)):
        turn, number = divmod(step, len(layers))
        if turn == 0:
            following = following if step == 0 else [*following[1:], drafts[step - 1]]
            cursor = Cursor(mx.array([0], mx.int32), len(following), 512)
            normed, states = layers[number].forward(states, mx.array([following], mx.int32), caches[number], cursor)
            last = states[:, -1:]
        else:
            cursor = Cursor(mx.array([len(text) - 2 + turn], mx.int32), 1, 512)
            normed, last = layers[number].forward(last, mx.array([[drafts[step - 1]]], mx.int32), caches[number], cursor)
        logits.append(np.array(layers[number].logits(normed[0, -1])))
    return np.stack(logits)


@pytest.mark.parametrize(("count", "depth"), [(1, 3), (2, 2), (2, 5), (3, 2), (3, 4)])
def test_drafts_are_those_of_layers_that_read_the_whole_text(
    tiny: tuple[Path, Path], tiny_head: Any, tmp_path: Path, count: int, depth: int
) -> None:
    head = several_layers(tiny_head, tiny[0], count, tmp_path / "head.safetensors")
    spec = make_spec(tiny[0], head, depth=depth, sampler=SamplerConfig(temperature=3.0), max_tokens=16, prefill_chunk=16)
    engine = load_engine(spec)
    assert engine._head is not None
    layers = (engine._head, *engine._head.deeper)
    assert len(layers) == count
    for request in make_requests([PROMPTS[0], "a", "no"]):
        prompt = engine.trunk.tokenizer.encode(request.prompt)
        session, accepted = Session(engine, spec, request), 0
        while session.finish_reason is None:
            text, seen = [*prompt, *session.token_ids], session.get_logits()
            assert seen.draft is not None
            if len(text) > 1:  # a prompt of one token has no pair yet
                expected = drafts_from_scratch(engine.trunk, layers, text, seen.drafts)
                np.testing.assert_allclose(seen.draft, expected, atol=2e-4, rtol=1e-4)
            accepted += len(session.step()) - 1
        assert request.prompt != PROMPTS[0] or accepted > 0


def test_greedy_and_shared_noise_are_plain_decoding(tiny: tuple[Path, Path], tiny_head: Any, tmp_path: Path) -> None:
    head = several_layers(tiny_head, tiny[0], 2, tmp_path / "head.safetensors")
    for options in ({}, {"sampler": SamplerConfig(temperature=0.9), "coupling": "shared-noise"}):
        plain = [completion.token_ids for completion in run(make_spec(tiny[0], None, depth=0, **options))]
        for depth in (1, 3):
            assert [c.token_ids for c in run(make_spec(tiny[0], head, depth=depth, slots=3, **options))] == plain


def test_qwens_layers_share_all_but_their_blocks(tiny_llama: Any, tmp_path: Path) -> None:
    folder = make_tiny_qwen(tmp_path / "trunk", "qwen3_5", tokenizer_from=tiny_llama(vocab_size=300), seed=21)
    weights = make_qwen_head_weights(load_model(folder)[0], seed=22)
    other = make_qwen_head_weights(load_model(folder)[0], seed=23)
    second = {name.replace("layers.0.", "layers.1."): tensor for name, tensor in other.items() if "layers.0." in name}
    save_file(weights | second, tmp_path / "mtp.safetensors")
    trunk = Trunk.load(folder, mx.float32)
    head = MTPHead.load(tmp_path / "mtp.safetensors", trunk, mx.float32)
    (deeper,) = head.deeper
    np.testing.assert_array_equal(np.array(deeper.fc.weight), np.array(head.fc.weight))
    expected = other["mtp.layers.0.mlp.up_proj.weight"]
    np.testing.assert_array_equal(np.array(deeper.block.mlp.up_proj.weight), expected)
    plain = [completion.token_ids for completion in run(make_spec(folder, None, depth=0, max_tokens=8), PROMPTS[:2])]
    assert [c.token_ids for c in run(make_spec(folder, tmp_path / "mtp.safetensors", depth=3, max_tokens=8), PROMPTS[:2])] == plain

    del second["mtp.layers.1.mlp.up_proj.weight"]
    save_file(weights | second, tmp_path / "half.safetensors")
    with pytest.raises(HeadError, match=r"MTP layer 1\) does not fit the trunk: missing tensors \['block.mlp.up_proj.weight'\]"):
        MTPHead.load(tmp_path / "half.safetensors", trunk, mx.float32)
    save_file(weights | {name.replace("layers.1.", "layers.3."): tensor for name, tensor in second.items()}, tmp_path / "gap.safetensors")
    with pytest.raises(HeadError, match=r"numbered from 0 without a gap; received \[0, 3\]"):
        HeadFile.read(tmp_path / "gap.safetensors")
