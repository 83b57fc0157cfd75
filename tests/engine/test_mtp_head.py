"""The head against a plain numpy restatement of its formula, and what is refused."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from restatement import decoder_layer, rms_norm
from safetensors.numpy import load_file, save_file

from schemas.errors import DecodeError, HeadError
from worker.engine.head_contract import HeadContract
from worker.engine.mtp_head import MTPHead
from worker.engine.static_cache import Cursor, StaticCache
from worker.engine.trunk import Trunk

EPS, THETA = 1e-5, 10000.0


@pytest.fixture(scope="module")
def trunk(tiny) -> Trunk:
    return Trunk.load(tiny[0], mx.float32)


def restated_head(
    w: dict[str, np.ndarray], embedding: np.ndarray, hidden: np.ndarray, tokens: list[int], heads: int, kv_heads: int
) -> np.ndarray:
    """Post-norm hidden states [T, D] in float64, written from the formula."""
    halves = [rms_norm(embedding[tokens], w["ne.weight"], EPS), rms_norm(hidden, w["nh.weight"], EPS)]
    x = np.concatenate(halves, axis=-1) @ w["fc.weight"].T
    return rms_norm(decoder_layer(w, "block.", x, heads, kv_heads, EPS, THETA), w["norm.weight"], EPS)


def test_the_head_computes_its_formula(tiny, trunk: Trunk) -> None:
    weights = {name: tensor.astype(np.float64) for name, tensor in load_file(tiny[1]).items()}
    embedding = load_file(tiny[0] / "model.safetensors")["model.embed_tokens.weight"].astype(np.float64)
    hidden = np.random.default_rng(0).standard_normal((7, trunk.width))
    tokens = [5, 9, 200, 17, 4, 4, 31]
    head = MTPHead.load(tiny[1], trunk, mx.float32)
    cursor = Cursor(mx.array([0], mx.int32), tokens=7, window=16)
    normed, _ = head.forward(mx.array(hidden[None].astype(np.float32)), mx.array([tokens]), StaticCache(16), cursor)
    expected = restated_head(weights, embedding, hidden, tokens, heads=4, kv_heads=2)
    np.testing.assert_allclose(np.array(normed)[0], expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(np.array(head.logits(normed))[0], expected @ embedding.T, rtol=2e-3, atol=2e-3)


def test_the_contract_travels_in_the_file_and_decides_the_order(tiny, trunk: Trunk, tmp_path: Path) -> None:
    weights = load_file(tiny[1])
    width = trunk.width
    swapped = {**weights, "fc.weight": np.concatenate([weights["fc.weight"][:, width:], weights["fc.weight"][:, :width]], axis=1)}
    save_file(swapped, tmp_path / "swapped.safetensors", metadata={"contract": HeadContract(concat="hidden_embedding").to_json()})
    hidden, tokens = mx.random.normal((1, 3, width), key=mx.random.key(1)), mx.array([[5, 6, 7]])
    outputs = []
    for path in (tiny[1], tmp_path / "swapped.safetensors"):
        cursor = Cursor(mx.array([0], mx.int32), tokens=3, window=16)
        outputs.append(np.array(MTPHead.load(path, trunk, mx.float32).forward(hidden, tokens, StaticCache(16), cursor)[0]))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)


def test_pre_norm_choices_feed_the_other_hidden_states(tiny, trunk: Trunk, tmp_path: Path) -> None:
    save_file(
        load_file(tiny[1]),
        tmp_path / "h.safetensors",
        metadata={"contract": HeadContract(base_hidden="pre_norm", recycled_hidden="pre_norm").to_json()},
    )
    head = MTPHead.load(tmp_path / "h.safetensors", trunk, mx.float32)
    before, after = mx.zeros((1, 1, trunk.width)), mx.ones((1, 1, trunk.width))
    assert head.base_hidden(before, after) is before
    cursor = Cursor(mx.array([0], mx.int32), tokens=1, window=16)
    normed, recycled = head.forward(after, mx.array([[5]]), StaticCache(16), cursor)
    np.testing.assert_allclose(np.array(head.norm(recycled)), np.array(normed), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("fc.weight"), "fc.weight"),
        (lambda w: w.update({"extra.weight": np.zeros((2, 2), np.float32)}), "unknown tensors \\['extra.weight'\\]"),
        (lambda w: w.update({"ne.weight": np.zeros(5, np.float32)}), "ne.weight must have shape \\[32\\]; received \\[5\\]"),
        (lambda w: w.update({"draft_vocab": np.array([1, 1], np.int32)}), "distinct"),
        (lambda w: w.update({"draft_vocab": np.array([1, 300], np.int32)}), "\\[0, 299\\]; received ids from 1 to 300"),
        (lambda w: w.update({"draft_vocab": np.array([], np.int32)}), "distinct"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_by_name(tiny, trunk: Trunk, tmp_path: Path, change, message: str) -> None:
    weights = dict(load_file(tiny[1]))
    change(weights)
    save_file(weights, tmp_path / "bad.safetensors")
    with pytest.raises(HeadError, match=message):
        MTPHead.load(tmp_path / "bad.safetensors", trunk, mx.float32)


def test_what_is_no_head_at_all_is_refused(tiny, trunk: Trunk, tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(HeadError, match="not a readable safetensors file"):
        MTPHead.load(tmp_path / "bad.safetensors", trunk, mx.float32)
    save_file(load_file(tiny[1]), tmp_path / "h.safetensors", metadata={"contract": '{"v":1,"concat":"sideways"}'})
    with pytest.raises(DecodeError, match="HeadContract"):
        MTPHead.load(tmp_path / "h.safetensors", trunk, mx.float32)
