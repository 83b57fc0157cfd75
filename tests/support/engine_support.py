"""Engines over small models, the specs they run under, and what of a completion is compared."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from schemas.profile import ExecutionProfile
from schemas.run_spec import ModelRef, RunSpec
from schemas.sampler import SamplerConfig
from worker.engine import model_store
from worker.engine.completion import Completion, Request
from worker.engine.engine import Timings
from worker.engine.mtp_engine import MTPEngine

GREEDY = SamplerConfig(temperature=0.0)
PROMPTS = [
    "Tell me a story about the sea.",
    "2 + 2 = ?",
    "hi",
    "List three colours, and say why each of them is liked by people.",
    "no",
    "why?",
]


def make_spec(model: Path, head: Path | None, **changes: Any) -> RunSpec:
    """A spec over local files; changes go to the profile where it has the field, else to the spec."""
    profile_names = {field.name for field in dataclasses.fields(ExecutionProfile)}
    profile = {"slots": 4, "depth": 2, "capacities": (128, 256, 512), **{name: changes[name] for name in changes if name in profile_names}}
    values: dict[str, Any] = {
        "run_id": "test",
        "model": model_ref(model),
        "head": head_ref(head) if head is not None else None,
        "sampler": GREEDY,
        "max_tokens": 24,
        "stop": (),
        "samples": 1,
        "seed": 7,
        "coupling": "rejection",
        "profile": ExecutionProfile(**profile),
        "raw": True,
        "logprobs": True,
        "shard_size": 64,
        "records": 64,
        "prompts_digest": "",
    }
    return RunSpec(**{**values, **{name: changes[name] for name in changes if name not in profile_names}})


def model_ref(folder: Path) -> ModelRef:
    files = model_store.digest_folder(folder)
    return ModelRef(str(folder), model_store.combined_digest(files), files)


def head_ref(path: Path) -> ModelRef:
    files = model_store.digest_head(path)
    return ModelRef(str(path), model_store.combined_digest(files), files)


def make_requests(prompts: list[str], samples: int = 1, first_key: int = 1000) -> list[Request]:
    """Requests whose keys depend on the prompt and the sample only, never on their order."""
    keys = {prompt: first_key + 97 * sum(prompt.encode()) for prompt in prompts}
    return [
        Request(index=index, sample=sample, key=keys[prompt] + sample, prompt=prompt, messages=None, bad_input=None)
        for index, prompt in enumerate(prompts)
        for sample in range(samples)
    ]


def complete(engine: MTPEngine, spec: RunSpec, requests: list[Request]) -> list[Completion]:
    return engine.complete(spec, requests, Timings(), lambda tally: None)


@cache
def _load(spec_json: str) -> MTPEngine:
    return MTPEngine.load(RunSpec.from_json(spec_json))


def load_engine(spec: RunSpec) -> MTPEngine:
    """The engine of a spec, loaded once per model, drafter and profile in a test session."""
    neutral = dataclasses.replace(spec, sampler=GREEDY, max_tokens=1, stop=(), samples=1, seed=0, logprobs=False, raw=True)
    return _load(neutral.to_json())


def fresh_engine(spec: RunSpec, *, row_invariant: bool | None = None) -> MTPEngine:
    """An engine that has read nothing yet, over the model of `load_engine`; it may be told that its backend is not row-invariant."""
    loaded = load_engine(spec)
    engine = MTPEngine(loaded.trunk, loaded._head, loaded._draft_model, spec.profile)
    if row_invariant is not None:
        engine.backend = dataclasses.replace(engine.backend, row_invariant=row_invariant)
    return engine


def run(spec: RunSpec, prompts: list[str] = PROMPTS) -> list[Completion]:
    """The completions of the prompts under a spec, in order."""
    return complete(load_engine(spec), spec, make_requests(prompts, spec.samples))


def essence(completion: Completion) -> tuple[object, ...]:
    """Everything of a completion that reaches the dataset, for comparisons bit by bit."""
    return (
        completion.request.key,
        completion.token_ids,
        completion.text,
        completion.finish_reason,
        completion.logprobs,
        completion.acceptance.column(),
    )


def make_agreeing_head(path: Path, trunk: Path) -> Path:
    """A head for a trunk of one layer that repeats the trunk's own computation on the newest tokens, so that its drafts are often right."""
    weights = load_file(trunk / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    width = embedding.shape[1]
    scale = float(np.sqrt(np.mean(embedding**2)))
    block = {name.replace("model.layers.0.", "block."): tensor for name, tensor in weights.items() if name.startswith("model.layers.0.")}
    head = {
        "ne.weight": np.ones(width, np.float32),
        "nh.weight": np.ones(width, np.float32),
        "fc.weight": np.concatenate([scale * np.eye(width, dtype=np.float32), np.zeros((width, width), np.float32)], axis=1),
        "norm.weight": weights["model.norm.weight"],
        **block,
    }
    save_file(head, path)
    return path
