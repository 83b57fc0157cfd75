"""`SamplerConfig`: what turns raw logits into the target and the draft distribution, and its wire form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.wire import Wire

_INTERVALS = {
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
MAX_TOKEN_ID = 2**31 - 1
MAX_BIAS = 100.0


@dataclass(frozen=True)
class SamplerConfig(Wire):
    """One configuration for target and draft alike (docs: exactness).

    The order: logit bias, repetition penalty, presence and frequency penalty, forbidden end tokens, temperature, softmax; then top-p, top-k
    and min-p, each measured on that full softmax. The filters rank the tokens alike, so the strictest one decides.

    Attributes:
        temperature: finite; ≤ 0 means greedy (one-hot at the argmax, lowest id on ties).
        top_p: nucleus mass in (0, 1], measured on the full tempered softmax; 1 = off.
        top_k: most candidates kept, ≥ 0; 0 = off.
        presence_penalty: OpenAI's, in [-2, 2]; subtracted once from the logit of every token the completion already holds.
        frequency_penalty: OpenAI's, in [-2, 2]; subtracted once per earlier occurrence.
        min_p: in [0, 1]; tokens less probable than this share of the most probable one are dropped; 0 = off.
        repetition_penalty: CTRL's (arXiv 1909.05858), in [0.01, 100]; of every token that the prompt or the completion already holds, a
            positive logit is divided by it and a negative one multiplied; 1 = off.
        logit_bias: token id, as a decimal string, → what is added to its raw logit, in [-100, 100], as in OpenAI's interface. Integer keys
            are taken too; it is stored in order of id.
        min_tokens: the tokens that end a completion have probability 0 at the first `min_tokens` ones; ≥ 0, 0 = off.

    Raises:
        ValueError: a value outside its interval; the message states the interval and the value.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = field(default_factory=dict, hash=False)
    min_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", *_INTERVALS):
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if not math.isfinite(self.temperature):
            raise ValueError(f"temperature must be finite (<= 0 means greedy); received {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1]; received {self.top_p}")
        for name in ("top_k", "min_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer >= 0 (0 = off); received {value!r}")
        for name, (low, high) in _INTERVALS.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}]; received {getattr(self, name)}")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the distribution is a one-hot at the argmax."""
        return self.temperature <= 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether token counts change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.reads_prompt

    @property
    def reads_prompt(self) -> bool:
        """Whether the tokens of the prompt change the logits."""
        return self.repetition_penalty != 1.0

    @property
    def filters(self) -> bool:
        """Whether tokens are dropped by their rank or probability."""
        return self.greedy or self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number; received {value!r}")
    return float(value)


def _checked_bias(given: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ValueError(f"logit_bias must be an object of token ids; received {given!r}")
    biases: dict[int, float] = {}
    for key, value in given.items():
        text = str(key)
        if isinstance(key, bool) or not (text.isascii() and text.isdigit() and str(int(text)) == text and int(text) <= MAX_TOKEN_ID):
            raise ValueError(f"logit_bias must be keyed by token ids in [0, {MAX_TOKEN_ID}]; received {key!r}")
        bias = _number(f"logit_bias of token {text}", value)
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ValueError(f"logit_bias of token {text} must be in [-{MAX_BIAS:g}, {MAX_BIAS:g}]; received {bias}")
        biases[int(text)] = bias
    return {str(token): biases[token] for token in sorted(biases)}
