"""`sampler_text`, `form_text` and `drafter_text`: how a run samples, in a line each for people."""

from dataclasses import fields

from schemas.run_spec import RunSpec
from schemas.sampler import SamplerConfig

_ALWAYS = ("temperature", "top_p", "top_k")
_LONGEST = 200  # characters of a schema that are shown


def sampler_text(sampler: SamplerConfig) -> str:
    """Temperature, top-p and top-k, and whatever else differs from its neutral value: `temperature 0.7, top-p 0.95, top-k 0`."""
    neutral = SamplerConfig()
    shown = [
        field.name for field in fields(sampler) if field.name in _ALWAYS or getattr(sampler, field.name) != getattr(neutral, field.name)
    ]
    return ", ".join(f"{_words(name)} {_value(getattr(sampler, name))}" for name in shown)


def form_text(spec: RunSpec) -> str:
    """What else decides how completions look and where they end: `regex [0-9]+; at most 100 tokens of thinking`, or nothing."""
    parts = []
    if spec.constraint is not None:
        text = spec.constraint.text
        parts.append(f"{spec.constraint.kind} {text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}")
    if spec.ignore_eos:
        parts.append("end tokens ignored")
    if spec.thinking_budget is not None:
        parts.append(f"at most {spec.thinking_budget:,} tokens of thinking")
    return "; ".join(parts)


def drafter_text(spec: RunSpec) -> str:
    """Who drafts, and how deep: `head mtp.safetensors (sha256 0123456789ab…), depth 2`."""
    if spec.profile.depth == 0:
        return "none (plain autoregressive decoding)"
    source = spec.head or spec.draft_model
    named = f" {source.name} (sha256 {source.digest[:12]}…)" if source is not None and spec.drafter != "lookup" else ""
    return f"{spec.drafter}{named}, depth {spec.profile.depth}"


def _words(name: str) -> str:
    return {"top_p": "top-p", "top_k": "top-k", "min_p": "min-p"}.get(name, name.replace("_", " "))


def _value(value: float | dict[str, float]) -> str:
    if isinstance(value, dict):
        return " ".join(f"{token}={bias:g}" for token, bias in value.items())
    return f"{value:g}"
