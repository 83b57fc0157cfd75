"""A head named by a Hugging Face id: only what holds it is fetched, and it is the head that a local folder gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from local_hub import LocalHub
from mlx_lm.utils import load_model
from safetensors.numpy import load_file, save
from tiny_qwen import make_qwen_head_weights, make_tiny_qwen

from worker.engine.head_file import ZERO_CENTRED, HeadFile
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk

RESOLVE = """
import sys
from worker.engine.model_store import resolve_head
print(resolve_head(sys.argv[1], offline=len(sys.argv) > 2, report=lambda line: print(line, file=sys.stderr)))
"""


def resolve(hub: LocalHub, cache: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: huggingface_hub reads its settings when it is imported."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-P", "-c", RESOLVE, *words]
    return subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def qwen(tiny_llama, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A converted trunk, and the `mtp.*` tensors that its original repository would hold: norms stored minus one."""
    folder = make_tiny_qwen(tmp_path_factory.mktemp("qwen") / "trunk", "qwen3_5", tokenizer_from=tiny_llama(vocab_size=300, seed=3))
    head = make_qwen_head_weights(load_model(folder)[0], seed=2)
    return folder, {name: tensor - 1 if tensor.ndim == 1 and name.endswith(ZERO_CENTRED) else tensor for name, tensor in head.items()}


def repository(raw: dict[str, np.ndarray]) -> dict[str, bytes]:
    """An original repository in three parts, the second and third of which hold the head."""
    names = sorted(raw)
    parts = {
        "model-00001-of-00003.safetensors": {"model.embed_tokens.weight": np.zeros((4, 4), np.float32)},
        "model-00002-of-00003.safetensors": {name: raw[name] for name in names[:5]},
        "model-00003-of-00003.safetensors": {name: raw[name] for name in names[5:]},
    }
    index = {"weight_map": {name: file for file, tensors in parts.items() for name in tensors}}
    return {
        "config.json": b'{"model_type": "qwen3_5"}',
        "model.safetensors.index.json": json.dumps(index).encode(),
        "tokenizer.json": b"{}",
        **{file: save(tensors, metadata={"format": "pt"}) for file, tensors in parts.items()},
    }


def test_only_the_files_that_hold_the_head_are_fetched(qwen: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    trunk_folder, raw = qwen
    with LocalHub(repository(raw)) as hub:
        done = resolve(hub, tmp_path, "owner/name")
        assert done.returncode == 0, done.stderr
        assert "looking for owner/name on the Hugging Face hub" in done.stderr
        assert set(hub.fetched) == {
            "config.json",
            "model.safetensors.index.json",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
        }
        before = len(hub.fetched)
        assert resolve(hub, tmp_path, "owner/name", "offline").stdout == done.stdout
        assert len(hub.fetched) == before
    folder = Path(done.stdout.strip())
    shifted = HeadFile.read(folder).weights
    assert np.allclose(np.array(shifted["ne.weight"]), raw["mtp.pre_fc_norm_embedding.weight"] + 1)  # torch's norms, as mlx has them
    MTPHead.load(folder, Trunk.load(trunk_folder, mx.float32), mx.float32)


def test_a_sidecar_is_fetched_alone(tmp_path: Path, tiny_llama, tiny_head) -> None:
    head = tiny_head(tiny_llama(vocab_size=300, seed=3), seed=4)
    weights = save({"model.embed_tokens.weight": np.zeros((4, 4), np.float32)})
    with LocalHub({"config.json": b"{}", "model.safetensors": weights, "mtp.safetensors": head.read_bytes()}) as hub:
        done = resolve(hub, tmp_path, "owner/name")
    assert set(hub.fetched) == {"config.json", "mtp.safetensors"}
    assert load_file(done.stdout.strip()).keys() == load_file(head).keys()


def test_a_repository_without_a_head_says_so(tmp_path: Path) -> None:
    files = {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {"lm_head.weight": "model-1.safetensors"}}'}
    with LocalHub({**files, "model-1.safetensors": save({"lm_head.weight": np.zeros((4, 4), np.float32)})}) as hub:
        done = resolve(hub, tmp_path, "owner/name")
        assert "HeadError" in done.stderr
        assert "holds no MTP head: expected one of mtp.safetensors" in done.stderr
        assert set(hub.fetched) == {"config.json", "model.safetensors.index.json"}
        lost = resolve(hub, tmp_path / "empty", "owner/name", "offline")
    assert "owner/name is not on this disk and the network is off" in lost.stderr
